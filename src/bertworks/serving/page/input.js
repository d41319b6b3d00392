// The tab of the input: a text or a pair in; its pieces, ids, positions, segments and embeddings with their sum out.

import { bench } from "./bench.js";
import { el, svg } from "./elements.js";
import { fieldsFor } from "./fields.js";
import { pathOf } from "./server.js";
import { BLOCK, cells } from "./strips.js";
import { foldedTable } from "./tables.js";
import { figure, number, say, sayCount } from "./words.js";

const PARTS = ["piece", "position", "segment", "sum"];
// Where the rows of the picture stand, from above.
const ROWS = { position: 14, piece: 44, id: 68, segment: 88, blocks: 108 };
const BLOCK_STEP = BLOCK + 22;
const HEIGHT = ROWS.blocks + PARTS.length * BLOCK_STEP - (BLOCK_STEP - BLOCK);
const NARROWEST = 46;
const CHARACTER_WIDTH = 7.9;
const IDEOGRAPH_WIDTH = 14.5;

export const INPUT = { id: "input", suits: (model) => model.can.includes("tokenize"), create };

function create({ models }) {
  return bench({
    id: "input",
    models,
    fields: () => fieldsFor("pair"),
    request: (value, model) => ({ path: pathOf(model, "tokenize"), body: { ...value, embeddings: true } }),
    show,
  });
}

function show(answer) {
  const numWords = answer.texts.filter((text) => text !== "").length;
  const status = sayCount("input.status", answer.pieces.length);
  const legend = answer.sample ? [legendOf(largestOf(answer.sample))] : [];
  const picture = el("figure", { class: "summed" }, rowNames(answer), scroller(answer));
  const about = el("p", { class: "note" }, say(numWords ? "input.note" : "input.note.empty"));
  return { status, parts: [picture, ...legend, about, tableOf(answer)] };
}

/** The names of the rows stay while the pieces scroll by. */
function rowNames({ sample }) {
  const names = [
    [ROWS.position - 4, "input.position"],
    [ROWS.piece - 4, "input.piece"],
    [ROWS.id - 4, "input.id"],
    [ROWS.segment - 4, "input.segment"],
  ];
  if (sample)
    PARTS.forEach((part, row) => names.push([ROWS.blocks + row * BLOCK_STEP + BLOCK / 2, `input.vector.${part}`]));
  const labels = names.map(([top, name]) => el("span", { style: { "--top": `${top}px` } }, say(name)));
  return el("div", { class: "row-names", "aria-hidden": "true" }, labels);
}

function scroller(answer) {
  const label = say("input.picture");
  return el("div", { class: "scrolled", tabindex: "0", role: "region", "aria-label": label }, pictureOf(answer, label));
}

function pictureOf({ pieces, ids, positions, segments, sample }, label) {
  const columns = columnsOf(pieces);
  const width = columns.at(-1).left + columns.at(-1).width;
  const height = sample ? HEIGHT : ROWS.blocks;
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  columns.forEach(({ left, width: own }, place) => {
    const middle = left + own / 2;
    picture.append(
      svg("text", { x: middle, y: ROWS.position, class: "tiny" }, number(positions[place])),
      svg("rect", {
        x: left + 2,
        y: ROWS.piece - 19,
        width: own - 4,
        height: 28,
        rx: 7,
        class: chipClass(pieces, segments, place),
      }),
      svg("text", { x: middle, y: ROWS.piece, class: "piece" }, pieces[place]),
      svg("text", { x: middle, y: ROWS.id, class: "tiny" }, String(ids[place])),
      svg(
        "text",
        { x: middle, y: ROWS.segment, class: `tiny segment-${segments[place]}` },
        "AB"[segments[place]] ?? "?",
      ),
    );
  });
  if (sample) picture.append(...blocksOf(sample, columns), ...signsOf(columns, sample.sum.length));
  return picture;
}

function chipClass(pieces, segments, place) {
  return isSpecial(pieces[place]) ? "chip special" : `chip segment-${segments[place]}`;
}

/** Return whether a piece is one of the tokenizer's own, such as [CLS] or <s>. */
export function isSpecial(piece) {
  return /^(\[[A-Z]+\]|<[a-z]+>)$/.test(piece);
}

function columnsOf(pieces) {
  let left = 0;
  return pieces.map((piece) => {
    const written = Array.from(piece).reduce(
      (sum, one) => sum + (one > "\u2e7f" ? IDEOGRAPH_WIDTH : CHARACTER_WIDTH),
      0,
    );
    const column = { left, width: Math.ceil(Math.max(NARROWEST, written + 20)) };
    left += column.width;
    return column;
  });
}

function largestOf(sample) {
  return Math.max(...PARTS.flatMap((part) => sample[part].map((values) => Math.max(...values.map(Math.abs))))) || 1;
}

function blocksOf(sample, columns) {
  const blocks = PARTS.flatMap((part, row) =>
    sample[part].map((values, place) => {
      const { left, width } = columns[place];
      return { x: left + (width - BLOCK) / 2, y: ROWS.blocks + row * BLOCK_STEP, values };
    }),
  );
  return cells(blocks, largestOf(sample));
}

/** Between the blocks of a piece stand +, + and =. */
function signsOf(columns, count) {
  return ["+", "+", "="].flatMap((sign, row) =>
    columns.slice(0, count).map(({ left, width }) => {
      const y = ROWS.blocks + row * BLOCK_STEP + BLOCK + 15;
      return svg("text", { x: left + width / 2, y, class: "sign" }, sign);
    }),
  );
}

function legendOf(largest) {
  const bar = el("span", { class: "diverging", "aria-hidden": "true" });
  return el("p", { class: "scale" }, `−${figure(largest, 2)}`, bar, `+${figure(largest, 2)}`);
}

function tableOf({ pieces, ids, positions, segments, texts, norms }) {
  const names = ["position", "piece", "id", "segment", "text"];
  const titles = names.map((name) => say(`column.${name}`));
  if (norms) titles.push(...PARTS.map((part) => say(`input.norm.${part}`)));
  const rows = () =>
    pieces.map((piece, place) => [
      number(positions[place]),
      piece,
      String(ids[place]),
      "AB"[segments[place]] ?? String(segments[place]),
      texts[place],
      ...(norms ? PARTS.map((part) => (place in norms[part] ? figure(norms[part][place]) : "–")) : []),
    ]);
  return foldedTable(say("input.table"), titles, rows, [0, 2, 5, 6, 7, 8]);
}
