// SPDX-License-Identifier: Apache-2.0
// The table of the samples of one prompt: rewards, advantages, entropies, and links to the paths.

import { replace } from "./address.js";
import { get, post } from "./api.js";
import { policyName } from "./details.js";
import { signed } from "./difference.js";
import { amount, count, element, part } from "./element.js";
import { label } from "./glyph.js";
import { MOST, before, each, isKnown, pathsFrom, samplesElsewhere, samplesOf, sessionOf } from "./group.js";
import { copy } from "./link.js";
import { methodOf } from "./measured.js";
import { sparkline } from "./plot.js";
import { shown, step } from "./scale.js";

/** The maximum number of sampled tokens that are read for the entropies, and of tokens for which the server is asked for advantages unasked. */
const TOKENS = 500_000;
/** The tokens of one range. */
const RANGE = 65_536;
/** Bytes of the server's reply for each token of an advantage. */
const BYTES = 20;
/** The maximum number of characters of a name, and of a reward. */
const [NAME, REWARD] = [128, 200];
/** The maximum number of kinds of entropies that a note lists. */
const KINDS = 3;

const ESTIMATORS = { grpo: { estimator: "grpo" }, "grpo-mean": { estimator: "grpo", normalize_std: false }, egpo: { estimator: "egpo" } };

/** The columns: title, value for the order, and whether they hold numbers, whose order begins with the highest one. */
const COLUMNS = [
  ["sample", (row) => row.number], ["reward", (row) => row.reward, true], ["advantage", (row) => row.advantage, true], ["tokens", (row) => row.tokens, true], ["mean entropy", (row) => row.mean, true],
  ["entropy", null], ["finish", (row) => row.finish], ["policy", (row) => row.policy || null], ["flags", (row) => row.flags.join(", ") || null],
];

export class SamplesView {
  #opening = new AbortController();
  rows = [];
  of = null;

  /** `onOpen` opens a path, `onCompare` compares two, `onBack` leaves the group. */
  constructor({ announce, onOpen, onCompare, onBack }) {
    Object.assign(this, { announce, onOpen, onCompare, onBack, order: { by: 0, falls: false }, asked: null });
    this.actions = {
      compare: () => this.#compare(),
      others: () => this.#others(),
      refresh: () => this.open(this.of),
      link: () => copy(this.address(), announce),
      back: onBack,
    };
    part("estimator").addEventListener("change", () => this.#advantages());
    part("compute").addEventListener("click", () => this.#advantages(true));
    part("others").addEventListener("click", () => this.#others());
    part("group-compare").addEventListener("click", () => this.#compare());
    part("refresh").addEventListener("click", () => this.actions.refresh());
    part("group-link").addEventListener("click", () => this.actions.link());
    part("group-back").addEventListener("click", onBack);
  }

  address() {
    return { view: "group", ...this.of };
  }

  close() {
    this.#opening.abort();
    this.#opening = new AbortController();
    this.rows = [];
  }

  /** Opens the samples of the prompt of a turn; `all`: also those of other sessions, which meet the conditions `where`. */
  async open({ session, turn, all = false, where = "" }) {
    this.close();
    this.of = { session, turn, all, where };
    this.matched = null;
    this.problem = "";
    this.stats = null;
    this.gone = this.long = 0;
    const { signal } = this.#opening;
    const say = (text) => part("group-about").replaceChildren(element("strong", {}, text));
    say("Reading…");
    part("samples").replaceChildren();
    part("group-note").textContent = "";
    try {
      const own = await sessionOf(session, signal);
      const found = [[own, await samplesOf(own, turn, signal)]];
      if (!found[0][1].length) return say(`Session ${label(session, NAME)} has no turn ${turn}.`);
      this.isFirst = own.list[turn].parent === null && isKnown(own.list[turn]);
      if (all && this.isFirst) {
        const others = await samplesElsewhere(own, turn, where, (done, count) => say(`Reading sessions: ${done} of ${count}`), signal);
        found.push(...others.found);
        this.matched = others.matched;
      }
      const rows = found.flatMap(([of, turns]) => turns.flatMap((one) => pathsFrom(of.list, one).map((path) => this.#row(of, one, path))));
      this.left = Math.max(0, rows.length - MOST);
      this.rows = rows.slice(0, MOST);
      this.rows.forEach((row, at) => { row.number = at + 1; });
      this.prompt = own.list[turn].prompt_tokens;
      this.#draw();
      await this.#heads(signal);
      this.#draw();
      await this.#advantages();
      await this.#entropies(signal);
      this.#draw();
      this.announce(`${amount(this.rows.length, "sample")} of one prompt.`);
    } catch (error) {
      if (error.name === "AbortError" || signal.aborted) return;
      say(`Reading failed: ${error.message}`);
    }
  }

  #row({ session, version, list }, turn, { leaf, turns, tokens }) {
    // the mean of several turns is that of their tokens, which are read later
    const mean = turns === 1 ? turn.mean_entropy ?? NaN : NaN;
    const from = before(list, turn) + turn.prompt_tokens;
    return { session, version, leaf: leaf.turn, from, tokens, mean, finish: leaf.finish_reason, fault: leaf.fault, reward: NaN, advantage: NaN, flags: [], policy: "", values: null, isChosen: false, isExported: false };
  }

  /** Reads what the table shows of each row. A session may be deleted meanwhile; its rows are dropped. */
  async #heads(signal) {
    let failure = null;
    const gone = new Set();
    await each(this.rows, async (row) => {
      try {
        await this.#head(row, signal);
      } catch (error) {
        if (signal.aborted) throw error;
        failure = error;
        gone.add(row);
      }
    });
    if (gone.size === this.rows.length) throw failure;
    this.gone = gone.size;
    this.rows = this.rows.filter((row) => !gone.has(row));
  }

  /** Reads the reward, the policy and the flags of a row. */
  async #head(row, signal) {
    const head = await get(`/v1/sessions/${encodeURIComponent(row.session)}/paths/${row.leaf}?version=${row.version}`, signal);
    const { reward } = head;
    const value = typeof reward === "object" && reward !== null ? reward.reward ?? reward.score : reward;
    const { measured } = head.turns.at(-1);
    Object.assign(row, {
      reward: typeof value === "number" ? value : NaN, given: reward === null ? null : JSON.stringify(reward), flags: head.flags, total: head.tokens, isExported: head.turns.at(-1).trained,
      policy: [...new Set(head.policy.map(policyName))].map((one) => label(one, 40)).join(", "),
      segments: head.segments, measured: measured?.source === "none" ? null : methodOf(measured),
    });
  }

  /** Reads the entropies of the rows, the first ones first, up to a number of tokens. */
  async #entropies(signal) {
    let left = TOKENS;
    const read = this.rows.filter((row) => {
      const size = row.total - row.from;
      if (size > left) return false;
      left -= size;
      return true;
    });
    this.long = this.rows.length - read.length;
    await each(read, async (row) => {
      const values = [];
      for (let from = row.from; from < row.total; from += RANGE) {
        const { entropy } = await get(`/v1/sessions/${encodeURIComponent(row.session)}/paths/${row.leaf}?version=${row.version}&from=${from}&limit=${RANGE}`, signal);
        entropy?.forEach((value, at) => {
          if (isSampled(row.segments, from + at)) values.push(value ?? NaN);
        });
      }
      row.values = Float32Array.from(values);
      const known = values.filter((value) => !Number.isNaN(value));
      row.mean = known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : NaN;
    });
  }

  /** Asks the server for the advantages of the rows that have a reward. */
  async #advantages(wanted = false) {
    const rows = this.rows.filter((row) => !Number.isNaN(row.reward) && row.isExported);
    const asked = (this.asked = Symbol("the last request"));
    this.rows.forEach((row) => { row.advantage = NaN; });
    this.stats = null;
    this.problem = "";
    const tokens = rows.reduce((sum, row) => sum + row.total, 0);
    this.large = !wanted && tokens > TOKENS ? tokens * BYTES : 0;
    if (rows.length && !this.large) {
      const versions = [...new Set(rows.map((row) => row.version))];
      const groups = [{ id: "page", samples: rows.map(({ session, leaf, reward }) => ({ session, leaf, reward })) }];
      try {
        const reply = await post("/v1/advantages", { groups, ...ESTIMATORS[part("estimator").value], ...(versions.length === 1 && { version: versions[0] }) }, this.#opening.signal);
        if (asked !== this.asked) return;
        const [group] = reply.groups;
        group.samples.forEach(({ advantage }, at) => { rows[at].advantage = advantage; });
        this.stats = group;
      } catch (error) {
        if (error.name === "AbortError" || asked !== this.asked) return;
        const hint = versions.length > 1 ? " The sessions have different numbers of versions, so the server uses the last frozen version of each; freeze all of them." : "";
        this.problem = `The server computed no advantages: ${error.message}.${hint}`;
      }
    }
    this.#draw();
  }

  #others() {
    if (part("others").disabled) return;
    const of = { ...this.of, all: true };
    replace({ view: "group", ...of });
    this.open(of);
  }

  #compare() {
    const chosen = this.rows.filter((row) => row.isChosen);
    if (chosen.length !== 2) return this.announce("Choose two samples first.");
    this.onCompare(...chosen.map(({ session, leaf }) => ({ session, leaf })));
  }

  #draw() {
    const { rows, stats } = this;
    const rewarded = rows.filter((row) => !Number.isNaN(row.reward));
    const sessions = new Set(rows.map((row) => row.session)).size;
    const isGroup = stats && stats.samples.length > 1;
    const facts = [
      `${count(rows.length)} ${rows.length === 1 ? "sample" : "samples"} of one prompt`, sessions > 1 ? `${this.matched > sessions ? `${count(sessions)} of ` : ""}${amount(Math.max(sessions, this.matched), "session")}` : `turn ${this.of.turn} of ${label(this.of.session, NAME)}`, `prompt ${amount(this.prompt, "token")}`,
      this.of.where ? `where ${label(this.of.where, NAME)}` : null,
      isGroup ? `mean reward ${shown(stats.mean)}, standard deviation ${shown(stats.std)}` : rewarded.length ? null : "no rewards",
    ];
    part("group-about").replaceChildren(...facts.filter(Boolean).map((fact, at) => element(at ? "span" : "strong", { class: "num" }, fact)));
    const without = rows.length - rewarded.length;
    const kinds = [...new Set(rows.map((row) => row.measured).filter(Boolean))];
    const unexported = rewarded.filter((row) => !row.isExported).length;
    const notes = [
      this.problem, this.left ? `${amount(this.left, "more sample")} not shown. The advantages are those of the shown samples alone.` : "",
      this.gone ? `${amount(this.gone, "sample")} could not be read.` : "",
      this.long ? `${amount(this.long, "sample")} beyond the ${amount(TOKENS, "token")} that are read for entropies.` : "",
      stats && !isGroup ? "One sample with a reward is no group: the server returns the reward as its advantage." : "",
      kinds.length > 1 ? `The mean entropies are not of one kind: ${kinds.slice(0, KINDS).join("; ")}${kinds.length > KINDS ? ` and ${count(kinds.length - KINDS)} more` : ""}.` : "",
      rewarded.length && without ? `${count(without)} of ${amount(rows.length, "sample")} ${without === 1 ? "has" : "have"} no reward. The advantages are those of the others.` : "",
      unexported && rows.every((row) => row.total) ? `${amount(unexported, "sample")} with a reward, but without a row in an export and so without an advantage.` : "",
      isGroup && stats.std === 0 ? "All rewards are equal: every advantage is 0, and the group trains nothing." : "",
      this.large ? `The server's reply has about ${Math.ceil(this.large / 1e6)} MB: advantages are computed on request.` : "",
    ];
    part("group-note").textContent = notes.filter(Boolean).join(" ");
    part("compute").hidden = !this.large;
    part("others").disabled = this.of.all || !this.isFirst;
    part("group-compare").disabled = rows.filter((row) => row.isChosen).length !== 2;
    this.#table();
  }

  #table() {
    const { by, falls } = this.order;
    const value = COLUMNS[by][1];
    const sorted = [...this.rows].sort((a, b) => {
      const [one, other] = [value(a), value(b)];
      const missing = (what) => what === null || what === undefined || Number.isNaN(what);
      if (missing(one) || missing(other)) return Number(missing(one)) - Number(missing(other)) || a.number - b.number;
      const order = one < other ? -1 : one > other ? 1 : 0;
      return (falls ? -order : order) || a.number - b.number;
    });
    const longest = Math.max(1, ...this.rows.map((row) => row.tokens));
    const heads = COLUMNS.map(([title, sorts, isNumber], at) => element("th", { scope: "col", "aria-sort": at === by ? (falls ? "descending" : "ascending") : null, class: isNumber ? "right" : null },
      sorts ? element("button", { type: "button", id: `by-${title.replace(" ", "-")}`, onclick: () => this.#sort(at) }, title, at === by ? (falls ? " ▾" : " ▴") : "") : title));
    const focused = document.activeElement?.closest?.("#samples")?.contains(document.activeElement) ? document.activeElement.id : null;
    part("samples").replaceChildren(element("table", { class: "samples" },
      element("caption", { class: "hidden" }, "Samples of one prompt"),
      element("thead", {}, element("tr", {}, element("td", {}, element("span", { class: "hidden" }, "chosen")), heads)),
      element("tbody", {}, sorted.map((row) => this.#line(row, longest)))));
    if (focused) document.getElementById(focused)?.focus();
  }

  #sort(at) {
    this.order = { by: at, falls: this.order.by === at ? !this.order.falls : COLUMNS[at][2] === true };
    this.#table();
  }

  #line(row, longest) {
    const name = `${label(row.session, NAME)} · path to turn ${row.leaf}`;
    const level = step(row.mean);
    const cell = (text, kind = "right num") => element("td", { class: kind }, text);
    const given = row.given && Number.isNaN(row.reward) ? "not a number" : row.given === undefined ? "" : "–";
    return element("tr", {},
      element("td", {}, element("input", { type: "checkbox", id: `choose-${row.number}`, "aria-label": `Choose ${name}`, checked: row.isChosen, onchange: (event) => {
        row.isChosen = event.target.checked;
        part("group-compare").disabled = this.rows.filter((one) => one.isChosen).length !== 2;
      } })),
      element("td", {}, element("button", { type: "button", class: "row", id: `sample-${row.number}`, "data-leaf": row.leaf, onclick: () => this.onOpen(row) }, element("span", { class: "name" }, name))),
      element("td", { class: "right num", title: row.given ? label(row.given, REWARD) : null }, Number.isNaN(row.reward) ? given : shown(row.reward).replace("-", "−")),
      cell(signed(row.advantage)), cell(count(row.tokens)),
      element("td", { class: "right num" }, level < 0 ? "–" : [element("span", { class: `t s e${level} swatch` }), shown(row.mean)]),
      element("td", { class: "line" }, row.values ? sparkline(row.values, row.values.length / longest) : null),
      element("td", {}, row.fault ? element("span", { class: "fault" }, row.fault.replaceAll("_", " ")) : row.finish ? label(row.finish, 40) : "–"),
      element("td", {}, row.policy || "–"), element("td", {}, row.flags.join(", ") || "–"));
  }
}

/** Whether a position lies in a response. */
function isSampled(segments, at) {
  let [low, high] = [0, segments.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (segments[middle].start <= at) low = middle;
    else high = middle - 1;
  }
  return segments[low].kind === "response";
}
