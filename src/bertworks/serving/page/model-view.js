// The model view of attention: the largest weights of all heads in, a grid of thumbnails to select a head from out.

import { el, svg } from "./elements.js";
import { t } from "./i18n.js";
import { rovingTabindex } from "./roving-tabindex.js";

const SIZE = 26;
const MARGIN = 3;

/**
 * Return {element, select}: a button per layer and head with its weights as dots, query positions across and key
 * positions down. `onSelect(layer, head)` is called when one is pressed; `select` marks the selected head.
 */
export function modelView(response, onSelect) {
  const { num_layers: numLayers, num_heads: numHeads, tokens, attention_weights: weights } = response;
  const dotsByHead = new Map();
  for (const [layer, head, query, key] of weights) {
    const headIndex = layer * numHeads + head;
    if (!dotsByHead.has(headIndex)) dotsByHead.set(headIndex, []);
    dotsByHead.get(headIndex).push([query, key]);
  }
  const buttons = [];
  for (let layer = 0; layer < numLayers; layer += 1) {
    for (let head = 0; head < numHeads; head += 1) {
      buttons.push(headButton(layer, head, dotsByHead.get(layer * numHeads + head) ?? [], tokens.length));
    }
  }
  buttons.forEach((button, index) => {
    button.addEventListener("click", () => onSelect(Math.floor(index / numHeads), index % numHeads));
  });
  const setTabStop = rovingTabindex(buttons, { columns: () => numHeads });
  const element = headGrid(buttons, numLayers, numHeads);
  const select = (layer, head) => {
    const selected = layer * numHeads + head;
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", index === selected));
    setTabStop(selected);
  };
  return { element, select };
}

function headGrid(buttons, numLayers, numHeads) {
  const rows = [];
  for (let layer = 0; layer < numLayers; layer += 1) {
    const layerButtons = buttons.slice(layer * numHeads, (layer + 1) * numHeads);
    const label = el("span", { class: "tiny", "aria-hidden": "true" }, String(layer + 1));
    rows.push(el("div", { class: "head-row" }, label, layerButtons));
  }
  const labels = [el("span", { class: "tiny" })];
  for (let head = 1; head <= numHeads; head += 1) labels.push(el("span", { class: "tiny" }, String(head)));
  const header = el("div", { class: "head-row column-labels", "aria-hidden": "true" }, labels);
  return el("div", { class: "head-grid", role: "group", "aria-label": t("attention.model_view") }, header, rows);
}

function headButton(layer, head, dots, numTokens) {
  const scale = (SIZE - 2 * MARGIN) / numTokens;
  const dotSize = Math.max(1.4, scale).toFixed(1);
  const coordinate = (position) => (MARGIN + position * scale).toFixed(1);
  const d = dots
    .map(([query, key]) => `M${coordinate(query)} ${coordinate(key)}h${dotSize}v${dotSize}h-${dotSize}z`)
    .join("");
  const thumbnail = svg(
    "svg",
    { viewBox: `0 0 ${SIZE} ${SIZE}`, width: SIZE, height: SIZE, "aria-hidden": "true" },
    svg("path", { d }),
  );
  const label = t("attention.head.label", { layer: layer + 1, head: head + 1, count: dots.length });
  return el(
    "button",
    { type: "button", class: "head", "aria-label": label, title: label, "aria-pressed": "false" },
    thumbnail,
  );
}
