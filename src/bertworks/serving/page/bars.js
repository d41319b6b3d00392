// Shares as bars: names and shares of 1 in, a list out that reads well with and without the picture.

import { el } from "./elements.js";
import { percent } from "./words.js";

/**
 * Return a list of {name, share}, drawn to the scale of 1. `isBest` makes a row stand out, `isPiece` sets its name as a
 * piece, `note` is a mark behind the name. `pointed` is told a row's number while somebody points at it, then null.
 */
export function bars(rows, { pointed = null, isWide = false } = {}) {
  const items = rows.map((row, number) => {
    const name = el("span", { class: row.isPiece ? "bar-name piece" : "bar-name" }, row.name);
    if (row.note) name.append(" ", el("span", { class: "mark" }, row.note));
    const track = el("span", { class: "track", "aria-hidden": "true", style: { "--share": row.share } });
    const share = el("span", { class: "bar-share" }, percent(row.share));
    const item = el("li", { class: row.isBest ? "best" : null }, name, track, share);
    if (pointed)
      makePointable(
        item,
        () => pointed(number),
        () => pointed(null),
      );
    return item;
  });
  return el("ol", { class: isWide ? "bars wide" : "bars" }, items);
}

function makePointable(item, enter, leave) {
  item.setAttribute("tabindex", 0);
  item.classList.add("pointable");
  for (const event of ["pointerenter", "focus"]) item.addEventListener(event, enter);
  for (const event of ["pointerleave", "blur"]) item.addEventListener(event, leave);
}
