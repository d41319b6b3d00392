// Classification and regression: a text or a pair in; the probability of each class, or a value, out.

import { modelPath } from "./api.js";
import { bars } from "./bars.js";
import { el } from "./elements.js";
import { fieldsFor, isPairModel } from "./fields.js";
import { formatNumber, formatPercent, t } from "./i18n.js";
import { labelText } from "./labels.js";
import { requestForm } from "./request-form.js";

const LABEL_SEPARATOR = "|"; // between the labels of a multi-label prediction
const MAX_SHOWN = 12;

export const CLASSES = {
  id: "classes",
  supports: (model) => ["classify", "regress"].includes(model.task) && model.capabilities.includes("predict"),
  create,
};

function create({ models }) {
  return requestForm({
    id: "classes",
    models,
    fields: (model) => fieldsFor(model.task, model),
    examples: classExamples,
    request: (input, model) => ({ path: modelPath(model, "predict"), body: { inputs: [input] } }),
    render: ({ predictions: [prediction] }) =>
      "value" in prediction ? renderValue(prediction) : renderClasses(prediction),
  });
}

/** Return the name of the examples for a classification or regression model. */
export function classExamples(model) {
  if (model.task === "regress") return "regression";
  return isPairModel(model) ? "pairs" : "classes";
}

function renderValue({ value }) {
  return { status: t("classes.value.status"), parts: [el("p", { class: "big-number" }, formatNumber(value, 3))] };
}

function renderClasses({ label, probabilities }) {
  const ranked = Object.entries(probabilities).sort((a, b) => b[1] - a[1]);
  const predicted = predictedLabels(label, probabilities);
  const multiLabel = isMultiLabel(probabilities);
  const rows = ranked.map(([name, ratio]) => {
    const isBest = predicted.includes(name);
    return { name: labelText(name), ratio, isBest, note: multiLabel && isBest ? "✓" : null };
  });
  const parts = [bars(rows.slice(0, MAX_SHOWN), { isWide: true })];
  if (rows.length > MAX_SHOWN) parts.push(moreClasses(rows.slice(MAX_SHOWN)));
  parts.push(el("p", { class: "note" }, t(multiLabel ? "classes.multi_label.note" : "classes.note")));
  return { status: statusText(predicted, ranked[0][1]), parts };
}

function statusText(predicted, probability) {
  if (predicted.length === 0) return t("classes.none");
  if (predicted.length > 1) return t("classes.multi_label", { labels: predicted.map(labelText).join(", ") });
  return t("classes.status", { label: labelText(predicted[0]), percent: formatPercent(probability) });
}

/** Split a multi-label prediction. A label may contain the separator itself, so the whole string is tried first. */
function predictedLabels(label, probabilities) {
  if (label in probabilities) return [label];
  return label.split(LABEL_SEPARATOR).filter((name) => name in probabilities);
}

/** The probabilities of exclusive classes sum to 1; those of multi-label classification need not. */
function isMultiLabel(probabilities) {
  const sum = Object.values(probabilities).reduce((total, probability) => total + probability, 0);
  return Math.abs(sum - 1) > 0.01;
}

function moreClasses(rows) {
  const summary = el("summary", {}, t("classes.more", { count: formatNumber(rows.length) }));
  return el("details", { class: "data-table" }, summary, bars(rows, { isWide: true }));
}
