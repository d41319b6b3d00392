// What a task reads: its kind in, labelled fields out that give and take an input in the shape the server wants.

import { el, refill } from "./elements.js";
import { say } from "./words.js";

const MASK = "[MASK]";
const FEWEST_CHOICES = 2;
const MOST_CHOICES = 10;
// Classes of these names are said of two texts, so the second field is open from the start.
const OF_PAIRS = /entail|contradict|paraphrase|duplicate|equivalent|蕴含|矛盾|相似/i;

let count = 0;

/** A field that was left empty, or the like: the message is a sentence for people. */
export class Unready extends Error {}

/**
 * Return the fields for a kind of input: {element, read, write}. `read` throws Unready where something is missing.
 * Kinds: fill, classify, regress, tag, answer, choose (the tasks), pair (one text or two), sentences
 * (many, and a query), query.
 */
export function fieldsFor(kind, model) {
  return KINDS[kind](model);
}

const KINDS = {
  fill: blankFields,
  classify: (model) => pairFields(asInput, readsPairs(model)),
  regress: () => pairFields(asInput, true),
  tag: () => oneField("fields.text", 3),
  answer: answerFields,
  choose: chooseFields,
  pair: () => pairFields((text, pair) => ({ text, pair }), false),
  sentences: sentenceFields,
  query: () => oneField("fields.look_for", 1),
};

/** Return whether a model says something of two texts, as far as its classes tell. */
export function readsPairs(model) {
  return model.task === "regress" || Boolean(model.labels?.some((label) => OF_PAIRS.test(label)));
}

function asInput(text, pair) {
  return pair === null ? text : { sentence1: text, sentence2: pair };
}

/** A labelled field. In a short one Enter sends; in a long one it starts a line, and Ctrl or ⌘ with Enter sends. */
function writing(name, { rows = 2, isLong = false, isLine = false } = {}) {
  const id = `field-${(count += 1)}`;
  const input = isLine ? el("input", { id, type: "text" }) : el("textarea", { id, rows });
  input.setAttribute("dir", "auto");
  input.autocomplete = "off";
  input.addEventListener("keydown", (event) => {
    // While a Chinese input method is open, Enter chooses what it offers.
    if (event.key !== "Enter" || event.isComposing || event.shiftKey) return;
    if (isLong && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    input.form.requestSubmit();
  });
  const label = el("label", { for: id, say: name });
  return { input, label, element: el("div", { class: "field" }, label, input) };
}

function given(field, missing = "fields.missing") {
  const text = field.input.value.trim();
  if (!text) {
    field.input.focus();
    throw new Unready(say(missing));
  }
  return field.input.value;
}

function oneField(name, rows) {
  const text = writing(name, { rows });
  return { element: text.element, read: () => given(text), write: (value) => (text.input.value = value) };
}

function blankFields() {
  const text = writing("fields.text", { rows: 2 });
  const insert = el("button", { type: "button", class: "quiet small", sayTitle: "blanks.insert.title" }, `+ ${MASK}`);
  insert.addEventListener("click", () => {
    const { input } = text;
    input.setRangeText(MASK, input.selectionStart, input.selectionEnd, "end");
    input.focus();
  });
  text.label.after(insert);
  text.element.classList.add("with-button");
  return { element: text.element, read: () => given(text), write: (value) => (text.input.value = value) };
}

function pairFields(shape, isOpen) {
  const text = writing("fields.text", { rows: 2 });
  const pair = writing("fields.pair", { rows: 2 });
  const add = el("button", { type: "button", class: "quiet small", say: "fields.pair.add" });
  const remove = el("button", { type: "button", class: "quiet small", say: "fields.pair.remove" });
  const open = (is) => {
    pair.element.hidden = !is;
    add.hidden = is;
  };
  add.addEventListener("click", () => {
    open(true);
    pair.input.focus();
  });
  remove.addEventListener("click", () => {
    open(false);
    text.input.focus();
  });
  pair.label.after(remove);
  pair.element.classList.add("with-button");
  open(isOpen);
  return {
    element: el("div", { class: "fields" }, text.element, pair.element, el("div", {}, add)),
    read: () => shape(given(text), pair.element.hidden ? null : given(pair)),
    write: ({ text: first, pair: second }) => {
      text.input.value = first;
      pair.input.value = second ?? "";
      open(second !== null && second !== undefined);
    },
  };
}

function answerFields() {
  const question = writing("fields.question", { isLine: true });
  const passage = writing("fields.passage", { rows: 6, isLong: true });
  return {
    element: el("div", { class: "fields" }, question.element, passage.element),
    read: () => ({ question: given(question), context: given(passage) }),
    write: (value) => {
      question.input.value = value.question;
      passage.input.value = value.context;
    },
  };
}

function chooseFields() {
  const prompt = writing("fields.prompt", { rows: 2 });
  const list = el("ol", { class: "choices" });
  const add = el("button", { type: "button", class: "quiet small", say: "fields.choice.add" });
  let choices = [];
  const show = () => {
    refill(
      list,
      choices.map((choice) => choice.item),
    );
    add.hidden = choices.length >= MOST_CHOICES;
    for (const choice of choices) choice.remove.hidden = choices.length <= FEWEST_CHOICES;
  };
  const append = (value) => {
    const choice = writing("fields.choice", { isLine: true });
    choice.label.classList.add("unseen");
    choice.input.value = value;
    choice.remove = el("button", { type: "button", class: "quiet icon", sayLabel: "fields.choice.remove" }, "×");
    choice.remove.addEventListener("click", () => {
      choices = choices.filter((other) => other !== choice);
      show();
      choices.at(-1).input.focus();
    });
    choice.element.append(choice.remove);
    choice.item = el("li", {}, choice.element);
    choices.push(choice);
    return choice;
  };
  add.addEventListener("click", () => {
    const choice = append("");
    show();
    choice.input.focus();
  });
  const heading = el("p", { class: "label", say: "fields.choices" });
  append("");
  append("");
  show();
  return {
    element: el("div", { class: "fields" }, prompt.element, heading, list, el("div", {}, add)),
    read: () => ({ prompt: given(prompt), choices: choices.map((choice) => given(choice)) }),
    write: (value) => {
      prompt.input.value = value.prompt;
      choices = [];
      value.choices.forEach(append);
      show();
    },
  };
}

function sentenceFields() {
  const sentences = writing("fields.sentences", { rows: 8, isLong: true });
  const query = writing("fields.query", { isLine: true });
  return {
    element: el("div", { class: "fields" }, sentences.element, query.element),
    read: () => ({
      inputs: given(sentences, "fields.missing.sentences")
        .split("\n")
        .map((line) => line.trim())
        .filter(Boolean),
      query: query.input.value.trim() || null,
    }),
    write: (value) => {
      sentences.input.value = value.inputs.join("\n");
      query.input.value = value.query ?? "";
    },
  };
}
