// SPDX-License-Identifier: Apache-2.0
// The list of tokens. Only visible lines have elements.

import { element } from "./element.js";
import { Layout, Shapes } from "./layout.js";
import { classes, labelOf, lineOf } from "./line.js";
import { sectionAt, segments } from "./sections.js";

/** The height of a line in pixels, as in the style sheet. */
const LINE = 24;
/** The maximum columns of a line, and the number of tokens rendered beyond the visible ones. Both bound the number of elements. */
const [WIDEST, SPARE] = [100, 600];
/** The number of rendered lines above which invisible lines are removed at once. */
const LINES = 100;

/** The arrangement of a path by its segments. Arrangements return the sections of a trajectory, and fold those that can be folded. */
const SEGMENTS = { sections: segments };

/**
 * The view. Calls `onPick` with the chosen token, and `onPoint` with the token under the pointer, or -1. `prefix` begins the ids of the
 * tokens' elements; `paint` returns the CSS classes of a token. The tokens of a picture are one element, that of the first of them.
 */
export class Sheet {
  constructor(root, texts, pictures, { onPick, onPoint, prefix = "t", paint = classes }) {
    Object.assign(this, { root, pictures, onPick, prefix, paint });
    this.shapes = new Shapes(texts);
    this.arrangement = SEGMENTS;
    this.marks = null;
    /** The scroll position of the last rendering, in pixels. */
    this.top = 0;
    this.sheet = element("div", { class: "sheet", role: "none" });
    this.shownLines = new Map();
    this.chosen = -1;
    root.addEventListener("scroll", () => this.#soon(), { passive: true });
    const at = (event) => Number(event.target.closest?.(".t")?.dataset.at ?? -1);
    root.addEventListener("click", (event) => {
      const head = event.target.closest?.(".head[data-section]");
      if (at(event) >= 0) this.choose(at(event), false);
      else if (head) this.#fold(this.layout.sections[head.dataset.section]);
    });
    root.addEventListener("pointerover", (event) => onPoint(at(event), event));
    root.addEventListener("pointerleave", (event) => onPoint(-1, event));
    new ResizeObserver(() => this.trajectory && this.#fit() && this.refresh()).observe(root);
  }

  /** Shows another trajectory, or the text `instead` if it is null. */
  show(trajectory, instead = "") {
    this.trajectory = trajectory;
    this.chosen = -1;
    this.marks = null;
    this.root.removeAttribute("aria-activedescendant");
    this.#clear();
    this.root.replaceChildren(trajectory ? this.sheet : element("p", { class: "empty", role: "none" }, instead));
    this.root.scrollTop = 0;
    if (trajectory) {
      this.#fit();
      this.refresh();
    }
  }

  #fit() {
    const style = getComputedStyle(this.root);
    const column = this.column ??= this.shapes.measure(`${style.fontSize} ${style.fontFamily}`);
    const room = this.root.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - 16;
    const columns = Math.max(20, Math.min(WIDEST, Math.floor(room / column)));
    const changed = columns !== this.columns;
    this.columns = columns;
    return changed;
  }

  #clear() {
    this.shownLines.clear();
    this.sheet.replaceChildren();
  }

  /** Lays out all loaded tokens again and keeps the scroll position. */
  refresh() {
    const { layout, trajectory } = this;
    const place = layout?.of === trajectory && this.root.scrollTop >= LINE ? this.place() : null;
    this.layout = Object.assign(new Layout(trajectory, this.arrangement.sections(trajectory), this.shapes, this.columns), { of: trajectory });
    this.sheet.style.height = `${this.layout.count * LINE}px`;
    if (place) this.scrollTo(place);
    this.repaint();
  }

  /** Shows the same tokens in another arrangement, with the token at the top, or the chosen one, in view. */
  arrange(arrangement = SEGMENTS) {
    this.arrangement = arrangement;
    this.shapes.merges = Boolean(arrangement.merges);
    if (!this.trajectory) return;
    const { at } = this.place();
    this.root.scrollTop = 0;
    this.refresh();
    if (this.chosen >= 0) this.choose(this.chosen);
    else if (at > 0) this.scrollTo({ at, isHead: false, pixels: 0 });
  }

  /** Folds the section that has a token, or unfolds it. Returns its heading and new state; null if it cannot be folded. */
  fold(at) {
    const section = sectionAt(this.layout.sections, at);
    if (section.isFolded === undefined) return null;
    this.#fold(section);
    return `${section.title()}, ${section.isFolded ? "unfolded" : "folded"}`;
  }

  /** Folds or unfolds a section. A chosen token that is hidden then gives way to the first one of the heading. */
  #fold(section) {
    this.arrangement.fold(section, !section.isFolded);
    this.refresh();
    if (this.chosen >= 0 && this.layout.hides(this.chosen)) this.choose(section.start);
  }

  /** The scroll position: the token at the top, whether its heading is there, and the pixels of both that are scrolled away. */
  place() {
    const { layout, root } = this;
    const top = Math.max(0, Math.min(layout.count - 1, Math.floor(root.scrollTop / LINE)));
    const [at, isHead] = [layout.token[top] ?? 0, layout.head[top] ?? false];
    return { at, isHead, pixels: root.scrollTop - (layout.lineOf(at) - Number(isHead)) * LINE };
  }

  /** Scrolls to a position of this trajectory, or of one with the same tokens. */
  scrollTo({ at, isHead, pixels }) {
    this.root.scrollTop = (this.layout.lineOf(at) - Number(isHead)) * LINE + pixels;
  }

  /** Creates the elements of the visible lines again. */
  repaint() {
    this.#clear();
    this.render();
  }

  /** Marks the tokens whose item of `marks` is not 0; none if it is null. */
  mark(marks) {
    if (!marks && !this.marks) return;
    this.marks = marks;
    this.repaint();
  }

  #soon() {
    if (this.waiting || !this.trajectory) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      // lines beyond the visible ones are scrolled away again while each frame shows others, so they wait
      const isFast = Math.abs(this.root.scrollTop - this.top) > this.root.clientHeight / 2;
      this.render(isFast ? 0 : SPARE);
      if (isFast) this.#soon();
    });
  }

  /** Creates the elements of the visible lines, and of more lines around them with about `room` tokens. */
  render(room = SPARE) {
    if (!this.layout || this.layout.of !== this.trajectory) return;
    this.top = this.root.scrollTop;
    let first = Math.max(0, Math.floor(this.root.scrollTop / LINE));
    // the element of a picture is in its first line
    while (this.layout.row[first] > 0 && this.trajectory.pictureAt(this.layout.token[first])) first--;
    const last = Math.min(this.layout.count - 1, Math.ceil((this.root.scrollTop + this.root.clientHeight) / LINE));
    let [from, to, spare] = [first, last, room];
    const cost = (line) => Math.min(WIDEST, this.layout.end(line, this.trajectory)[0] - this.layout.token[line] + 1);
    while (spare > 0 && (from > 0 || to + 1 < this.layout.count) && to - from < last - first + 40) {
      if (to + 1 < this.layout.count) spare -= cost(++to);
      if (from > 0) spare -= cost(--from);
    }
    for (const [line, node] of room || this.shownLines.size > LINES ? this.shownLines : []) {
      if (line < from || line > to) {
        node.remove();
        this.shownLines.delete(line);
      }
    }
    for (let line = from; line <= to; line++) {
      if (this.shownLines.has(line)) continue;
      const node = lineOf(this, line);
      node.style.top = `${line * LINE}px`;
      this.shownLines.set(line, node);
      this.sheet.append(node);
    }
  }

  /** The label of a token for screen readers. */
  label(at) {
    return labelOf(this, at);
  }

  /** Chooses the token before or after the chosen one that no fold hides; `by` is 1 or -1. */
  step(by) {
    if (!this.trajectory) return;
    let at = this.chosen < 0 ? 0 : by < 0 ? this.chosen - 1 : this.trajectory.next(this.chosen);
    while (at >= 0 && at < this.trajectory.loaded && this.layout.hides(at)) {
      const { body, end } = sectionAt(this.layout.sections, at);
      at = by < 0 ? body - 1 : end;
    }
    this.choose(at);
  }

  /** Chooses a token, or the picture that has it, unfolds its section and scrolls it into view. */
  choose(token, centre = true) {
    if (!this.trajectory || token < 0 || token >= this.trajectory.loaded) return;
    const at = this.trajectory.first(token);
    if (this.layout.hides(at)) this.fold(at);
    this.#unselect();
    this.chosen = at;
    const top = this.layout.lineOf(at) * LINE;
    const [from, height] = [this.root.scrollTop, this.root.clientHeight];
    if (top < from + LINE || top > from + height - 2 * LINE) this.root.scrollTop = centre ? top - height / 2 : top - LINE;
    // the lines around it are rendered in the next frame
    this.render(0);
    this.#soon();
    const node = document.getElementById(this.prefix + at);
    node?.setAttribute("aria-selected", "true");
    // a picture is named by its text
    if (!this.trajectory.pictureAt(at)) node?.setAttribute("aria-label", this.label(at));
    this.root.setAttribute("aria-activedescendant", this.prefix + at);
    this.onPick(at);
  }

  /** Chooses no token. */
  unchoose() {
    this.#unselect();
    this.chosen = -1;
    this.root.removeAttribute("aria-activedescendant");
  }

  #unselect() {
    const before = this.sheet.querySelector("[aria-selected=true]");
    before?.setAttribute("aria-selected", "false");
    if (before?.textContent.trim()) before.removeAttribute("aria-label");
  }

  /** Moves the choice by lines; `by` is 1 or -1. */
  line(by) {
    const { layout } = this;
    for (let line = layout.lineOf(Math.max(0, this.chosen)) + by; line >= 0 && line < layout.count; line += by) {
      // skip a token that continues from the line before
      const first = layout.row[line] > 0 ? this.trajectory.next(layout.token[line]) : layout.token[line];
      if (!layout.head[line] && layout.lineOf(first) === line) return this.choose(first);
    }
  }

  /** Whether the end is in view. */
  isAtEnd() {
    return this.root.scrollTop + this.root.clientHeight >= this.root.scrollHeight - 3 * LINE;
  }

  toEnd() {
    this.root.scrollTop = this.root.scrollHeight;
    this.render();
  }
}
