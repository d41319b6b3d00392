// The tab of answers: a question and a passage in; the answer, where it stands and what else it could be out.

import { bars } from "./bars.js";
import { bench } from "./bench.js";
import { el, refill } from "./elements.js";
import { fieldsFor } from "./fields.js";
import { marked, quotedText } from "./marked.js";
import { pathOf } from "./server.js";
import { percent, say, signed } from "./words.js";

export const ANSWERS = {
  id: "answers",
  suits: (model) => model.task === "answer" && model.can.includes("predict"),
  create,
};

function create({ models }) {
  return bench({
    id: "answers",
    models,
    fields: () => fieldsFor("answer"),
    request: (input, model) => ({ path: pathOf(model, "predict"), body: { inputs: [input] } }),
    show,
  });
}

function show({ predictions: [prediction] }, { context }) {
  const isAnswered = prediction.text !== "";
  const spans = isAnswered ? [prediction, ...prediction.runners_up] : prediction.runners_up;
  const passage = quotedText([], { class: "passage" });
  const point = (span) => refill(passage, span ? marked(context, [span], (part) => el("mark", {}, part)) : context);
  const atRest = isAnswered ? prediction : null;
  point(atRest);
  const rows = spans.map((span, place) => {
    return { name: span.text, share: span.probability, isBest: isAnswered && place === 0 };
  });
  const list = bars(rows, { isWide: true, pointed: (place) => point(place === null ? atRest : spans[place]) });
  const parts = [passage, el("section", { class: "part" }, el("h3", {}, say("answers.ranked")), list)];
  parts.push(el("p", { class: "note" }, say("answers.note", { odds: signed(prediction.null_odds) })));
  return { status: statusOf(prediction, isAnswered), parts };
}

function statusOf({ text, probability }, isAnswered) {
  return isAnswered ? say("answers.status", { text, share: percent(probability) }) : say("answers.none");
}
