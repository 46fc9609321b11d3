// SPDX-License-Identifier: Apache-2.0
// The search field above the tokens.

import { count, element, part } from "./element.js";
import { find } from "./find.js";

/** Milliseconds between the last key and the search. */
const PAUSE = 120;


export class FindBar {
  #matches = [];
  #current = -1;

  constructor(sheet, texts, announce) {
    Object.assign(this, { sheet, texts, announce, field: part("find") });
    let waiting;
    this.field.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.refresh(true), PAUSE);
    });
    this.field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      clearTimeout(waiting);
      this.refresh();
      this.next(event.shiftKey ? -1 : 1);
    });
    part("find-next").addEventListener("click", () => this.next(1));
    part("find-previous").addEventListener("click", () => this.next(-1));
  }

  /** Searches again, after the query or the loaded tokens have changed. `goes`: chooses the first match from the chosen token on. */
  refresh(goes = false) {
    const { trajectory } = this.sheet;
    const query = this.field.value;
    this.#matches = trajectory && query ? find(trajectory, this.texts, query) : [];
    let marks = null;
    if (this.#matches.length) {
      marks = new Uint8Array(trajectory.loaded);
      for (const [first, last] of this.#matches) marks.fill(1, first, last + 1);
    }
    this.#current = this.#matches.findIndex(([first]) => first === this.sheet.chosen);
    this.sheet.mark(marks);
    if (goes && this.#matches.length && this.#current < 0) return this.next(1);
    this.#draw();
  }

  /** Goes to the next match, or with -1 to the previous one. After the last comes the first. */
  next(by) {
    const [matches, { chosen }] = [this.#matches, this.sheet];
    if (!matches.length) return this.announce(this.field.value ? "No match." : "Nothing is searched for.");
    const found = by > 0 ? matches.findIndex(([first]) => first > chosen) : matches.findLastIndex(([first]) => first < (chosen < 0 ? Infinity : chosen));
    this.#current = found >= 0 ? found : by > 0 ? 0 : matches.length - 1;
    this.sheet.choose(matches[this.#current][0]);
    this.#draw();
    this.announce(`Match ${count(this.#current + 1)} of ${count(matches.length)}: ${this.sheet.label(matches[this.#current][0])}`);
  }

  #draw() {
    const { length } = this.#matches;
    const isSearched = this.field.value !== "" && this.sheet.trajectory !== null;
    const text = !isSearched ? "" : !length && this.texts.problem ? "no texts" : this.#current < 0 ? `${count(length)} found` : `${count(this.#current + 1)} of ${count(length)}`;
    part("find-count").replaceChildren(element("span", {}, text));
    for (const id of ["find-next", "find-previous"]) part(id).disabled = !length;
  }
}
