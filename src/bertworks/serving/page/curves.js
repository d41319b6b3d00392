// Curves: series of points in, a chart out with axes, and a line that tells the values where somebody points.

import { el, svg } from "./elements.js";
import { sized } from "./sized.js";

const MARGIN = { left: 52, right: 20, top: 12, bottom: 30 };
const NUM_TICKS = 5;

/**
 * Return a chart. `series` are {name, tone, points [[x, y], …], kind}: kind is "line", "dots" or "faint",
 * which is drawn but told nowhere; `x` and `y` write a number of their axis, `tick` one that stands at it.
 */
export function curves({ title, series, x, y, tick = y, height = 240 }) {
  const drawable = series.filter((one) => one.points.length);
  const values = drawable.filter((one) => one.kind !== "faint").map((one) => valueItem(one, y));
  const legend = el(
    "ul",
    { class: "legend values" },
    values.map((value) => value.item),
  );
  const picture = sized((width) =>
    chart(drawable, { width, height, x, tick, title, told: (at) => values.forEach((value) => value.tell(at)) }),
  );
  return el("figure", { class: "curves" }, el("figcaption", {}, title), picture, legend);
}

function valueItem({ name, tone, points, kind }, y) {
  const value = el("b", {}, y(points.at(-1)[1]));
  const item = el("li", {}, el("i", { class: `stroke-key tone-${tone} ${kind}` }), name, " ", value);
  const tell = (at) => {
    value.textContent = y(at === null ? points.at(-1)[1] : points[nearest(points, at)][1]);
  };
  return { item, tell };
}

function chart(series, { width, height, x, tick, title, told }) {
  const frame = frameOf(series, width, height);
  const picture = svg("svg", {
    class: "chart",
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: "img",
    "aria-label": title,
    tabindex: 0,
  });
  picture.append(...axes(frame, { width, height, x, tick }));
  for (const one of series) picture.append(...drawn(one, frame));
  const cursor = svg("line", { class: "cursor", y1: MARGIN.top, y2: height - MARGIN.bottom, visibility: "hidden" });
  picture.append(cursor);
  letPoint(picture, cursor, frame, { width, told });
  return picture;
}

function frameOf(series, width, height) {
  const points = series.flatMap((one) => one.points);
  const [xs, ys] = [0, 1].map((axis) => points.map((point) => point[axis]));
  const [xTicks, yTicks] = [ticks(xs, Math.max(2, Math.floor(width / 110))), ticks(ys, NUM_TICKS)];
  const scale = (marks, values, from, to) => {
    const low = Math.min(marks[0], lowest(values));
    const high = Math.max(marks.at(-1), highest(values));
    return { low, high, at: (value) => from + ((value - low) / (high - low || 1)) * (to - from) };
  };
  return {
    xTicks,
    yTicks,
    x: scale([lowest(xs)], xs, MARGIN.left, width - MARGIN.right),
    y: scale(yTicks, ys, height - MARGIN.bottom, MARGIN.top),
  };
}

function axes({ xTicks, yTicks, x: across, y: up }, { width, height, x, tick }) {
  const lines = yTicks.flatMap((value) => [
    svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: up.at(value), y2: up.at(value) }),
    svg("text", { class: "tick", x: MARGIN.left - 8, y: up.at(value) + 4, "text-anchor": "end" }, tick(value)),
  ]);
  const below = xTicks
    .filter((value) => value >= across.low && value <= across.high)
    .map((value) => {
      const place = { x: across.at(value), y: height - MARGIN.bottom + 18, "text-anchor": "middle" };
      return svg("text", { class: "tick", ...place }, x(value));
    });
  return [...lines, ...below];
}

function drawn({ points, tone, kind }, frame) {
  const places = points.map(([x, y]) => [frame.x.at(x).toFixed(1), frame.y.at(y).toFixed(1)]);
  const d = `M${places.map((place) => place.join(" ")).join("L")}`;
  const path = svg("path", { d, class: `curve tone-${tone} ${kind}` });
  if (kind !== "dots") return [path];
  return [
    path,
    ...places.map(([cx, cy]) =>
      svg("circle", { cx, cy, r: places.length > 60 ? 1.5 : 3, class: `curve tone-${tone} dot` }),
    ),
  ];
}

/** A pointer, or the arrow keys, move a line along the chart. */
function letPoint(picture, cursor, frame, { width, told }) {
  let at = null;
  const put = (value) => {
    at = value === null ? null : Math.min(Math.max(value, frame.x.low), frame.x.high);
    cursor.setAttribute("visibility", at === null ? "hidden" : "visible");
    if (at !== null) for (const end of ["x1", "x2"]) cursor.setAttribute(end, frame.x.at(at));
    told(at);
  };
  const room = width - MARGIN.left - MARGIN.right;
  picture.addEventListener("pointermove", (event) => {
    const share = (event.clientX - picture.getBoundingClientRect().left - MARGIN.left) / room;
    put(frame.x.low + share * (frame.x.high - frame.x.low));
  });
  for (const event of ["pointerleave", "blur"]) picture.addEventListener(event, () => put(null));
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    put((at ?? frame.x.high) + (step * (frame.x.high - frame.x.low)) / 50);
  });
}

function nearest(points, at) {
  let [low, high] = [0, points.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= at) low = middle;
    else high = middle;
  }
  return Math.abs(points[high][0] - at) < Math.abs(points[low][0] - at) ? high : low;
}

/** Return round numbers from below the lowest to above the highest value. */
export function ticks(values, count) {
  const [low, high] = [lowest(values), highest(values)];
  const rough = (high - low || Math.abs(high) || 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((one) => one * power >= rough) * power;
  const first = Math.floor(low / step + 1e-9);
  const last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: Math.max(2, last - first + 1) }, (_, place) =>
    Number(((first + place) * step).toPrecision(12)),
  );
}

// Not Math.min(...values): there may be more values than a call takes arguments.
function lowest(values) {
  return values.reduce((low, value) => (value < low ? value : low), Infinity);
}

function highest(values) {
  return values.reduce((high, value) => (value > high ? value : high), -Infinity);
}
