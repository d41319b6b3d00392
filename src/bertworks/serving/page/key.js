// The key: whether one was refused in, a form below the top of the page, and what a person writes there out.

import { el } from "./elements.js";
import { say } from "./words.js";

const PRINTABLE = /^[\x21-\x7e]+$/;

/** Return the function that asks for a key and gives it, or null if the person would rather not. */
export function keyForm(above) {
  let waiting = null; // several requests may be refused at once: one form answers all of them

  return (wasRefused) => {
    waiting ??= shown(above, wasRefused).finally(() => {
      waiting = null;
    });
    return waiting;
  };
}

function shown(above, wasRefused) {
  const input = el("input", { type: "password", id: "key", autocomplete: "off", spellcheck: "false" });
  const error = el("p", { class: "error", role: "alert" }, wasRefused ? say("key.refused") : "");
  const cancel = el("button", { type: "button", class: "quiet", say: "key.cancel" });
  const form = el(
    "form",
    { class: "key", novalidate: true },
    el("h2", { say: "key.title" }),
    el(
      "div",
      { class: "actions" },
      el("div", { class: "control" }, el("label", { for: "key", say: "key.label" }), input),
      el("button", { type: "submit", class: "send", say: "key.send" }),
      cancel,
    ),
    error,
    el("p", { class: "note", say: "key.note" }),
  );
  above.after(form);
  input.focus();
  return new Promise((give) => {
    const close = (key) => {
      form.remove();
      give(key);
    };
    cancel.addEventListener("click", () => close(null));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const key = input.value.trim();
      if (PRINTABLE.test(key)) close(key);
      else error.textContent = say("key.odd");
    });
  });
}
