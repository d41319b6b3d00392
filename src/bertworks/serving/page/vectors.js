// Sentence vectors: sentences and a query in; a 2D projection and the similarities out; and search over the corpus.

import { el } from "./elements.js";
import { fieldsFor } from "./fields.js";
import { quote } from "./highlight.js";
import { formatFixed, formatNumber, formatSignificant, t, tCount } from "./i18n.js";
import { requestForm } from "./request-form.js";
import { scatterPlot } from "./scatter-plot.js";
import { collapsedTable } from "./tables.js";

const TOP_K = 10;

export const VECTORS = { id: "vectors", supports: (model) => model.capabilities.includes("embed"), create };

function create({ models, hasSearch }) {
  const projection = requestForm({
    id: "vectors",
    models: [...models].sort((a, b) => modelRank(a) - modelRank(b)),
    fields: () => fieldsFor("sentences"),
    request: ({ inputs, query }, model) => ({
      path: "v1/embeddings/projection",
      body: { model: model.name, inputs, query },
    }),
    render: renderProjection,
  });
  if (!hasSearch) return projection;
  const search = requestForm({
    id: "search",
    models: [],
    fields: () => fieldsFor("query"),
    request: (query) => ({ path: "v1/search", body: { query, top_k: TOP_K } }),
    render: renderResults,
  });
  return {
    element: el("div", { class: "stacked" }, search.element, projection.element),
    updateTexts: () => [search, projection].forEach((form) => form.updateTexts()),
  };
}

/** Sentence embedding models come first, then pretrained ones, then those fine-tuned for a task. */
function modelRank({ task, capabilities }) {
  return (task === null ? 0 : 2) + (capabilities.includes("fill-mask") ? 1 : 0);
}

function renderProjection({ points, scores }, { inputs, query }) {
  const order = inputs.map((_, index) => index);
  if (scores) order.sort((a, b) => scores[b] - scores[a]);
  const plot = scatterPlot(points, inputs, scores, t("vectors.plot"));
  const parts = [
    el(
      "figure",
      { class: "scatter-plot" },
      plot,
      el("figcaption", { class: "note" }, t(scores ? "vectors.note.query" : "vectors.note")),
    ),
  ];
  if (scores) parts.push(similarityList(order, inputs, scores));
  parts.push(pointTable(order, inputs, points, scores));
  const status = scores
    ? t("vectors.status", { text: inputs[order[0]], query })
    : tCount("vectors.status.count", inputs.length);
  return { status, parts };
}

function similarityList(order, inputs, scores) {
  const items = order.map((index) =>
    el("li", {}, el("span", { class: "bar-value" }, formatFixed(scores[index])), quote(inputs[index])),
  );
  return el(
    "section",
    { class: "part" },
    el("h3", {}, t("vectors.similarities")),
    el("ol", { class: "ranked-list" }, items),
  );
}

function pointTable(order, inputs, points, scores) {
  const headers = ["text", "x", "y", ...(scores ? ["cosine"] : [])].map((name) => t(`column.${name}`));
  const rows = order.map((index) => [
    inputs[index],
    ...points[index].map((value) => formatSignificant(value)),
    ...(scores ? [formatFixed(scores[index])] : []),
  ]);
  return collapsedTable(t("vectors.table"), headers, rows, [1, 2, 3]);
}

function renderResults({ results }) {
  const items = results.map(({ text, score, document, sentence_index: sentenceIndex }) =>
    el(
      "li",
      {},
      el("span", { class: "bar-value" }, formatFixed(score)),
      el("div", {}, quote(text), el("p", { class: "note" }, `${document} · ${formatNumber(sentenceIndex)}`)),
    ),
  );
  const status = results.length ? tCount("search.status", results.length) : t("search.none");
  return { status, parts: [el("ol", { class: "ranked-list" }, items)] };
}
