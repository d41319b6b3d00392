// A request form with its result: models, input fields and a render function in, an element out.

import { ApiError, request } from "./api.js";
import { el, replaceContent, updateTexts } from "./elements.js";
import { EXAMPLES } from "./examples.js";
import { MissingInput } from "./fields.js";
import { formatMilliseconds, formatPercent, language, languageTag, t, tCount } from "./i18n.js";
import { exampleLanguage, modelFacts } from "./model-facts.js";

// An answer that takes longer shows that it is computed.
const BUSY_MILLISECONDS = 300;

let numPickers = 0;

/**
 * Return {element, updateTexts, submit}. The options:
 *   id        prefix of the message keys, and name of the examples
 *   models    the models to choose from
 *   fields    (model) => fields of fields.js
 *   request   (value, model) => {path, body}
 *   render    (response, value, model) => {status, parts}: a sentence, and the elements below it
 *   examples  (model) => name of the examples, if it is not the id
 *   controls  further elements beside the model
 */
export function requestForm(options) {
  const state = {
    options,
    model: options.models[0],
    fields: null,
    result: null,
    pending: null,
    example: null,
    ...createElements(options),
  };
  state.form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit(state);
  });
  state.picker?.addEventListener("change", () => {
    state.model = options.models.find((model) => model.name === state.picker.value);
    resetFields(state);
  });
  resetFields(state);
  return {
    element: state.element,
    submit: () => submit(state),
    updateTexts: () => updateLanguage(state),
  };
}

function createElements(options) {
  const fieldContainer = el("div", {});
  const picker = options.models.length > 1 ? modelPicker(options.models) : null;
  const submitButton = el("button", { type: "submit", class: "submit", i18n: `${options.id}.submit` });
  const error = el("p", { class: "error", role: "alert" });
  const examples = el("div", { class: "examples" });
  const model = picker ? labelledControl("page.model", picker) : modelName(options.models[0]);
  const actions = el("div", { class: "actions" }, model, ...(options.controls ?? []), submitButton);
  // The options of a picker have the facts, too; where it is too narrow for them, they are shown below it.
  const facts = el("p", { class: picker ? "model-facts if-narrow" : "model-facts" });
  const busySign = el("p", { class: "busy-sign", role: "status" });
  const children = [examples, fieldContainer, actions, facts, busySign, error];
  const form = el("form", { novalidate: true, class: "request-form" }, children);
  const status = el("p", { class: "status", role: "status" });
  const warning = el("p", { class: "warning", "aria-live": "polite" });
  const resultContainer = el("div", { class: "result" });
  const footer = el("div", { class: "result-footer" });
  const intro = [el("h2", { i18n: `${options.id}.title` }), el("p", { class: "lead", i18n: `${options.id}.lead` })];
  const element = el("div", { class: "tab-content" }, ...intro, form, status, warning, resultContainer, footer);
  const result = { status, warning, resultContainer, footer };
  return { element, fieldContainer, picker, submitButton, error, examples, form, facts, busySign, ...result };
}

function modelPicker(models) {
  const options = models.map((model) => el("option", { value: model.name }, optionText(model)));
  return el("select", { id: `model-${(numPickers += 1)}` }, options);
}

function optionText(model) {
  return [model.name, ...modelFacts(model)].join(" · ");
}

function labelledControl(key, control) {
  return el("div", { class: "control" }, el("label", { for: control.id, i18n: key }), control);
}

function modelName(model) {
  if (!model) return null;
  const name = el("span", { class: "model-name", title: model.description ?? "" }, model.name);
  return el("div", { class: "control" }, el("span", { class: "label", i18n: "page.model" }), name);
}

/** Show the input fields of the selected model with the first example. */
function resetFields(state) {
  state.fields = state.options.fields(state.model);
  replaceContent(state.fieldContainer, state.fields.element);
  clearResult(state);
  showFacts(state);
  showExamples(state);
  fillExample(state, 0);
}

function showFacts(state) {
  state.facts.textContent = state.model ? modelFacts(state.model).join(" · ") : "";
  const options = [...(state.picker?.options ?? [])];
  options.forEach((option, index) => (option.textContent = optionText(state.options.models[index])));
}

function examplesOf(state) {
  const name = state.options.examples ? state.options.examples(state.model) : state.options.id;
  const examples = EXAMPLES[name];
  const code = exampleLanguage(state.model, language(), Object.keys(examples));
  return { lang: languageTag(code), examples: examples[code] };
}

function showExamples(state) {
  const { lang, examples } = examplesOf(state);
  const buttons = examples.map(({ title }, index) =>
    el("button", { type: "button", class: "chip", lang, on: { click: () => runExample(state, index) } }, title),
  );
  replaceContent(state.examples, el("span", { class: "label", i18n: "page.examples" }), buttons);
}

function fillExample(state, index) {
  const { lang, examples } = examplesOf(state);
  state.fields.write(examples[index].value);
  state.fieldContainer.querySelectorAll("input, textarea").forEach((field) => (field.lang = lang));
  state.example = { index, snapshot: fieldSnapshot(state) };
}

function runExample(state, index) {
  fillExample(state, index);
  submit(state);
}

/** Return the content of all fields, to detect later whether it was edited. */
function fieldSnapshot(state) {
  const inputs = [...state.fieldContainer.querySelectorAll("input, textarea")];
  return JSON.stringify(inputs.map((input) => input.value));
}

async function submit(state) {
  const { options, model } = state;
  state.error.textContent = "";
  let value;
  try {
    value = state.fields.read();
  } catch (error) {
    if (!(error instanceof MissingInput)) throw error;
    state.error.textContent = error.message;
    return;
  }
  state.pending?.abort();
  const pending = (state.pending = new AbortController());
  setBusy(state, true);
  try {
    const { path, body } = options.request(value, model);
    const result = await request(path, body, pending.signal);
    if (state.pending === pending) showResult(state, { ...result, value, model });
  } catch (error) {
    if (state.pending === pending) showError(state, error);
  } finally {
    if (state.pending === pending) setBusy(state, false);
  }
}

function setBusy(state, isBusy) {
  state.element.setAttribute("aria-busy", isBusy);
  state.submitButton.classList.toggle("busy", isBusy);
  clearTimeout(state.busyTimer);
  state.busySign.textContent = "";
  // A quick answer needs no sign, which a screen reader would read.
  if (isBusy) state.busyTimer = setTimeout(() => (state.busySign.textContent = t("page.busy")), BUSY_MILLISECONDS);
}

function showError(state, error) {
  if (error.name === "AbortError") return;
  if (!(error instanceof ApiError)) throw error;
  clearResult(state);
  state.error.textContent = error.message;
}

function clearResult(state) {
  state.result = null;
  state.error.textContent = "";
  state.status.textContent = "";
  state.warning.textContent = "";
  replaceContent(state.resultContainer);
  replaceContent(state.footer);
}

function showResult(state, result) {
  state.result = result;
  const { status, parts } = state.options.render(result.response, result.value, result.model);
  state.status.textContent = status;
  state.warning.textContent = (result.response.warnings ?? []).map(warningText).join(" ");
  replaceContent(state.resultContainer, parts);
  replaceContent(state.footer, resultFooter(result));
}

/** Return a warning of the server, such as that the vocabulary hardly reads the text, as a sentence. */
function warningText({ type, ratio, examples }) {
  return t(`warning.${type}`, { percent: formatPercent(ratio), examples: examples.join(" ") });
}

/** Return the latency, the usage and the curl command of a request. */
export function resultFooter({ response, milliseconds, command }) {
  const usage = response.usage ?? {};
  const info = [formatMilliseconds(milliseconds)];
  if (usage.num_tokens) info.push(tCount("usage.tokens", usage.num_tokens));
  if (usage.num_windows > 1) info.push(tCount("usage.windows", usage.num_windows));
  const numTruncated = usage.num_truncated || response.num_truncated;
  if (numTruncated) info.push(tCount("usage.truncated", numTruncated));
  if (usage.num_unknown) info.push(tCount("usage.unknown", usage.num_unknown));
  const code = el("code", { tabindex: "0" }, command);
  const copyButton = el("button", { type: "button", class: "text-button small", i18n: "page.copy" });
  copyButton.addEventListener("click", () => copyCommand(code, copyButton));
  const summary = el("summary", {}, "curl");
  const details = el("details", { class: "command" }, summary, el("div", { class: "command-line" }, code, copyButton));
  return [el("p", { class: "request-info" }, info.join(" · ")), details];
}

async function copyCommand(code, button) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = t("page.copied");
  } catch {
    // The clipboard requires a secure connection: otherwise the command is selected, ready for Ctrl-C.
    getSelection().selectAllChildren(code);
    button.textContent = t("page.selected");
  }
}

function updateLanguage(state) {
  const isUnedited = state.example && fieldSnapshot(state) === state.example.snapshot;
  updateTexts(state.element);
  state.error.textContent = "";
  showFacts(state);
  showExamples(state);
  if (state.result) showResult(state, state.result);
  else if (isUnedited) fillExample(state, state.example.index);
}
