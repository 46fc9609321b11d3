// The view of a run: curves over its steps, and the table of the sessions of a selection.

import { get } from "./api.js";
import { replace } from "./address.js";
import { CURVES, curve, markStep, scatter } from "./curves.js";
import { amount, count, element, part } from "./element.js";
import { choices } from "./filter.js";
import { label } from "./glyph.js";
import { copy, copyText } from "./link.js";
import { shown, step as colour } from "./scale.js";
import { age } from "./sessions.js";

/** The sessions of a page of the table, and its order unless another one is chosen. */
const [PAGE, NEWEST] = [200, "-created_ms"];
/** Milliseconds between updates, and how many times as long as an update took they are at least. */
const [PAUSE, SHARE] = [5000, 20];
/** The maximum number of characters of a name, and of a list. */
const [NAME, LIST] = [128, 200];

/** The nouns for what the steps are. */
const NOUNS = new Map([["step", ["step", "steps"]], ["policy", ["policy", "policies"]]]);

const text = (content) => (content === null || content === undefined || content === "" ? "–" : label(String(content), LIST));
const reward = (row) => (row.reward === null ? "–" : shown(row.reward).replace("-", "−"));
const faults = (row) => Object.entries(row.faults).map(([kind, times]) => `${kind.replaceAll("_", " ")}${times > 1 ? ` ${times}` : ""}`).join(", ");
const tags = (row) => Object.entries(row.tags ?? {}).filter(([name]) => name !== "step").map((tag) => tag.join("=")).join(", ");

function entropy(row) {
  const level = colour(row.mean_entropy ?? NaN);
  return level < 0 ? "–" : [element("span", { class: `t s e${level} swatch` }), shown(row.mean_entropy)];
}

/** The columns after the name: title, the member that the server sorts by, the content of a cell, and whether it is a number. */
const COLUMNS = [
  ["step", "step", (row) => text(row.tags?.step), true], ["reward", "reward", reward, true], ["mean entropy", "mean_entropy", entropy, true],
  ["above 0.672", "high_entropy_share", (row) => (row.high_entropy_share === null ? "–" : `${shown(100 * row.high_entropy_share, 1)} %`), true],
  ["sampled", "sampled_tokens", (row) => count(row.sampled_tokens), true], ["trained", "trained_tokens", (row) => count(row.trained_tokens), true],
  ["turns", "turns", (row) => count(row.turns), true], ["finish", "finish_reason", (row) => text(row.finish_reason)], ["policy", "policy", (row) => text(row.policy)],
  ["faults", "faults", (row) => (faults(row) ? element("span", { class: "fault" }, text(faults(row))) : "–")],
  ["flags", "flags", (row) => text(row.flags.join(", "))], ["tags", null, (row) => text(tags(row))], ["age", NEWEST.slice(1), (row) => age(row.created_ms), true],
];

/** A word of a command line. */
const quoted = (word) => `'${word.replaceAll("'", "'\\''")}'`;

export class RunView {
  #opening = new AbortController();
  #due = 0;

  /** `onOpen` opens a session, `onMove` the address of another selection. */
  constructor({ announce, onOpen, onMove }) {
    Object.assign(this, { announce, onOpen, onMove, of: { step: null, by: null, where: "", sort: null }, list: null, rows: [], figures: [] });
    this.actions = {
      step: (at) => this.#move(at === 0 ? -1 : 1), all: () => this.of.step !== null && this.#choose(null), refresh: () => this.open(this.of),
      link: () => copy(this.address(), announce), command: () => copyText(this.command(), () => announce("The command is copied.")),
    };
    part("run-step").addEventListener("change", (event) => this.#choose(event.target.value === "" ? null : event.target.value.slice(1)));
    part("run-where").addEventListener("keydown", (event) => event.key === "Enter" && onMove({ ...this.address(), where: event.target.value.trim() }));
    part("run-more").addEventListener("click", () => this.#more().catch((error) => this.#fails(error)));
    for (const name of ["command", "link", "refresh"]) part(`run-${name}`).addEventListener("click", () => this.actions[name]());
  }

  address() {
    return { view: "run", ...this.of };
  }

  /** The conditions of the selection, as `where` of the server and of the command line. */
  get conditions() {
    const { step, by, where } = this.of;
    const name = by === null ? "step" : by === "policy" ? by : `tag.${by}`;
    return [where, step === null ? "" : `${name}=${encodeURIComponent(step)}`].filter(Boolean).join(",");
  }

  /** The command that exports the selection. */
  command() {
    return `tokentap export ${this.conditions ? `--where ${quoted(this.conditions)} ` : ""}--format parquet --out rows.parquet`;
  }

  close() {
    this.#opening.abort();
    this.#opening = new AbortController();
  }

  /** Opens a selection: the sessions that meet the conditions `where`, and of them those of a step. `by` names what the steps are. */
  async open({ step, by, where, sort }) {
    this.close();
    this.of = { step, by, where, sort };
    part("run-where").value = where;
    if (!this.list) part("run-about").replaceChildren(element("strong", {}, "Reading…"));
    await this.#read().catch((error) => {
      if (error.name === "AbortError") return;
      this.#fails(error);
      this.#clear();
    });
  }

  /** Reads the run again if the last time is long ago. */
  async update() {
    if (performance.now() < this.#due) return;
    await this.#read(true);
  }

  /** Reads steps and sessions. An update keeps the pages of the table after the first one. */
  async #read(isUpdate = false) {
    const { signal } = this.#opening;
    const started = performance.now();
    this.#due = started + PAUSE;
    const [list, page] = await Promise.all([this.#steps(signal), isUpdate && this.paged ? null : this.#page(signal)]);
    if (signal.aborted) return;
    this.#due = performance.now() + Math.max(PAUSE, SHARE * (performance.now() - started));
    this.#note("");
    const drawn = JSON.stringify([list, page, this.of]);
    if (isUpdate && drawn === this.drawn) return;
    Object.assign(this, { list, drawn });
    if (page) Object.assign(this, { rows: page.sessions, next: page.next, matched: page.matched, paged: false });
    const summary = this.#draw();
    if (!isUpdate) this.announce(summary);
  }

  /** The steps by the tag `step`, or by policy if no session of the selection has this tag. */
  async #steps(signal) {
    const { step, by, where } = this.of;
    const ask = (name) => get(`/v1/steps?${new URLSearchParams({ by: name, ...(where && { where }) })}`, signal);
    const list = await ask(by ?? "step");
    return by !== null || step !== null || list.total ? list : ask("policy");
  }

  #page(signal, after) {
    const query = new URLSearchParams({ sort: this.of.sort ?? NEWEST, limit: PAGE, ...(this.conditions && { where: this.conditions }), ...(after && { after }) });
    return get(`/v1/sessions?${query}`, signal);
  }

  async #more() {
    const { signal } = this.#opening;
    const page = await this.#page(signal, this.next);
    if (signal.aborted) return;
    const known = new Set(this.rows.map((row) => row.session));
    // a session whose value has changed meanwhile may appear again
    this.rows.push(...page.sessions.filter((row) => !known.has(row.session)));
    Object.assign(this, { next: page.next, matched: page.matched, paged: true });
    this.#draw();
  }

  #fails(error) {
    if (error.name === "AbortError") return;
    // the same conditions are refused again
    if (error.status === 400) this.#due = Infinity;
    this.#note(error.message);
  }

  /** Shows nothing of a selection that could not be read. */
  #clear() {
    Object.assign(this, { list: null, rows: [], figures: [], next: null, drawn: null });
    for (const name of ["about", "legend", "curves", "table"]) part(`run-${name}`).replaceChildren();
    part("run-more").hidden = true;
  }

  #note(problem) {
    part("run-note").textContent = problem;
    part("run-where").setAttribute("aria-invalid", String(problem.startsWith("where: ")));
  }

  #choose(step) {
    const name = this.list?.by ?? "step";
    // a step of policies is named so; without it policies are shown only while no session has the tag `step`
    const isImplied = name === "step" || (step === null && name === "policy");
    this.onMove({ ...this.address(), step, by: isImplied ? null : name });
  }

  #move(by) {
    const { steps } = this.list ?? { steps: [] };
    const at = steps.findIndex((one) => one.step === this.of.step);
    const next = at < 0 ? (by < 0 ? steps.length - 1 : 0) : at + by;
    if (steps[next]) this.#choose(steps[next].step);
  }

  #draw() {
    const { step } = this.of;
    const { steps, total, by } = this.list;
    const [one, many] = NOUNS.get(by) ?? [by, by];
    const title = `${one[0].toUpperCase()}${one.slice(1)}`;
    part("run-by").textContent = title;
    const names = steps.map((one) => one.step);
    if (step !== null && !names.includes(step)) names.push(step);
    choices(part("run-step"), [["", `all ${many}`], ...names.map((name) => [`=${name}`, label(name, 40)])]);
    part("run-step").value = step === null ? "" : `=${step}`;
    const heading = step === null ? "All sessions" : `${title} ${label(step, 40)}`;
    const facts = [amount(this.matched, "session"), step === null ? `${count(total)} ${total === 1 ? one : many}` : null, total > steps.length ? `the last ${count(steps.length)} are shown` : null].filter(Boolean);
    part("run-about").replaceChildren(element("strong", {}, heading), ...facts.map((fact) => element("span", { class: "num" }, fact)));
    this.figures = steps.length ? CURVES.map((kind) => [kind, curve(kind, steps, { onPick: (at) => this.#choose(steps[at].step), onPoint: (at) => this.#mark(at) })]).filter(([, figure]) => figure) : [];
    const points = scatter(this.rows, (row) => this.onOpen(row.session));
    part("run-curves").replaceChildren(...this.figures.map(([, figure]) => figure), ...(points ? [points] : []));
    this.#mark(-1);
    this.#table();
    return `${heading}: ${facts.join(", ")}.`;
  }

  /** Writes the values of a step beside the curves: the one below the pointer, else the chosen one, else the last. */
  #mark(pointed) {
    const { steps, by } = this.list;
    if (!steps.length) return part("run-legend").replaceChildren();
    const chosen = steps.findIndex((one) => one.step === this.of.step);
    const at = pointed >= 0 ? pointed : chosen >= 0 ? chosen : steps.length - 1;
    for (const [kind, figure] of this.figures) markStep(figure, kind, steps, at, pointed >= 0 ? pointed : chosen);
    part("run-legend").textContent = `Numbers of ${by} ${label(steps[at].step, 40)}, ${amount(steps[at].sessions, "session")}. Lines are means, bands the middle 50 % and 80 % (in parentheses). Click a curve to choose a ${by}.`;
  }

  #table() {
    const { sort } = this.of;
    const [by, falls] = [(sort ?? NEWEST).replace(/^-/, ""), (sort ?? NEWEST).startsWith("-")];
    const head = ([title, key, , isNumber]) => element("th", { scope: "col", "aria-sort": key === by ? (falls ? "descending" : "ascending") : null, class: isNumber ? "right" : null },
      key ? element("button", { type: "button", id: `run-by-${key}`, onclick: () => this.#sort(key, isNumber, by, falls) }, title, key === by ? (falls ? " ▾" : " ▴") : "") : title);
    const focused = document.activeElement?.closest?.("#run-table") ? [document.activeElement.id, document.activeElement.dataset.session] : null;
    part("run-table").replaceChildren(element("table", { class: "samples" }, element("caption", { class: "hidden" }, "Sessions of the selection"),
      element("thead", {}, element("tr", {}, [["session", "session"], ...COLUMNS].map(head))),
      element("tbody", {}, this.rows.map((row) => element("tr", {},
        element("td", {}, element("button", { type: "button", class: "row", "data-session": row.session, onclick: () => this.onOpen(row.session) }, element("span", { class: `name${row.running ? " live" : ""}` }, label(row.session, NAME)))),
        COLUMNS.map(([, , content, isNumber]) => element("td", { class: isNumber ? "right num" : null }, content(row))))))));
    if (!this.rows.length) part("run-table").append(element("p", { class: "sub" }, this.conditions ? "No session meets the conditions." : "No sessions yet."));
    part("run-more").hidden = this.next === null;
    if (focused) [...part("run-table").querySelectorAll("button")].find((one) => one.id === focused[0] && one.dataset.session === focused[1])?.focus();
  }

  /** Sorts by a column: numbers from the highest one, texts from A; the second time in the other direction. */
  #sort(key, isNumber, by, falls) {
    const sort = `${(key === by ? !falls : isNumber) ? "-" : ""}${key}`;
    this.of = { ...this.of, sort: sort === NEWEST ? null : sort };
    replace(this.address());
    return this.open(this.of);
  }
}
