// Roving tabindex: elements in; one tab stop for all of them, and arrow keys, Home and End to move between them.

const STEPS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

/**
 * Let arrow keys move the focus between `nodes`, which form a grid of `columns()` columns (a single row without it).
 * `onFocus` gets the index of the focused node. Returns a function that sets the tab stop.
 */
export function rovingTabindex(nodes, { columns = null, onFocus = () => {} } = {}) {
  const setTabStop = (current) =>
    nodes.forEach((node, index) => node.setAttribute("tabindex", index === current ? 0 : -1));
  nodes.forEach((node, index) => {
    node.addEventListener("focus", () => {
      setTabStop(index);
      onFocus(index);
    });
    node.addEventListener("keydown", (event) => {
      const next = nodes[targetIndex(event, index, nodes.length, columns ? columns() : 1)];
      if (!next) return;
      event.preventDefault();
      next.focus();
    });
  });
  setTabStop(0);
  return setTabStop;
}

function targetIndex(event, index, count, columns) {
  if (event.ctrlKey || event.metaKey || event.altKey) return -1;
  if (event.key === "Home") return 0;
  if (event.key === "End") return count - 1;
  if (!(event.key in STEPS)) return -1;
  const [dx, dy] = STEPS[event.key];
  return index + dx + dy * columns;
}
