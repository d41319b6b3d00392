// Tabs: {id, panel} in; a tab list and its panels out, with keyboard navigation and the selected tab in the URL.

import { el } from "./elements.js";
import { rovingTabindex } from "./roving-tabindex.js";

/** Return {list, panels, show}; `onShow` gets the id of the tab that is shown. */
export function tablist(tabs, onShow) {
  const buttons = tabs.map(({ id }) => tabButton(id));
  const list = el("div", { role: "tablist", class: "tabs", i18nLabel: "page.tabs" }, buttons);
  const panels = tabs.map(({ id, panel }) =>
    el("section", { role: "tabpanel", id: `panel-${id}`, class: "panel", "aria-labelledby": `tab-${id}` }, panel),
  );
  const setTabStop = rovingTabindex(buttons, { onFocus: (index) => show(tabs[index].id) });

  function show(id) {
    const selected = Math.max(
      0,
      tabs.findIndex((tab) => tab.id === id),
    );
    if (buttons[selected].getAttribute("aria-selected") === "true") return;
    buttons.forEach((button, index) => button.setAttribute("aria-selected", index === selected));
    panels.forEach((panel, index) => (panel.hidden = index !== selected));
    setTabStop(selected);
    scrollToButton(list, buttons[selected]);
    history.replaceState(null, "", `#${tabs[selected].id}`);
    onShow(tabs[selected].id);
  }

  buttons.forEach((button, index) => button.addEventListener("click", () => show(tabs[index].id)));
  return { list, panels, show };
}

function tabButton(id) {
  const properties = { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": `panel-${id}` };
  return el("button", { ...properties, "aria-selected": "false", i18n: `${id}.tab` });
}

// Not scrollIntoView: that would scroll the whole page as well.
function scrollToButton(list, button) {
  const center = button.offsetLeft - list.offsetLeft + button.offsetWidth / 2;
  list.scrollLeft = center - list.clientWidth / 2;
}
