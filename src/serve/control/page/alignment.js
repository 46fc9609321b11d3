// SPDX-License-Identifier: Apache-2.0
// Aligns two paths: where their tokens are equal, and where their entropies may be compared.
//
// An entropy is that of the distribution after all tokens before it. Two entropies of one position belong to the same question only if
// these tokens are equal, and the pictures among them: two pictures can have the same tokens. So there is a difference up to the first token that differs, and at this token, but not after it.

import { isComparable } from "./measured.js";

/** The alignment of two paths, as far as both are loaded. */
export class Alignment {
  #peaks = null;

  constructor(left, right) {
    Object.assign(this, { left, right });
    const count = Math.min(left.loaded, right.loaded);
    const most = Math.min(count, firstOther(left.pictures, right.pictures));
    let at = 0;
    while (at < most && left.ids[at] === right.ids[at]) at++;
    /** The number of equal tokens at the beginning. */
    this.shared = at;
    /** The position of the first token that differs; null if one path is the beginning of the other, or while it is not loaded. */
    this.divergence = at < count ? at : null;
    /** The number of positions with equal tokens before them. */
    this.context = Math.min(at + 1, count);
    /** The entropy of the right path minus that of the left one in nats, NaN if there is none. */
    this.difference = new Float32Array(Math.max(left.total, right.total)).fill(NaN);
    /** The positions that have a difference, and those where both sampled but have none. */
    this.compared = [];
    this.lacking = 0;
    /** Whether a difference is missing because both were measured in different ways. */
    this.isMixed = false;
    /** The number of positions that both paths have from one recorded turn, which is not compared with itself. */
    this.common = 0;
    /** The pairs of different temperatures and of different k at compared positions. */
    this.unequal = { temperature: new Set(), top_k: new Set() };
    const isOneSession = left.head.session === right.head.session;
    for (const [from, to, one, other] of overlaps(left, right, this.context)) {
      if (one.kind !== "response" || other.kind !== "response") continue;
      if (isOneSession && one.turn === other.turn) {
        this.common += to - from;
        continue;
      }
      const [a, b] = [left.turns.get(one.turn)?.measured, right.turns.get(other.turn)?.measured];
      const comparable = isComparable(a, b);
      const before = this.compared.length;
      this.isMixed ||= !comparable;
      for (let position = from; position < to; position++) {
        const difference = comparable ? right.entropy[position] - left.entropy[position] : NaN;
        this.difference[position] = difference;
        if (Number.isNaN(difference)) this.lacking++;
        else this.compared.push(position);
      }
      if (this.compared.length === before) continue;
      for (const [name, pairs] of Object.entries(this.unequal)) {
        const [x, y] = [a, b].map((measured) => measured[name] ?? "unknown");
        if (x !== y) pairs.add(`${x} and ${y}`);
      }
    }
  }

  /** Means over the compared positions in nats: of both paths, and of the difference; NaN without such a position. */
  means() {
    const mean = (values) => this.compared.reduce((sum, at) => sum + values[at], 0) / this.compared.length;
    return { left: mean(this.left.entropy), right: mean(this.right.entropy), difference: mean(this.difference) };
  }

  /** The positions of large differences: local maxima of the absolute difference in the top twentieth. */
  peaks() {
    return this.#peaks ??= this.#largest();
  }

  #largest() {
    const size = (at) => Math.abs(this.difference[at]);
    const sizes = Float32Array.from(this.compared, size).sort();
    const threshold = sizes[Math.floor(sizes.length * 0.95)];
    return this.compared.filter((at) => size(at) >= threshold && size(at) > 0 && !(size(at - 1) > size(at)) && !(size(at + 1) >= size(at)));
  }

  /**
   * The segments of one of the paths, divided where the context ends. Each has `context`: "same" or "other"; the first part of a
   * divided one has `isCut`.
   */
  segments(path) {
    // a picture that differs is not divided
    const cut = this.divergence === null ? this.context : path.next(this.divergence);
    return path.segments.flatMap((segment) => {
      const { start, end } = segment;
      if (this.divergence === null || end <= cut) return [{ ...segment, context: "same" }];
      if (start >= cut) return [{ ...segment, context: "other" }];
      return [{ ...segment, end: cut, context: "same", isCut: true }, { ...segment, start: cut, context: "other" }];
    });
  }
}

/** The position of the first picture that differs; infinite if there is none. */
function firstOther(left, right) {
  const at = left.findIndex((picture, place) => ["start", "end", "sha256"].some((name) => picture[name] !== right[place]?.[name]));
  const place = at < 0 ? left.length : at;
  return Math.min(left[place]?.start ?? Infinity, right[place]?.start ?? Infinity);
}

/** The ranges before `limit` that lie in one segment of both paths, with these segments. */
function overlaps(left, right, limit) {
  const found = [];
  let [one, other] = [0, 0];
  for (let at = 0; at < limit;) {
    while (left.segments[one].end <= at) one++;
    while (right.segments[other].end <= at) other++;
    const to = Math.min(limit, left.segments[one].end, right.segments[other].end);
    found.push([at, to, left.segments[one], right.segments[other]]);
    at = to;
  }
  return found;
}
