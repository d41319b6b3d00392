// The page: what the server says it can do in, tabs out; and its language, its light and its key.

import { ANSWERS } from "./answers.js";
import { ATTENTION } from "./attention.js";
import { BLANKS } from "./blanks.js";
import { CHOICES } from "./choices.js";
import { CLASSES } from "./classes.js";
import { el, refill, sayAnew } from "./elements.js";
import { ENTITIES } from "./entities.js";
import { INPUT } from "./input.js";
import { keyForm } from "./key.js";
import { RUNS } from "./runs.js";
import { ask, onKeyAsked, Refused } from "./server.js";
import { tablist } from "./tablist.js";
import { themeSwitch } from "./theme.js";
import { VECTORS } from "./vectors.js";
import { WHY } from "./why.js";
import { language, setLanguage } from "./words.js";

const TABS = [BLANKS, CLASSES, ENTITIES, ANSWERS, CHOICES, VECTORS, INPUT, ATTENTION, WHY];
const LANGUAGES = { en: ["EN", "English"], zh: ["中文", "中文"] };

const content = document.getElementById("content");
const theme = themeSwitch();
let opened = [];

/** Ask the server what it can do, and show a tab for each thing. */
async function start() {
  refill(content, notice("page.loading"));
  try {
    const { models } = (await ask("v1/models")).answer;
    const [runs, hasSearch] = [await runsOf(), await canSearch(models)];
    showTabs(models, runs, hasSearch);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    refill(content, failed(error.message));
  }
}

async function runsOf() {
  try {
    return (await ask("v1/runs")).answer.runs;
  } catch (error) {
    if (error.status === 404) return [];
    throw error;
  }
}

/** A server without a corpus knows no such address; one that has it only finds the question empty. */
async function canSearch(models) {
  if (!models.some((model) => model.can.includes("embed"))) return false;
  try {
    await ask("v1/search?query=");
    return true;
  } catch (error) {
    return error.status === 422;
  }
}

function showTabs(models, runs, hasSearch) {
  opened = TABS.map((tab) => ({ tab, models: models.filter(tab.suits) }))
    .filter(({ models: suited }) => suited.length)
    .map(({ tab, models: suited }) => ({ id: tab.id, ...tab.create({ models: suited, hasSearch }) }));
  if (runs.length) opened.push({ id: RUNS.id, ...RUNS.create({ runs }) });
  if (!opened.length) {
    refill(content, notice("page.empty"), againButton());
    return;
  }
  const tabs = tablist(
    opened.map(({ id, element }) => ({ id, panel: element })),
    (id) => opened.forEach((one) => one.opened?.(one.id === id)),
  );
  refill(content, tabs.list, tabs.panels);
  tabs.show(location.hash.slice(1));
  window.onhashchange = () => {
    const id = location.hash.slice(1);
    if (opened.some((one) => one.id === id)) tabs.show(id);
  };
}

function notice(name) {
  return el("p", { class: "notice", role: "status", say: name });
}

function failed(message) {
  return el("div", { class: "notice" }, el("p", { role: "alert" }, message), againButton());
}

function againButton() {
  return el("button", { type: "button", class: "send", say: "page.again", on: { click: start } });
}

function languageSwitch() {
  const buttons = Object.entries(LANGUAGES).map(([code, [short, whole]]) => {
    const said = { lang: code === "zh" ? "zh-Hans" : "en", "aria-label": whole };
    return el(
      "button",
      { type: "button", ...said, "aria-pressed": code === language(), on: { click: () => speak(code) } },
      short,
    );
  });
  return el("div", { class: "segmented language", role: "group", sayLabel: "page.language" }, buttons);

  function speak(code) {
    setLanguage(code);
    buttons.forEach((button, place) => button.setAttribute("aria-pressed", Object.keys(LANGUAGES)[place] === code));
    sayAnew(document);
    theme.sayAnew();
    for (const one of opened) one.sayAnew();
  }
}

setLanguage(language());
sayAnew(document);
refill(document.getElementById("switches"), languageSwitch(), theme);
refill(document.getElementById("end"), el("a", { href: "docs", say: "page.reference" }));
onKeyAsked(keyForm(document.querySelector(".top")));
start();
