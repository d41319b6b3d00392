// Tabs: {id, panel} in; a list of tabs and their panels out, with one panel shown, by the keyboard and by address too.

import { el } from "./elements.js";
import { rove } from "./roving.js";

/** Return {list, panels, show}; `opened` is told the id whenever a tab is shown. */
export function tablist(tabs, opened) {
  const buttons = tabs.map(({ id }) => tabButton(id));
  const list = el("div", { role: "tablist", class: "tabs", sayLabel: "page.tabs" }, buttons);
  const panels = tabs.map(({ id, panel }) =>
    el("section", { role: "tabpanel", id: `panel-${id}`, class: "panel", "aria-labelledby": `tab-${id}` }, panel),
  );
  const stopAt = rove(buttons, { arrived: (number) => show(tabs[number].id) });

  function show(id) {
    const chosen = Math.max(
      0,
      tabs.findIndex((tab) => tab.id === id),
    );
    if (buttons[chosen].getAttribute("aria-selected") === "true") return;
    buttons.forEach((button, number) => button.setAttribute("aria-selected", number === chosen));
    panels.forEach((panel, number) => (panel.hidden = number !== chosen));
    stopAt(chosen);
    inView(list, buttons[chosen]);
    history.replaceState(null, "", `#${tabs[chosen].id}`);
    opened(tabs[chosen].id);
  }

  buttons.forEach((button, number) => button.addEventListener("click", () => show(tabs[number].id)));
  return { list, panels, show };
}

function tabButton(id) {
  const properties = { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": `panel-${id}` };
  return el("button", { ...properties, "aria-selected": "false", say: `${id}.tab` });
}

// Not scrollIntoView: that would move the whole page as well.
function inView(list, button) {
  const middle = button.offsetLeft - list.offsetLeft + button.offsetWidth / 2;
  list.scrollLeft = middle - list.clientWidth / 2;
}
