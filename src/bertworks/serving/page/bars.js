// Horizontal bars: names and ratios in, an accessible list out.

import { el } from "./elements.js";
import { formatPercent } from "./i18n.js";

/**
 * Return a list of {name, ratio}. `isBest` emphasizes a row, `isToken` sets its name in the token font, `note` follows
 * the name. `onHover` gets the index of the row under the pointer or focus, then null.
 */
export function bars(rows, { onHover = null, isWide = false } = {}) {
  const items = rows.map((row, index) => {
    const name = el("span", { class: row.isToken ? "bar-name token" : "bar-name" }, row.name);
    if (row.note) name.append(" ", el("span", { class: "bar-note" }, row.note));
    const track = el("span", { class: "track", "aria-hidden": "true", style: { "--ratio": row.ratio } });
    const value = el("span", { class: "bar-value" }, formatPercent(row.ratio));
    const item = el("li", { class: row.isBest ? "best" : null }, name, track, value);
    if (onHover)
      makeHoverable(
        item,
        () => onHover(index),
        () => onHover(null),
      );
    return item;
  });
  return el("ol", { class: isWide ? "bars wide" : "bars" }, items);
}

function makeHoverable(item, onEnter, onLeave) {
  item.setAttribute("tabindex", 0);
  item.classList.add("hoverable");
  for (const event of ["pointerenter", "focus"]) item.addEventListener(event, onEnter);
  for (const event of ["pointerleave", "blur"]) item.addEventListener(event, onLeave);
}
