// A table: titles and rows in, a table out, alone or folded away as the other way to read a picture.

import { el } from "./elements.js";
import { say } from "./words.js";

/** Return a table; a cell that is a number's text stands right, and so does its title, where `numbers` says so. */
export function table(caption, titles, rows, numbers = []) {
  const kind = (column) => (numbers.includes(column) ? "number" : null);
  const head = titles.map((title, column) => el("th", { scope: "col", class: kind(column) }, title));
  const body = rows.map((row) =>
    el(
      "tr",
      {},
      row.map((cell, column) => el("td", { class: kind(column) }, cell)),
    ),
  );
  const inside = [
    el("caption", { class: "unseen" }, caption),
    el("thead", {}, el("tr", {}, head)),
    el("tbody", {}, body),
  ];
  const region = { class: "scrolled", tabindex: "0", role: "region", "aria-label": caption };
  return el("div", region, el("table", {}, inside));
}

/** Return the table folded away; its rows are made when somebody opens it, since a picture may have many. */
export function foldedTable(caption, titles, rows, numbers = []) {
  const folded = el("details", { class: "as-table" }, el("summary", {}, say("page.as_table")));
  folded.addEventListener(
    "toggle",
    () => folded.append(table(caption, titles, typeof rows === "function" ? rows() : rows, numbers)),
    { once: true },
  );
  return folded;
}
