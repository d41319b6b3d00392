// Tables: headers and rows in, a table out, optionally collapsed.

import { el } from "./elements.js";
import { t } from "./i18n.js";

/** Return a table; `numericColumns` are right-aligned. */
export function table(caption, headers, rows, numericColumns = []) {
  const columnClass = (column) => (numericColumns.includes(column) ? "number" : null);
  const head = headers.map((header, column) => el("th", { scope: "col", class: columnClass(column) }, header));
  const body = rows.map((row) =>
    el(
      "tr",
      {},
      row.map((cell, column) => el("td", { class: columnClass(column) }, cell)),
    ),
  );
  const sections = [
    el("caption", { class: "visually-hidden" }, caption),
    el("thead", {}, el("tr", {}, head)),
    el("tbody", {}, body),
  ];
  const region = { class: "scroll-container", tabindex: "0", role: "region", "aria-label": caption };
  return el("div", region, el("table", {}, sections));
}

/** Return a collapsed table; its rows, which may be a function, are created when it is opened. */
export function collapsedTable(caption, headers, rows, numericColumns = []) {
  const details = el("details", { class: "data-table" }, el("summary", {}, t("page.as_table")));
  details.addEventListener(
    "toggle",
    () => details.append(table(caption, headers, typeof rows === "function" ? rows() : rows, numericColumns)),
    { once: true },
  );
  return details;
}
