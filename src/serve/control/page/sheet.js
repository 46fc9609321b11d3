// The list of tokens. Only visible lines have elements.

import { element } from "./element.js";
import { label } from "./glyph.js";
import { Layout, Shapes } from "./layout.js";
import { captions } from "./pictures.js";
import { shown, step } from "./scale.js";

/** The height of a line in pixels, as in the style sheet. */
const LINE = 24;
/** The maximum columns of a line, and the number of tokens rendered beyond the visible ones. Both bound the number of elements. */
const [WIDEST, SPARE] = [100, 600];
/** The number of rendered lines above which invisible lines are removed at once. */
const LINES = 100;

/** The kind of a segment: "response", "prompt" or "between". */
export function kindOf(trajectory, segment) {
  if (segment.kind === "response") return "response";
  return segment.turn === trajectory.segments[0].turn ? "prompt" : "between";
}

/** The CSS classes of a token. */
export function classes(trajectory, at, shape) {
  const sampled = trajectory.isSampled(at);
  const level = step(trajectory.entropy[at]);
  return ["t", sampled ? "s" : "p", sampled && (level < 0 ? "none" : `e${level}`), sampled && !trajectory.mask[at] && "m",
    trajectory.think[at] && "think", shape.kind !== "text" && shape.kind].filter(Boolean).join(" ");
}

/**
 * The view. Calls `onPick` with the chosen token, and `onPoint` with the token under the pointer, or -1. `prefix` begins the ids of the
 * tokens' elements; `paint` returns the CSS classes of a token. The tokens of a picture are one element, that of the first of them.
 */
export class Sheet {
  constructor(root, texts, pictures, { onPick, onPoint, prefix = "t", paint = classes }) {
    Object.assign(this, { root, pictures, onPick, prefix, paint });
    this.shapes = new Shapes(texts);
    this.marks = null;
    /** The scroll position of the last rendering, in pixels. */
    this.top = 0;
    this.sheet = element("div", { class: "sheet", role: "none" });
    this.shownLines = new Map();
    this.chosen = -1;
    root.addEventListener("scroll", () => this.#soon(), { passive: true });
    const at = (event) => Number(event.target.closest?.(".t")?.dataset.at ?? -1);
    root.addEventListener("click", (event) => at(event) >= 0 && this.choose(at(event), false));
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
    this.layout = Object.assign(new Layout(trajectory, this.shapes, this.columns), { of: trajectory });
    this.sheet.style.height = `${this.layout.count * LINE}px`;
    if (place) this.scrollTo(place);
    this.repaint();
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
      const node = this.#line(line);
      this.shownLines.set(line, node);
      this.sheet.append(node);
    }
  }

  #line(line) {
    const { layout, trajectory } = this;
    const segment = trajectory.segments[layout.segment[line]];
    const kind = kindOf(trajectory, segment);
    const node = element("div", { class: `line ${kind}${layout.head[line] ? " head" : ""}`, role: "none" });
    node.style.top = `${line * LINE}px`;
    if (layout.head[line]) {
      node.append(this.title(trajectory, segment, kind));
      return node;
    }
    const [end, endRow] = layout.end(line, trajectory);
    for (let at = layout.token[line]; at < end || (at === end && endRow > 0); at = trajectory.next(at)) {
      const from = at === layout.token[line] ? layout.row[line] : 0;
      const picture = trajectory.pictureAt(at);
      if (picture) {
        if (from === 0) node.append(this.#picture(picture));
        continue;
      }
      const shape = this.shapes.of(trajectory, at);
      const to = at === end ? endRow : shape.rows.length;
      for (let row = from; row < to; row++) {
        const { pieces } = shape.rows[row];
        if (pieces.length) node.append(this.#token(at, row, shape, pieces));
      }
    }
    return node;
  }

  #token(at, row, shape, pieces) {
    const isFirst = row === 0;
    const chosen = at === this.chosen;
    const blank = pieces.every(({ text }) => !text.trim());
    const node = element("span", {
      class: this.marks?.[at] ? `${this.paint(this.trajectory, at, shape)} hit` : this.paint(this.trajectory, at, shape), role: isFirst ? "option" : "none", id: isFirst ? this.prefix + at : null, "data-at": at,
      "aria-selected": isFirst ? String(chosen) : null, "aria-label": isFirst && chosen ? this.label(at) : isFirst && blank ? "space" : null,
    });
    for (const { text, kind } of pieces) node.append(kind === "plain" ? text : element("span", { class: kind === "odd" ? "g odd" : "g" }, text));
    return node;
  }

  #picture(picture) {
    const [{ trajectory, prefix, chosen }, { start }] = [this, picture];
    return element("span", { class: this.paint(trajectory, start, { kind: "picture" }), role: "option", id: prefix + start, "data-at": start, "aria-selected": String(start === chosen) },
      element("span", { class: "hidden" }, "picture"), this.pictures.frame(trajectory.head.session, picture), element("span", { class: "caption" }, captions(picture).map((line) => element("span", {}, line))));
  }

  /** The heading of a segment. */
  title(trajectory, { turn, start, end, loss_mask: trained, context, isCut }, kind) {
    const about = trajectory.turns.get(turn);
    const name = { prompt: "prompt", between: "prompt, new in this turn", response: trajectory.live ? "running" : "sampled" }[kind];
    const cause = kind !== "response" && about?.cause && about.cause !== "first" ? ` · ${about.cause}` : "";
    const fault = kind === "response" && about?.fault ? ` · ${about.fault}` : "";
    const finish = kind === "response" && !isCut && about?.finish_reason ? ` · ends by ${label(about.finish_reason)}` : "";
    const mask = kind === "response" && about && !about.fault && !trajectory.live && !trained ? " · not trained in this row" : "";
    const other = context === "other" ? "context differs · " : "";
    const pictures = trajectory.pictures.filter((picture) => picture.start >= start && picture.start < end).length;
    const shown = pictures ? ` · ${pictures} ${pictures === 1 ? "picture" : "pictures"}` : "";
    return `${other}${turn >= 0 ? `turn ${turn} · ` : ""}${name} · ${(end - start).toLocaleString("en")} tokens${shown}${cause}${finish}${fault}${mask}`;
  }

  /** The label of a token for screen readers. */
  label(at) {
    const picture = this.trajectory.pictureAt(at);
    if (picture) return `picture, ${captions(picture).join(", ")}`;
    const text = this.shapes.of(this.trajectory, at).rows.flatMap((row) => row.pieces).map((piece) => piece.text).join("");
    const numbers = this.trajectory.isSampled(at) ? `entropy ${shown(this.trajectory.entropy[at])} nats, logprob ${shown(this.trajectory.logprobs[at])}` : "prompt";
    return `${text.trim() || "space"}, token ${at + 1}, ${numbers}`;
  }

  /** Chooses the token before or after the chosen one; `by` is 1 or -1. */
  step(by) {
    if (!this.trajectory) return;
    if (by < 0) this.choose(Math.max(0, this.chosen - 1));
    else this.choose(this.chosen < 0 ? 0 : this.trajectory.next(this.chosen));
  }

  /** Chooses a token, or the picture that has it, and scrolls it into view. */
  choose(token, centre = true) {
    if (!this.trajectory || token < 0 || token >= this.trajectory.loaded) return;
    const at = this.trajectory.first(token);
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
