// A picture in the width it has: a function of a width in, an element out that is drawn anew when the width changes.

import { el, refill } from "./elements.js";

/** Return an element that holds what `draw(width)` makes. */
export function sized(draw, properties = {}) {
  const holder = el("div", { class: "picture", ...properties });
  let drawn = 0;
  const watcher = new ResizeObserver(() => {
    const width = Math.floor(holder.clientWidth);
    if (!width || width === drawn) return;
    drawn = width;
    refill(holder, draw(width));
  });
  watcher.observe(holder);
  return holder;
}
