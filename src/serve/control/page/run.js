// SPDX-License-Identifier: Apache-2.0
// The view of a run: curves over its steps, and the table of the sessions of a selection.

import { get, postBlob } from "./api.js";
import { replace } from "./address.js";
import { TABLES } from "./columns.js";
import { CURVES, curve, markStep, scatter } from "./curves.js";
import { amount, choices, count, element, part } from "./element.js";
import { label } from "./glyph.js";
import { copy, copyText, download } from "./link.js";
import { ALL, FIRST, conditionsOf, orderOf, pagePath, shownOf, stepsPath } from "./selection.js";
import { refill, rowsOnScreen, table } from "./table.js";

/** Milliseconds between updates, and how many times as long as an update took they are at least. */
const [PAUSE, SHARE] = [5000, 20];

/** The nouns for what the steps are, unless they are the values of another tag. */
const NOUNS = new Map([["step", ["step", "steps"]], ["policy", ["policy", "policies"]]]);

/** A word of a command line, in quotes if a shell gives one of its characters a meaning. */
const quoted = (word) => (/^[\w:/.-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

export class RunView {
  #opening = new AbortController();
  #due = 0;

  /** `onMove` opens an address. */
  constructor({ announce, texts, onMove }) {
    Object.assign(this, { announce, texts, onMove, of: ALL, list: null, rows: [], figures: [] });
    this.actions = {
      step: (at) => this.#move(at === 0 ? -1 : 1), all: () => this.of.step !== null && this.#choose(null), refresh: () => this.open(this.of),
      link: () => copy(this.address(), announce), command: () => copyText(this.command(), () => announce("The command is copied.")),
    };
    part("run-step").addEventListener("change", (event) => this.#choose(event.target.value === "" ? null : event.target.value.slice(1)));
    part("run-where").addEventListener("keydown", (event) => event.key === "Enter" && onMove({ ...this.address(), where: event.target.value.trim() }));
    part("run-more").addEventListener("click", () => this.#more().catch((error) => this.#fails(error)));
    for (const name of ["command", "link", "refresh"]) part(`run-${name}`).addEventListener("click", () => this.actions[name]());
    for (const format of ["jsonl", "parquet"]) part(`run-${format}`).addEventListener("click", () => this.#export(format).catch((error) => this.#note(error.message)));
    for (const name of TABLES.keys()) part(`run-show-${name}`).addEventListener("click", () => onMove({ ...this.address(), show: name === FIRST ? null : name, sort: null }));
  }

  address() {
    return this.of;
  }

  /** The conditions of the selection. */
  get conditions() {
    return conditionsOf(this.of);
  }

  /** The name of the table that is shown. */
  get shown() {
    return shownOf(this.of);
  }

  /** The command that exports the selection of the tokentap that serves the page. */
  command() {
    return `tokentap export --control ${quoted(location.origin)} ${this.conditions ? `--where ${quoted(this.conditions)} ` : ""}--format parquet --out rows.parquet`;
  }

  close() {
    this.#opening.abort();
    this.#opening = new AbortController();
  }

  /** Opens the selection of an address. */
  async open(address) {
    this.close();
    if (shownOf(address) !== this.shown) part("run-more").hidden = true;
    this.of = address;
    part("run-where").value = address.where;
    if (!this.list) part("run-about").replaceChildren(element("strong", {}, "Reading…"));
    await this.#show();
  }

  /** Reads and draws the selection; `list` are its steps if they are known. */
  async #show(list = null) {
    await this.#read({ list }).catch((error) => {
      if (error.name === "AbortError") return;
      this.#fails(error);
      this.#clear();
    });
  }

  /** Reads the run again if the last time is long ago. */
  async update() {
    if (performance.now() < this.#due) return;
    await this.#read({ isUpdate: true });
  }

  /** Reads steps and sessions. An update keeps the pages of the table after the first one. */
  async #read({ isUpdate = false, list: known = null }) {
    const { signal } = this.#opening;
    const started = performance.now();
    this.#due = started + PAUSE;
    const reading = known ?? this.#steps(signal);
    const [list, page] = await Promise.all([reading, isUpdate && this.paged ? null : this.#page(signal, reading)]);
    if (signal.aborted) return;
    this.#due = performance.now() + Math.max(PAUSE, SHARE * (performance.now() - started));
    this.#note("");
    const drawn = JSON.stringify([list, page, this.of]);
    if (isUpdate && drawn === this.drawn) return;
    Object.assign(this, { list, drawn });
    if (page) Object.assign(this, { rows: TABLES.get(this.shown).rows(page), page, paged: false });
    const summary = this.#draw(known !== null);
    if (!isUpdate) this.announce(summary);
  }

  /** The steps by the tag `step`, or by policy if no session of the selection has this tag. */
  async #steps(signal) {
    const { step, by } = this.of;
    const ask = (name) => get(stepsPath(this.of, name), signal);
    const list = await ask(by ?? "step");
    return by !== null || step !== null || list.total ? list : ask("policy");
  }

  /** Reads a page of the table that is shown, with the texts of its tokens. `steps` is what `#steps` returns. */
  async #page(signal, steps, after) {
    const { isByStep, rows, ids } = TABLES.get(this.shown);
    const page = await get(pagePath(this.of, { name: isByStep && (await steps).by, after }), signal);
    if (ids) await this.texts.load(rows(page).flatMap(ids), signal);
    return page;
  }

  async #more() {
    const { signal } = this.#opening;
    const { rows, key } = TABLES.get(this.shown);
    const page = await this.#page(signal, this.list, this.page.next);
    if (signal.aborted) return;
    const known = new Set(this.rows.map(key));
    // a row whose value has changed meanwhile may appear again
    this.rows.push(...rows(page).filter((row) => !known.has(key(row))));
    Object.assign(this, { page, paged: true });
    this.#draw();
  }

  /** Saves the export of the selection as a file. */
  async #export(format) {
    const buttons = ["jsonl", "parquet"].map((name) => part(`run-${name}`));
    buttons.forEach((button) => { button.disabled = true; });
    this.#note("Exporting…");
    try {
      const { conditions } = this;
      const { blob, headers } = await postBlob("/v1/samples", { format, ...(conditions && { where: conditions }) });
      download(blob, `rows.${format}`);
      const excluded = Object.values(JSON.parse(headers.get("tokentap-refused") ?? "{}")).reduce((sum, one) => sum + one, 0);
      const note = `${amount(Number(headers.get("tokentap-rows")), "row")} saved as rows.${format}${excluded ? `; ${amount(excluded, "path")} not exported` : ""}.`;
      this.#note(note);
      this.announce(note);
    } finally {
      buttons.forEach((button) => { button.disabled = false; });
    }
  }

  #fails(error) {
    if (error.name === "AbortError") return;
    // the same conditions are refused again
    if (error.status === 400) this.#due = Infinity;
    this.#note(error.message);
  }

  /** Shows nothing of a selection that could not be read. */
  #clear() {
    Object.assign(this, { list: null, rows: [], figures: [], page: null, drawn: null });
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

  /** Draws the selection; `isOrder` if only the order of the table is new. */
  #draw(isOrder = false) {
    const { step } = this.of;
    const { steps, total, by } = this.list;
    const [one, many] = NOUNS.get(by) ?? [`value of ${by}`, `values of ${by}`];
    const title = `${by[0].toUpperCase()}${by.slice(1)}`;
    part("run-by").textContent = title;
    const names = steps.map((one) => one.step);
    if (step !== null && !names.includes(step)) names.push(step);
    choices(part("run-step"), [["", `all ${many}`], ...names.map((name) => [`=${name}`, label(name, 40)])]);
    part("run-step").value = step === null ? "" : `=${step}`;
    const heading = step === null ? "All sessions" : `${title} ${label(step, 40)}`;
    const facts = [TABLES.get(this.shown).about(this.page), step === null ? `${count(total)} ${total === 1 ? one : many}` : null, total > steps.length ? `the last ${count(steps.length)} are shown` : null].filter(Boolean);
    part("run-about").replaceChildren(element("strong", {}, heading), ...facts.map((fact) => element("span", { class: "num" }, fact)));
    if (!isOrder) this.#curves();
    this.#points();
    this.#table();
    return `${heading}: ${facts.join(", ")}.`;
  }

  #curves() {
    const { steps } = this.list;
    this.figures = steps.length ? CURVES.map((kind) => [kind, curve(kind, steps, { onPick: (at) => this.#choose(steps[at].step), onPoint: (at) => this.#mark(at) })]).filter(([, figure]) => figure) : [];
    part("run-curves").replaceChildren(...this.figures.map(([, figure]) => figure));
    this.#mark(-1);
  }

  /** Draws the sessions of the table as points after the curves. */
  #points() {
    part("run-curves").querySelector("[data-curve=scatter]")?.remove();
    const points = this.shown === FIRST ? scatter(this.rows, ({ session }) => this.onMove({ view: "path", session, leaf: null, at: null })) : null;
    if (points) part("run-curves").append(points);
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
    const { shown, rows, page } = this;
    const { columns, more, none } = TABLES.get(shown);
    const { by } = this.list;
    for (const name of TABLES.keys()) part(`run-show-${name}`).setAttribute("aria-pressed", String(name === shown));
    // conditions name the tag `step` so by default
    const ofStep = (step) => conditionsOf({ ...this.of, step, by: by === "step" ? null : by });
    const content = table({ caption: `The ${shown} of the selection`, columns: columns({ onMove: this.onMove, texts: this.texts, conditionsOf: ofStep }), rows, first: rowsOnScreen(part("run-table")), order: orderOf(this.of) ?? "", onSort: (sort) => this.#sort(sort), prefix: "run-by" });
    const nothing = rows.length ? [] : [element("p", { class: "sub" }, shown === FIRST && !this.conditions ? "No sessions yet." : none)];
    refill(part("run-table"), content, ...nothing);
    part("run-more").hidden = !more || page.next === null;
    part("run-more").textContent = more ?? "";
  }

  #sort(sort) {
    this.of = { ...this.of, sort: sort === TABLES.get(this.shown).first ? null : sort };
    replace(this.address());
    this.close();
    // the steps do not depend on the order
    return this.#show(this.list);
  }
}
