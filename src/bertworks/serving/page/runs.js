// Training runs: the server's runs in; their learning curves side by side, fill-mask samples and the time left out.

import { ApiError, request } from "./api.js";
import { el, replaceContent, updateTexts } from "./elements.js";
import { quote } from "./highlight.js";
import {
  formatCompact,
  formatDuration,
  formatNumber,
  formatPercent,
  formatSignificant,
  t,
  tOrDefault,
} from "./i18n.js";
import { lineChart } from "./line-chart.js";
import { lineSwatch, NUM_STYLES } from "./line-styles.js";
import { filledText } from "./masks.js";
import { RunHistory } from "./run-history.js";
import { collapsedTable, table } from "./tables.js";

const REFRESH_MILLISECONDS = 4000;
const NUM_SELECTED_INITIALLY = 3;
const AXES = ["step", "seconds", "tokens"];
const MAX_SAMPLES = 6;
const MAX_CANDIDATES = 4;

/** The tab of a server with training runs. */
export const RUNS = { id: "runs", create };

function create({ runs }) {
  const state = {
    runs,
    selected: new Set(initialSelection(runs)),
    histories: new Map(),
    axis: "step",
    isVisible: false,
    timer: null,
  };
  state.list = el("div", { class: "run-list" });
  state.error = el("p", { class: "error", role: "alert" });
  state.axisContainer = el("div", { class: "axis" });
  state.charts = el("div", { class: "charts" });
  state.details = el("div", {});
  const intro = [el("h2", { i18n: "runs.title" }), el("p", { class: "lead", i18n: "runs.lead" })];
  const containers = [state.list, state.error, state.axisContainer, state.charts, state.details];
  state.element = el("div", { class: "tab-content" }, intro, containers);
  showList(state);
  replaceContent(state.axisContainer, axisSwitch(state));
  document.addEventListener("visibilitychange", () => scheduleRefresh(state, 0));
  return {
    element: state.element,
    onVisibilityChange: (isVisible) => {
      state.isVisible = isVisible;
      if (isVisible) scheduleRefresh(state, 0);
    },
    updateTexts: () => {
      updateTexts(state.element);
      showList(state);
      replaceContent(state.axisContainer, axisSwitch(state));
      showCharts(state);
    },
  };
}

/** Select the first few runs, running ones first. */
function initialSelection(runs) {
  const names = [...runs]
    .sort((a, b) => (b.state === "running") - (a.state === "running"))
    .map((run) => run.name);
  return names.slice(0, NUM_SELECTED_INITIALLY);
}

function scheduleRefresh(state, milliseconds) {
  clearTimeout(state.timer);
  if (state.isVisible && document.visibilityState === "visible")
    state.timer = setTimeout(() => refresh(state), milliseconds);
}

async function refresh(state) {
  try {
    state.runs = (await request("v1/runs")).response.runs;
    for (const name of state.selected) await updateHistory(state, name);
    state.error.textContent = "";
    showList(state);
    showCharts(state);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    state.error.textContent = error.message;
  }
  scheduleRefresh(state, REFRESH_MILLISECONDS);
}

async function updateHistory(state, name) {
  const summary = state.runs.find((run) => run.name === name);
  if (!summary) return;
  if (!state.histories.has(name)) state.histories.set(name, new RunHistory(name));
  const history = state.histories.get(name);
  const hasEnded = history.run && history.run.state === summary.state && summary.state !== "running";
  if (hasEnded && history.run.step === summary.step) return;
  if (!history.add(await loadRun(name, history.lastStep))) history.add(await loadRun(name, -1));
}

async function loadRun(name, after) {
  return (await request(`v1/runs/${encodeURIComponent(name)}?after=${after}`)).response;
}

/** Return the style of a run; `offset` numbers the series of one run, which get a dash and a marker each. */
function styleOf(state, name, offset = 0) {
  const number = state.runs.findIndex((run) => run.name === name);
  return { color: number % NUM_STYLES, dash: (number + offset) % NUM_STYLES, marker: offset };
}

function showList(state) {
  const focusedId = document.activeElement?.id;
  const rows = state.runs.map((run) => runRow(state, run));
  replaceContent(state.list, rows);
  if (focusedId?.startsWith("run-")) document.getElementById(focusedId)?.focus();
}

function runRow(state, run) {
  const id = `run-${run.name}`;
  const checkbox = el("input", { type: "checkbox", id, checked: state.selected.has(run.name) });
  checkbox.addEventListener("change", () => {
    if (checkbox.checked) state.selected.add(run.name);
    else state.selected.delete(run.name);
    scheduleRefresh(state, 0);
  });
  const secondsLeft = state.histories.get(run.name)?.run?.seconds_left;
  const progress = [t("runs.step", { step: formatNumber(run.step) })];
  if (run.state === "running" && secondsLeft !== null && secondsLeft !== undefined)
    progress.push(t("runs.time_left", { time: formatDuration(secondsLeft) }));
  return el(
    "label",
    { class: "run", for: id },
    checkbox,
    lineSwatch({ ...styleOf(state, run.name), style: "line" }),
    el("span", { class: "run-name" }, run.name),
    el("span", { class: `state ${run.state}` }, tOrDefault(`runs.state.${run.state}`, run.state)),
    el("span", { class: "run-kind" }, tOrDefault(`runs.kind.${run.kind}`, run.kind)),
    el("span", { class: "run-progress" }, progress.join(" · ")),
  );
}

function selectedHistories(state) {
  return [...state.histories.values()].filter((history) => history.run && state.selected.has(history.name));
}

function showCharts(state) {
  const histories = selectedHistories(state);
  const view = [...state.selected, state.axis, document.documentElement.lang].join(" ");
  const progress = histories.map((history) => history.lastStep).join(" ");
  // A chart is not redrawn for new records while its cursor is in use.
  const isInUse = state.charts.querySelector(".chart:hover, .chart:focus") !== null;
  if (state.view === view && (state.progress === progress || isInUse)) return;
  Object.assign(state, { view, progress });
  if (!histories.length) {
    replaceContent(state.charts, el("p", { class: "note" }, t("runs.select")));
    replaceContent(state.details);
    return;
  }
  replaceContent(
    state.charts,
    lossChart(state, histories),
    metricChart(state, histories),
    learningRateChart(state, histories),
  );
  const isOpen = state.details.querySelector("details[open]") !== null;
  replaceContent(state.details, samples(histories), comparisonTable(histories), evaluationTable(histories, isOpen));
}

function axisSwitch(state) {
  const buttons = AXES.map((axis) =>
    el("button", { type: "button", "aria-pressed": axis === state.axis }, t(`runs.axis.${axis}`)),
  );
  buttons.forEach((button, index) => {
    button.addEventListener("click", () => {
      state.axis = AXES[index];
      buttons.forEach((other) => other.setAttribute("aria-pressed", other === button));
      showCharts(state);
    });
  });
  return el("div", { class: "segmented", role: "group", "aria-label": t("runs.axis") }, buttons);
}

function xFormat(state) {
  return state.axis === "seconds" ? formatDuration : formatCompact;
}

function lossChart(state, histories) {
  const series = histories.flatMap((history) => {
    const style = styleOf(state, history.name);
    const { raw, smooth } = history.trainingLoss(state.axis);
    const seriesName = (key) => `${history.name}, ${t(key)}`;
    const heldOut = { ...style, marker: style.color, points: history.heldOutLoss(state.axis), style: "dots" };
    return [
      { name: "", ...style, points: raw, style: "faint" },
      { name: seriesName("runs.training"), ...style, points: smooth, style: "line" },
      { name: seriesName(history.heldOut.length ? "runs.held_out" : "split.dev"), ...heldOut },
    ];
  });
  const formatY = (value) => formatSignificant(value);
  return lineChart({ title: t("runs.loss"), series, formatX: xFormat(state), formatY, height: 320 });
}

function metricChart(state, histories) {
  const series = histories.flatMap((history) =>
    [...history.metrics(state.axis)].map(([name, points], index) => {
      const style = styleOf(state, history.name, index);
      return { name: `${history.name}, ${metricLabel(name)}`, ...style, points, style: "dots" };
    }),
  );
  if (!series.length) return null;
  const formats = { formatX: xFormat(state), formatY: formatMetric, formatTick: formatMetricTick };
  return lineChart({ title: t("runs.metrics"), series, ...formats });
}

/** Return the name of a metric, or of a split and a metric: "dev macro_f1". */
function metricLabel(name) {
  const [split, ...metric] = name.split(" ");
  const label = (key) => tOrDefault(`metric.${key}`, key.replaceAll("_", " "));
  if (!metric.length) return tOrDefault(`runs.metric.${name}`, label(name));
  return `${tOrDefault(`split.${split}`, split)} ${label(metric.join(" "))}`;
}

function formatMetric(value) {
  return value >= 0 && value <= 1 ? formatPercent(value) : formatSignificant(value);
}

function formatMetricTick(value) {
  return value >= 0 && value <= 1 ? `${formatNumber(100 * value)}%` : formatSignificant(value);
}

function learningRateChart(state, histories) {
  const series = histories.map((history) => {
    const style = styleOf(state, history.name);
    return { name: history.name, ...style, points: history.learningRate(state.axis), style: "line" };
  });
  const formatY = (value) => formatSignificant(value, 2);
  return lineChart({ title: t("runs.learning_rate"), series, formatX: xFormat(state), formatY });
}

function samples(histories) {
  const withSamples = histories.filter((history) => history.run.samples?.length);
  if (!withSamples.length) return null;
  const parts = withSamples.map((history) => {
    const latest = history.run.samples.slice(-MAX_SAMPLES);
    const items = latest.map(({ text, predictions }) =>
      el("li", {}, quote(filledText(text, bestSequence(text, predictions))), candidates(predictions)),
    );
    const heading = el("h4", {}, `${history.name} · ${t("runs.step", { step: formatNumber(latest[0].step) })}`);
    return el("div", {}, heading, el("ul", { class: "samples" }, items));
  });
  return el("section", { class: "part" }, el("h3", {}, t("runs.samples")), el("div", { class: "cards" }, parts));
}

/** Return a sample with the most probable token at each mask, as {text, tokens}. */
function bestSequence(text, predictions) {
  const tokens = predictions.map(([[token]]) => token);
  const filled = tokens.reduce((partial, token) => partial.replace("[MASK]", () => token.replace(/^##/, "")), text);
  return { tokens, text: filled };
}

function candidates(predictions) {
  const texts = predictions.map((maskPredictions) =>
    maskPredictions
      .slice(0, MAX_CANDIDATES)
      .map(([token, probability]) => `${token} ${formatPercent(probability)}`)
      .join(" · "),
  );
  return el("p", { class: "note" }, texts.join(" | "));
}

function comparisonTable(histories) {
  const headers = ["run", "step", "training", "held_out", "state", "time_left"].map((name) => t(`column.${name}`));
  const rows = histories.map((history) => {
    const lastValue = (points) => (points.length ? formatSignificant(points.at(-1)[1]) : "–");
    const secondsLeft = history.run.seconds_left;
    return [
      history.name,
      formatNumber(history.run.step),
      lastValue(history.trainingLoss("step").smooth),
      lastValue(history.heldOutLoss("step")),
      tOrDefault(`runs.state.${history.run.state}`, history.run.state),
      secondsLeft === null || secondsLeft === undefined ? "–" : formatDuration(secondsLeft),
    ];
  });
  return el(
    "section",
    { class: "part" },
    el("h3", {}, t("runs.table")),
    table(t("runs.table"), headers, rows, [1, 2, 3, 5]),
  );
}

/** All evaluations of the runs, the text alternative of the charts. */
function evaluationTable(histories, isOpen) {
  const headers = ["run", "step", "metrics"].map((name) => t(`column.${name}`));
  const rows = histories.flatMap((history) => {
    const heldOut = history.heldOut.map((record) => [
      record.step,
      { loss: record.losses[history.tokenLoss], ...accuracies(record) },
    ]);
    const scores = history.scores.map((record) => [record.step, record.metrics]);
    return [...heldOut, ...scores].map(([step, metrics]) => [history.name, formatNumber(step), metricsText(metrics)]);
  });
  if (!rows.length) return null;
  const details = collapsedTable(t("runs.evaluations"), headers, rows, [1]);
  details.open = isOpen;
  return el("section", { class: "part" }, details);
}

function accuracies({ accuracy, pair_accuracy: pairAccuracy }) {
  return pairAccuracy === null ? { accuracy } : { accuracy, pair_accuracy: pairAccuracy };
}

function metricsText(metrics) {
  const label = (name) => (name === "loss" ? t("runs.loss") : metricLabel(name));
  return Object.entries(metrics)
    .map(([name, value]) => `${label(name)} ${formatSignificant(Number(value))}`)
    .join(" · ");
}
