// Attention: a text or a pair in; the model view of all heads, and the head view of one out.

import { ApiError, modelPath, request } from "./api.js";
import { el, replaceContent } from "./elements.js";
import { fieldsFor } from "./fields.js";
import { headView } from "./head-view.js";
import { formatNumber, formatPercent, t } from "./i18n.js";
import { isSpecial } from "./input.js";
import { modelView } from "./model-view.js";
import { requestForm } from "./request-form.js";
import { collapsedTable } from "./tables.js";

const MODEL_TOP_K = 4000;
const HEAD_TOP_K = 2000;
// At first, the weights of at least this fraction of the largest are drawn, but not more than so many.
const MIN_DRAWN_RATIO = 0.25;
const MAX_DRAWN_INITIALLY = 200;
const MAX_TABLE_ROWS = 500;

// The selected head of a response: it stays selected when the response is rendered again in another language.
const selectedHeads = new WeakMap();

export const ATTENTION = { id: "attention", supports: (model) => model.capabilities.includes("attention"), create };

function create({ models }) {
  return requestForm({
    id: "attention",
    models,
    fields: () => fieldsFor("pair"),
    request: (value, model) => ({ path: modelPath(model, "attention"), body: { ...value, top_k: MODEL_TOP_K } }),
    render,
  });
}

function render(response, value, model) {
  const headContainer = el("div", { class: "head-view" });
  const error = el("p", { class: "error", role: "alert" });
  const pickers = headPickers(response);
  const grid = modelView(response, (layer, head) => selectHead(layer, head));
  let latestRequest = 0;

  async function selectHead(layer, head) {
    const requestNumber = (latestRequest += 1);
    selectedHeads.set(response, [layer, head]);
    grid.select(layer, head);
    pickers.set(layer, head);
    error.textContent = "";
    try {
      const body = { ...value, top_k: HEAD_TOP_K, layer, head };
      const { response: headResponse } = await request(modelPath(model, "attention"), body);
      if (requestNumber === latestRequest) replaceContent(headContainer, headParts(headResponse, layer, head));
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
      if (requestNumber === latestRequest) error.textContent = failure.message;
    }
  }

  pickers.onChange(selectHead);
  selectHead(...(selectedHeads.get(response) ?? mostInformativeHead(response)));
  const status = t("attention.status", {
    tokens: formatNumber(response.tokens.length),
    layers: formatNumber(response.num_layers),
    heads: formatNumber(response.num_heads),
  });
  const note = el("p", { class: "note" }, t("attention.model_view.note"));
  const selection = el(
    "div",
    { class: "head-selection" },
    el("div", {}, grid.element),
    el("div", {}, pickers.element, note),
  );
  return { status, parts: [selection, el("div", {}, error, headContainer)] };
}

/** Return the head with the most attention between different, non-special tokens. */
function mostInformativeHead({ tokens, attention_weights: weights }) {
  const sums = new Map();
  for (const [layer, head, query, key, weight] of weights) {
    if (query === key || isSpecial(tokens[query]) || isSpecial(tokens[key])) continue;
    const name = `${layer} ${head}`;
    sums.set(name, (sums.get(name) ?? 0) + weight);
  }
  const best = [...sums].sort((a, b) => b[1] - a[1])[0];
  return best ? best[0].split(" ").map(Number) : [0, 0];
}

function headPickers({ num_layers: numLayers, num_heads: numHeads }) {
  const [layerPicker, headPicker] = [
    ["layer", numLayers],
    ["head", numHeads],
  ].map(([name, count]) => {
    const options = Array.from({ length: count }, (_, index) => el("option", { value: index }, String(index + 1)));
    return el("select", { id: `attention-${name}` }, options);
  });
  const control = (key, select) => el("div", { class: "control" }, el("label", { for: select.id }, t(key)), select);
  return {
    element: el(
      "div",
      { class: "actions" },
      control("attention.layer", layerPicker),
      control("attention.head", headPicker),
    ),
    set: (layer, head) => {
      layerPicker.value = layer;
      headPicker.value = head;
    },
    onChange: (callback) => {
      for (const select of [layerPicker, headPicker]) {
        select.addEventListener("change", () => callback(Number(layerPicker.value), Number(headPicker.value)));
      }
    },
  };
}

function headParts(response, layer, head) {
  const view = headView(response);
  const weights = response.attention_weights;
  const numLarge = weights.filter((entry) => entry[4] >= MIN_DRAWN_RATIO * weights[0][4]).length;
  const numDrawn = Math.min(MAX_DRAWN_INITIALLY, numLarge);
  const controls = el(
    "div",
    { class: "actions" },
    directionSwitch(view.setDirection),
    countSlider(weights.length, numDrawn, view.draw),
  );
  view.draw(numDrawn);
  const title = el("h3", {}, t("attention.head.title", { layer: layer + 1, head: head + 1 }));
  return [title, controls, view.element, weightTable(response)];
}

function directionSwitch(setDirection) {
  const directions = ["to", "from"];
  const buttons = directions.map((direction) =>
    el(
      "button",
      { type: "button", "aria-pressed": direction === "to", on: { click: () => select(direction) } },
      t(`attention.direction.${direction}`),
    ),
  );
  const select = (direction) => {
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", directions[index] === direction));
    setDirection(direction);
  };
  return el("div", { class: "segmented", role: "group", "aria-label": t("attention.direction") }, buttons);
}

function countSlider(max, initial, onInput) {
  const output = el("output", {}, formatNumber(initial));
  const slider = el("input", { type: "range", id: "attention-count", min: 0, max, value: initial });
  slider.addEventListener("input", () => {
    output.textContent = formatNumber(slider.value);
    onInput(Number(slider.value));
  });
  return el("div", { class: "control" }, el("label", { for: "attention-count" }, t("attention.count")), slider, output);
}

function weightTable({ tokens, attention_weights: weights }) {
  const headers = ["query", "key", "weight"].map((name) => t(`column.${name}`));
  const label = (position) => `${tokens[position]} (${position})`;
  const rows = () =>
    weights
      .slice(0, MAX_TABLE_ROWS)
      .map(([, , query, key, weight]) => [label(query), label(key), formatPercent(weight)]);
  const count = formatNumber(Math.min(MAX_TABLE_ROWS, weights.length));
  return collapsedTable(t("attention.table", { count }), headers, rows, [2]);
}
