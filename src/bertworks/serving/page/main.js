// The page: the models and runs of the server in, a tab for each capability out; language, theme and API key.

import { ANSWERS } from "./answers.js";
import { ApiError, onApiKeyRequired, request } from "./api.js";
import { apiKeyForm } from "./api-key.js";
import { ATTENTION } from "./attention.js";
import { CHOICES } from "./choices.js";
import { CLASSES } from "./classes.js";
import { el, replaceContent, updateTexts } from "./elements.js";
import { ENTITIES } from "./entities.js";
import { EXPLAIN } from "./explain.js";
import { language, languageTag, setLanguage } from "./i18n.js";
import { INPUT } from "./input.js";
import { FILL_MASK } from "./masks.js";
import { RUNS } from "./runs.js";
import { tablist } from "./tablist.js";
import { themeSwitch } from "./theme.js";
import { VECTORS } from "./vectors.js";

const TABS = [FILL_MASK, CLASSES, ENTITIES, ANSWERS, CHOICES, VECTORS, INPUT, ATTENTION, EXPLAIN];
const LANGUAGES = { en: ["EN", "English"], zh: ["中文", "中文"] };

const content = document.getElementById("content");
const theme = themeSwitch();
let openTabs = [];

/** Load the models and runs, and show the tabs that they support. */
async function start() {
  replaceContent(content, notice("page.loading"));
  try {
    const { data: models } = (await request("v1/models")).response;
    const [runs, hasSearch] = [await loadRuns(), await canSearch(models)];
    showTabs(models, runs, hasSearch);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    replaceContent(content, failureNotice(error.message));
  }
}

async function loadRuns() {
  try {
    return (await request("v1/runs")).response.runs;
  } catch (error) {
    if (error.status === 404) return [];
    throw error;
  }
}

/** An empty query is answered with 404 by a server without a search index, and with 422 by one that has it. */
async function canSearch(models) {
  if (!models.some((model) => model.capabilities.includes("embed"))) return false;
  try {
    await request("v1/search?query=");
    return true;
  } catch (error) {
    return error.status === 422;
  }
}

function showTabs(models, runs, hasSearch) {
  openTabs = TABS.map((tab) => ({ tab, models: models.filter(tab.supports) }))
    .filter(({ models: supported }) => supported.length)
    .map(({ tab, models: supported }) => ({ id: tab.id, ...tab.create({ models: supported, hasSearch }) }));
  if (runs.length) openTabs.push({ id: RUNS.id, ...RUNS.create({ runs }) });
  if (!openTabs.length) {
    replaceContent(content, notice("page.empty"), retryButton());
    return;
  }
  const tabs = tablist(
    openTabs.map(({ id, element }) => ({ id, panel: element })),
    (id) => openTabs.forEach((tab) => tab.onVisibilityChange?.(tab.id === id)),
  );
  replaceContent(content, tabs.list, tabs.panels);
  tabs.show(location.hash.slice(1));
  window.onhashchange = () => {
    const id = location.hash.slice(1);
    if (openTabs.some((tab) => tab.id === id)) tabs.show(id);
  };
}

function notice(key) {
  return el("p", { class: "notice", role: "status", i18n: key });
}

function failureNotice(message) {
  return el("div", { class: "notice" }, el("p", { role: "alert" }, message), retryButton());
}

function retryButton() {
  return el("button", { type: "button", class: "submit", i18n: "page.retry", on: { click: start } });
}

function languageSwitch() {
  const buttons = Object.entries(LANGUAGES).map(([code, [short, name]]) => {
    const attributes = { lang: languageTag(code), "aria-label": name };
    return el(
      "button",
      { type: "button", ...attributes, "aria-pressed": code === language(), on: { click: () => select(code) } },
      short,
    );
  });
  return el("div", { class: "segmented language", role: "group", i18nLabel: "page.language" }, buttons);

  function select(code) {
    setLanguage(code);
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", Object.keys(LANGUAGES)[index] === code));
    updateTexts(document);
    theme.updateTexts();
    for (const tab of openTabs) tab.updateTexts();
  }
}

setLanguage(language());
updateTexts(document);
replaceContent(document.getElementById("switches"), languageSwitch(), theme);
replaceContent(document.getElementById("footer"), el("a", { href: "docs", i18n: "page.reference" }));
onApiKeyRequired(apiKeyForm(document.querySelector(".page-header")));
start();
