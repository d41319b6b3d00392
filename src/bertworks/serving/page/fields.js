// Input fields: the kind of an input in, labelled fields out that read and write it in the shape of the HTTP API.

import { el, replaceContent } from "./elements.js";
import { t } from "./i18n.js";

const MASK = "[MASK]";
const MIN_CHOICES = 2;
const MAX_CHOICES = 10;
// Models with labels like these classify pairs, so the second field is open from the start.
const PAIR_LABELS = /entail|contradict|paraphrase|duplicate|equivalent|蕴含|矛盾|相似/i;

let numFields = 0;

/** A required field is empty; the message is a sentence to show. */
export class MissingInput extends Error {}

/**
 * Return the fields for a kind of input: {element, read, write}. `read` throws MissingInput if a field is empty.
 * Kinds: the tasks classify, regress, tag, answer and choose; fill-mask; pair (one text or two); sentences (and a
 * query); query.
 */
export function fieldsFor(kind, model) {
  return KINDS[kind](model);
}

const KINDS = {
  "fill-mask": maskedTextField,
  classify: (model) => pairFields(toTaskInput, isPairModel(model)),
  regress: () => pairFields(toTaskInput, true),
  tag: () => singleField("fields.text", 3),
  answer: passageFields,
  choose: choiceFields,
  pair: () => pairFields((text, pair) => ({ text, pair }), false),
  sentences: sentenceFields,
  query: () => singleField("fields.search_query", 1),
};

/** Return whether a model classifies pairs of texts, as far as its labels tell. */
export function isPairModel(model) {
  return model.task === "regress" || Boolean(model.labels?.some((label) => PAIR_LABELS.test(label)));
}

function toTaskInput(text, pair) {
  return pair === null ? text : { sentence1: text, sentence2: pair };
}

/** Create a labelled field. Enter submits a short one; in a long one it adds a line, and Ctrl or ⌘ + Enter submits. */
function createField(key, { rows = 2, isLong = false, isSingleLine = false } = {}) {
  const id = `field-${(numFields += 1)}`;
  const input = isSingleLine ? el("input", { id, type: "text" }) : el("textarea", { id, rows });
  input.setAttribute("dir", "auto");
  input.autocomplete = "off";
  input.addEventListener("keydown", (event) => {
    // In an open input method editor, Enter selects a candidate.
    if (event.key !== "Enter" || event.isComposing || event.shiftKey) return;
    if (isLong && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    input.form.requestSubmit();
  });
  const label = el("label", { for: id, i18n: key });
  return { input, label, element: el("div", { class: "field" }, label, input) };
}

function requiredValue(field, messageKey = "fields.missing") {
  const text = field.input.value.trim();
  if (!text) {
    field.input.focus();
    throw new MissingInput(t(messageKey));
  }
  return field.input.value;
}

function singleField(key, rows) {
  const text = createField(key, { rows });
  return { element: text.element, read: () => requiredValue(text), write: (value) => (text.input.value = value) };
}

function maskedTextField() {
  const text = createField("fields.text", { rows: 2 });
  const insert = el(
    "button",
    { type: "button", class: "text-button small", i18nTitle: "fill-mask.insert.title" },
    `+ ${MASK}`,
  );
  insert.addEventListener("click", () => {
    const { input } = text;
    input.setRangeText(MASK, input.selectionStart, input.selectionEnd, "end");
    input.focus();
  });
  text.label.after(insert);
  text.element.classList.add("with-button");
  return { element: text.element, read: () => requiredValue(text), write: (value) => (text.input.value = value) };
}

function pairFields(toInput, isOpen) {
  const text = createField("fields.text", { rows: 2 });
  const pair = createField("fields.pair", { rows: 2 });
  const add = el("button", { type: "button", class: "text-button small", i18n: "fields.pair.add" });
  const remove = el("button", { type: "button", class: "text-button small", i18n: "fields.pair.remove" });
  const setOpen = (open) => {
    pair.element.hidden = !open;
    add.hidden = open;
  };
  add.addEventListener("click", () => {
    setOpen(true);
    pair.input.focus();
  });
  remove.addEventListener("click", () => {
    setOpen(false);
    text.input.focus();
  });
  pair.label.after(remove);
  pair.element.classList.add("with-button");
  setOpen(isOpen);
  return {
    element: el("div", { class: "fields" }, text.element, pair.element, el("div", {}, add)),
    read: () => toInput(requiredValue(text), pair.element.hidden ? null : requiredValue(pair)),
    write: ({ text: first, pair: second }) => {
      text.input.value = first;
      pair.input.value = second ?? "";
      setOpen(second !== null && second !== undefined);
    },
  };
}

function passageFields() {
  const question = createField("fields.question", { isSingleLine: true });
  const passage = createField("fields.passage", { rows: 6, isLong: true });
  return {
    element: el("div", { class: "fields" }, question.element, passage.element),
    read: () => ({ question: requiredValue(question), context: requiredValue(passage) }),
    write: (value) => {
      question.input.value = value.question;
      passage.input.value = value.context;
    },
  };
}

function choiceFields() {
  const prompt = createField("fields.prompt", { rows: 2 });
  const list = el("ol", { class: "choices" });
  const add = el("button", { type: "button", class: "text-button small", i18n: "fields.choice.add" });
  let choices = [];
  const update = () => {
    replaceContent(
      list,
      choices.map((choice) => choice.item),
    );
    add.hidden = choices.length >= MAX_CHOICES;
    for (const choice of choices) choice.removeButton.hidden = choices.length <= MIN_CHOICES;
  };
  const append = (value) => {
    const choice = createField("fields.choice", { isSingleLine: true });
    choice.label.classList.add("visually-hidden");
    choice.input.value = value;
    choice.removeButton = el(
      "button",
      { type: "button", class: "text-button icon", i18nLabel: "fields.choice.remove" },
      "×",
    );
    choice.removeButton.addEventListener("click", () => {
      choices = choices.filter((other) => other !== choice);
      update();
      choices.at(-1).input.focus();
    });
    choice.element.append(choice.removeButton);
    choice.item = el("li", {}, choice.element);
    choices.push(choice);
    return choice;
  };
  add.addEventListener("click", () => {
    const choice = append("");
    update();
    choice.input.focus();
  });
  const heading = el("p", { class: "label", i18n: "fields.choices" });
  append("");
  append("");
  update();
  return {
    element: el("div", { class: "fields" }, prompt.element, heading, list, el("div", {}, add)),
    read: () => ({ prompt: requiredValue(prompt), choices: choices.map((choice) => requiredValue(choice)) }),
    write: (value) => {
      prompt.input.value = value.prompt;
      choices = [];
      value.choices.forEach(append);
      update();
    },
  };
}

function sentenceFields() {
  const sentences = createField("fields.sentences", { rows: 8, isLong: true });
  const query = createField("fields.query", { isSingleLine: true });
  return {
    element: el("div", { class: "fields" }, sentences.element, query.element),
    read: () => ({
      inputs: requiredValue(sentences, "fields.missing.sentences")
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
