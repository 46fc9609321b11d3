// Elements made without markup: what a model wrote only ever becomes text nodes.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; strings among the children become text nodes. */
export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same in SVG. */
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

/** A list of names and values. */
export function numbers(pairs) {
  const rows = pairs.filter(([, value]) => value !== null && value !== undefined);
  return element("dl", { class: "numbers" }, rows.map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]).flat());
}

/** The element of the page with this id. */
export function part(id) {
  return document.getElementById(id);
}
