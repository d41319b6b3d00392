// The language of the page: names of words in, English or Chinese out; and numbers, shares and times as people write.

import { CHINESE } from "./chinese.js";
import { ENGLISH } from "./english.js";

const LANGUAGES = { en: ENGLISH, zh: CHINESE };
const REMEMBERED = "bertworks-language";

let current = first();

export function language() {
  return current;
}

/** Choose a language, and remember it for the next visit. */
export function setLanguage(chosen) {
  current = chosen;
  remember(REMEMBERED, chosen);
  document.documentElement.lang = chosen === "zh" ? "zh-Hans" : "en";
}

/** Return the words called `name`, with {places} replaced by `values`. */
export function say(name, values = {}) {
  const words = LANGUAGES[current][name];
  if (words === undefined) throw new Error(`there are no words called ${name}`);
  return words.replace(/\{(\w+)\}/g, (_, place) => String(values[place]));
}

/** Return a count with its word: "1 piece", "14 pieces". */
export function sayCount(name, count) {
  return say(count === 1 ? `${name}.one` : `${name}.many`, { count: number(count) });
}

export function number(value, digits = 0) {
  return new Intl.NumberFormat(current, { maximumFractionDigits: digits }).format(value);
}

/** Return a number with that many digits that count, which suits losses and rates. */
export function figure(value, digits = 3) {
  if (!Number.isFinite(value)) return String(value);
  const isTiny = value !== 0 && Math.abs(value) < 1e-3;
  if (isTiny) return Number(value.toPrecision(digits)).toExponential().replace("-", "−");
  return new Intl.NumberFormat(current, { maximumSignificantDigits: digits }).format(value);
}

/** Return a number with two digits behind the point, such as a cosine. */
export function fixed(value) {
  const options = { minimumFractionDigits: 2, maximumFractionDigits: 2 };
  return new Intl.NumberFormat(current, options).format(value).replace("-", "−");
}

/** Return a large number in few characters: 950, 1,250, 12.5K. */
export function compact(value) {
  const options = Math.abs(value) < 10_000 ? {} : { notation: "compact", maximumFractionDigits: 2 };
  return new Intl.NumberFormat(current, options).format(value);
}

/** Return a share of 1 as a percentage; a very small one is not shown as none. */
export function percent(share) {
  if (share > 0 && share < 0.001) return `< ${percent(0.001)}`;
  const digits = share >= 0.9995 || share === 0 ? 0 : 1;
  const options = { style: "percent", minimumFractionDigits: digits, maximumFractionDigits: digits };
  return new Intl.NumberFormat(current, options).format(share);
}

/** Return a weight or a cosine with its sign. */
export function signed(value) {
  const options = { minimumFractionDigits: 2, maximumFractionDigits: 2, signDisplay: "exceptZero" };
  return new Intl.NumberFormat(current, options).format(value).replace("-", "−");
}

export function milliseconds(value) {
  return value < 1000 ? `${number(Math.max(1, value))} ms` : `${number(value / 1000, 1)} s`;
}

/** Return 42 s, 7 min, 2 h 5 min, 3 d 4 h. */
export function duration(seconds) {
  if (seconds < 60) return say("time.seconds", { seconds: number(seconds) });
  const minutes = Math.round(seconds / 60);
  const hours = Math.floor(minutes / 60);
  if (hours < 1) return say("time.minutes", { minutes });
  if (hours < 24) return say("time.hours", { hours, minutes: minutes % 60 });
  return say("time.days", { days: number(Math.floor(hours / 24)), hours: hours % 24 });
}

/** Keep a choice for the next visit, where the browser allows it. */
export function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // A browser may forbid it; the choice then holds until the page is closed.
  }
}

export function remembered(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function first() {
  const kept = remembered(REMEMBERED);
  if (kept in LANGUAGES) return kept;
  return (navigator.language || "en").toLowerCase().startsWith("zh") ? "zh" : "en";
}
