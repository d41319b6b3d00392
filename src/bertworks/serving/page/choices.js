// The tab of choices: a beginning and endings in; the endings in the order of their probability out.

import { bars } from "./bars.js";
import { bench } from "./bench.js";
import { fieldsFor } from "./fields.js";
import { pathOf } from "./server.js";
import { percent, say } from "./words.js";

export const CHOICES = {
  id: "choices",
  suits: (model) => model.task === "choose" && model.can.includes("predict"),
  create,
};

function create({ models }) {
  return bench({
    id: "choices",
    models,
    fields: () => fieldsFor("choose"),
    request: (input, model) => ({ path: pathOf(model, "predict"), body: { inputs: [input] } }),
    show,
  });
}

function show({ predictions: [{ choice, text, probabilities }] }, { choices }) {
  const rows = choices.map((name, place) => ({ name, share: probabilities[place], isBest: place === choice }));
  rows.sort((one, other) => other.share - one.share);
  const status = say("choices.status", { text, share: percent(probabilities[choice]) });
  return { status, parts: [bars(rows, { isWide: true })] };
}
