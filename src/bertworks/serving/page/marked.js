// Text with marks in it: a text and spans of its characters in, elements out.

import { el } from "./elements.js";

/**
 * Return the characters of a text. The server counts them as Python does, one each, while JavaScript counts some, such
 * as 😀 and rare ideographs, twice.
 */
export function charactersOf(text) {
  return Array.from(text);
}

/** Return the text as a list of strings and of what `make` gives for each span {start, end, …}; none may overlap. */
export function marked(text, spans, make) {
  const characters = charactersOf(text);
  const parts = [];
  let at = 0;
  for (const span of [...spans].sort((one, other) => one.start - other.start)) {
    if (span.start < at) continue;
    parts.push(characters.slice(at, span.start).join(""));
    parts.push(make(characters.slice(span.start, span.end).join(""), span));
    at = span.end;
  }
  parts.push(characters.slice(at).join(""));
  return parts.filter((part) => part !== "");
}

/** Return a paragraph of somebody's own text: its language is not the page's. */
export function quotedText(parts, properties = {}) {
  return el("p", { dir: "auto", lang: "", ...properties, class: `reading ${properties.class ?? ""}`.trim() }, parts);
}
