// The tab of reasons: what a task reads in; its words coloured by how much they speak for or against the output out.

import { bench } from "./bench.js";
import { classExamples } from "./classes.js";
import { el } from "./elements.js";
import { fieldsFor } from "./fields.js";
import { marked, quotedText } from "./marked.js";
import { pathOf } from "./server.js";
import { foldedTable } from "./tables.js";
import { number, say, signed } from "./words.js";

// Examples are those of the tab that shows the task's predictions.
const EXAMPLES_OF = {
  classify: classExamples,
  regress: classExamples,
  tag: () => "entities",
  answer: () => "answers",
  choose: () => "choices",
};
// Weights miss the difference that they explain by this share of their sizes at most, or it is said.
const TOLERANCE = 0.01;
// Below this share of the largest weight a word has no colour.
const FAINTEST = 0.07;

export const WHY = { id: "why", suits: (model) => model.can.includes("explain"), create };

function create({ models }) {
  const target = el("input", { type: "text", id: "why-target", sayHint: "why.target.hint", autocomplete: "off" });
  const control = el("div", { class: "control" }, el("label", { for: target.id, say: "why.target" }), target);
  return bench({
    id: "why",
    models,
    extra: [control],
    fields: (model) => {
      target.value = "";
      return fieldsFor(model.task, model);
    },
    examples: (model) => EXAMPLES_OF[model.task](model),
    request: (input, model) => ({
      path: pathOf(model, "explain"),
      body: { input, target: target.value.trim() || null },
    }),
    show,
  });
}

function show(answer) {
  const words = answer.texts.flatMap((text) => text.words);
  const largest = Math.max(...words.map((word) => Math.abs(word.weight)), 0) || 1;
  const texts = answer.texts.map((text) => coloured(text, largest, answer.texts.length > 1));
  const status = say("why.status", { target: answer.target });
  return { status, parts: [...texts, legend(), ...remarks(answer), tableOf(answer.texts)] };
}

function coloured({ title, text, words }, largest, isNamed) {
  const make = (part, { weight }) => {
    const side = weight < 0 ? "against" : "for";
    const size = Math.abs(weight) / largest;
    const share = size < FAINTEST ? 0 : size;
    return el("span", { class: `weight ${side}`, title: signed(weight), style: { "--share": share.toFixed(3) } }, part);
  };
  const paragraph = quotedText(marked(text, words, make), { class: "large loose" });
  return isNamed ? el("div", {}, el("p", { class: "label" }, title), paragraph) : paragraph;
}

function legend() {
  const items = ["for", "against"].map((side) =>
    el("li", {}, el("i", { class: `swatch weight ${side}`, style: { "--share": 0.8 } }), say(`why.${side}`)),
  );
  return el("ul", { class: "legend" }, items);
}

function remarks({ output, baseline_output: baseline, elsewhere, gap, steps, cut, texts }) {
  const found = [say("why.outputs", { output: signed(output), baseline: signed(baseline) })];
  if (elsewhere) found.push(say("why.elsewhere", { weight: signed(elsewhere) }));
  if (cut) found.push(say("why.cut", { count: number(cut) }));
  const size = texts.flatMap((text) => text.words).reduce((sum, word) => sum + Math.abs(word.weight), 0);
  if (Math.abs(gap) > TOLERANCE * size) found.push(say("why.gap", { gap: signed(gap), steps: number(steps) }));
  return found.map((remark) => el("p", { class: "note" }, remark));
}

function tableOf(texts) {
  const words = texts.flatMap((text) => text.words.map((word) => [word.word, word.weight, text.title]));
  words.sort((one, other) => Math.abs(other[1]) - Math.abs(one[1]));
  const titles = ["word", "weight", "part"].map((name) => say(`column.${name}`));
  return foldedTable(
    say("why.table"),
    titles,
    words.map(([word, weight, title]) => [word, signed(weight), title]),
    [1],
  );
}
