// Multiple choice: a prompt and its choices in; the choices by probability out.

import { modelPath } from "./api.js";
import { bars } from "./bars.js";
import { fieldsFor } from "./fields.js";
import { formatPercent, t } from "./i18n.js";
import { requestForm } from "./request-form.js";

export const CHOICES = {
  id: "choices",
  supports: (model) => model.task === "choose" && model.capabilities.includes("predict"),
  create,
};

function create({ models }) {
  return requestForm({
    id: "choices",
    models,
    fields: () => fieldsFor("choose"),
    request: (input, model) => ({ path: modelPath(model, "predict"), body: { inputs: [input] } }),
    render,
  });
}

function render({ predictions: [{ choice, text, probabilities }] }, { choices }) {
  const rows = choices.map((name, index) => ({ name, ratio: probabilities[index], isBest: index === choice }));
  rows.sort((a, b) => b.ratio - a.ratio);
  const status = t("choices.status", { text, percent: formatPercent(probabilities[choice]) });
  return { status, parts: [bars(rows, { isWide: true })] };
}
