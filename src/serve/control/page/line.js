// SPDX-License-Identifier: Apache-2.0
// The elements of one line of the list of tokens.

import { element } from "./element.js";
import { captions } from "./pictures.js";
import { shown, step } from "./scale.js";
import { sectionAt } from "./sections.js";

/** The name of a token in which no character begins. */
const REST = "rest of a character";

/** The CSS classes of a token. */
export function classes(trajectory, at, shape) {
  const sampled = trajectory.isSampled(at);
  const level = step(trajectory.entropy[at]);
  return ["t", sampled ? "s" : "p", sampled && (level < 0 ? "none" : `e${level}`), sampled && !trajectory.mask[at] && "m",
    trajectory.think[at] && "think", shape.kind !== "text" && shape.kind].filter(Boolean).join(" ");
}

/** The label of a token for screen readers. That of a token in a heading says whether the section is folded: a listbox has no heading. */
export function labelOf({ trajectory, shapes, layout }, at) {
  const picture = trajectory.pictureAt(at);
  if (picture) return `picture, ${captions(picture).join(", ")}`;
  const { rows, kind } = shapes.of(trajectory, at);
  const text = kind === "rest" ? REST : rows.flatMap((row) => row.pieces).map((piece) => piece.text).join("");
  const numbers = trajectory.isSampled(at) ? `entropy ${shown(trajectory.entropy[at])} nats, logprob ${shown(trajectory.logprobs[at])}` : "prompt";
  const { body, isFolded } = sectionAt(layout.sections, at);
  const state = isFolded === undefined || at >= body ? "" : isFolded ? ", folded" : ", unfolded";
  return `${text.trim() || "space"}, token ${at + 1}, ${numbers}${state}`;
}

/** Creates a line of a sheet. */
export function lineOf(sheet, line) {
  const { layout, trajectory, shapes } = sheet;
  const section = layout.sections[layout.section[line]];
  const node = element("div", { class: `line ${section.kind}${layout.head[line] ? " head" : ""}`, role: "none" });
  if (layout.head[line]) return fillHead(node, sheet, layout.section[line]);
  const [end, endRow] = layout.end(line, trajectory);
  for (let at = layout.token[line]; at < end || (at === end && endRow > 0); at = trajectory.next(at)) {
    const from = at === layout.token[line] ? layout.row[line] : 0;
    const picture = trajectory.pictureAt(at);
    if (picture) {
      if (from === 0) node.append(pictureOf(sheet, picture));
      continue;
    }
    const shape = shapes.of(trajectory, at);
    const to = at === end ? endRow : shape.rows.length;
    for (let row = from; row < to; row++) {
      const { pieces } = shape.rows[row];
      if (pieces.length) node.append(tokenOf(sheet, at, row, shape, pieces));
    }
  }
  return node;
}

/** Fills a heading: its title, the tokens that are in it, and the beginning of what is folded. */
function fillHead(node, sheet, number) {
  const { trajectory, layout, shapes } = sheet;
  const section = layout.sections[number];
  const isFoldable = section.isFolded !== undefined;
  if (isFoldable) node.dataset.section = number;
  node.append(element("span", { class: "title" }, isFoldable ? `${section.isFolded ? "▸" : "▾"} ` : null, section.title()));
  for (let at = section.start; at < Math.min(section.body, trajectory.loaded); at++) {
    const shape = shapes.of(trajectory, at);
    node.append(tokenOf(sheet, at, 0, shape, shape.rows.flatMap(({ pieces }) => pieces)));
  }
  if (section.isFolded) node.append(element("span", { class: "preview" }, section.preview()));
  return node;
}

function tokenOf(sheet, at, row, shape, pieces) {
  const { trajectory, marks, paint, prefix } = sheet;
  const [isFirst, isChosen] = [row === 0, at === sheet.chosen];
  const isBlank = pieces.every(({ text }) => !text.trim());
  const name = shape.kind === "rest" ? REST : "space";
  const node = element("span", {
    class: marks?.[at] ? `${paint(trajectory, at, shape)} hit` : paint(trajectory, at, shape), role: isFirst ? "option" : "none", id: isFirst ? prefix + at : null, "data-at": at,
    "aria-selected": isFirst ? String(isChosen) : null, "aria-label": isFirst && isChosen ? sheet.label(at) : isFirst && isBlank ? name : null,
  });
  for (const { text, kind } of pieces) node.append(kind === "plain" ? text : element("span", { class: kind === "odd" ? "g odd" : "g" }, text));
  return node;
}

function pictureOf({ trajectory, pictures, paint, prefix, chosen }, picture) {
  const { start } = picture;
  return element("span", { class: paint(trajectory, start, { kind: "picture" }), role: "option", id: prefix + start, "data-at": start, "aria-selected": String(start === chosen) },
    element("span", { class: "hidden" }, "picture"), pictures.frame(trajectory.head.session, picture), element("span", { class: "caption" }, captions(picture).map((line) => element("span", {}, line))));
}
