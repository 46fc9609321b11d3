// SPDX-License-Identifier: Apache-2.0
// Creates elements without markup, so that text of a model only becomes text nodes.

const SVG = "http://www.w3.org/2000/svg";

/** Creates an element with attributes and children. Strings among the children become text nodes. */
export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Creates an SVG element. */
export function shape(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

/** Creates a list of names and values. */
export function numbers(pairs) {
  const rows = pairs.filter(([, value]) => value !== null && value !== undefined);
  return element("dl", { class: "numbers" }, rows.map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]).flat());
}

/** Draws the options of a list again if they have changed, and keeps the choice. */
export function choices(select, options) {
  const drawn = JSON.stringify(options);
  if (select.dataset.drawn === drawn) return;
  select.dataset.drawn = drawn;
  const { value } = select;
  select.replaceChildren(...options.map(([name, text]) => element("option", { value: name }, text)));
  select.value = value;
}

/** Returns the element of the page with this id. */
export function part(id) {
  return document.getElementById(id);
}

/** A whole number in groups of three digits. `toLocaleString` would load a locale first, which takes longer than drawing a table. */
export const count = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, ",");

/** A number of things, such as "1 token"; `one` is the noun in singular, and its plural ends in s. */
export const amount = (value, one) => `${count(value)} ${one}${value === 1 ? "" : "s"}`;
