// Points on a plane: places, texts and scores in, a picture out whose points can be pointed at or walked through.

import { svg } from "./elements.js";
import { rove } from "./roving.js";
import { sized } from "./sized.js";
import { fixed } from "./words.js";

const EDGE = 28;
const RADIUS = 6;
const GAP = 6; // between a point and its label
const LINE = 20;
const FONT_SIZE = 13;

/** Return a map of `points` [[x, y], …] with their `texts`; of `scores` the highest stand out. */
export function map(points, texts, scores, label) {
  return sized((width) => {
    const size = { width, height: Math.round(Math.min(460, Math.max(300, width * 0.52))) };
    return drawn(labelled(spread(points, size), texts, size), texts, scores, { ...size, label });
  });
}

function drawn(places, texts, scores, { width, height, label }) {
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": label });
  const nodes = places.map((place, number) => {
    const said = scores ? `${texts[number]} (${fixed(scores[number])})` : texts[number];
    const node = svg("g", {
      class: "point",
      role: "img",
      "aria-label": said,
      style: { "--share": nearness(scores, number) },
    });
    node.append(
      svg("circle", { cx: place.x, cy: place.y, r: RADIUS + 8, class: "reach" }),
      svg("circle", { cx: place.x, cy: place.y, r: RADIUS, class: "dot" }),
    );
    return node;
  });
  // Labels lie above all points, so that the one that is pointed at can cover others.
  const labels = places.map((place) => labelAt(place));
  nodes.forEach((node, number) => {
    const raise = (is) => labels[number].classList.toggle("raised", is);
    for (const event of ["pointerenter", "focus"]) node.addEventListener(event, () => raise(true));
    for (const event of ["pointerleave", "blur"])
      node.addEventListener(event, () => raise(document.activeElement === node));
  });
  picture.append(
    ...labels.filter((_, number) => places[number].isFree),
    ...nodes,
    ...labels.filter((_, number) => !places[number].isFree),
  );
  rove(nodes);
  return picture;
}

/** Stretch both axes alike, so that distances can be compared in every direction. */
function spread(points, { width, height }) {
  const [xs, ys] = [0, 1].map((axis) => points.map((point) => point[axis]));
  const middle = (values) => (Math.min(...values) + Math.max(...values)) / 2;
  const extent = (values) => Math.max(...values) - Math.min(...values) || 1e-9;
  const scale = Math.min((width - 2 * EDGE) / extent(xs), (height - 2 * EDGE) / extent(ys));
  return points.map(([x, y]) => ({
    x: width / 2 + (x - middle(xs)) * scale,
    y: height / 2 - (y - middle(ys)) * scale,
  }));
}

function nearness(scores, number) {
  if (!scores) return 1;
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  return high > low ? (scores[number] - low) / (high - low) : 1;
}

/** Give each place its label's text and box, and say whether it can stand there without covering anything. */
function labelled(places, texts, size) {
  const long = measure();
  const points = places.map(({ x, y }) => ({
    left: x - RADIUS,
    right: x + RADIUS,
    top: y - RADIUS,
    bottom: y + RADIUS,
  }));
  const taken = [];
  return places.map((place, number) => {
    const text = shortened(texts[number], Math.min(300, size.width * 0.45), long);
    const boxes = boxesAround(place, long(text)).map((box) => pushedInside(box, size));
    const others = [...points.filter((_, owner) => owner !== number), ...taken];
    const free = boxes.find((box) => !others.some((other) => meet(box, other)) && !meet(box, points[number]));
    if (free) taken.push(free);
    return { ...place, text, box: free ?? boxes[0], isFree: Boolean(free) };
  });
}

function measure() {
  const canvas = document.createElement("canvas").getContext("2d");
  canvas.font = `${FONT_SIZE}px ${getComputedStyle(document.body).fontFamily}`;
  return (text) => canvas.measureText(text).width;
}

function shortened(text, room, long) {
  if (long(text) <= room) return text;
  const characters = Array.from(text);
  while (characters.length > 1 && long(`${characters.join("")}…`) > room) characters.pop();
  return `${characters.join("").trimEnd()}…`;
}

/** To the right of its point, to the left, above or below. */
function boxesAround({ x, y }, long) {
  const box = (left, top) => ({ left, right: left + long, top, bottom: top + LINE });
  const aside = RADIUS + GAP;
  return [
    box(x + aside, y - LINE / 2),
    box(x - aside - long, y - LINE / 2),
    box(x - long / 2, y - aside - LINE + 2),
    box(x - long / 2, y + aside - 2),
  ];
}

function pushedInside(box, { width, height }) {
  const aside = Math.max(0, 8 - box.left) - Math.max(0, box.right + 8 - width);
  const down = Math.max(0, 4 - box.top) - Math.max(0, box.bottom + 4 - height);
  return { left: box.left + aside, right: box.right + aside, top: box.top + down, bottom: box.bottom + down };
}

function meet(one, other) {
  return one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom;
}

function labelAt({ text, box, isFree }) {
  const around = { x: box.left - 6, y: box.top, width: box.right - box.left + 12, height: LINE, rx: 6 };
  const written = svg("text", { x: box.left, y: box.top + 14.5 }, text);
  return svg("g", { class: isFree ? "label free" : "label", "aria-hidden": "true" }, svg("rect", around), written);
}
