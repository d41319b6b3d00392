// All heads of a model at a glance: the strongest links in, a grid of small pictures out to choose one from.

import { el, svg } from "./elements.js";
import { rove } from "./roving.js";
import { say } from "./words.js";

const SIDE = 26;
const EDGE = 3;

/**
 * Return {element, mark}: a button for each layer and head with its links as dots, readers across and what they read
 * down. `chosen(layer, head)` is told which was pressed; `mark` shows which is looked at.
 */
export function headGrid({ num_layers: numLayers, num_heads: numHeads, pieces, links }, chosen) {
  const dots = new Map();
  for (const [layer, head, from, to] of links) {
    const key = layer * numHeads + head;
    if (!dots.has(key)) dots.set(key, []);
    dots.get(key).push([from, to]);
  }
  const buttons = [];
  for (let layer = 0; layer < numLayers; layer += 1) {
    for (let head = 0; head < numHeads; head += 1) {
      buttons.push(headButton(layer, head, dots.get(layer * numHeads + head) ?? [], pieces.length));
    }
  }
  buttons.forEach((button, number) => {
    button.addEventListener("click", () => chosen(Math.floor(number / numHeads), number % numHeads));
  });
  const stopAt = rove(buttons, { columns: () => numHeads });
  const element = gridOf(buttons, numLayers, numHeads);
  const mark = (layer, head) => {
    const number = layer * numHeads + head;
    buttons.forEach((button, place) => button.setAttribute("aria-pressed", place === number));
    stopAt(number);
  };
  return { element, mark };
}

function gridOf(buttons, numLayers, numHeads) {
  const rows = [];
  for (let layer = 0; layer < numLayers; layer += 1) {
    const own = buttons.slice(layer * numHeads, (layer + 1) * numHeads);
    rows.push(
      el("div", { class: "head-row" }, el("span", { class: "tiny", "aria-hidden": "true" }, String(layer + 1)), own),
    );
  }
  const names = [el("span", { class: "tiny" })];
  for (let head = 1; head <= numHeads; head += 1) names.push(el("span", { class: "tiny" }, String(head)));
  const titles = el("div", { class: "head-row names", "aria-hidden": "true" }, names);
  return el("div", { class: "head-grid", role: "group", "aria-label": say("attention.grid") }, titles, rows);
}

function headButton(layer, head, dots, length) {
  const scale = (SIDE - 2 * EDGE) / length;
  const size = Math.max(1.4, scale).toFixed(1);
  const at = (place) => (EDGE + place * scale).toFixed(1);
  const d = dots.map(([from, to]) => `M${at(from)} ${at(to)}h${size}v${size}h-${size}z`).join("");
  const picture = svg(
    "svg",
    { viewBox: `0 0 ${SIDE} ${SIDE}`, width: SIDE, height: SIDE, "aria-hidden": "true" },
    svg("path", { d }),
  );
  const label = say("attention.head.label", { layer: layer + 1, head: head + 1, count: dots.length });
  return el(
    "button",
    { type: "button", class: "head", "aria-label": label, title: label, "aria-pressed": "false" },
    picture,
  );
}
