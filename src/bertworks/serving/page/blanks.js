// The tab of blanks: a text with [MASK] in; the candidates of every blank and the best ways to fill all of them out.

import { bars } from "./bars.js";
import { bench } from "./bench.js";
import { el } from "./elements.js";
import { fieldsFor } from "./fields.js";
import { quotedText } from "./marked.js";
import { pathOf } from "./server.js";
import { percent, say } from "./words.js";

const MASK = "[MASK]";
const TOP = 5;

export const BLANKS = { id: "blanks", suits: (model) => model.can.includes("fill"), create };

function create({ models }) {
  return bench({
    id: "blanks",
    models,
    fields: () => fieldsFor("fill"),
    request: (text, model) => ({ path: pathOf(model, "fill"), body: { text, top: TOP } }),
    show,
  });
}

function show(answer) {
  const [best] = answer.fillings;
  const status = say("blanks.status", { pieces: best.pieces.join(", "), share: percent(best.probability) });
  const cards = answer.blanks.map((candidates, number) => {
    const rows = candidates.map(({ piece, probability }, place) => {
      return { name: piece, share: probability, isPiece: true, isBest: place === 0 };
    });
    const title = answer.blanks.length > 1 ? say("blanks.blank", { number: number + 1 }) : say("blanks.candidates");
    return el("section", { class: "card" }, el("h3", {}, title), bars(rows));
  });
  const parts = [quotedText(filledText(answer.text, best), { class: "large" }), el("div", { class: "cards" }, cards)];
  if (answer.blanks.length > 1) parts.push(together(answer));
  return { status, parts };
}

function together(answer) {
  const items = answer.fillings.map((filling) =>
    el(
      "li",
      {},
      el("span", { class: "bar-share" }, percent(filling.probability)),
      quotedText(filledText(answer.text, filling)),
    ),
  );
  const about = el("p", { class: "note" }, say("blanks.together.note"));
  return el(
    "section",
    { class: "part" },
    el("h3", {}, say("blanks.together")),
    about,
    el("ol", { class: "fillings" }, items),
  );
}

/** Return the text with its blanks filled and what was filled in marked. */
export function filledText(text, filling) {
  const between = text.split(MASK);
  const parts = [];
  let at = 0;
  filling.pieces.forEach((piece, number) => {
    const shown = piece.replace(/^##/, "");
    // A piece that continues a word stands where the space before it was.
    const least = at + between[number].trimEnd().length;
    const place = filling.text.indexOf(shown, least);
    if (place < 0) return;
    parts.push(filling.text.slice(at, place), el("mark", {}, shown));
    at = place + shown.length;
  });
  parts.push(filling.text.slice(at));
  return parts;
}
