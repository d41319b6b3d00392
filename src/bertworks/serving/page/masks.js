// Fill-mask: a text with [MASK] in; candidates for each mask and the best filled sequences out.

import { modelPath } from "./api.js";
import { bars } from "./bars.js";
import { el } from "./elements.js";
import { fieldsFor } from "./fields.js";
import { quote } from "./highlight.js";
import { formatPercent, t } from "./i18n.js";
import { requestForm } from "./request-form.js";

const MASK = "[MASK]";
const TOP_K = 5;

export const FILL_MASK = {
  id: "fill-mask",
  supports: (model) => model.capabilities.includes("fill-mask"),
  create,
};

function create({ models }) {
  return requestForm({
    id: "fill-mask",
    models,
    fields: () => fieldsFor("fill-mask"),
    request: (text, model) => ({ path: modelPath(model, "fill-mask"), body: { text, top_k: TOP_K } }),
    render,
  });
}

function render(response) {
  const { text, mask_candidates: maskCandidates, sequences } = response;
  const [best] = sequences;
  const status = t("fill-mask.status", { tokens: best.tokens.join(", "), percent: formatPercent(best.probability) });
  const hasSeveral = maskCandidates.length > 1;
  const cards = maskCandidates.map((candidates, maskIndex) => {
    const rows = candidates.map(({ token, probability }, rank) => {
      return { name: token, ratio: probability, isToken: true, isBest: rank === 0 };
    });
    const title = hasSeveral ? t("fill-mask.mask", { number: maskIndex + 1 }) : t("fill-mask.candidates");
    return el("section", { class: "card" }, el("h3", {}, title), bars(rows));
  });
  const parts = [quote(filledText(text, best), { class: "large" }), el("div", { class: "cards" }, cards)];
  if (hasSeveral) parts.push(sequenceList(text, sequences));
  return { status, parts };
}

function sequenceList(text, sequences) {
  const items = sequences.map((sequence) =>
    el(
      "li",
      {},
      el("span", { class: "bar-value" }, formatPercent(sequence.probability)),
      quote(filledText(text, sequence)),
    ),
  );
  const note = el("p", { class: "note" }, t("fill-mask.sequences.note"));
  return el(
    "section",
    { class: "part" },
    el("h3", {}, t("fill-mask.sequences")),
    note,
    el("ol", { class: "ranked-list" }, items),
  );
}

/** Return the text of a filled sequence {text, tokens} with its filled tokens highlighted. */
export function filledText(maskedText, sequence) {
  const unmaskedParts = maskedText.split(MASK);
  const parts = [];
  let end = 0;
  sequence.tokens.forEach((token, index) => {
    const surface = token.replace(/^##/, "");
    // A continuation token starts where the space before it was.
    const minStart = end + unmaskedParts[index].trimEnd().length;
    const start = sequence.text.indexOf(surface, minStart);
    if (start < 0) return;
    parts.push(sequence.text.slice(end, start), el("mark", {}, surface));
    end = start + surface.length;
  });
  parts.push(sequence.text.slice(end));
  return parts;
}
