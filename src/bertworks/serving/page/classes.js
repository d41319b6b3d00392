// The tab of classes: a text or a pair in; the probability of every class, or a number, out.

import { bars } from "./bars.js";
import { bench } from "./bench.js";
import { el } from "./elements.js";
import { fieldsFor, readsPairs } from "./fields.js";
import { pathOf } from "./server.js";
import { number, percent, say } from "./words.js";

const SEVERAL = "|"; // between the classes of a text that has several
const MOST_SHOWN = 12;

export const CLASSES = {
  id: "classes",
  suits: (model) => ["classify", "regress"].includes(model.task) && model.can.includes("predict"),
  create,
};

function create({ models }) {
  return bench({
    id: "classes",
    models,
    fields: (model) => fieldsFor(model.task, model),
    examples: classExamples,
    request: (input, model) => ({ path: pathOf(model, "predict"), body: { inputs: [input] } }),
    show: ({ predictions: [prediction] }) => ("value" in prediction ? showValue(prediction) : showClasses(prediction)),
  });
}

/** Return the name of the examples that suit a model of classes or scores. */
export function classExamples(model) {
  if (model.task === "regress") return "scores";
  return readsPairs(model) ? "pairs" : "classes";
}

function showValue({ value }) {
  return { status: say("classes.value.status"), parts: [el("p", { class: "big-number" }, number(value, 3))] };
}

function showClasses({ label, probabilities }) {
  const shares = Object.entries(probabilities).sort((one, other) => other[1] - one[1]);
  const chosen = chosenOf(label, probabilities);
  const isSeveral = hasSeveral(probabilities);
  const rows = shares.map(([name, share]) => {
    const isBest = chosen.includes(name);
    return { name, share, isBest, note: isSeveral && isBest ? "✓" : null };
  });
  const parts = [bars(rows.slice(0, MOST_SHOWN), { isWide: true })];
  if (rows.length > MOST_SHOWN) parts.push(rest(rows.slice(MOST_SHOWN)));
  parts.push(el("p", { class: "note" }, say(isSeveral ? "classes.several.note" : "classes.note")));
  return { status: statusOf(chosen, shares[0][1]), parts };
}

function statusOf(chosen, share) {
  if (chosen.length === 0) return say("classes.none");
  if (chosen.length > 1) return say("classes.several", { labels: chosen.join(", ") });
  return say("classes.status", { label: chosen[0], share: percent(share) });
}

/** A label may itself hold a |, so the whole is looked for first. */
function chosenOf(label, probabilities) {
  if (label in probabilities) return [label];
  return label.split(SEVERAL).filter((one) => one in probabilities);
}

/** Shares of one class among many sum to 1; those of classes that do not exclude each other need not. */
function hasSeveral(probabilities) {
  const sum = Object.values(probabilities).reduce((total, share) => total + share, 0);
  return Math.abs(sum - 1) > 0.01;
}

function rest(rows) {
  const summary = el("summary", {}, say("classes.rest", { count: number(rows.length) }));
  return el("details", { class: "as-table" }, summary, bars(rows, { isWide: true }));
}
