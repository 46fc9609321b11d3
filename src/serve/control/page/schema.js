// SPDX-License-Identifier: Apache-2.0
// Shows schemas of an OpenAPI document. What a $ref names is made when it is opened, so a schema may contain itself.

import { element } from "./element.js";

/** Prose with code between backticks. */
export const prose = (text = "") => text.split("`").map((piece, at) => (at % 2 ? element("code", {}, piece) : piece));

export const paragraphs = (text = "") => text.split("\n\n").filter(Boolean).map((one) => element("p", {}, prose(one)));

export const list = (rows, otherwise = []) => (rows.length ? element("ul", { class: "members" }, rows) : otherwise);

/** A text in a box that the keyboard can scroll. */
export const box = (text, label) => element("pre", { tabindex: 0, role: "group", "aria-label": label }, text);

/** A part that is folded, and made when it is opened first. */
export function folded(attributes, summary, make) {
  const node = element("details", attributes, element("summary", {}, summary));
  node.addEventListener("toggle", () => node.open && node.children.length === 1 && node.append(element("div", {}, make())));
  return node;
}

const LIMITS = {
  default: "default", minimum: "at least", exclusiveMinimum: "above", maximum: "at most", minLength: "length at least", maxLength: "length at most",
  minItems: "items at least", maxProperties: "members at most", pattern: "pattern",
};
const alternatives = (schema) => [...schema.oneOf ?? [], ...schema.anyOf ?? []];

/** The limits of a schema in words. */
function limits(schema) {
  const { propertyNames, additionalProperties: others } = schema;
  return [
    ...Object.entries(LIMITS).filter(([name]) => name in schema).map(([name, word]) => `${word} ${JSON.stringify(schema[name])}`),
    ...propertyNames ? [`names ${nested({ type: "string", ...propertyNames })}`] : [],
    ...typeof others === "boolean" ? [others ? "other members" : "no other members"] : [],
  ];
}

/** The type of a schema within another, with its limits. */
function nested(schema) {
  const found = limits(schema);
  return kind(schema) + (found.length ? ` (${found.join(", ")})` : "");
}

/** The type of a schema in words. */
export function kind(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  const values = schema.enum ?? ("const" in schema ? [schema.const] : null);
  if (values) return values.map((value) => JSON.stringify(value)).join(" or ");
  if (alternatives(schema).length) return alternatives(schema).map(nested).join(" or ");
  if (schema.format === "binary") return "bytes";
  const parts = { array: ["list", schema.items], object: ["object", schema.additionalProperties] };
  return [schema.type ?? "any"].flat().map((type) => (parts[type]?.[1] instanceof Object ? `${parts[type][0]} of ${nested(parts[type][1])}` : type)).join(" or ");
}

const words = (schema, notes = []) => [kind(schema), ...notes, ...limits(schema)].join(", ");

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
    return [schema.properties ? folded({}, "members", () => this.members(schema)) : [], this.further(schema)];
  }

  /** The schemas in a schema, without those of its members. */
  further(schema) {
    const found = [...alternatives(schema), schema.items, schema.propertyNames, schema.additionalProperties].filter((one) => one instanceof Object);
    return found.map((one) => [paragraphs(one.description), this.inner(one)]);
  }

  /** A schema that is open. */
  body(schema) {
    return [paragraphs(schema.description), element("p", { class: "sub" }, words(schema)), schema.properties ? this.members(schema) : [], this.further(schema)];
  }

  members({ properties, required = [] }) {
    return list(Object.entries(properties).map(([name, schema]) => this.row(name, schema, required.includes(name) ? [] : ["may be absent"])));
  }

  /** A member, a parameter, a header or a body. */
  row(name, schema, notes, description = schema.description) {
    return element("li", {}, element("code", {}, name), " ", element("span", { class: "sub" }, words(schema, notes)), " ", prose(description), this.inner(schema));
  }
}
