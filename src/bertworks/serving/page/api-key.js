// The form for the API key: whether a key was rejected in, a promise of the entered key out.

import { el } from "./elements.js";
import { t } from "./i18n.js";

const PRINTABLE = /^[\x21-\x7e]+$/;

/** Return a function that shows the form below `header` and resolves to a key, or to null if it was cancelled. */
export function apiKeyForm(header) {
  let pending = null; // several requests may be rejected at once: one form serves all of them

  return (wasRejected) => {
    pending ??= showForm(header, wasRejected).finally(() => {
      pending = null;
    });
    return pending;
  };
}

function showForm(header, wasRejected) {
  const input = el("input", { type: "password", id: "api-key", autocomplete: "off", spellcheck: "false" });
  const error = el("p", { class: "error", role: "alert" }, wasRejected ? t("key.rejected") : "");
  const cancel = el("button", { type: "button", class: "text-button", i18n: "key.cancel" });
  const form = el(
    "form",
    { class: "api-key", novalidate: true },
    el("h2", { i18n: "key.title" }),
    el(
      "div",
      { class: "actions" },
      el("div", { class: "control" }, el("label", { for: "api-key", i18n: "key.label" }), input),
      el("button", { type: "submit", class: "submit", i18n: "key.submit" }),
      cancel,
    ),
    error,
    el("p", { class: "note", i18n: "key.note" }),
  );
  header.after(form);
  input.focus();
  return new Promise((resolve) => {
    const close = (key) => {
      form.remove();
      resolve(key);
    };
    cancel.addEventListener("click", () => close(null));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const key = input.value.trim();
      if (PRINTABLE.test(key)) close(key);
      else error.textContent = t("key.invalid");
    });
  });
}
