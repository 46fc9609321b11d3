// SPDX-License-Identifier: Apache-2.0
// The list of sessions, the newest first, with a search by name.

import { get } from "./api.js";
import { amount, element, part } from "./element.js";
import { label } from "./glyph.js";

/** The number of sessions of a page. */
const PAGE = 50;

/** The path of the running sequences. */
export const RUNNING = "/v1/requests";

/** The path of a page of the sessions whose names contain `search`; `after` continues a page. */
export function listPath(search = "", after = null) {
  return `/v1/sessions?${new URLSearchParams({ order: "newest", limit: PAGE, ...(search && { search }), ...(after && { after }) })}`;
}

export class Sessions {
  constructor(onOpen) {
    this.onOpen = onOpen;
    this.rows = [];
    this.next = null;
    this.chosen = null;
    let waiting;
    part("search").addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.load(), 150);
    });
    part("more").addEventListener("click", () => this.#older());
  }

  #ask(after) {
    return get(listPath(part("search").value.trim(), after));
  }

  /** Fetches the first page again. Later pages that were fetched before stay unchanged. */
  async load() {
    const asked = (this.asked = Symbol("the last request"));
    const search = part("search").value;
    const [page, running] = await Promise.all([this.#ask(), get(RUNNING)]);
    if (asked !== this.asked) return; // a newer request was sent
    const names = new Set(page.sessions.map((row) => row.session));
    // also keeps the sessions that newer ones have pushed off the first page
    const older = this.search === search && this.paged ? this.rows.filter((row) => !row.unlisted && !names.has(row.session)) : [];
    this.paged = older.length > 0;
    this.next = older.length ? this.next : page.next;
    this.search = search;
    for (const row of older) names.add(row.session);
    this.rows = [...beginning(running.requests, names, search.trim()), ...page.sessions, ...older];
    this.draw();
  }

  async #older() {
    const page = await this.#ask(this.next);
    this.next = page.next;
    this.paged = true;
    const known = new Set(this.rows.map((row) => row.session));
    this.rows.push(...page.sessions.filter((row) => !known.has(row.session)));
    this.draw();
  }

  choose(session) {
    this.chosen = session;
    this.draw();
  }

  draw() {
    const list = part("sessions");
    const drawn = JSON.stringify([this.rows, this.chosen]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const focused = document.activeElement?.closest?.("#sessions button")?.dataset.session;
    list.closest("nav").style.setProperty("--rows", this.rows.length);
    list.replaceChildren(...this.rows.map((row) => element("li", {}, this.#row(row))));
    if (!this.rows.length && this.next === null) list.append(element("li", { class: "sub" }, part("search").value ? "No session with this name." : "No sessions yet."));
    part("more").hidden = this.next === null;
    for (const button of list.querySelectorAll("button")) if (button.dataset.session === focused) button.focus();
  }

  #row(row) {
    const unread = row.turns === undefined; // another tokentap has it
    const facts = unread ? ["on another tokentap", age(row.used_ms)] : this.#facts(row);
    const faults = unread ? 0 : Object.values(row.faults).reduce((sum, count) => sum + count, 0);
    return element("button", { type: "button", class: "row", "data-session": row.session, "aria-current": String(row.session === this.chosen), onclick: () => this.onOpen(row.session) },
      element("span", { class: `name${row.running ? " live" : ""}` }, label(row.session, 128)),
      element("span", { class: "sub num" }, facts.filter(Boolean).map((fact) => element("span", {}, fact)),
        faults ? element("span", { class: "fault" }, some(faults, "fault")) : null, row.running ? element("span", {}, "running") : null));
  }

  #facts(row) {
    const forks = Object.entries(row.causes).reduce((sum, [cause, count]) => sum + (GROWS.has(cause) ? 0 : count), 0);
    return [some(row.turns, "turn"), amount(row.sampled_tokens, "token"), rewardOf(row), some(forks, "fork"), age(row.created_ms)];
  }
}

/** The reward of a session as a fact; null without one. */
export const rewardOf = ({ reward }) => (typeof reward === "number" ? `reward ${String(Number(reward.toFixed(3))).replace("-", "−")}` : null);

const some = (count, one) => (count ? amount(count, one) : null);

/** Sessions that have a running sequence and no turn yet. */
function beginning(running, names, search) {
  const found = new Map();
  for (const { session, listed, tokens } of running) {
    if (!session || listed || names.has(session) || !session.toLowerCase().includes(search.toLowerCase())) continue;
    const row = found.get(session) ?? { session, created_ms: Date.now(), turns: 0, sampled_tokens: 0, causes: {}, faults: {}, running: 0, unlisted: true };
    found.set(session, { ...row, sampled_tokens: row.sampled_tokens + tokens, running: row.running + 1 });
  }
  return [...found.values()];
}

/** The causes of turns that do not start a branch. */
export const GROWS = new Set(["first", "extends", "extends_length", "resumes"]);

/** How long ago a time is. */
export function age(ms) {
  const seconds = Math.max(0, (Date.now() - ms) / 1000);
  const steps = [[86400, "d"], [3600, "h"], [60, "min"]];
  const found = steps.find(([size]) => seconds >= size);
  return found ? `${Math.floor(seconds / found[0])} ${found[1]}` : "now";
}
