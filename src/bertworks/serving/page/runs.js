// The tab of runs: run folders as they grow in; their curves side by side, filled blanks and the time left out.

import { curves } from "./curves.js";
import { el, refill, sayAnew } from "./elements.js";
import { History } from "./history.js";
import { filledText } from "./blanks.js";
import { quotedText } from "./marked.js";
import { ask, Refused } from "./server.js";
import { foldedTable, table } from "./tables.js";
import { compact, duration, figure, number, percent, say } from "./words.js";

const EVERY = 4000; // milliseconds between two looks at a run that goes on
const NUM_TONES = 8;
const CHOSEN_AT_FIRST = 3;
const AXES = ["step", "seconds", "pieces"];
const MOST_SAMPLES = 6;

/** The tab; it is there when the server follows runs. */
export const RUNS = { id: "runs", create };

function create({ runs }) {
  const state = { runs, chosen: new Set(first(runs)), histories: new Map(), axis: "step", isOpen: false, timer: null };
  state.list = el("div", { class: "run-list" });
  state.error = el("p", { class: "error", role: "alert" });
  state.axisHere = el("div", { class: "axis" });
  state.charts = el("div", { class: "charts" });
  state.below = el("div", {});
  const intro = [el("h2", { say: "runs.title" }), el("p", { class: "lead", say: "runs.lead" })];
  const shown = [state.list, state.error, state.axisHere, state.charts, state.below];
  state.element = el("div", { class: "bench" }, intro, shown);
  showList(state);
  refill(state.axisHere, axisSwitch(state));
  document.addEventListener("visibilitychange", () => schedule(state, 0));
  return {
    element: state.element,
    opened: (is) => {
      state.isOpen = is;
      if (is) schedule(state, 0);
    },
    sayAnew: () => {
      sayAnew(state.element);
      showList(state);
      refill(state.axisHere, axisSwitch(state));
      showCharts(state);
    },
  };
}

/** Those that run come first; of the others the first few. */
function first(runs) {
  const names = [...runs]
    .sort((one, other) => (other.state === "running") - (one.state === "running"))
    .map((run) => run.name);
  return names.slice(0, CHOSEN_AT_FIRST);
}

function schedule(state, wait) {
  clearTimeout(state.timer);
  if (state.isOpen && document.visibilityState === "visible") state.timer = setTimeout(() => look(state), wait);
}

async function look(state) {
  try {
    state.runs = (await ask("v1/runs")).answer.runs;
    for (const name of state.chosen) await follow(state, name);
    state.error.textContent = "";
    showList(state);
    showCharts(state);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    state.error.textContent = error.message;
  }
  schedule(state, EVERY);
}

async function follow(state, name) {
  const known = state.runs.find((run) => run.name === name);
  if (!known) return;
  if (!state.histories.has(name)) state.histories.set(name, new History(name));
  const history = state.histories.get(name);
  const isOver = history.told && history.told.state === known.state && known.state !== "running";
  if (isOver && history.told.step === known.step) return;
  const told = await toldAfter(name, history.after);
  if (!history.take(told)) history.take(await toldAfter(name, -1));
}

async function toldAfter(name, after) {
  return (await ask(`v1/runs/${encodeURIComponent(name)}?after=${after}`)).answer;
}

function toneOf(state, name) {
  return state.runs.findIndex((run) => run.name === name) % NUM_TONES;
}

function showList(state) {
  const focused = document.activeElement?.id;
  const rows = state.runs.map((run) => runRow(state, run));
  refill(state.list, rows);
  if (focused?.startsWith("run-")) document.getElementById(focused)?.focus();
}

function runRow(state, run) {
  const id = `run-${run.name}`;
  const box = el("input", { type: "checkbox", id, checked: state.chosen.has(run.name) });
  box.addEventListener("change", () => {
    if (box.checked) state.chosen.add(run.name);
    else state.chosen.delete(run.name);
    schedule(state, 0);
  });
  const left = state.histories.get(run.name)?.told?.left_seconds;
  const facts = [say("runs.step", { step: number(run.step) })];
  if (run.state === "running" && left !== null && left !== undefined)
    facts.push(say("runs.left", { time: duration(left) }));
  return el(
    "label",
    { class: "run", for: id },
    box,
    el("i", { class: `stroke-key tone-${toneOf(state, run.name)}` }),
    el("span", { class: "run-name" }, run.name),
    el("span", { class: `state ${run.state}` }, said(`runs.state.${run.state}`, run.state)),
    el("span", { class: "run-kind" }, said(`runs.kind.${run.kind}`, run.kind)),
    el("span", { class: "run-facts" }, facts.join(" · ")),
  );
}

/** A state or kind that a newer server has is shown as it is written. */
function said(name, plain) {
  try {
    return say(name);
  } catch {
    return plain;
  }
}

function shownHistories(state) {
  return [...state.histories.values()].filter((history) => history.told && state.chosen.has(history.name));
}

function showCharts(state) {
  const histories = shownHistories(state);
  const [asked, reached] = [askedKey(state), histories.map((history) => history.lastStep).join(" ")];
  // While somebody reads a value from a chart it is not drawn anew under the pointer.
  const isRead = state.charts.querySelector(".chart:hover, .chart:focus") !== null;
  if (state.asked === asked && (state.reached === reached || isRead)) return;
  Object.assign(state, { asked, reached });
  if (!histories.length) {
    refill(state.charts, el("p", { class: "note" }, say("runs.choose")));
    refill(state.below);
    return;
  }
  refill(state.charts, lossChart(state, histories), figureChart(state, histories), rateChart(state, histories));
  const isOpen = state.below.querySelector("details[open]") !== null;
  refill(state.below, samples(histories), tableOf(histories), measured(histories, isOpen));
}

/** What a person has asked to see. */
function askedKey(state) {
  return [...state.chosen, state.axis, document.documentElement.lang].join(" ");
}

function axisSwitch(state) {
  const buttons = AXES.map((axis) =>
    el("button", { type: "button", "aria-pressed": axis === state.axis }, say(`runs.axis.${axis}`)),
  );
  buttons.forEach((button, number) => {
    button.addEventListener("click", () => {
      state.axis = AXES[number];
      buttons.forEach((other) => other.setAttribute("aria-pressed", other === button));
      showCharts(state);
    });
  });
  return el("div", { class: "segmented", role: "group", "aria-label": say("runs.axis") }, buttons);
}

function alongOf(state) {
  if (state.axis === "seconds") return (value) => duration(value);
  return compact;
}

function lossChart(state, histories) {
  const series = histories.flatMap((history) => {
    const tone = toneOf(state, history.name);
    const { raw, smooth } = history.trainingLoss(state.axis);
    const named = (what) => `${history.name}, ${say(what)}`;
    return [
      { name: "", tone, points: raw, kind: "faint" },
      { name: named("runs.training"), tone, points: smooth, kind: "line" },
      { name: named("runs.held_out"), tone, points: history.heldOutLoss(state.axis), kind: "dots" },
    ];
  });
  return curves({ title: say("runs.loss"), series, x: alongOf(state), y: (value) => figure(value), height: 320 });
}

function figureChart(state, histories) {
  const series = histories.flatMap((history) =>
    [...history.figures(state.axis)].map(([name, points]) => {
      return {
        name: `${history.name}, ${said(`runs.figure.${name}`, name.replaceAll("_", " "))}`,
        tone: toneOf(state, history.name),
        points,
        kind: "dots",
      };
    }),
  );
  return series.length
    ? curves({ title: say("runs.figures"), series, x: alongOf(state), y: percentOrFigure, tick: roundPercent })
    : null;
}

function percentOrFigure(value) {
  return value >= 0 && value <= 1 ? percent(value) : figure(value);
}

function roundPercent(value) {
  return value >= 0 && value <= 1 ? `${number(100 * value)}%` : figure(value);
}

function rateChart(state, histories) {
  const series = histories.map((history) => {
    return { name: history.name, tone: toneOf(state, history.name), points: history.rate(state.axis), kind: "line" };
  });
  return curves({ title: say("runs.rate"), series, x: alongOf(state), y: (value) => figure(value, 2) });
}

function samples(histories) {
  const withSome = histories.filter((history) => history.told.samples?.length);
  if (!withSome.length) return null;
  const parts = withSome.map((history) => {
    const own = history.told.samples.slice(-MOST_SAMPLES);
    const items = own.map(({ text, filled }) =>
      el("li", {}, quotedText(filledText(text, best(text, filled))), candidates(filled)),
    );
    const heading = el("h4", {}, `${history.name} · ${say("runs.step", { step: number(own[0].step) })}`);
    return el("div", {}, heading, el("ul", { class: "samples" }, items));
  });
  return el("section", { class: "part" }, el("h3", {}, say("runs.samples")), el("div", { class: "cards" }, parts));
}

/** Return the sample as a filling with the likeliest piece of each blank. */
function best(text, filled) {
  const pieces = filled.map(([[piece]]) => piece);
  const written = pieces.reduce((so, piece) => so.replace("[MASK]", () => piece.replace(/^##/, "")), text);
  return { pieces, text: written };
}

function candidates(filled) {
  const shown = filled.map((blank) =>
    blank
      .slice(0, 4)
      .map(([piece, share]) => `${piece} ${percent(share)}`)
      .join(" · "),
  );
  return el("p", { class: "note" }, shown.join(" | "));
}

function tableOf(histories) {
  const titles = ["run", "step", "training", "held_out", "state", "left"].map((name) => say(`column.${name}`));
  const rows = histories.map((history) => {
    const last = (points) => (points.length ? figure(points.at(-1)[1]) : "–");
    const left = history.told.left_seconds;
    return [
      history.name,
      number(history.told.step),
      last(history.trainingLoss("step").smooth),
      last(history.heldOutLoss("step")),
      said(`runs.state.${history.told.state}`, history.told.state),
      left === null || left === undefined ? "–" : duration(left),
    ];
  });
  return el(
    "section",
    { class: "part" },
    el("h3", {}, say("runs.table")),
    table(say("runs.table"), titles, rows, [1, 2, 3, 5]),
  );
}

/** What the curves show, in words: every measurement of the runs. */
function measured(histories, isOpen) {
  const titles = ["run", "step", "measured"].map((name) => say(`column.${name}`));
  const rows = histories.flatMap((history) => {
    const held = history.heldOut.map((record) => [
      record.step,
      { loss: record.losses[history.pieceLoss], ...accuracies(record) },
    ]);
    const scores = history.scores.map((record) => [record.step, record.figures]);
    return [...held, ...scores].map(([step, figures]) => [history.name, number(step), figuresIn(figures)]);
  });
  if (!rows.length) return null;
  const folded = foldedTable(say("runs.measured"), titles, rows, [1]);
  folded.open = isOpen;
  return el("section", { class: "part" }, folded);
}

function accuracies({ accuracy, pair_accuracy: ofPairs }) {
  return ofPairs === null ? { accuracy } : { accuracy, pair_accuracy: ofPairs };
}

function figuresIn(figures) {
  const named = (name) => (name === "loss" ? say("runs.loss") : said(`runs.figure.${name}`, name.replaceAll("_", " ")));
  return Object.entries(figures)
    .map(([name, value]) => `${named(name)} ${figure(Number(value))}`)
    .join(" · ");
}
