// Question answering: a question and a passage in; the answer, its position and other candidates out.

import { modelPath } from "./api.js";
import { bars } from "./bars.js";
import { el, replaceContent } from "./elements.js";
import { fieldsFor } from "./fields.js";
import { highlight, quote } from "./highlight.js";
import { formatPercent, formatSigned, t } from "./i18n.js";
import { requestForm } from "./request-form.js";

export const ANSWERS = {
  id: "answers",
  supports: (model) => model.task === "answer" && model.capabilities.includes("predict"),
  create,
};

function create({ models }) {
  return requestForm({
    id: "answers",
    models,
    fields: () => fieldsFor("answer"),
    request: (input, model) => ({ path: modelPath(model, "predict"), body: { inputs: [input] } }),
    render,
  });
}

function render({ predictions: [prediction] }, { context }) {
  const hasAnswer = prediction.text !== "";
  const spans = hasAnswer ? [prediction, ...prediction.runners_up] : prediction.runners_up;
  const passage = quote([], { class: "passage" });
  const mark = (span) =>
    replaceContent(passage, span ? highlight(context, [span], (text) => el("mark", {}, text)) : context);
  const defaultSpan = hasAnswer ? prediction : null;
  mark(defaultSpan);
  const rows = spans.map((span, index) => {
    return { name: span.text, ratio: span.probability, isBest: hasAnswer && index === 0 };
  });
  const list = bars(rows, { isWide: true, onHover: (index) => mark(index === null ? defaultSpan : spans[index]) });
  const parts = [passage, el("section", { class: "part" }, el("h3", {}, t("answers.candidates")), list)];
  parts.push(el("p", { class: "note" }, t("answers.note", { odds: formatSigned(prediction.null_odds) })));
  return { status: statusText(prediction, hasAnswer), parts };
}

function statusText({ text, probability }, hasAnswer) {
  return hasAnswer ? t("answers.status", { text, percent: formatPercent(probability) }) : t("answers.none");
}
