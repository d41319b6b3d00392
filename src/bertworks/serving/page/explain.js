// Explanations: an input of a task in; its words colored by their attribution to the output out.

import { modelPath } from "./api.js";
import { classExamples } from "./classes.js";
import { el } from "./elements.js";
import { fieldsFor } from "./fields.js";
import { highlight, quote } from "./highlight.js";
import { formatNumber, formatSigned, t } from "./i18n.js";
import { labelText } from "./labels.js";
import { requestForm } from "./request-form.js";
import { collapsedTable } from "./tables.js";

// The examples of each task.
const TASK_EXAMPLES = {
  classify: classExamples,
  regress: classExamples,
  tag: () => "entities",
  answer: () => "answers",
  choose: () => "choices",
};
// A convergence delta above this fraction of the summed absolute weights is reported.
const TOLERANCE = 0.01;
// Words below this fraction of the largest weight have no color.
const MIN_RATIO = 0.07;

export const EXPLAIN = {
  id: "explain",
  supports: (model) => model.capabilities.includes("explain") && model.task in TASK_EXAMPLES,
  create,
};

function create({ models }) {
  const target = el("input", {
    type: "text",
    id: "explain-target",
    i18nPlaceholder: "explain.target.hint",
    autocomplete: "off",
  });
  const control = el("div", { class: "control" }, el("label", { for: target.id, i18n: "explain.target" }), target);
  return requestForm({
    id: "explain",
    models,
    controls: [control],
    fields: (model) => {
      target.value = "";
      return fieldsFor(model.task, model);
    },
    examples: (model) => TASK_EXAMPLES[model.task](model),
    request: (input, model) => ({
      path: modelPath(model, "explain"),
      body: { input, target: target.value.trim() || null },
    }),
    render,
  });
}

function render(response) {
  const words = response.texts.flatMap((text) => text.words);
  const maxWeight = Math.max(...words.map((word) => Math.abs(word.weight)), 0) || 1;
  const texts = response.texts.map((text) => coloredText(text, maxWeight, response.texts.length > 1));
  // A class is quoted; the target of another task is a phrase.
  const target = response.target.replace(/^'(.+)'$/, (_, label) => `'${labelText(label)}'`);
  const status = t("explain.status", { target });
  return { status, parts: [...texts, legend(), ...notes(response), wordTable(response.texts)] };
}

function coloredText({ title, text, words }, maxWeight, hasTitle) {
  const renderWord = (wordText, { weight }) => {
    const sign = weight < 0 ? "negative" : "positive";
    const ratio = Math.abs(weight) / maxWeight;
    const style = { "--ratio": (ratio < MIN_RATIO ? 0 : ratio).toFixed(3) };
    return el("span", { class: `attribution ${sign}`, title: formatSigned(weight), style }, wordText);
  };
  const paragraph = quote(highlight(text, words, renderWord), { class: "large loose" });
  return hasTitle ? el("div", {}, el("p", { class: "label" }, title), paragraph) : paragraph;
}

function legend() {
  const items = ["positive", "negative"].map((sign) =>
    el("li", {}, el("i", { class: `swatch attribution ${sign}`, style: { "--ratio": 0.8 } }), t(`explain.${sign}`)),
  );
  return el("ul", { class: "legend" }, items);
}

function notes(response) {
  const { output, baseline_output: baseline, context_weight: contextWeight, convergence_delta: delta } = response;
  const { num_steps: numSteps, num_truncated: numTruncated, texts } = response;
  const messages = [t("explain.outputs", { output: formatSigned(output), baseline: formatSigned(baseline) })];
  if (contextWeight) messages.push(t("explain.context", { weight: formatSigned(contextWeight) }));
  if (numTruncated) messages.push(t("explain.truncated", { count: formatNumber(numTruncated) }));
  const total = texts.flatMap((text) => text.words).reduce((sum, word) => sum + Math.abs(word.weight), 0);
  if (Math.abs(delta) > TOLERANCE * total)
    messages.push(t("explain.delta", { delta: formatSigned(delta), steps: formatNumber(numSteps) }));
  return messages.map((message) => el("p", { class: "note" }, message));
}

function wordTable(texts) {
  const words = texts.flatMap((text) => text.words.map((word) => [word.word, word.weight, text.title]));
  words.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  const headers = ["word", "weight", "source"].map((name) => t(`column.${name}`));
  return collapsedTable(
    t("explain.table"),
    headers,
    words.map(([word, weight, title]) => [word, formatSigned(weight), title]),
    [1],
  );
}
