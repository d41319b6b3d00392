// DOM elements: tags, attributes and message keys in, elements out; their texts can be updated to another language.

import { t } from "./i18n.js";

const SVG = "http://www.w3.org/2000/svg";
// Properties whose value is a message key, and the attribute that gets the message.
const I18N_ATTRIBUTES = { i18nLabel: "aria-label", i18nPlaceholder: "placeholder", i18nTitle: "title" };

/**
 * Create an element. `i18n` is the message key of its text; `i18nLabel`, `i18nPlaceholder` and `i18nTitle` those of
 * attributes; `on` has event listeners, `style` CSS variables. An attribute that is false or null is left out.
 */
export function el(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** Create an SVG element. */
export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

/** Update all messages inside `root` to the current language. */
export function updateTexts(root) {
  for (const node of root.querySelectorAll("[data-i18n]")) node.textContent = t(node.dataset.i18n);
  for (const [property, attribute] of Object.entries(I18N_ATTRIBUTES)) {
    for (const node of root.querySelectorAll(`[${dataAttribute(property)}]`)) {
      node.setAttribute(attribute, t(node.getAttribute(dataAttribute(property))));
    }
  }
}

/** Replace the children of a node; null and undefined are skipped. */
export function replaceContent(node, ...children) {
  node.replaceChildren(...children.flat().filter((child) => child != null));
}

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    // false removes an attribute, but is a value of aria- attributes.
    if (value === false && !name.startsWith("aria-")) continue;
    setProperty(node, name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

function setProperty(node, name, value) {
  if (name === "i18n") {
    node.dataset.i18n = value;
    node.textContent = t(value);
  } else if (name in I18N_ATTRIBUTES) {
    node.setAttribute(dataAttribute(name), value);
    node.setAttribute(I18N_ATTRIBUTES[name], t(value));
  } else if (name === "on") {
    for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
  } else if (name === "style") {
    // By the CSSOM: the Content-Security-Policy forbids the attribute.
    for (const [property, content] of Object.entries(value)) node.style.setProperty(property, content);
  } else {
    node.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : value);
  }
}

function dataAttribute(property) {
  return `data-${property.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
}
