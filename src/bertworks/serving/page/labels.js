// Labels of models: a label in, its text in the language of the page out; a label that we do not know stays as it is.

import { language, tOrDefault } from "./i18n.js";

/** Return a label for readers: in Chinese the word for it, in English the label itself. */
export function labelText(label) {
  return language() === "zh" ? translation(label) : label;
}

/** Return the other name of a label, for its title: the word in English, the label itself in Chinese. */
export function labelTitle(label) {
  return language() === "zh" ? label : translation(label);
}

function translation(label) {
  return tOrDefault(`label.${label.toLowerCase()}`, label);
}
