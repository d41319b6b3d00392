// Heatmaps: components of vectors in, one SVG path per color out.

import { svg } from "./elements.js";

export const CELL_SIZE = 8;
export const GRID_SIZE = 4; // cells per row and column
export const BLOCK_SIZE = CELL_SIZE * GRID_SIZE;
const NUM_SHADES = 8;
const GAP = 1;

/**
 * Return the cells of blocks {x, y, values}, GRID_SIZE × GRID_SIZE per block, colored by sign and by magnitude up to
 * `maxValue`. All cells of a color are one path: 512 tokens have 32,768 cells, too many for an element each.
 */
export function heatmapCells(blocks, maxValue) {
  const paths = new Map();
  for (const { x, y, values } of blocks) {
    values.forEach((value, index) => {
      const shade = Math.round((Math.min(Math.abs(value) / maxValue, 1) || 0) * NUM_SHADES);
      const color = `${value < 0 ? "negative" : "positive"}-${shade}`;
      const left = x + (index % GRID_SIZE) * CELL_SIZE;
      const top = y + Math.floor(index / GRID_SIZE) * CELL_SIZE;
      const side = CELL_SIZE - GAP;
      paths.set(color, `${paths.get(color) ?? ""}M${left} ${top}h${side}v${side}h-${side}z`);
    });
  }
  return [...paths].map(([color, d]) => {
    const [sign, shade] = color.split("-");
    return svg("path", {
      d,
      class: `cell ${sign}`,
      "fill-opacity": (0.06 + (0.94 * Number(shade)) / NUM_SHADES).toFixed(3),
    });
  });
}
