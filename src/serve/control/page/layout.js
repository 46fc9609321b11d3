// SPDX-License-Identifier: Apache-2.0
// Lays out tokens on lines of a fixed width, so that invisible lines need neither elements nor layout by the browser.

import { lines } from "./glyph.js";
import { sectionAt } from "./sections.js";
import { UNKNOWN } from "./trajectory.js";

/** The display of a token in which no character begins: an empty box of at most one column. */
const REST = { rows: [{ pieces: [{ text: "", kind: "plain" }], width: 1 }], kind: "rest" };

/** The display of a token: `rows` of `{pieces, width}`, with widths in columns and a new row after each line end; `kind` is text, bytes, rest (of a character that begins in a token before), id or wait; `opens` is true if the token begins a word. */
export class Shapes {
  #cache = new Map();
  #width = new Map();

  constructor(texts) {
    this.texts = texts;
    /** Whether tokens that are part of a character show the character instead of their bytes. */
    this.merges = false;
    this.context = document.createElement("canvas").getContext("2d");
  }

  /** Sets the font for measuring. Returns the width of a column in pixels. */
  measure(font) {
    this.context.font = font;
    this.#width.clear();
    this.#cache.clear();
    this.column = this.context.measureText("0".repeat(100)).width / 100;
    return this.column;
  }

  of(trajectory, at) {
    const id = trajectory.ids[at];
    const text = this.texts.of(id);
    if (id === UNKNOWN) return this.#plain("·", "id");
    if (text === undefined) return this.texts.problem ? this.#plain(`⟨${id}⟩`, "id") : this.#plain("    ", "wait");
    if (text.includes("\ufffd")) {
      const characters = this.merges ? this.texts.charactersOf(trajectory.ids, at, trajectory.loaded) : null;
      if (characters !== null) return characters ? this.#plain(characters, "text") : REST;
      const split = this.texts.split(trajectory.ids, at, trajectory.loaded);
      const bytes = split?.bytes?.map((byte) => byte.toString(16).toUpperCase().padStart(2, "0")).join("·");
      // the last token of a run also shows the text of the whole run
      if (bytes) return this.#plain(`‹${bytes}›`, "bytes", split.isLast ? lines(split.whole).flat().map((piece) => ({ ...piece, kind: piece.kind === "odd" ? "odd" : "glyph" })) : []);
      return this.#plain(`‹${text.replaceAll("\ufffd", "··")}›`, "bytes");
    }
    let shape = this.#cache.get(id);
    if (!shape) {
      // a token with an empty text must still be visible
      shape = text === "" ? this.#plain("∅", "id") : { rows: lines(text).map((pieces) => ({ pieces, width: this.#columns(pieces) })), kind: "text", opens: /^\s/.test(text) };
      this.#cache.set(id, shape);
    }
    return shape;
  }

  #plain(text, kind, more = []) {
    const pieces = [...lines(text).flat(), ...more];
    return { rows: [{ pieces, width: this.#columns(pieces) }], kind };
  }

  #columns(pieces) {
    let columns = 0;
    for (const { text, kind } of pieces) {
      if (kind === "odd") columns += 1;
      if (/^[\x20-\x7e]*$/.test(text)) columns += text.length;
      else {
        if (!this.#width.has(text)) this.#width.set(text, Math.ceil(this.context.measureText(text).width / this.column - 0.05));
        columns += this.#width.get(text);
      }
    }
    return columns;
  }
}

/** The number of lines of a picture, as in the style sheet. */
const TALL = 5;

/** The lines. Each begins at row `row` of token `token`, in section `section`; `head` is true for the heading of a section. */
export class Layout {
  constructor(trajectory, sections, shapes, columns) {
    this.sections = sections;
    this.token = [];
    this.row = [];
    this.section = [];
    this.head = [];
    let column = 0;
    // the first token of the line's last word, and the columns before it
    let word = null;
    const begin = (token, row, section, head) => {
      this.token.push(token);
      this.row.push(row);
      this.section.push(section);
      this.head.push(head);
      column = 0;
      word = null;
    };
    sections.forEach((section, number) => {
      if (section.start >= trajectory.loaded && !(trajectory.live && number === 0)) return;
      if (section.title) begin(section.start, 0, number, true);
      const end = section.isFolded ? section.body : Math.min(section.end, trajectory.loaded);
      if (end > section.body) begin(section.body, 0, number, false);
      for (let at = section.body; at < end; at = trajectory.next(at)) {
        const picture = trajectory.pictureAt(at);
        if (picture) {
          if (column > 0) begin(at, 0, number, false);
          for (let row = 1; row < TALL; row++) begin(at, row, number, false);
          if (picture.end < end) begin(picture.end, 0, number, false);
          continue;
        }
        const { rows, opens } = shapes.of(trajectory, at);
        rows.forEach(({ width }, row) => {
          const isNew = row > 0;
          if (isNew) {
            // except an empty line at the end of the section
            if (width > 0 || at + 1 < end) begin(at, row, number, false);
          } else if (column > 0 && column + width > columns) {
            const [first, before] = opens || !word || word[1] < columns / 2 ? [at, column] : word;
            const carried = column - before;
            begin(first, 0, number, false);
            column = carried;
          } else if (opens && column > 0) {
            word = [at, column];
          }
          column += width;
        });
      }
    });
    this.count = this.token.length;
  }

  /** The line in which a token begins. */
  lineOf(at) {
    let [low, high] = [0, this.count - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      const before = this.token[middle] < at || (this.token[middle] === at && this.row[middle] === 0);
      if (before) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** The end of a line: the token and row at which the next line of the section begins, or the end of the section. */
  end(line, trajectory) {
    const [next, section] = [line + 1, this.sections[this.section[line]]];
    if (this.head[line]) return [section.body, 0];
    if (next < this.count && this.section[next] === this.section[line]) return [this.token[next], this.row[next]];
    return [Math.min(section.end, trajectory.loaded), 0];
  }

  /** Whether a token is in the folded part of a section. */
  hides(at) {
    const section = sectionAt(this.sections, at);
    return Boolean(section.isFolded) && at >= section.body;
  }
}
