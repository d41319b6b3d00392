// Line styles: the number of a dash or a marker in, its picture out. Color is never the only difference of two series.

import { svg } from "./elements.js";

// Outlines in a square from -1 to 1, by number; results.css has as many dashes.
const MARKERS = [
  "M-1 0a1 1 0 1 0 2 0a1 1 0 1 0-2 0Z",
  "M-.9-.9H.9V.9H-.9Z",
  "M0-1.1L1.1.9H-1.1Z",
  "M0-1.25L1.25 0L0 1.25L-1.25 0Z",
  "M0 1.1L1.1-.9H-1.1Z",
  "M-1.2-.4H-.4V-1.2H.4V-.4H1.2V.4H.4V1.2H-.4V.4H-1.2Z",
  "M-1.3-.5H1.3V.5H-1.3Z",
  "M-.5-1.3H.5V1.3H-.5Z",
];
export const NUM_STYLES = MARKERS.length;
const [SWATCH_WIDTH, SWATCH_HEIGHT, SWATCH_RADIUS] = [34, 12, 4];

/** Return the marker of a number around a point. */
export function drawMarker({ color, marker = 0 }, x, y, radius) {
  const transform = `translate(${x} ${y}) scale(${radius})`;
  return svg("path", { d: MARKERS[marker % NUM_STYLES], transform, class: `series color-${color} dot` });
}

/** Return the class of a line. */
export function lineClass({ color, dash = 0, style }) {
  return `series ${style} ${colorAndDash({ color, dash: style === "faint" ? 0 : dash })}`;
}

function colorAndDash({ color, dash = 0 }) {
  return `color-${color} dash-${dash % NUM_STYLES}`;
}

/** Return the picture of a style for a legend. */
export function lineSwatch(lineStyle) {
  const middle = SWATCH_HEIGHT / 2;
  const line = svg("path", { d: `M1 ${middle}H${SWATCH_WIDTH - 1}`, class: `sample ${colorAndDash(lineStyle)}` });
  const marker = lineStyle.style === "dots" ? [drawMarker(lineStyle, SWATCH_WIDTH / 2, middle, SWATCH_RADIUS)] : [];
  const attributes = { width: SWATCH_WIDTH, height: SWATCH_HEIGHT, "aria-hidden": "true", class: "line-swatch" };
  return svg("svg", attributes, line, ...marker);
}
