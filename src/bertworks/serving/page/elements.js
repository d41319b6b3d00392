// Make what stands on the page: names, attributes and words in, elements out; and say them anew in another language.

import { say } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
// Properties whose value is the name of words, and what the words are put into.
const SAID = { sayLabel: "aria-label", sayHint: "placeholder", sayTitle: "title" };

/**
 * Make an element. `say` names the words inside it, `sayLabel`, `sayHint` and `sayTitle` those of an attribute; `on`
 * has what happens to it, `style` its own CSS variables; false and null leave an attribute out.
 */
export function el(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** Make an element of a picture. */
export function svg(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

/** Say all that stands inside `root` in the language of the page. */
export function sayAnew(root) {
  for (const node of root.querySelectorAll("[data-say]")) node.textContent = say(node.dataset.say);
  for (const [property, attribute] of Object.entries(SAID)) {
    for (const node of root.querySelectorAll(`[${dataName(property)}]`)) {
      node.setAttribute(attribute, say(node.getAttribute(dataName(property))));
    }
  }
}

/** Put `children` where `node` had others. */
export function refill(node, ...children) {
  node.replaceChildren(...children.flat().filter((child) => child != null));
}

function filled(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    // What stands for "no" is an attribute left out, but of aria- attributes it is the word.
    if (value === null || value === undefined) continue;
    if (value === false && !name.startsWith("aria-")) continue;
    set(node, name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

function set(node, name, value) {
  if (name === "say") {
    node.dataset.say = value;
    node.textContent = say(value);
  } else if (name in SAID) {
    node.setAttribute(dataName(name), value);
    node.setAttribute(SAID[name], say(value));
  } else if (name === "on") {
    for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
  } else if (name === "style") {
    // Through the object model: the attribute would be refused by the page's content policy.
    for (const [property, content] of Object.entries(value)) node.style.setProperty(property, content);
  } else {
    node.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : value);
  }
}

function dataName(property) {
  return `data-${property.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
}
