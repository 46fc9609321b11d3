// SPDX-License-Identifier: Apache-2.0
// The texts of token ids, decoded by the engine's tokenizer.

import { post } from "./api.js";

/** The maximum number of items per request; each is decoded separately. */
const BATCH = 512;
/** The maximum number of neighbouring tokens that share characters and are decoded together. */
const RUN = 64;
/** The bytes of the longest character, and so the maximum number of tokens that share it. */
const CHARACTER = 4;
const LOST = "\ufffd";

/** The texts of ids. Each id is fetched once. */
export class Texts {
  #known = new Map();
  /** The joint texts of runs: `{whole, bytes}`, where `bytes` are those of each token, or null if the text does not determine them. */
  #joint = new Map();
  /** The last run of each list of ids, because a list is read token by token. */
  #last = new WeakMap();
  /** A token that is decoded before others, for tokenizers that drop the leading space of a text; null if not needed. */
  #anchor;
  /** The error of the last request; empty after a success. */
  problem = "";

  /** The text of a single token; undefined until it is fetched. U+FFFD replaces bytes that are not a complete character. */
  of(id) {
    return this.#known.get(id);
  }

  /** Fetches the texts of these ids that are missing. Returns whether any was added. */
  async load(ids, signal) {
    const missing = [...new Set(ids)].filter((id) => !this.#known.has(id));
    for (let from = 0; from < missing.length; from += BATCH) {
      const batch = missing.slice(from, from + BATCH);
      const texts = await this.#alone(batch, signal);
      if (!texts) return from > 0;
      batch.forEach((id, at) => this.#known.set(id, texts[at]));
      this.#last = new WeakMap();
    }
    return missing.length > 0;
  }

  /** Fetches the joint texts of neighbouring tokens whose bytes are not complete characters. */
  async loadRuns(ids, from, to, signal) {
    const cuts = new Set();
    for (let at = from; at < to; at++) {
      const stretch = this.#stretch(ids, at, to);
      if (!stretch) continue;
      for (let cut = stretch[0] + RUN; cut < stretch[1]; cut += RUN) {
        for (const place of places(cut)) cuts.add(key(ids, [place - CHARACTER, place]));
      }
      at = stretch[1];
    }
    await this.#loadJoint(cuts, signal);
    const runs = new Set();
    for (let at = from; at < to; at++) {
      const run = this.#run(ids, at, to);
      if (!run) continue;
      runs.add(key(ids, run));
      at = run[1] - 1;
    }
    await this.#loadJoint(runs, signal);
  }

  /** Fetches the joint texts that are missing. */
  async #loadJoint(keys, signal) {
    const missing = [...keys].filter((one) => !this.#joint.has(one));
    for (let at = 0; at < missing.length; at += BATCH) {
      const batch = missing.slice(at, at + BATCH).map((one) => one.split(",").map(Number));
      const texts = await this.#decode(batch, signal);
      if (!texts) return;
      batch.forEach((ids, index) => {
        const alone = ids.map((id) => this.#known.get(id));
        this.#joint.set(ids.join(","), { whole: texts[index], bytes: shares(alone, texts[index]) });
      });
      this.#last = new WeakMap();
    }
  }

  /** `{bytes, whole, isLast}` of a token that is part of a character. `bytes` is null if the run's text does not determine them. */
  split(ids, at, count) {
    const run = this.#run(ids, at, count);
    if (!run) return null;
    const { whole, bytes } = this.#joint.get(key(ids, run)) ?? { bytes: null };
    return { bytes: bytes && bytes[at - run[0]], whole: bytes ? whole : "", isLast: at + 1 === run[1] };
  }

  /**
   * The characters that begin in a token that is part of characters: "" if none does, null if its bytes are no characters. Those of a run
   * whose bytes are not determined belong to its first token.
   */
  charactersOf(ids, at, count) {
    const run = this.#run(ids, at, count);
    const { whole, bytes } = (run && this.#joint.get(key(ids, run))) ?? { whole: "" };
    if (!whole || whole.includes(LOST)) return null;
    if (!bytes) return at === run[0] ? whole : "";
    const from = bytes.slice(0, at - run[0]).reduce((sum, own) => sum + own.length, 0);
    const to = from + bytes[at - run[0]].length;
    let place = 0;
    return [...whole].filter((character) => {
      const begins = place;
      place += new TextEncoder().encode(character).length;
      return begins >= from && begins < to;
    }).join("");
  }

  /** The tokens around this one that are not complete characters, as `[from, to]`; null if this token is complete. */
  #stretch(ids, at, count) {
    const isPart = (token) => this.#known.get(ids[token])?.includes(LOST);
    if (!isPart(at)) return null;
    const last = this.#last.get(ids);
    if (last?.count === count && at >= last.stretch[0] && at < last.stretch[1]) return last.stretch;
    let [from, to] = [at, at + 1];
    while (from > 0 && isPart(from - 1)) from--;
    while (to < count && isPart(to)) to++;
    this.#last.set(ids, { count, stretch: [from, to], run: [from, from] });
    return [from, to];
  }

  /** The tokens that are decoded with this one, as `[from, to]`; null if it is a complete character. A stretch has cuts at fixed places. */
  #run(ids, at, count) {
    const stretch = this.#stretch(ids, at, count);
    if (!stretch) return null;
    const last = this.#last.get(ids);
    if (at >= last.run[0] && at < last.run[1]) return last.run;
    const [start, end] = stretch;
    const cut = (number) => (number ? Math.min(end, this.#cut(ids, start + number * RUN, end)) : start);
    let number = Math.floor((at - start) / RUN);
    // a cut may lie before its place
    if (cut(number + 1) <= at) number++;
    last.run = [cut(number), cut(number + 1)];
    return last.run;
  }

  /** The cut near a place in a stretch of tokens: where the text before it ends with a complete character. */
  #cut(ids, place, end) {
    const isComplete = (at) => {
      const before = this.#joint.get(key(ids, [at - CHARACTER, at]));
      return before && !before.whole.endsWith(LOST);
    };
    return place >= end ? end : places(place).find(isComplete) ?? place;
  }

  /** Decodes tokens separately. Some tokenizers drop the leading space of a text, so the anchor token is decoded before each. */
  async #alone(ids, signal) {
    if (this.#anchor === undefined) {
      const texts = await this.#decode([...ids.map((id) => [id]), [ids[0], ...ids.slice(0, 8)]], signal);
      if (!texts) return null;
      const joint = texts.pop();
      const whole = texts[0] + texts.slice(0, 8).join("");
      this.#anchor = whole === joint || joint.includes(LOST) || joint.length <= whole.length ? null : ids[0];
      // if the tokens share characters, the test is inconclusive and is repeated with the next batch
      if (joint.includes(LOST)) this.#anchor = undefined;
      if (!this.#anchor) return texts;
    }
    if (this.#anchor === null) return this.#decode(ids.map((id) => [id]), signal);
    const texts = await this.#decode([[this.#anchor], ...ids.map((id) => [this.#anchor, id])], signal);
    const before = texts?.shift();
    return texts?.map((text) => (text.startsWith(before) ? text.slice(before.length) : text)) ?? null;
  }

  async #decode(tokens, signal) {
    try {
      const reply = await post("/detokenize", { tokens, skip_special_tokens: false }, signal);
      if (!Array.isArray(reply.text) || reply.text.length !== tokens.length) throw new Error("the reply is not a list of texts");
      this.problem = "";
      return reply.text.map(String);
    } catch (error) {
      if (signal?.aborted) throw error;
      this.problem = `The engine's /detokenize: ${error.message}. Tokens show their ids.`;
      return null;
    }
  }
}

/** The places at which a cut can be, so that one of them is between two characters. */
function places(cut) {
  return Array.from({ length: CHARACTER }, (_, before) => cut - before);
}

function key(ids, [from, to]) {
  return Array.prototype.slice.call(ids, from, to).join(",");
}

/**
 * Splits the bytes of `whole` among tokens, given the text of each token alone. Alone, a continuation byte decodes to one U+FFFD. So does
 * an incomplete character start of any length, which is last in its token. Returns null unless exactly one split is possible.
 */
export function shares(alone, whole) {
  if (whole.includes(LOST)) return null;
  const characters = [...whole].map((character) => ({ character, bytes: new TextEncoder().encode(character) }));
  const found = alone.map(() => []);
  const texts = alone.map((text) => [...text]);
  const ways = [];
  // the states that lead to no split
  const dead = new Set();
  // token, position in its text, character of `whole`, assigned bytes of that character
  const walk = (token, place, at, given) => {
    const state = `${token},${place},${at},${given}`;
    if (ways.length > 1 || dead.has(state)) return;
    const before = ways.length;
    if (token === texts.length) {
      if (at === characters.length && given === 0) ways.push(found.map((bytes) => [...bytes]));
    } else if (place === texts[token].length) {
      walk(token + 1, 0, at, given);
    } else if (at < characters.length) {
      const { character, bytes } = characters[at];
      const give = (count) => {
        found[token].push(...bytes.slice(given, given + count));
        const full = given + count === bytes.length;
        walk(token, place + 1, full ? at + 1 : at, full ? 0 : given + count);
        found[token].length -= count;
      };
      const own = texts[token][place];
      if (own !== LOST) {
        if (given === 0 && own === character) give(bytes.length);
      } else if (given > 0) {
        give(1);
      } else if (place === texts[token].length - 1) {
        for (let count = 1; count < bytes.length; count++) give(count);
      }
    }
    if (ways.length === before) dead.add(state);
  };
  walk(0, 0, 0, 0);
  return ways.length === 1 ? ways[0] : null;
}
