// What a model is: its description by the server in; size, task, languages and scores as short texts out.

import { formatCompact, formatNumber, formatSignificant, t, tOrDefault } from "./i18n.js";

const MAX_SCORES = 2;

/** Return the facts of a model in the language of the page; unknown ones are left out. */
export function modelFacts(model) {
  const facts = [sizeOf(model), taskOf(model), languagesOf(model), ...scoresOf(model)];
  return facts.filter((fact) => fact);
}

function sizeOf({ num_parameters: numParameters, num_layers: layers, hidden_size: size }) {
  if (numParameters) return t("model.parameters", { count: formatCompact(numParameters) });
  return layers ? t("model.layers", { layers: formatNumber(layers), size: formatNumber(size) }) : null;
}

function taskOf({ task, capabilities }) {
  if (task) return tOrDefault(`task.${task}`, task);
  return t(capabilities.includes("fill-mask") ? "task.pretrained" : "task.embed");
}

function languagesOf({ languages }) {
  const names = (languages ?? []).map((code) => tOrDefault(`language.${languageCode(code)}`, code));
  return [...new Set(names)].join(", ");
}

function scoresOf({ scores }) {
  return Object.entries(scores ?? {})
    .slice(0, MAX_SCORES)
    .map(([name, value]) => {
      const metric = tOrDefault(`metric.${name}`, name.replaceAll("_", " "));
      return t("model.score", { metric, value: formatSignificant(value) });
    });
}

/** Return the language that examples of a model should have: that of the page, if the model reads it. */
export function exampleLanguage({ languages } = {}, pageLanguage, known) {
  const codes = (languages ?? []).map(languageCode).filter((code) => known.includes(code));
  return codes.length && !codes.includes(pageLanguage) ? codes[0] : pageLanguage;
}

function languageCode(code) {
  return code.toLowerCase().split(/[-_]/)[0];
}
