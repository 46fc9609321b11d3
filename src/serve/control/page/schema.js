// SPDX-License-Identifier: Apache-2.0
// Shows schemas of an OpenAPI document. What a $ref names is made when it is opened, so a schema may contain itself.

import { element } from "./element.js";

/** Prose with code between backticks. */
export const prose = (text = "") => text.split("`").map((piece, at) => (at % 2 ? element("code", {}, piece) : piece));

export const paragraphs = (text = "") => text.split("\n\n").filter(Boolean).map((one) => element("p", {}, prose(one)));

/** A text in a box that the keyboard can scroll. */
export const box = (text, label) => element("pre", { tabindex: 0, role: "group", "aria-label": label }, text);

/** A part that is folded, and made when it is opened first. */
export function folded(attributes, summary, make) {
  const node = element("details", attributes, element("summary", {}, summary));
  node.addEventListener("toggle", () => node.open && node.children.length === 1 && node.append(element("div", {}, make())));
  return node;
}

const LIMITS = { default: "default", minimum: "at least", exclusiveMinimum: "above", maximum: "at most", pattern: "pattern" };
const alternatives = (schema) => [...schema.oneOf ?? [], ...schema.anyOf ?? []];

/** The type of a schema in words. */
export function kind(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  const values = schema.enum ?? ("const" in schema ? [schema.const] : null);
  if (values) return values.map((value) => JSON.stringify(value)).join(" or ");
  if (alternatives(schema).length) return alternatives(schema).map(kind).join(" or ");
  if (schema.format === "binary") return "bytes";
  return [schema.type ?? "any"].flat().map((type) => (type === "array" && schema.items ? `list of ${kind(schema.items)}` : type)).join(" or ");
}

/** The type of a schema and its limits. 0 is the least number of everything that is counted. */
function words(schema, notes = []) {
  const limits = Object.entries(LIMITS).filter(([name]) => name in schema && (name !== "minimum" || schema.minimum !== 0));
  return [kind(schema), ...notes, ...limits.map(([name, word]) => `${word} ${JSON.stringify(schema[name])}`)].join(", ");
}

export class Schemas {
  constructor(document) {
    this.document = document;
  }

  /** What a $ref names in the document, or the value itself. */
  resolve(value) {
    return value.$ref ? value.$ref.split("/").slice(1).reduce((found, name) => found?.[name], this.document) ?? {} : value;
  }

  /** The objects in a schema, each folded. */
  inner(schema) {
    if (schema.$ref) return [folded({}, kind(schema), () => this.body(this.resolve(schema)))];
    const further = [...alternatives(schema), schema.items, schema.additionalProperties].filter((one) => one instanceof Object);
    return [schema.properties ? folded({}, "members", () => this.members(schema)) : [], further.map((one) => this.inner(one))];
  }

  /** A schema that is open: its description, and its members or its type. */
  body(schema) {
    return [paragraphs(schema.description), schema.properties ? this.members(schema) : [element("p", { class: "sub" }, words(schema)), this.inner(schema)]];
  }

  members({ properties, required = [] }) {
    return element("ul", { class: "members" }, Object.entries(properties).map(([name, schema]) => this.row(name, schema, required.includes(name) ? [] : ["may be absent"])));
  }

  /** A member, a parameter or a body. */
  row(name, schema, notes, description = schema.description) {
    return element("li", {}, element("code", {}, name), " ", element("span", { class: "sub" }, words(schema, notes)), " ", prose(description), this.inner(schema));
  }
}
