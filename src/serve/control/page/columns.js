// SPDX-License-Identifier: Apache-2.0
// The tables of a run: sessions, groups of samples, and the tokens with the highest entropies.

import { amount, count, element } from "./element.js";
import { label } from "./glyph.js";
import { shown, step as colour } from "./scale.js";
import { age } from "./sessions.js";

/** The maximum number of characters of a name, of a list, of the text around a token, and of a line. */
const [NAME, LIST, AROUND, LINE] = [128, 1000, 80, 36];

/** A text; a dash if it is missing. A long one has two lines, and all of it in its title. */
function text(content) {
  const whole = content === null || content === undefined || content === "" ? "–" : label(String(content), LIST);
  return whole.length > LINE ? element("span", { class: "long", title: whole }, whole) : whole;
}

const session = (row) => element("span", { class: `name${row.running ? " live" : ""}` }, label(row.session, NAME));
const percent = (share, digits = 1) => (share === null ? "–" : `${shown(100 * share, digits)} %`);
const faults = (row) => Object.entries(row.faults).map(([kind, times]) => `${kind.replaceAll("_", " ")}${times > 1 ? ` ${times}` : ""}`).join(", ");
const tags = (row) => Object.entries(row.tags ?? {}).filter(([name]) => name !== "step").map((tag) => tag.join("=")).join(", ");

/** A reward; a dash if it is missing. */
export const reward = (value) => (value === null ? "–" : shown(value).replace("-", "−"));

function entropy(nats) {
  const level = colour(nats ?? NaN);
  return level < 0 ? "–" : [element("span", { class: `t s e${level} swatch` }), shown(nats)];
}

/** The button of a row, which opens an address. */
const link = (content, data, open) => element("button", { type: "button", class: "row", ...data, onclick: open }, content);

/** The sessions of a selection. */
const sessions = {
  path: "/v1/sessions", first: "-created_ms", limit: 200, more: "More sessions", rows: (page) => page.sessions, key: (row) => row.session,
  about: (page) => amount(page.matched, "session"), none: "No session meets the conditions.",
  columns: ({ onMove }) => [
    ["session", "session", (row) => link(session(row), { "data-session": row.session }, () => onMove({ view: "path", session: row.session, leaf: null, at: null }))],
    ["step", "step", (row) => text(row.tags?.step), true], ["reward", "reward", (row) => reward(row.reward), true], ["mean entropy", "mean_entropy", (row) => entropy(row.mean_entropy), true],
    ["above 0.672", "high_entropy_share", (row) => percent(row.high_entropy_share), true],
    ["sampled", "sampled_tokens", (row) => count(row.sampled_tokens), true], ["trained", "trained_tokens", (row) => count(row.trained_tokens), true],
    ["turns", "turns", (row) => count(row.turns), true], ["finish", "finish_reason", (row) => text(row.finish_reason)], ["policy", "policy", (row) => text(row.policy)],
    ["faults", "faults", (row) => (faults(row) ? element("span", { class: "fault" }, text(faults(row))) : "–")],
    ["flags", "flags", (row) => text(row.flags.join(", "))], ["tags", null, (row) => text(tags(row))], ["age", "created_ms", (row) => age(row.created_ms), true],
  ],
};

/** The groups of samples of a selection. The server counts a reward above 0 as passed. */
const groups = {
  path: "/v1/groups", first: "-step", limit: 200, more: "More groups", rows: (page) => page.groups, key: (row) => `${row.step}/${row.session}/${row.turn}`, isByStep: true,
  about: (page) => amount(page.matched, "group"), none: "No group: no prompt of the selection has several samples.",
  columns: ({ onMove, conditionsOf }) => [
    ["first sample", "session", (row) => link(session(row), { "data-session": row.session, "data-turn": row.turn, "data-step": row.step },
      () => onMove({ view: "group", session: row.session, turn: row.turn, all: true, where: conditionsOf(row.step) }))],
    ["step", "step", (row) => text(row.step), true], ["samples", "samples", (row) => (row.rewarded < row.samples ? `${count(row.rewarded)} rewarded of ${count(row.samples)}` : count(row.samples)), true],
    ["pass rate (reward > 0)", "pass_rate", (row) => percent(row.pass_rate), true], ["mean", "mean", (row) => reward(row.mean), true], ["deviation", "std", (row) => reward(row.std), true],
    ["lowest", "min", (row) => reward(row.min), true], ["highest", "max", (row) => reward(row.max), true], ["sessions", "sessions", (row) => count(row.sessions), true],
    ["variance", null, (row) => (row.one_reward ? element("span", { class: "chip", title: "All samples have one reward: the group trains nothing" }, "zero") : "")],
  ],
};

/** The sampled tokens of a selection that have the highest entropies. */
const tokens = {
  path: "/v1/high-entropy-tokens", first: null, limit: 100, rows: (page) => page.tokens, ids: (row) => [...row.before, row.token_id, ...row.after],
  about: (page) => `the highest entropies of ${amount(page.measured, "token")}${page.next === null ? "" : `, of the latest ${amount(page.sessions, "session")}`}`,
  none: "No sampled token of the selection has an entropy.",
  columns: ({ onMove, texts }) => {
    const read = (ids) => ids.map((id) => texts.of(id) ?? `⟨${id}⟩`).join("");
    return [
      ["token", null, (row) => link(element("span", { class: `t s e${colour(row.entropy)}` }, label(read([row.token_id]), NAME)), { "data-session": row.session, "data-turn": row.turn, "data-position": row.position },
        () => onMove({ view: "path", session: row.session, leaf: row.turn, at: row.position }))],
      ["entropy, nats", null, (row) => shown(row.entropy), true],
      ["text", null, (row) => element("span", { class: "around" }, label(read(row.before).slice(-AROUND), AROUND), element("mark", {}, label(read([row.token_id]), NAME)), label(read(row.after), AROUND))],
      ["session", null, session], ["turn", null, (row) => count(row.turn), true], ["position", null, (row) => count(row.position), true],
    ];
  },
};

/** The tables by their names in the address. */
export const TABLES = new Map([["sessions", sessions], ["groups", groups], ["tokens", tokens]]);
