// SPDX-License-Identifier: Apache-2.0
// The turns of a session as a forest. A turn that continues another is drawn below it; a branch is indented and shows its cause.

import { amount, count, element, part } from "./element.js";
import { label } from "./glyph.js";
import { GROWS } from "./sessions.js";
import { shown, step } from "./scale.js";

/** The maximum number of turns that are drawn. */
const MOST = 2000;
/** The maximum number of characters of a client's label. */
const NAME = 80;

export class Forest {
  constructor(onOpen, onFollow) {
    this.onOpen = onOpen;
    this.onFollow = onFollow;
  }

  /**
   * Draws the turns `list` of a session and its running sequences, and marks the path to the open `leaf`. `chosen` are the numbers of the
   * turns that are drawn; null for all.
   */
  draw(list, running, leaf, chosen) {
    const drawn = JSON.stringify([list, running, leaf, chosen && [...chosen]]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const children = new Map();
    list.forEach((turn) => children.set(turn.parent, [...(children.get(turn.parent) ?? []), turn]));
    this.children = children;
    const open = new Set();
    for (let at = leaf; at !== null && at !== undefined && list[at]; at = list[at].parent) open.add(at);
    const rows = [];
    // a stack, so the last item is drawn first; a chain without branches stays on one level
    const waiting = (children.get(null) ?? []).map((turn) => ({ turn, depth: 0, isBranch: false })).reverse();
    while (waiting.length && rows.length < MOST) {
      const { turn, depth, isBranch } = waiting.pop();
      if (!chosen || chosen.has(turn.turn)) rows.push(this.#row(turn, list[turn.parent], depth, isBranch, open));
      const [first, ...branches] = children.get(turn.turn) ?? [];
      if (first) waiting.push({ turn: first, depth, isBranch: false });
      branches.reverse().forEach((branch) => waiting.push({ turn: branch, depth: depth + 1, isBranch: true }));
    }
    const live = running.map((sequence) => element("li", {}, element("button", { type: "button", class: "row", onclick: () => this.onFollow(sequence) },
      element("span", { class: "name live" }, "running"), element("span", { class: "sub num" }, `${amount(sequence.tokens, "token")} so far`))));
    const all = chosen ? chosen.size : list.length;
    const left = all - rows.length;
    const text = left > 0 ? `${amount(left, "more turn")} not drawn.` : chosen ? `${count(all)} of ${amount(list.length, "turn")}` : "";
    const rest = text ? element("p", { class: "sub", id: "turns-left" }, text) : null;
    const focused = document.activeElement?.closest?.("#forest button")?.dataset.turn;
    part("forest").replaceChildren(...[live.length ? element("ul", {}, live) : null, element("ul", {}, rows), rest].filter(Boolean));
    if (focused !== undefined) part("forest").querySelector(`[data-turn="${Number(focused)}"]`)?.focus();
  }

  #row(turn, parent, depth, isBranch, open) {
    const level = step(turn.mean_entropy ?? NaN);
    const rails = depth ? `${"  ".repeat(Math.min(depth, 12) - 1)}${isBranch ? "├╴" : "│ "}` : "";
    const mean = level < 0 ? null : element("span", {}, element("span", { class: `t s e${level} swatch` }), `${shown(turn.mean_entropy, 2)} nats`);
    const why = GROWS.has(turn.cause) ? null : element("span", { class: "chip" }, turn.cause.replaceAll("_", " "));
    const role = chip(turn.labels?.request_class, parent?.labels?.request_class ?? "main");
    const who = caller(turn.labels) === caller(parent?.labels) ? null : element("span", {}, caller(turn.labels));
    const bad = turn.fault ? element("span", { class: "fault" }, turn.fault.replaceAll("_", " ")) : null;
    return element("li", { class: "turn" }, element("span", { class: "rails", "aria-hidden": "true" }, rails),
      element("button", { type: "button", class: "row", "data-turn": turn.turn, "aria-current": String(open.has(turn.turn)), onclick: () => this.onOpen(this.leafOf(turn.turn), turn.turn) },
        element("span", { class: "name" }, `turn ${turn.turn} `, why, role), element("span", { class: "sub num" }, element("span", {}, amount(turn.sampled_tokens, "token")), pictures(turn.images), mean, who, bad)));
  }

  /** The leaf that is reached from `turn` by following the last child each time. */
  leafOf(turn) {
    for (let at = turn; ;) {
      const below = this.children.get(at);
      if (!below?.length) return at;
      at = below.at(-1).turn;
    }
  }
}

/** The number of the pictures that are new in the prompt of a turn, if it has any. */
function pictures(images) {
  return images ? element("span", {}, amount(images.length, "picture")) : null;
}

/** The class of a turn, if it is another than that of the turn before. */
function chip(name, before) {
  return name && name !== before ? element("span", { class: "chip" }, name) : null;
}

/** The agent and the client of a turn, as text. */
export function caller(labels) {
  return [labels?.agent_type ?? labels?.agent, labels?.client].filter(Boolean).map((name) => label(name, NAME)).join(" · ");
}
