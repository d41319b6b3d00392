// One stop of the Tab key for many things: elements in; arrow keys, Home and End go from one to the next.

const STEPS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

/**
 * Let arrow keys go through `nodes`, of which `columns()` stand in a row (one row if it is left out). `arrived` is told
 * the number of the one that has the focus.
 */
export function rove(nodes, { columns = null, arrived = () => {} } = {}) {
  const stopAt = (chosen) => nodes.forEach((node, number) => node.setAttribute("tabindex", number === chosen ? 0 : -1));
  nodes.forEach((node, number) => {
    node.addEventListener("focus", () => {
      stopAt(number);
      arrived(number);
    });
    node.addEventListener("keydown", (event) => {
      const next = nodes[target(event, number, nodes.length, columns ? columns() : 1)];
      if (!next) return;
      event.preventDefault();
      next.focus();
    });
  });
  stopAt(0);
  return stopAt;
}

function target(event, number, count, columns) {
  if (event.ctrlKey || event.metaKey || event.altKey) return -1;
  if (event.key === "Home") return 0;
  if (event.key === "End") return count - 1;
  if (!(event.key in STEPS)) return -1;
  const [across, down] = STEPS[event.key];
  return number + across + down * columns;
}
