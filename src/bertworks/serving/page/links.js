// Who reads whom: pieces and weighted links in; the pieces as running text out, with the links drawn between them.

import { el, refill, svg } from "./elements.js";
import { isSpecial } from "./input.js";
import { rove } from "./roving.js";
import { percent, say } from "./words.js";

const MOST_NAMED = 6;
const FAINTEST = 0.12;
// What is read less than this, as a share of the strongest link of a piece, is not told of it.
const WORTH_TELLING = 0.02;

/**
 * Return {element, show, turn}. `links` are [layer, head, from, to, weight], the strongest first. While no piece is
 * pointed at, the first `show(count)` of them are drawn; else all links of that piece: what it reads or, after
 * turn("from"), what reads it.
 */
export function linkedText({ pieces, segments, links }) {
  const chips = pieces.map((piece, place) => chipOf(piece, segments[place], startsWord(pieces, place)));
  const lines = svg("svg", { class: "links", "aria-hidden": "true" });
  const text = el("div", { class: "linked", role: "group", "aria-label": say("attention.picture") }, chips, lines);
  const told = el("p", { class: "told", "aria-live": "polite" }, say("attention.point"));
  const state = { pieces, links, chips, lines, text, told, centres: null, count: 0, at: null, side: "to" };
  chips.forEach((chip, place) => {
    chip.addEventListener("pointerenter", () => point(state, place));
    chip.addEventListener("pointerleave", () => point(state, focusedOf(state)));
    chip.addEventListener("blur", () => point(state, null));
  });
  rove(chips, { arrived: (place) => point(state, place) });
  new ResizeObserver(() => measure(state)).observe(text);
  const scroller = el("div", { class: "linked-scroller" }, text);
  return {
    element: el("div", {}, told, scroller),
    show: (count) => {
      state.count = count;
      draw(state);
    },
    turn: (side) => {
      state.side = side;
      point(state, state.at);
    },
  };
}

function chipOf(piece, segment, starts) {
  const kinds = ["piece-chip", isSpecial(piece) ? "special" : `segment-${segment}`];
  if (!starts) kinds.push("goes-on");
  return el("button", { type: "button", class: kinds.join(" ") }, piece);
}

function startsWord(pieces, place) {
  return !pieces[place].startsWith("##");
}

function focusedOf({ chips }) {
  const place = chips.indexOf(document.activeElement);
  return place < 0 ? null : place;
}

function point(state, place) {
  state.at = place;
  const own = place === null ? [] : ownLinks(state, place);
  const weights = new Map(own.map((link) => [other(state, link), link[4]]));
  const largest = own[0]?.[4] ?? 1;
  state.chips.forEach((chip, number) => {
    chip.classList.toggle("at", number === place);
    chip.classList.toggle("read", weights.has(number));
    chip.style.setProperty("--share", weights.has(number) ? weights.get(number) / largest : 0);
  });
  state.text.classList.toggle("pointing", place !== null);
  state.told.textContent = place === null ? say("attention.point") : toldOf(state, place, own);
  draw(state);
}

/** Return the links of a piece that are worth telling, the strongest first. */
function ownLinks({ links, side }, place) {
  const own = links.filter((link) => link[side === "to" ? 2 : 3] === place);
  return own.filter((link) => link[4] >= WORTH_TELLING * own[0][4]);
}

function other({ side }, link) {
  return link[side === "to" ? 3 : 2];
}

function toldOf(state, place, own) {
  const piece = state.pieces[place];
  if (!own.length) return say(`attention.told.${state.side}.none`, { piece });
  const named = own.slice(0, MOST_NAMED).map((link) => `${state.pieces[other(state, link)]} ${percent(link[4])}`);
  return say(`attention.told.${state.side}`, { piece, others: named.join(" · ") });
}

/** See where the pieces stand, which changes only with the width. */
function measure(state) {
  state.centres = state.chips.map((chip) => ({
    x: chip.offsetLeft + chip.offsetWidth / 2,
    y: chip.offsetTop + chip.offsetHeight / 2,
    half: chip.offsetHeight / 2,
    width: chip.offsetWidth,
  }));
  state.lines.setAttribute("width", state.text.offsetWidth);
  state.lines.setAttribute("height", state.text.offsetHeight);
  draw(state);
}

function draw(state) {
  const { lines, links, count, at, centres } = state;
  if (!centres) return;
  const shown = at === null ? links.slice(0, count) : ownLinks(state, at);
  const largest = Math.max(...shown.map((link) => link[4]), 0) || 1;
  const paths = shown.map(([, , from, to, weight]) => {
    const share = weight / largest;
    return svg("path", {
      d: curve(centres[from], centres[to]),
      "stroke-opacity": (FAINTEST + (1 - FAINTEST) * share ** 1.5).toFixed(2),
      "stroke-width": (0.7 + 1.3 * share).toFixed(1),
    });
  });
  refill(lines, paths);
}

/** A bow above the line between two pieces of it; from line to line, a bend from edge to edge; a loop to itself. */
function curve(from, to) {
  if (from === to) {
    const top = from.y - from.half;
    const reach = Math.min(9, from.width / 3);
    return `M${from.x - reach} ${top}c-2 -12 ${2 * reach + 4} -12 ${2 * reach} 0`;
  }
  if (Math.abs(from.y - to.y) < from.half) {
    const top = from.y - from.half;
    const height = Math.min(32, 8 + Math.abs(to.x - from.x) / 12);
    return `M${from.x} ${top}C${from.x} ${top - height} ${to.x} ${top - height} ${to.x} ${top}`;
  }
  const sign = to.y > from.y ? 1 : -1;
  const [start, end] = [from.y + sign * from.half, to.y - sign * to.half];
  const bend = (end - start) / 2;
  return `M${from.x} ${start}C${from.x} ${start + bend} ${to.x} ${end - bend} ${to.x} ${end}`;
}
