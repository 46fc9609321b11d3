// SPDX-License-Identifier: Apache-2.0
// The filters of the list of turns: by class, and by flag or fault.

import { get } from "./api.js";
import { choices, part } from "./element.js";

/** The classes that a turn can have, and the name of having none. */
const CLASSES = ["main", "subagent", "compaction", "auxiliary", "unlabelled"];
/** Flags of turns: their names, and whether a turn of the list has them. */
const FLAGS = [
  ["context_retokenised", (turn) => turn.context_retokenised], ["foreign_assistant_text", (turn) => turn.foreign_assistant_text],
  ["inserted_end_of_turn", (turn) => turn.inserted_end_of_turn > 0], ["any fault", (turn) => turn.fault !== null],
];
/** Flags of rows, which depend on all turns of a path. They are read from the path of each leaf. */
const ROW_FLAGS = ["crosses_versions", "policy_uncertain", "mixed_adapters"];
/** The maximum number of paths that are read for a flag of rows. */
const MOST = 200;

const classOf = (turn) => turn.labels?.request_class ?? "unlabelled";

export class Filter {
  #rows = new Map();
  #of = null;

  /** Calls `onChange` after a choice, or after rows were read. */
  constructor(onChange) {
    this.onChange = onChange;
    this.list = [];
    part("class").addEventListener("change", () => onChange());
    part("flag").addEventListener("change", () => onChange());
  }

  /** The classes of an export, for a request of a path; empty for the default. */
  get classes() {
    return part("class").value;
  }

  /** Updates the counts of the choices for the turns of a session. */
  draw(session, list, version) {
    if (this.#of !== `${session}/${list.length}/${version}`) {
      this.#of = `${session}/${list.length}/${version}`;
      this.#rows.clear();
      this.left = 0;
    }
    Object.assign(this, { session, list, version });
    const count = (test) => list.filter(test).length;
    choices(part("class"), [["", "all classes"], ...CLASSES.map((name) => [name, `${name} (${count((turn) => classOf(turn) === name)})`])]);
    choices(part("flag"), [["", "all flags"], ...FLAGS.map(([name, test]) => [name, `${name} (${count(test)})`]), ...ROW_FLAGS.map((name) => [name, name])]);
  }

  /** The numbers of the turns that are shown; null for all. Reads rows first if the flag needs them, and then calls `onChange`. */
  shown() {
    const [name, flag] = [part("class").value, part("flag").value];
    if (!ROW_FLAGS.includes(flag)) this.left = 0;
    if (!name && !flag) return null;
    let found = this.list.filter((turn) => !name || classOf(turn) === name);
    if (ROW_FLAGS.includes(flag)) {
      this.#read();
      const flagged = new Set();
      for (const [leaf, flags] of this.#rows) {
        if (flags.includes(flag)) for (let at = leaf; at !== null && !flagged.has(at); at = this.list[at].parent) flagged.add(at);
      }
      found = found.filter((turn) => flagged.has(turn.turn));
    } else if (flag) {
      const [, test] = FLAGS.find(([known]) => known === flag);
      found = found.filter(test);
    }
    return new Set(found.map((turn) => turn.turn));
  }

  async #read() {
    const inner = new Set(this.list.map((turn) => turn.parent));
    const leaves = this.list.map((turn) => turn.turn).filter((turn) => !inner.has(turn));
    this.left = Math.max(0, leaves.length - MOST);
    const missing = leaves.slice(0, MOST).filter((leaf) => !this.#rows.has(leaf));
    if (!missing.length) return;
    missing.forEach((leaf) => this.#rows.set(leaf, []));
    const [of, rows] = [this.#of, this.#rows];
    for (const leaf of missing) {
      const head = await get(`/v1/sessions/${encodeURIComponent(this.session)}/paths/${leaf}?version=${this.version}`).catch(() => ({ flags: [] }));
      if (of !== this.#of) return;
      rows.set(leaf, head.flags);
    }
    this.onChange();
  }
}
