// Named entities: a text in; the text with its entities highlighted, a legend and a table out.

import { modelPath } from "./api.js";
import { el } from "./elements.js";
import { fieldsFor } from "./fields.js";
import { highlight, quote } from "./highlight.js";
import { formatNumber, formatPercent, t, tCount } from "./i18n.js";
import { labelText, labelTitle } from "./labels.js";
import { requestForm } from "./request-form.js";
import { collapsedTable } from "./tables.js";

const NUM_COLORS = 8;

export const ENTITIES = {
  id: "entities",
  supports: (model) => model.task === "tag" && model.capabilities.includes("predict"),
  create,
};

function create({ models }) {
  return requestForm({
    id: "entities",
    models,
    fields: () => fieldsFor("tag"),
    request: (text, model) => ({ path: modelPath(model, "predict"), body: { inputs: [text] } }),
    render,
  });
}

function render({ predictions: [{ spans }] }, text, model) {
  const colors = colorsByType(model.labels ?? [], spans);
  const parts = [
    quote(
      highlight(text, spans, (spanText, span) => entityMark(spanText, span, colors)),
      { class: "large loose" },
    ),
  ];
  if (spans.length) parts.push(legend(spans, colors), entityTable(spans));
  return { status: spans.length ? tCount("entities.status", spans.length) : t("entities.none"), parts };
}

/** A type has the same color in every text: it depends on the model's labels, not on the predicted entities. */
function colorsByType(labels, spans) {
  const modelTypes = labels.map((label) => label.replace(/^[A-Z]-/, "")).filter((type) => type !== "O");
  const types = new Set([...modelTypes, ...spans.map((span) => span.label)]);
  return new Map([...types].map((type, index) => [type, `color-${index % NUM_COLORS}`]));
}

function entityMark(text, { label, probability }, colors) {
  const title = `${labelTitle(label)}, ${formatPercent(probability)}`;
  const type = el("span", { class: "type" }, labelText(label));
  return el("mark", { class: `entity ${colors.get(label)}`, title }, text, " ", type);
}

function legend(spans, colors) {
  const counts = new Map();
  for (const { label } of spans) counts.set(label, (counts.get(label) ?? 0) + 1);
  const items = [...counts].map(([label, count]) => {
    const swatch = el("i", { class: `swatch ${colors.get(label)}` });
    return el("li", { title: labelTitle(label) }, swatch, labelText(label), " ", el("b", {}, formatNumber(count)));
  });
  return el("ul", { class: "legend", "aria-label": t("entities.legend") }, items);
}

function entityTable(spans) {
  const headers = ["text", "type", "probability", "offsets"].map((name) => t(`column.${name}`));
  const rows = spans.map(({ text, label, probability, start, end }) => [
    text,
    labelText(label),
    formatPercent(probability),
    `${start}–${end}`,
  ]);
  return collapsedTable(t("entities.table"), headers, rows, [2, 3]);
}
