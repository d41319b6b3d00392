// The input representation: a text or a pair in; tokens, ids and the embeddings with their sum out.

import { modelPath } from "./api.js";
import { el, svg } from "./elements.js";
import { fieldsFor } from "./fields.js";
import { BLOCK_SIZE, heatmapCells } from "./heatmap.js";
import { formatNumber, formatSignificant, t, tCount, tOrDefault } from "./i18n.js";
import { requestForm } from "./request-form.js";
import { collapsedTable } from "./tables.js";

// The y coordinates of the rows.
const ROWS = { position: 14, token: 44, id: 68, segment: 88, blocks: 108 };
const BLOCK_STEP = BLOCK_SIZE + 22;
const MIN_COLUMN_WIDTH = 46;
const CHARACTER_WIDTH = 7.9;
const IDEOGRAPH_WIDTH = 14.5;

export const INPUT = { id: "input", supports: (model) => model.capabilities.includes("tokenize"), create };

function create({ models }) {
  return requestForm({
    id: "input",
    models,
    fields: () => fieldsFor("pair"),
    request: (value, model) => ({ path: modelPath(model, "tokenize"), body: { ...value, embeddings: true } }),
    render,
  });
}

function render(response) {
  const hasWords = response.texts.some((text) => text !== "");
  const values = response.embedding_values;
  const legend = values ? [colorScale(maxValue(values))] : [];
  const figure = el("figure", { class: "input-representation" }, rowLabels(values), scrollContainer(response));
  const note = el("p", { class: "note" }, t(hasWords ? "input.note" : "input.note.empty"));
  const status = tCount("input.status", response.tokens.length);
  return { status, parts: [figure, ...legend, note, tokenTable(response)] };
}

/** Return the names of the summed embeddings and of the sum, which is the last: it depends on the encoder. */
function embeddingNames(values) {
  return Object.keys(values ?? {});
}

function embeddingLabel(name) {
  return tOrDefault(`input.embedding.${name}`, name.replaceAll("_", " "));
}

/** The labels of the rows stay in view while the tokens scroll. */
function rowLabels(values) {
  const labels = [
    [ROWS.position - 4, t("input.position")],
    [ROWS.token - 4, t("input.token")],
    [ROWS.id - 4, t("input.id")],
    [ROWS.segment - 4, t("input.segment")],
  ];
  embeddingNames(values).forEach((name, row) =>
    labels.push([ROWS.blocks + row * BLOCK_STEP + BLOCK_SIZE / 2, embeddingLabel(name)]),
  );
  const elements = labels.map(([top, label]) => el("span", { style: { "--top": `${top}px` } }, label));
  return el("div", { class: "row-labels", "aria-hidden": "true" }, elements);
}

function scrollContainer(response) {
  const label = t("input.figure");
  const attributes = { class: "scroll-container", tabindex: "0", role: "region", "aria-label": label };
  return el("div", attributes, drawing(response, label));
}

function drawing(response, label) {
  const { tokens, input_ids: inputIds, position_ids: positionIds, token_type_ids: tokenTypeIds } = response;
  const values = response.embedding_values;
  const columns = columnLayout(tokens);
  const width = columns.at(-1).left + columns.at(-1).width;
  const height = ROWS.blocks + (values ? embeddingNames(values).length * BLOCK_STEP - (BLOCK_STEP - BLOCK_SIZE) : 0);
  const image = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  columns.forEach(({ left, width: columnWidth }, index) => {
    const center = left + columnWidth / 2;
    image.append(
      svg("text", { x: center, y: ROWS.position, class: "tiny" }, formatNumber(positionIds[index])),
      svg("rect", {
        x: left + 2,
        y: ROWS.token - 19,
        width: columnWidth - 4,
        height: 28,
        rx: 7,
        class: isSpecial(tokens[index]) ? "chip special" : `chip segment-${tokenTypeIds[index]}`,
      }),
      svg("text", { x: center, y: ROWS.token, class: "token" }, tokens[index]),
      svg("text", { x: center, y: ROWS.id, class: "tiny" }, String(inputIds[index])),
      svg(
        "text",
        { x: center, y: ROWS.segment, class: `tiny segment-${tokenTypeIds[index]}` },
        "AB"[tokenTypeIds[index]] ?? "?",
      ),
    );
  });
  if (values) image.append(...embeddingBlocks(values, columns), ...operators(values, columns));
  return image;
}

/** Return whether a token is a special token, such as [CLS] or <s>. */
export function isSpecial(token) {
  return /^(\[[A-Z]+\]|<[a-z]+>)$/.test(token);
}

function columnLayout(tokens) {
  let left = 0;
  return tokens.map((token) => {
    const textWidth = Array.from(token).reduce(
      (sum, character) => sum + (character > "\u2e7f" ? IDEOGRAPH_WIDTH : CHARACTER_WIDTH),
      0,
    );
    const column = { left, width: Math.ceil(Math.max(MIN_COLUMN_WIDTH, textWidth + 20)) };
    left += column.width;
    return column;
  });
}

function maxValue(values) {
  const maxima = embeddingNames(values).flatMap((name) =>
    values[name].map((vector) => Math.max(...vector.map(Math.abs))),
  );
  return Math.max(...maxima) || 1;
}

function embeddingBlocks(values, columns) {
  const blocks = embeddingNames(values).flatMap((name, row) =>
    values[name].map((vector, index) => {
      const { left, width } = columns[index];
      return { x: left + (width - BLOCK_SIZE) / 2, y: ROWS.blocks + row * BLOCK_STEP, values: vector };
    }),
  );
  return heatmapCells(blocks, maxValue(values));
}

/** Draw +, …, + and = between the blocks of each token. */
function operators(values, columns) {
  const numSummed = embeddingNames(values).length - 1;
  return Array.from({ length: numSummed }, (_, row) =>
    columns.slice(0, values.sum.length).map(({ left, width }) => {
      const y = ROWS.blocks + row * BLOCK_STEP + BLOCK_SIZE + 15;
      return svg("text", { x: left + width / 2, y, class: "operator" }, row === numSummed - 1 ? "=" : "+");
    }),
  ).flat();
}

function colorScale(max) {
  const bar = el("span", { class: "diverging", "aria-hidden": "true" });
  return el("p", { class: "color-scale" }, `−${formatSignificant(max, 2)}`, bar, `+${formatSignificant(max, 2)}`);
}

function tokenTable(response) {
  const { tokens, input_ids: inputIds, position_ids: positionIds, token_type_ids: tokenTypeIds, texts } = response;
  const norms = response.embedding_norms ?? {};
  const names = Object.keys(norms);
  const headers = ["position", "token", "id", "segment", "text"].map((name) => t(`column.${name}`));
  headers.push(...names.map((name) => t("input.norm", { name: embeddingLabel(name) })));
  const rows = () =>
    tokens.map((token, index) => [
      formatNumber(positionIds[index]),
      token,
      String(inputIds[index]),
      "AB"[tokenTypeIds[index]] ?? String(tokenTypeIds[index]),
      texts[index],
      ...names.map((name) => (index in norms[name] ? formatSignificant(norms[name][index]) : "–")),
    ]);
  return collapsedTable(t("input.table"), headers, rows, [0, 2, ...names.map((_, column) => 5 + column)]);
}
