// Where a person asks and reads: models, fields and what to do with an answer in; a form with its result out.

import { el, refill, sayAnew } from "./elements.js";
import { EXAMPLES } from "./examples.js";
import { Unready } from "./fields.js";
import { ask, Refused } from "./server.js";
import { language, milliseconds, say, sayCount } from "./words.js";

let count = 0;

/**
 * Return {element, sayAnew, submit}. The plan:
 *   id        the tab, whose words and examples are taken
 *   models    those that can answer here
 *   fields    (model) => fields of fields.js
 *   request   (value, model) => {path, body}
 *   show      (answer, value, model) => {status, parts}: one sentence, and the elements below it
 *   examples  the name of the examples, if it is not the tab's: (model) => name
 *   extra     elements beside the model, if there are any
 */
export function bench(plan) {
  const state = { plan, model: plan.models[0], fields: null, shown: null, running: null, example: null };
  const parts = partsOf(plan);
  Object.assign(state, parts);
  state.form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit(state);
  });
  state.picker?.addEventListener("change", () => {
    state.model = plan.models.find((model) => model.name === state.picker.value);
    takeFields(state);
  });
  takeFields(state);
  return {
    element: parts.element,
    submit: () => submit(state),
    sayAnew: () => anew(state),
  };
}

function partsOf(plan) {
  const fieldsHere = el("div", {});
  const picker = plan.models.length > 1 ? modelPicker(plan.models) : null;
  const send = el("button", { type: "submit", class: "send", say: `${plan.id}.send` });
  const error = el("p", { class: "error", role: "alert" });
  const examples = el("div", { class: "examples" });
  const named = picker ? labelled("page.model", picker) : modelName(plan.models[0]);
  const actions = el("div", { class: "actions" }, named, ...(plan.extra ?? []), send);
  const form = el("form", { novalidate: true, class: "ask" }, examples, fieldsHere, actions, error);
  const status = el("p", { class: "status", role: "status" });
  const result = el("div", { class: "result" });
  const foot = el("div", { class: "foot" });
  const intro = [el("h2", { say: `${plan.id}.title` }), el("p", { class: "lead", say: `${plan.id}.lead` })];
  const element = el("div", { class: "bench" }, ...intro, form, status, result, foot);
  return { element, fieldsHere, picker, send, error, examples, form, status, result, foot };
}

function modelPicker(models) {
  const options = models.map((model) => el("option", { value: model.name }, model.name));
  return el("select", { id: `model-${(count += 1)}` }, options);
}

function labelled(name, control) {
  return el("div", { class: "control" }, el("label", { for: control.id, say: name }), control);
}

function modelName(model) {
  if (!model) return null;
  const name = el("span", { class: "model-name", title: model.description ?? "" }, model.name);
  return el("div", { class: "control" }, el("span", { class: "label", say: "page.model" }), name);
}

/** Take the fields of the model that was chosen, with the first example in them. */
function takeFields(state) {
  state.fields = state.plan.fields(state.model);
  refill(state.fieldsHere, state.fields.element);
  clear(state);
  showExamples(state);
  useExample(state, 0);
}

function examplesOf(state) {
  const name = state.plan.examples ? state.plan.examples(state.model) : state.plan.id;
  return EXAMPLES[name][language()];
}

function showExamples(state) {
  const buttons = examplesOf(state).map(({ title }, number) =>
    el("button", { type: "button", class: "chip", on: { click: () => tryExample(state, number) } }, title),
  );
  refill(state.examples, el("span", { class: "label", say: "page.examples" }), buttons);
}

function useExample(state, number) {
  const { value } = examplesOf(state)[number];
  state.fields.write(value);
  state.example = { number, written: asText(state) };
}

function tryExample(state, number) {
  useExample(state, number);
  submit(state);
}

/** What stands in the fields, to see later whether it was changed. */
function asText(state) {
  const inputs = [...state.fieldsHere.querySelectorAll("input, textarea")];
  return JSON.stringify(inputs.map((input) => input.value));
}

async function submit(state) {
  const { plan, model } = state;
  state.error.textContent = "";
  let value;
  try {
    value = state.fields.read();
  } catch (error) {
    if (!(error instanceof Unready)) throw error;
    state.error.textContent = error.message;
    return;
  }
  state.running?.abort();
  const running = (state.running = new AbortController());
  busy(state, true);
  try {
    const { path, body } = plan.request(value, model);
    const told = await ask(path, body, running.signal);
    if (state.running === running) show(state, { ...told, value, model });
  } catch (error) {
    if (state.running === running) refuse(state, error);
  } finally {
    if (state.running === running) busy(state, false);
  }
}

function busy(state, is) {
  state.element.setAttribute("aria-busy", is);
  state.send.classList.toggle("busy", is);
}

function refuse(state, error) {
  if (error.name === "AbortError") return;
  if (!(error instanceof Refused)) throw error;
  clear(state);
  state.error.textContent = error.message;
}

function clear(state) {
  state.shown = null;
  state.error.textContent = "";
  state.status.textContent = "";
  refill(state.result);
  refill(state.foot);
}

function show(state, told) {
  state.shown = told;
  const { status, parts } = state.plan.show(told.answer, told.value, told.model);
  state.status.textContent = status;
  refill(state.result, parts);
  refill(state.foot, footOf(told));
}

/** How long it took, what was read, and the request for a terminal. */
export function footOf({ answer, milliseconds: took, command }) {
  const usage = answer.usage ?? {};
  const facts = [milliseconds(took)];
  if (usage.pieces) facts.push(sayCount("usage.pieces", usage.pieces));
  if (usage.windows > 1) facts.push(sayCount("usage.windows", usage.windows));
  const cut = usage.cut || answer.cut;
  if (cut) facts.push(sayCount("usage.cut", cut));
  const line = el("code", { tabindex: "0" }, command);
  const copy = el("button", { type: "button", class: "quiet small", say: "page.copy" });
  copy.addEventListener("click", () => copied(line, copy));
  const summary = el("summary", {}, "curl");
  const folded = el("details", { class: "command" }, summary, el("div", { class: "command-line" }, line, copy));
  return [el("p", { class: "facts" }, facts.join(" · ")), folded];
}

async function copied(line, button) {
  try {
    await navigator.clipboard.writeText(line.textContent);
    button.textContent = say("page.copied");
  } catch {
    // Without a secure connection there is no clipboard: the line is selected, so that a key copies it.
    getSelection().selectAllChildren(line);
    button.textContent = say("page.selected");
  }
}

function anew(state) {
  const untouched = state.example && asText(state) === state.example.written;
  sayAnew(state.element);
  state.error.textContent = "";
  showExamples(state);
  if (state.shown) show(state, state.shown);
  else if (untouched) useExample(state, state.example.number);
}
