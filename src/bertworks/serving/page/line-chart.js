// Line charts: series of points in, a chart out with axes, a cursor and the values at the cursor in the legend.
// Series differ by dash and marker as well as by color: line-styles.js.

import { el, svg } from "./elements.js";
import { drawMarker, lineClass, lineSwatch } from "./line-styles.js";
import { responsive } from "./responsive.js";

const MARGIN = { left: 52, right: 20, top: 12, bottom: 30 };
const NUM_TICKS = 5;

/**
 * Return a chart. `series` are {name, color, dash, marker, points [[x, y], …], style}: the style is "line", "dots",
 * which has markers, or "faint", which has no legend entry. `dash` and `marker` are numbers of line-styles.js.
 * `formatX` and `formatY` format values, `formatTick` the ticks of the y axis.
 */
export function lineChart({ title, series, formatX, formatY, formatTick = formatY, height = 240 }) {
  const nonEmpty = series.filter((item) => item.points.length);
  const entries = nonEmpty.filter((item) => item.style !== "faint").map((item) => legendEntry(item, formatY));
  const legend = el(
    "ul",
    { class: "legend values" },
    entries.map((entry) => entry.item),
  );
  const onCursor = (x) => entries.forEach((entry) => entry.update(x));
  const drawing = responsive((width) => drawChart(nonEmpty, { width, height, formatX, formatTick, title, onCursor }));
  return el("figure", { class: "line-chart" }, el("figcaption", {}, title), drawing, legend);
}

function legendEntry({ name, points, ...lineStyle }, formatY) {
  const value = el("b", {}, formatY(points.at(-1)[1]));
  const item = el("li", {}, lineSwatch(lineStyle), name, " ", value);
  const update = (x) => {
    value.textContent = formatY(x === null ? points.at(-1)[1] : points[nearestIndex(points, x)][1]);
  };
  return { item, update };
}

function drawChart(series, { width, height, formatX, formatTick, title, onCursor }) {
  const scales = createScales(series, width, height);
  const chart = svg("svg", {
    class: "chart",
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: "img",
    "aria-label": title,
    tabindex: 0,
  });
  chart.append(...axes(scales, { width, height, formatX, formatTick }));
  for (const item of series) chart.append(...drawSeries(item, scales));
  const cursor = svg("line", { class: "cursor", y1: MARGIN.top, y2: height - MARGIN.bottom, visibility: "hidden" });
  chart.append(cursor);
  addCursorListeners(chart, cursor, scales, { width, onCursor });
  return chart;
}

function createScales(series, width, height) {
  const points = series.flatMap((item) => item.points);
  const [xs, ys] = [0, 1].map((axis) => points.map((point) => point[axis]));
  const [xTicks, yTicks] = [ticks(xs, Math.max(2, Math.floor(width / 110))), ticks(ys, NUM_TICKS)];
  const createScale = (marks, values, start, end) => {
    const min = Math.min(marks[0], minimum(values));
    const max = Math.max(marks.at(-1), maximum(values));
    return { min, max, toPixels: (value) => start + ((value - min) / (max - min || 1)) * (end - start) };
  };
  return {
    xTicks,
    yTicks,
    x: createScale([minimum(xs)], xs, MARGIN.left, width - MARGIN.right),
    y: createScale(yTicks, ys, height - MARGIN.bottom, MARGIN.top),
  };
}

function axes({ xTicks, yTicks, x: xScale, y: yScale }, { width, height, formatX, formatTick }) {
  const yAxis = yTicks.flatMap((value) => {
    const y = yScale.toPixels(value);
    return [
      svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }),
      svg("text", { class: "tick", x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, formatTick(value)),
    ];
  });
  const xAxis = xTicks
    .filter((value) => value >= xScale.min && value <= xScale.max)
    .map((value) => {
      const attributes = { x: xScale.toPixels(value), y: height - MARGIN.bottom + 18, "text-anchor": "middle" };
      return svg("text", { class: "tick", ...attributes }, formatX(value));
    });
  return [...yAxis, ...xAxis];
}

function drawSeries({ points, ...lineStyle }, scales) {
  const pixels = points.map(([x, y]) => [scales.x.toPixels(x).toFixed(1), scales.y.toPixels(y).toFixed(1)]);
  const d = `M${pixels.map((point) => point.join(" ")).join("L")}`;
  const path = svg("path", { d, class: lineClass(lineStyle) });
  if (lineStyle.style !== "dots") return [path];
  return [path, ...pixels.map(([x, y]) => drawMarker(lineStyle, x, y, pixels.length > 60 ? 2 : 3.5))];
}

/** Move the cursor with the pointer or the arrow keys. */
function addCursorListeners(chart, cursor, scales, { width, onCursor }) {
  let cursorX = null;
  const moveTo = (value) => {
    cursorX = value === null ? null : Math.min(Math.max(value, scales.x.min), scales.x.max);
    cursor.setAttribute("visibility", cursorX === null ? "hidden" : "visible");
    if (cursorX !== null) for (const end of ["x1", "x2"]) cursor.setAttribute(end, scales.x.toPixels(cursorX));
    onCursor(cursorX);
  };
  const plotWidth = width - MARGIN.left - MARGIN.right;
  const range = scales.x.max - scales.x.min;
  chart.addEventListener("pointermove", (event) => {
    const ratio = (event.clientX - chart.getBoundingClientRect().left - MARGIN.left) / plotWidth;
    moveTo(scales.x.min + ratio * range);
  });
  for (const event of ["pointerleave", "blur"]) chart.addEventListener(event, () => moveTo(null));
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    moveTo((cursorX ?? scales.x.max) + (step * range) / 50);
  });
}

function nearestIndex(points, x) {
  let [low, high] = [0, points.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= x) low = middle;
    else high = middle;
  }
  return Math.abs(points[high][0] - x) < Math.abs(points[low][0] - x) ? high : low;
}

/** Return round tick values that cover all values. */
export function ticks(values, count) {
  const [min, max] = [minimum(values), maximum(values)];
  const minStep = (max - min || Math.abs(max) || 1) / count;
  const power = 10 ** Math.floor(Math.log10(minStep));
  const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= minStep) * power;
  const first = Math.floor(min / step + 1e-9);
  const last = Math.ceil(max / step - 1e-9);
  return Array.from({ length: Math.max(2, last - first + 1) }, (_, index) =>
    Number(((first + index) * step).toPrecision(12)),
  );
}

// Not Math.min(...values): a call takes a limited number of arguments.
function minimum(values) {
  return values.reduce((min, value) => (value < min ? value : min), Infinity);
}

function maximum(values) {
  return values.reduce((max, value) => (value > max ? value : max), -Infinity);
}
