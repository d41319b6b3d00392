// Light or dark: the reader's choice in, an attribute of the page out. Without a choice the machine's own holds.

import { el, svg } from "./elements.js";
import { remember, remembered, say } from "./words.js";

const REMEMBERED = "bertworks-theme";
const ORDER = ["auto", "light", "dark"];
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

let current = ORDER.includes(remembered(REMEMBERED)) ? remembered(REMEMBERED) : "auto";

/** Return the button that goes from the machine's own to light to dark. */
export function themeSwitch() {
  const button = el("button", { type: "button", class: "switch icon" });
  const show = () => {
    const words = say(`theme.${current}`);
    document.documentElement.dataset.theme = current;
    button.setAttribute("aria-label", words);
    button.title = words;
    const parts = ICONS[current].map(([tag, properties]) => svg(tag, properties));
    button.replaceChildren(svg("svg", { viewBox: "0 0 24 24", width: 20, height: 20, "aria-hidden": "true" }, parts));
  };
  button.addEventListener("click", () => {
    current = ORDER[(ORDER.indexOf(current) + 1) % ORDER.length];
    remember(REMEMBERED, current);
    show();
  });
  button.sayAnew = show;
  show();
  return button;
}
