// Scatter plots: points, texts and scores in, a plot out whose points can be hovered or focused.

import { svg } from "./elements.js";
import { formatFixed } from "./i18n.js";
import { responsive } from "./responsive.js";
import { rovingTabindex } from "./roving-tabindex.js";

const MARGIN = 28;
const RADIUS = 6;
const GAP = 6; // between a point and its label
const LINE_HEIGHT = 20;
const FONT_SIZE = 13;

/** Return a plot of `points` [[x, y], …] with their `texts`; points with high `scores` have a stronger color. */
export function scatterPlot(points, texts, scores, ariaLabel) {
  return responsive((width) => {
    const size = { width, height: Math.round(Math.min(460, Math.max(300, width * 0.52))) };
    return drawPlot(placeLabels(scalePoints(points, size), texts, size), texts, scores, { ...size, ariaLabel });
  });
}

function drawPlot(items, texts, scores, { width, height, ariaLabel }) {
  const plot = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: "group",
    "aria-label": ariaLabel,
  });
  const nodes = items.map(({ x, y }, index) => {
    const label = scores ? `${texts[index]} (${formatFixed(scores[index])})` : texts[index];
    const style = { "--ratio": normalizedScore(scores, index) };
    const node = svg("g", { class: "point", role: "img", "aria-label": label, style });
    node.append(
      svg("circle", { cx: x, cy: y, r: RADIUS + 8, class: "hit-area" }),
      svg("circle", { cx: x, cy: y, r: RADIUS, class: "dot" }),
    );
    return node;
  });
  // Labels that do not fit are above all points, so that a raised one can cover others.
  const labels = items.map((item) => drawLabel(item));
  nodes.forEach((node, index) => {
    const setRaised = (raised) => labels[index].classList.toggle("raised", raised);
    for (const event of ["pointerenter", "focus"]) node.addEventListener(event, () => setRaised(true));
    for (const event of ["pointerleave", "blur"])
      node.addEventListener(event, () => setRaised(document.activeElement === node));
  });
  plot.append(
    ...labels.filter((_, index) => items[index].hasRoom),
    ...nodes,
    ...labels.filter((_, index) => !items[index].hasRoom),
  );
  rovingTabindex(nodes);
  return plot;
}

/** Scale both axes equally, so that distances are comparable in all directions. */
function scalePoints(points, { width, height }) {
  const [xs, ys] = [0, 1].map((axis) => points.map((point) => point[axis]));
  const center = (values) => (Math.min(...values) + Math.max(...values)) / 2;
  const extent = (values) => Math.max(...values) - Math.min(...values) || 1e-9;
  const scale = Math.min((width - 2 * MARGIN) / extent(xs), (height - 2 * MARGIN) / extent(ys));
  return points.map(([x, y]) => ({
    x: width / 2 + (x - center(xs)) * scale,
    y: height / 2 - (y - center(ys)) * scale,
  }));
}

function normalizedScore(scores, index) {
  if (!scores) return 1;
  const [min, max] = [Math.min(...scores), Math.max(...scores)];
  return max > min ? (scores[index] - min) / (max - min) : 1;
}

/** Give each point the text and the box of its label, and whether the box overlaps nothing. */
function placeLabels(points, texts, size) {
  const textWidth = createTextMeasure();
  const pointBoxes = points.map(({ x, y }) => ({
    left: x - RADIUS,
    right: x + RADIUS,
    top: y - RADIUS,
    bottom: y + RADIUS,
  }));
  const usedBoxes = [];
  return points.map((point, index) => {
    const text = truncateText(texts[index], Math.min(300, size.width * 0.45), textWidth);
    const boxes = candidateBoxes(point, textWidth(text)).map((box) => moveInside(box, size));
    const otherBoxes = [...pointBoxes.filter((_, other) => other !== index), ...usedBoxes];
    const freeBox = boxes.find(
      (box) => !otherBoxes.some((other) => overlaps(box, other)) && !overlaps(box, pointBoxes[index]),
    );
    if (freeBox) usedBoxes.push(freeBox);
    return { ...point, text, box: freeBox ?? boxes[0], hasRoom: Boolean(freeBox) };
  });
}

function createTextMeasure() {
  const context = document.createElement("canvas").getContext("2d");
  context.font = `${FONT_SIZE}px ${getComputedStyle(document.body).fontFamily}`;
  return (text) => context.measureText(text).width;
}

function truncateText(text, maxWidth, textWidth) {
  if (textWidth(text) <= maxWidth) return text;
  const characters = Array.from(text);
  while (characters.length > 1 && textWidth(`${characters.join("")}…`) > maxWidth) characters.pop();
  return `${characters.join("").trimEnd()}…`;
}

/** Return the boxes to the right of a point, to its left, above and below. */
function candidateBoxes({ x, y }, width) {
  const box = (left, top) => ({ left, right: left + width, top, bottom: top + LINE_HEIGHT });
  const distance = RADIUS + GAP;
  return [
    box(x + distance, y - LINE_HEIGHT / 2),
    box(x - distance - width, y - LINE_HEIGHT / 2),
    box(x - width / 2, y - distance - LINE_HEIGHT + 2),
    box(x - width / 2, y + distance - 2),
  ];
}

function moveInside(box, { width, height }) {
  const dx = Math.max(0, 8 - box.left) - Math.max(0, box.right + 8 - width);
  const dy = Math.max(0, 4 - box.top) - Math.max(0, box.bottom + 4 - height);
  return { left: box.left + dx, right: box.right + dx, top: box.top + dy, bottom: box.bottom + dy };
}

function overlaps(a, b) {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}

function drawLabel({ text, box, hasRoom }) {
  const background = { x: box.left - 6, y: box.top, width: box.right - box.left + 12, height: LINE_HEIGHT, rx: 6 };
  const label = svg("text", { x: box.left, y: box.top + 14.5 }, text);
  const className = hasRoom ? "label visible" : "label";
  return svg("g", { class: className, "aria-hidden": "true" }, svg("rect", background), label);
}
