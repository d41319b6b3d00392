// Light or dark theme: the user's choice in, an attribute of the page out. The default is the system's theme.

import { el, svg } from "./elements.js";
import { storedSetting, storeSetting, t } from "./i18n.js";

const STORAGE_KEY = "bertworks-theme";
const THEMES = ["auto", "light", "dark"];
const ICONS = {
  auto: [
    ["circle", { cx: 12, cy: 12, r: 7.5 }],
    ["path", { d: "M12 4.5a7.5 7.5 0 0 1 0 15z", class: "solid" }],
  ],
  light: [
    ["circle", { cx: 12, cy: 12, r: 4 }],
    ["path", { d: "M12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6 7 7M17 17l1.4 1.4M18.4 5.6 17 7M7 17l-1.4 1.4" }],
  ],
  dark: [["path", { d: "M19 14.5A7.5 7.5 0 0 1 9.5 5a7.5 7.5 0 1 0 9.500 9.500z" }]],
};

let current = THEMES.includes(storedSetting(STORAGE_KEY)) ? storedSetting(STORAGE_KEY) : "auto";

/** Return the button that switches between system, light and dark theme. */
export function themeSwitch() {
  const button = el("button", { type: "button", class: "switch icon" });
  const update = () => {
    const label = t(`theme.${current}`);
    document.documentElement.dataset.theme = current;
    button.setAttribute("aria-label", label);
    button.title = label;
    const shapes = ICONS[current].map(([tag, properties]) => svg(tag, properties));
    button.replaceChildren(svg("svg", { viewBox: "0 0 24 24", width: 20, height: 20, "aria-hidden": "true" }, shapes));
  };
  button.addEventListener("click", () => {
    current = THEMES[(THEMES.indexOf(current) + 1) % THEMES.length];
    storeSetting(STORAGE_KEY, current);
    update();
  });
  button.updateTexts = update;
  update();
  return button;
}
