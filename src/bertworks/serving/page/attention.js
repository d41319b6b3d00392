// The tab of attention: a text or a pair in; all heads at a glance, and one of them with the links between pieces out.

import { bench } from "./bench.js";
import { el, refill } from "./elements.js";
import { fieldsFor } from "./fields.js";
import { headGrid } from "./heads.js";
import { isSpecial } from "./input.js";
import { linkedText } from "./links.js";
import { ask, pathOf, Refused } from "./server.js";
import { foldedTable } from "./tables.js";
import { number, percent, say } from "./words.js";

const LINKS_OF_ALL = 4000;
const LINKS_OF_ONE = 2000;
// At first the links are drawn that have this share of the strongest one, but no more than so many.
const DRAWN_SHARE = 0.25;
const DRAWN_AT_FIRST = 200;
const MOST_ROWS = 500;

// The head that was looked at last in an answer: it stays when the answer is shown again in another language.
const lookedAt = new WeakMap();

export const ATTENTION = { id: "attention", suits: (model) => model.can.includes("attention"), create };

function create({ models }) {
  return bench({
    id: "attention",
    models,
    fields: () => fieldsFor("pair"),
    request: (value, model) => ({ path: pathOf(model, "attention"), body: { ...value, strongest: LINKS_OF_ALL } }),
    show,
  });
}

function show(overview, value, model) {
  const view = el("div", { class: "head-view" });
  const error = el("p", { class: "error", role: "alert" });
  const pickers = pickersOf(overview);
  const grid = headGrid(overview, (layer, head) => look(layer, head));
  let latest = 0;

  async function look(layer, head) {
    const turn = (latest += 1);
    lookedAt.set(overview, [layer, head]);
    grid.mark(layer, head);
    pickers.set(layer, head);
    error.textContent = "";
    try {
      const body = { ...value, strongest: LINKS_OF_ONE, layer, head };
      const { answer } = await ask(pathOf(model, "attention"), body);
      if (turn === latest) refill(view, headView(answer, layer, head));
    } catch (refused) {
      if (!(refused instanceof Refused)) throw refused;
      if (turn === latest) error.textContent = refused.message;
    }
  }

  pickers.onChange(look);
  look(...(lookedAt.get(overview) ?? tellingHead(overview)));
  const status = say("attention.status", {
    pieces: number(overview.pieces.length),
    layers: number(overview.num_layers),
    heads: number(overview.num_heads),
  });
  const about = el("p", { class: "note" }, say("attention.grid.note"));
  const choice = el(
    "div",
    { class: "choose-head" },
    el("div", {}, grid.element),
    el("div", {}, pickers.element, about),
  );
  return { status, parts: [choice, el("div", {}, error, view)] };
}

/** Return the head with the most weight between different pieces of the text itself: one that has something to tell. */
function tellingHead({ pieces, links }) {
  const sums = new Map();
  for (const [layer, head, from, to, weight] of links) {
    if (from === to || isSpecial(pieces[from]) || isSpecial(pieces[to])) continue;
    const key = `${layer} ${head}`;
    sums.set(key, (sums.get(key) ?? 0) + weight);
  }
  const best = [...sums].sort((one, other) => other[1] - one[1])[0];
  return best ? best[0].split(" ").map(Number) : [0, 0];
}

function pickersOf({ num_layers: numLayers, num_heads: numHeads }) {
  const [layer, head] = [
    ["layer", numLayers],
    ["head", numHeads],
  ].map(([name, count]) => {
    const options = Array.from({ length: count }, (_, place) => el("option", { value: place }, String(place + 1)));
    return el("select", { id: `attention-${name}` }, options);
  });
  const control = (name, select) => el("div", { class: "control" }, el("label", { for: select.id }, say(name)), select);
  return {
    element: el("div", { class: "actions" }, control("attention.layer", layer), control("attention.head", head)),
    set: (ofLayer, ofHead) => {
      layer.value = ofLayer;
      head.value = ofHead;
    },
    onChange: (act) => {
      for (const select of [layer, head]) {
        select.addEventListener("change", () => act(Number(layer.value), Number(head.value)));
      }
    },
  };
}

function headView(answer, layer, head) {
  const linked = linkedText(answer);
  const most = answer.links.length;
  const strong = answer.links.filter((link) => link[4] >= DRAWN_SHARE * answer.links[0][4]).length;
  const shown = Math.min(DRAWN_AT_FIRST, strong);
  const controls = el("div", { class: "actions" }, sideSwitch(linked.turn), countSlider(most, shown, linked.show));
  linked.show(shown);
  const title = el("h3", {}, say("attention.title.head", { layer: layer + 1, head: head + 1 }));
  return [title, controls, linked.element, tableOf(answer)];
}

function sideSwitch(turn) {
  const buttons = ["to", "from"].map((side) =>
    el(
      "button",
      { type: "button", "aria-pressed": side === "to", on: { click: () => choose(side) } },
      say(`attention.side.${side}`),
    ),
  );
  const choose = (side) => {
    buttons.forEach((button, place) => button.setAttribute("aria-pressed", ["to", "from"][place] === side));
    turn(side);
  };
  return el("div", { class: "segmented", role: "group", "aria-label": say("attention.side") }, buttons);
}

function countSlider(most, shown, show) {
  const output = el("output", {}, number(shown));
  const slider = el("input", { type: "range", id: "attention-count", min: 0, max: most, value: shown });
  slider.addEventListener("input", () => {
    output.textContent = number(slider.value);
    show(Number(slider.value));
  });
  return el(
    "div",
    { class: "control" },
    el("label", { for: "attention-count" }, say("attention.count")),
    slider,
    output,
  );
}

function tableOf({ pieces, links }) {
  const titles = ["reader", "read", "weight"].map((name) => say(`column.${name}`));
  const named = (place) => `${pieces[place]} (${place})`;
  const rows = () =>
    links.slice(0, MOST_ROWS).map(([, , from, to, weight]) => [named(from), named(to), percent(weight)]);
  return foldedTable(say("attention.table", { count: number(Math.min(MOST_ROWS, links.length)) }), titles, rows, [2]);
}
