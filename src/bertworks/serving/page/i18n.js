// Internationalization: message keys in, English or Chinese text out; numbers, percentages and durations by locale.

import { CHINESE } from "./chinese.js";
import { ENGLISH } from "./english.js";

const MESSAGES = { en: ENGLISH, zh: CHINESE };
const STORAGE_KEY = "bertworks-language";

let current = initialLanguage();

export function language() {
  return current;
}

/** Set the language and store it for the next visit. */
export function setLanguage(code) {
  current = code;
  storeSetting(STORAGE_KEY, code);
  document.documentElement.lang = languageTag(code);
}

/** Return the value of a lang attribute. */
export function languageTag(code) {
  return code === "zh" ? "zh-Hans" : code;
}

/** Return the message of a key, with {placeholders} replaced by `values`. */
export function t(key, values = {}) {
  const message = MESSAGES[current][key];
  if (message === undefined) throw new Error(`there is no message ${key}`);
  return message.replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
}

/** Return the message of a key, or a default if there is none. */
export function tOrDefault(key, text) {
  return key in MESSAGES[current] ? t(key) : text;
}

/** Return a message with a count, in singular or plural: "1 token", "14 tokens". */
export function tCount(key, count) {
  return t(count === 1 ? `${key}.one` : `${key}.many`, { count: formatNumber(count) });
}

export function formatNumber(value, digits = 0) {
  return new Intl.NumberFormat(current, { maximumFractionDigits: digits }).format(value);
}

/** Format a number with so many significant digits, such as a loss or a learning rate. */
export function formatSignificant(value, digits = 3) {
  if (!Number.isFinite(value)) return String(value);
  const isTiny = value !== 0 && Math.abs(value) < 1e-3;
  if (isTiny) return Number(value.toPrecision(digits)).toExponential().replace("-", "−");
  return new Intl.NumberFormat(current, { maximumSignificantDigits: digits }).format(value);
}

/** Format a number with two decimals, such as a cosine similarity. */
export function formatFixed(value) {
  const options = { minimumFractionDigits: 2, maximumFractionDigits: 2 };
  return new Intl.NumberFormat(current, options).format(value).replace("-", "−");
}

/** Format a large number compactly: 950, 1,250, 12.5K. */
export function formatCompact(value) {
  const options = Math.abs(value) < 10_000 ? {} : { notation: "compact", maximumSignificantDigits: 3 };
  return new Intl.NumberFormat(current, options).format(value);
}

/** Format a ratio as a percentage; a tiny one is not shown as 0%. */
export function formatPercent(ratio) {
  if (ratio > 0 && ratio < 0.001) return `< ${formatPercent(0.001)}`;
  const digits = ratio >= 0.9995 || ratio === 0 ? 0 : 1;
  const options = { style: "percent", minimumFractionDigits: digits, maximumFractionDigits: digits };
  return new Intl.NumberFormat(current, options).format(ratio);
}

/** Format a number with two decimals and its sign. */
export function formatSigned(value) {
  const options = { minimumFractionDigits: 2, maximumFractionDigits: 2, signDisplay: "exceptZero" };
  return new Intl.NumberFormat(current, options).format(value).replace("-", "−");
}

export function formatMilliseconds(value) {
  return value < 1000 ? `${formatNumber(Math.max(1, value))} ms` : `${formatNumber(value / 1000, 1)} s`;
}

/** Format seconds: 42 s, 7 min, 2 h 5 min, 3 d 4 h. */
export function formatDuration(seconds) {
  if (seconds < 60) return t("time.seconds", { seconds: formatNumber(seconds) });
  const minutes = Math.round(seconds / 60);
  const hours = Math.floor(minutes / 60);
  if (hours < 1) return t("time.minutes", { minutes });
  if (hours < 24) return t("time.hours", { hours, minutes: minutes % 60 });
  return t("time.days", { days: formatNumber(Math.floor(hours / 24)), hours: hours % 24 });
}

/** Store a setting for the next visit. */
export function storeSetting(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // Storage may be blocked; the setting then lasts until the page is closed.
  }
}

export function storedSetting(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

function initialLanguage() {
  const stored = storedSetting(STORAGE_KEY);
  if (stored in MESSAGES) return stored;
  return (navigator.language || "en").toLowerCase().startsWith("zh") ? "zh" : "en";
}
