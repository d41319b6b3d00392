// Responsive drawing: a function of a width in, an element out that is redrawn when its width changes.

import { el, replaceContent } from "./elements.js";

/** Return an element with the result of `draw(width)`. */
export function responsive(draw, properties = {}) {
  const container = el("div", { class: "drawing", ...properties });
  let drawnWidth = 0;
  const observer = new ResizeObserver(() => {
    const width = Math.floor(container.clientWidth);
    if (!width || width === drawnWidth) return;
    drawnWidth = width;
    replaceContent(container, draw(width));
  });
  observer.observe(container);
  return container;
}
