// The tab of entities: a text in; the same text with its entities marked, a legend and a table out.

import { bench } from "./bench.js";
import { el } from "./elements.js";
import { fieldsFor } from "./fields.js";
import { marked, quotedText } from "./marked.js";
import { pathOf } from "./server.js";
import { foldedTable } from "./tables.js";
import { number, percent, say, sayCount } from "./words.js";

const NUM_COLOURS = 8;

export const ENTITIES = {
  id: "entities",
  suits: (model) => model.task === "tag" && model.can.includes("predict"),
  create,
};

function create({ models }) {
  return bench({
    id: "entities",
    models,
    fields: () => fieldsFor("tag"),
    request: (text, model) => ({ path: pathOf(model, "predict"), body: { inputs: [text] } }),
    show,
  });
}

function show({ predictions: [{ spans }] }, text, model) {
  const colours = coloursOf(model.labels ?? [], spans);
  const parts = [
    quotedText(
      marked(text, spans, (part, span) => entity(part, span, colours)),
      { class: "large loose" },
    ),
  ];
  if (spans.length) parts.push(legend(spans, colours), tableOf(spans));
  return { status: spans.length ? sayCount("entities.status", spans.length) : say("entities.none"), parts };
}

/** A type has the same colour whatever else is found: its place among the model's labels, not among those here. */
function coloursOf(labels, spans) {
  const types = labels.map((label) => label.replace(/^[A-Z]-/, "")).filter((type) => type !== "O");
  const found = new Set([...types, ...spans.map((span) => span.label)]);
  return new Map([...found].map((type, place) => [type, `tone-${place % NUM_COLOURS}`]));
}

function entity(part, { label, probability }, colours) {
  const title = `${label}, ${percent(probability)}`;
  return el("mark", { class: `entity ${colours.get(label)}`, title }, part, " ", el("span", { class: "type" }, label));
}

function legend(spans, colours) {
  const counts = new Map();
  for (const { label } of spans) counts.set(label, (counts.get(label) ?? 0) + 1);
  const items = [...counts].map(([label, count]) =>
    el("li", {}, el("i", { class: `swatch ${colours.get(label)}` }), label, " ", el("b", {}, number(count))),
  );
  return el("ul", { class: "legend", "aria-label": say("entities.legend") }, items);
}

function tableOf(spans) {
  const titles = ["text", "type", "probability", "place"].map((name) => say(`column.${name}`));
  const rows = spans.map(({ text, label, probability, start, end }) => [
    text,
    label,
    percent(probability),
    `${start}–${end}`,
  ]);
  return foldedTable(say("entities.table"), titles, rows, [2, 3]);
}
