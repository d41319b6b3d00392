// The tab of vectors: sentences and a query in; a map of them and the nearest out; and search over the server's corpus.

import { bench } from "./bench.js";
import { el } from "./elements.js";
import { fieldsFor } from "./fields.js";
import { map } from "./map.js";
import { quotedText } from "./marked.js";
import { foldedTable } from "./tables.js";
import { figure, fixed, number, say, sayCount } from "./words.js";

const TOP = 10;

export const VECTORS = { id: "vectors", suits: (model) => model.can.includes("embed"), create };

function create({ models, hasSearch }) {
  const sentences = bench({
    id: "vectors",
    models: [...models].sort((one, other) => strangeness(one) - strangeness(other)),
    fields: () => fieldsFor("sentences"),
    request: ({ inputs, query }, model) => ({ path: "v1/vectors/map", body: { model: model.name, inputs, query } }),
    show: showMap,
  });
  if (!hasSearch) return sentences;
  const search = bench({
    id: "search",
    models: [],
    fields: () => fieldsFor("query"),
    request: (query) => ({ path: "v1/search", body: { query, top: TOP } }),
    show: showHits,
  });
  return {
    element: el("div", { class: "stacked" }, search.element, sentences.element),
    sayAnew: () => [search, sentences].forEach((one) => one.sayAnew()),
  };
}

/** Models made for sentences come first, those fine-tuned for something else last. */
function strangeness({ task, can }) {
  return (task === null ? 0 : 2) + (can.includes("fill") ? 1 : 0);
}

function showMap({ points, scores }, { inputs, query }) {
  const order = inputs.map((_, place) => place);
  if (scores) order.sort((one, other) => scores[other] - scores[one]);
  const picture = map(points, inputs, scores, say("vectors.map"));
  const parts = [
    el(
      "figure",
      { class: "map" },
      picture,
      el("figcaption", { class: "note" }, say(scores ? "vectors.note.query" : "vectors.note")),
    ),
  ];
  if (scores) parts.push(nearest(order, inputs, scores));
  parts.push(tableOf(order, inputs, points, scores));
  const status = scores
    ? say("vectors.status", { text: inputs[order[0]], query })
    : sayCount("vectors.status.plain", inputs.length);
  return { status, parts };
}

function nearest(order, inputs, scores) {
  const items = order.map((place) =>
    el("li", {}, el("span", { class: "bar-share" }, fixed(scores[place])), quotedText(inputs[place])),
  );
  return el("section", { class: "part" }, el("h3", {}, say("vectors.nearest")), el("ol", { class: "fillings" }, items));
}

function tableOf(order, inputs, points, scores) {
  const titles = ["text", "across", "up", ...(scores ? ["cosine"] : [])].map((name) => say(`column.${name}`));
  const rows = order.map((place) => [
    inputs[place],
    ...points[place].map((value) => figure(value)),
    ...(scores ? [fixed(scores[place])] : []),
  ]);
  return foldedTable(say("vectors.table"), titles, rows, [1, 2, 3]);
}

function showHits({ results }) {
  const items = results.map(({ text, score, document, place }) =>
    el(
      "li",
      {},
      el("span", { class: "bar-share" }, fixed(score)),
      el("div", {}, quotedText(text), el("p", { class: "note" }, `${document} · ${number(place)}`)),
    ),
  );
  const status = results.length ? sayCount("search.status", results.length) : say("search.none");
  return { status, parts: [el("ol", { class: "fillings" }, items)] };
}
