// Highlighted text: a text and character spans in, a list of strings and elements out.

import { el } from "./elements.js";

/** Split a text into code points: spans count those, as Python does, while JavaScript counts UTF-16 units. */
export function codePoints(text) {
  return Array.from(text);
}

/** Return the text as strings and `render(text, span)` for each span {start, end, …}; overlapping spans are skipped. */
export function highlight(text, spans, render) {
  const characters = codePoints(text);
  const parts = [];
  let end = 0;
  for (const span of [...spans].sort((a, b) => a.start - b.start)) {
    if (span.start < end) continue;
    parts.push(characters.slice(end, span.start).join(""));
    parts.push(render(characters.slice(span.start, span.end).join(""), span));
    end = span.end;
  }
  parts.push(characters.slice(end).join(""));
  return parts.filter((part) => part !== "");
}

/** Return a paragraph of the user's text, whose language is not that of the page. */
export function quote(parts, properties = {}) {
  return el("p", { dir: "auto", lang: "", ...properties, class: `quote ${properties.class ?? ""}`.trim() }, parts);
}
