// Vectors as coloured cells: a few components of some vectors in, one path for each shade out.

import { svg } from "./elements.js";

export const CELL = 8;
export const SIDE = 4; // cells across, and down
export const BLOCK = CELL * SIDE;
const SHADES = 8;
const GAP = 1;

/**
 * Return the cells of many blocks {x, y, values}, SIDE × SIDE of them a block, coloured by sign and by size up to
 * `largest`. All cells of a shade are one path: 512 pieces have 32,768 cells, too many to be elements.
 */
export function cells(blocks, largest) {
  const paths = new Map();
  for (const { x, y, values } of blocks) {
    values.forEach((value, number) => {
      const shade = Math.round((Math.min(Math.abs(value) / largest, 1) || 0) * SHADES);
      const kind = `${value < 0 ? "below" : "above"}-${shade}`;
      const left = x + (number % SIDE) * CELL;
      const top = y + Math.floor(number / SIDE) * CELL;
      const side = CELL - GAP;
      paths.set(kind, `${paths.get(kind) ?? ""}M${left} ${top}h${side}v${side}h-${side}z`);
    });
  }
  return [...paths].map(([kind, d]) => {
    const [sign, shade] = kind.split("-");
    return svg("path", {
      d,
      class: `cell ${sign}`,
      "fill-opacity": (0.06 + (0.94 * Number(shade)) / SHADES).toFixed(3),
    });
  });
}
