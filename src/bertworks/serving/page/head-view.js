// The head view of attention: tokens and attention weights of one head in; the tokens with lines between them out.

import { el, replaceContent, svg } from "./elements.js";
import { formatPercent, t } from "./i18n.js";
import { isSpecial } from "./input.js";
import { rovingTabindex } from "./roving-tabindex.js";

const MAX_DESCRIBED = 6;
const MIN_OPACITY = 0.12;
// Weights below this fraction of a token's largest weight are not shown for it.
const MIN_SHOWN_RATIO = 0.02;

/**
 * Return {element, draw, setDirection}. `attention_weights` are [layer, head, query, key, weight], the largest first.
 * Without a selected token the first `draw(count)` of them are drawn; else all weights of that token: the tokens it
 * attends to or, after setDirection("from"), those that attend to it.
 */
export function headView({ tokens, token_type_ids: tokenTypeIds, attention_weights: weights }) {
  const chips = tokens.map((token, position) => tokenChip(token, tokenTypeIds[position]));
  const lines = svg("svg", { class: "attention-lines", "aria-hidden": "true" });
  const text = el("div", { class: "token-text", role: "group", "aria-label": t("attention.head_view") }, chips, lines);
  const description = el("p", { class: "token-description", "aria-live": "polite" }, t("attention.hint"));
  const state = {
    tokens,
    weights,
    chips,
    lines,
    text,
    description,
    boxes: null,
    count: 0,
    selected: null,
    direction: "to",
  };
  chips.forEach((chip, position) => {
    chip.addEventListener("pointerenter", () => selectToken(state, position));
    chip.addEventListener("pointerleave", () => selectToken(state, focusedPosition(state)));
    chip.addEventListener("blur", () => selectToken(state, null));
  });
  rovingTabindex(chips, { onFocus: (position) => selectToken(state, position) });
  new ResizeObserver(() => measure(state)).observe(text);
  const scroller = el("div", { class: "token-scroller" }, text);
  return {
    element: el("div", {}, description, scroller),
    draw: (count) => {
      state.count = count;
      drawLines(state);
    },
    setDirection: (direction) => {
      state.direction = direction;
      selectToken(state, state.selected);
    },
  };
}

function tokenChip(token, tokenTypeId) {
  const classes = ["token-chip", isSpecial(token) ? "special" : `segment-${tokenTypeId}`];
  if (token.startsWith("##")) classes.push("continuation");
  return el("button", { type: "button", class: classes.join(" ") }, token);
}

function focusedPosition({ chips }) {
  const position = chips.indexOf(document.activeElement);
  return position < 0 ? null : position;
}

function selectToken(state, position) {
  state.selected = position;
  const entries = position === null ? [] : tokenWeights(state, position);
  const weightByPosition = new Map(entries.map((entry) => [otherPosition(state, entry), entry[4]]));
  const maxWeight = entries[0]?.[4] ?? 1;
  state.chips.forEach((chip, index) => {
    chip.classList.toggle("selected", index === position);
    chip.classList.toggle("related", weightByPosition.has(index));
    chip.style.setProperty("--ratio", weightByPosition.has(index) ? weightByPosition.get(index) / maxWeight : 0);
  });
  state.text.classList.toggle("has-selection", position !== null);
  state.description.textContent = position === null ? t("attention.hint") : describe(state, position, entries);
  drawLines(state);
}

/** Return the weights of a token that are shown, the largest first. */
function tokenWeights({ weights, direction }, position) {
  const entries = weights.filter((entry) => entry[direction === "to" ? 2 : 3] === position);
  return entries.filter((entry) => entry[4] >= MIN_SHOWN_RATIO * entries[0][4]);
}

function otherPosition({ direction }, entry) {
  return entry[direction === "to" ? 3 : 2];
}

function describe(state, position, entries) {
  const token = state.tokens[position];
  if (!entries.length) return t(`attention.token.${state.direction}.none`, { token });
  const others = entries
    .slice(0, MAX_DESCRIBED)
    .map((entry) => `${state.tokens[otherPosition(state, entry)]} ${formatPercent(entry[4])}`);
  return t(`attention.token.${state.direction}`, { token, others: others.join(" · ") });
}

/** Measure the token chips, whose layout changes only with the width. */
function measure(state) {
  state.boxes = state.chips.map((chip) => ({
    x: chip.offsetLeft + chip.offsetWidth / 2,
    y: chip.offsetTop + chip.offsetHeight / 2,
    halfHeight: chip.offsetHeight / 2,
    width: chip.offsetWidth,
  }));
  state.lines.setAttribute("width", state.text.offsetWidth);
  state.lines.setAttribute("height", state.text.offsetHeight);
  drawLines(state);
}

function drawLines(state) {
  const { lines, weights, count, selected, boxes } = state;
  if (!boxes) return;
  const entries = selected === null ? weights.slice(0, count) : tokenWeights(state, selected);
  const maxWeight = Math.max(...entries.map((entry) => entry[4]), 0) || 1;
  const paths = entries.map(([, , query, key, weight]) => {
    const ratio = weight / maxWeight;
    return svg("path", {
      d: linePath(boxes[query], boxes[key]),
      "stroke-opacity": (MIN_OPACITY + (1 - MIN_OPACITY) * ratio ** 1.5).toFixed(2),
      "stroke-width": (0.7 + 1.3 * ratio).toFixed(1),
    });
  });
  replaceContent(lines, paths);
}

/** Return an arc above two tokens of the same line, a curve between tokens of different lines, or a loop. */
function linePath(from, to) {
  if (from === to) {
    const top = from.y - from.halfHeight;
    const radius = Math.min(9, from.width / 3);
    return `M${from.x - radius} ${top}c-2 -12 ${2 * radius + 4} -12 ${2 * radius} 0`;
  }
  if (Math.abs(from.y - to.y) < from.halfHeight) {
    const top = from.y - from.halfHeight;
    const height = Math.min(32, 8 + Math.abs(to.x - from.x) / 12);
    return `M${from.x} ${top}C${from.x} ${top - height} ${to.x} ${top - height} ${to.x} ${top}`;
  }
  const sign = to.y > from.y ? 1 : -1;
  const [startY, endY] = [from.y + sign * from.halfHeight, to.y - sign * to.halfHeight];
  const bend = (endY - startY) / 2;
  return `M${from.x} ${startY}C${from.x} ${startY + bend} ${to.x} ${endY - bend} ${to.x} ${endY}`;
}
