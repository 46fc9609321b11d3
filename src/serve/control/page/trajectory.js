// SPDX-License-Identifier: Apache-2.0
// One path of a session as columns. It is fetched in ranges, so that the first tokens are shown early.

import { get } from "./api.js";

/** The number of tokens of the first range, and of each later one. */
const RANGE = [4096, 32768];

/** Replaces the id of a running sequence's token while it is not known. */
export const UNKNOWN = 0xffff_ffff;

/** The index of the segment that holds a token. */
function segmentAt(segments, token) {
  let [low, high] = [0, segments.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (segments[middle].start <= token) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** A path that is partly loaded. Positions count tokens of the whole path. */
export class Trajectory {
  constructor(head) {
    this.head = head;
    this.total = head.tokens;
    this.loaded = 0;
    this.#room(this.total);
    this.segments = head.segments;
    this.turns = new Map(head.turns.map((turn) => [turn.id, turn]));
    /** The pictures of the prompts in their order. The tokens of each are shown as one. */
    this.pictures = this.#placed(head.images ?? []);
    this.inside = false;
    this.segment = 0;
  }

  /** Opens a path: fetches everything except its tokens. `classes` are those that an export trains; empty for the default. */
  static async open(session, leaf, { version, classes = "" }, signal) {
    const at = `/v1/sessions/${encodeURIComponent(session)}/paths/${leaf}?version=${version}${classes && `&classes=${classes}`}`;
    const found = new Trajectory(await get(at, signal));
    found.at = at;
    return found;
  }

  /** Creates the path of a running sequence. Its prompt is not available before its end. */
  static running(session, rid, index) {
    const turn = { id: -1, parent: null, rid, index, cause: "", measured: null, finish_reason: null, fault: null };
    const segments = [{ turn: -1, kind: "response", start: 0, end: 0, loss_mask: 1 }];
    const head = { session, leaf: -1, version: null, tokens: 0, segments, policy: [], flags: [], turns: [turn], reward: null };
    return Object.assign(new Trajectory(head), { live: true });
  }

  #room(count) {
    const grown = (old, made) => {
      if (old) made.set(old.subarray(0, this.loaded));
      return made;
    };
    this.ids = grown(this.ids, new Uint32Array(count));
    this.mask = grown(this.mask, new Uint8Array(count));
    this.think = grown(this.think, new Uint8Array(count));
    for (const name of ["logprobs", "entropy", "lower", "upper", "rank"]) this[name] = grown(this[name], new Float32Array(count).fill(NaN));
  }

  /** Fetches the next range; returns false if everything is loaded. */
  async more(signal) {
    if (this.loaded >= this.total) return false;
    const limit = this.loaded === 0 ? RANGE[0] : RANGE[1];
    const part = await get(`${this.at}&from=${this.loaded}&limit=${limit}`, signal);
    this.#take(part.token_ids.length, part);
    return true;
  }

  /** Appends tokens of a running sequence. */
  append(ids, entropy) {
    const count = this.loaded + entropy.length;
    if (count > this.ids.length) this.#room(Math.max(1024, 2 * count));
    this.segments[0].end = this.total = count;
    const known = ids?.length === entropy.length ? ids : entropy.map(() => UNKNOWN);
    this.#take(entropy.length, { token_ids: known, loss_mask: entropy.map(() => 1), entropy });
  }

  #take(count, part) {
    const from = this.loaded;
    this.ids.set(part.token_ids, from);
    this.mask.set(part.loss_mask, from);
    for (const name of ["logprobs", "entropy", "lower", "upper", "rank"]) {
      part[name]?.forEach((value, at) => { this[name][from + at] = value ?? NaN; });
    }
    this.loaded = from + count;
    this.#mark(from);
  }

  /** Marks thinking tokens from position `from` on: those sampled between a start token, which may end a prompt, and an end token. */
  #mark(from) {
    const { start, end } = this.head.think ?? {};
    for (let at = from; at < this.loaded; at++) {
      while (this.segment + 1 < this.segments.length && at >= this.segments[this.segment].end) this.segment++;
      const segment = this.segments[this.segment];
      const id = this.ids[at];
      if (at === segment.start && segment.kind === "prompt") this.inside = false;
      if (id === start) this.inside = true;
      else if (id === end) this.inside = false;
      else this.think[at] = Number(this.inside && segment.kind === "response");
    }
  }

  /** The segment that holds a token. */
  segmentOf(at) {
    return this.segments[segmentAt(this.segments, at)];
  }

  /** The segments that hold the tokens from one to before another. */
  segmentsOf(from, to) {
    const found = [];
    for (let at = segmentAt(this.segments, from); this.segments[at]?.start < to; at++) found.push(this.segments[at]);
    return found;
  }

  /** The pictures that lie in one segment and overlap no other: a damaged log can have any positions. */
  #placed(images) {
    let last = 0;
    return images.filter(({ start, end }) => {
      const fits = start >= last && start < end && end <= this.segmentOf(start)?.end;
      if (fits) last = end;
      return fits;
    });
  }

  /** The picture that has this token; null if none has. */
  pictureAt(at) {
    let [low, high] = [0, this.pictures.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.pictures[middle].end <= at) low = middle + 1;
      else high = middle;
    }
    const picture = this.pictures[low];
    return picture && picture.start <= at ? picture : null;
  }

  /** The first token of the picture that has this token, else the token. */
  first(at) {
    return this.pictureAt(at)?.start ?? at;
  }

  /** The token after this one, or after its picture. */
  next(at) {
    return this.pictureAt(at)?.end ?? at + 1;
  }

  turnOf(at) {
    return this.turns.get(this.segmentOf(at).turn);
  }

  isSampled(at) {
    return this.segmentOf(at).kind === "response";
  }

  policyOf(at) {
    return this.head.policy.find((span) => at >= span.start && at < span.end);
  }

  /** Statistics of the loaded sampled tokens: positions, mean entropy, spike threshold and spike positions. */
  survey() {
    const sampled = [];
    for (const { kind, start, end } of this.segments) {
      if (kind !== "response") continue;
      for (let at = start; at < Math.min(end, this.loaded); at++) sampled.push(at);
    }
    const known = sampled.filter((at) => !Number.isNaN(this.entropy[at]));
    const values = Float32Array.from(known, (at) => this.entropy[at]).sort();
    const threshold = values.length ? values[Math.floor(values.length * 0.95)] : NaN;
    const mean = values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : NaN;
    const spikes = known.filter((at) => {
      const value = this.entropy[at];
      // of neighbouring spikes only the highest
      return value >= threshold && value > 0 && !(this.entropy[at - 1] > value) && !(this.entropy[at + 1] >= value);
    });
    return { sampled, known: known.length, mean, threshold, spikes, most: values.at(-1) ?? 0 };
  }
}
