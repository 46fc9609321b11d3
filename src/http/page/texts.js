// The text of token ids, as the engine's own tokenizer decodes them.

import { post } from "./api.js";

/** Ids of one question: each is decoded by itself. */
const BATCH = 512;
/** Tokens that can share characters with their neighbours and are decoded together, at most. */
const RUN = 16;
const LOST = "\ufffd";

/** Texts of ids, asked for once. */
export class Texts {
  #known = new Map();
  #joint = new Map();
  /** Why there are none; empty where there are. */
  problem = "";

  /** The text of a token by itself; undefined while it is not known. U+FFFD stands for bytes that are no character alone. */
  of(id) {
    return this.#known.get(id);
  }

  /** Asks for what is not known of these ids; says whether anything is new. */
  async load(ids, signal) {
    const missing = [...new Set(ids)].filter((id) => !this.#known.has(id));
    for (let from = 0; from < missing.length; from += BATCH) {
      const batch = missing.slice(from, from + BATCH);
      const texts = await this.#decode(batch.map((id) => [id]), signal);
      if (!texts) return from > 0;
      batch.forEach((id, at) => this.#known.set(id, texts[at]));
    }
    return missing.length > 0;
  }

  /** Asks for what tokens say together whose bytes are no characters alone; says whether anything is new. */
  async loadRuns(ids, from, to, signal) {
    const keys = new Set();
    for (let at = from; at < to; at++) {
      const run = this.#run(ids, at, to);
      if (run && run[0] === at && !this.#joint.has(key(ids, run))) keys.add(key(ids, run));
    }
    const all = [...keys];
    for (let at = 0; at < all.length; at += BATCH) {
      const batch = all.slice(at, at + BATCH);
      const texts = await this.#decode(batch.map((run) => run.split(",").map(Number)), signal);
      if (!texts) return at > 0;
      batch.forEach((run, index) => this.#joint.set(run, texts[index]));
    }
    return all.length > 0;
  }

  /** `{bytes, whole, isLast}` of a token that is part of a character: its bytes, where they follow from what the run says. */
  split(ids, at, count) {
    const run = this.#run(ids, at, count);
    if (!run) return null;
    const whole = this.#joint.get(key(ids, run));
    const alone = [];
    for (let token = run[0]; token < run[1]; token++) alone.push(this.#known.get(ids[token]));
    const bytes = whole === undefined ? null : shares(alone, whole);
    return { bytes: bytes ? bytes[at - run[0]] : null, whole: bytes ? whole : "", isLast: at + 1 === run[1] };
  }

  /** The tokens around this one that are no characters alone: from, to; null where it is one. */
  #run(ids, at, count) {
    const part = (token) => this.#known.get(ids[token])?.includes(LOST);
    if (!part(at)) return null;
    let [from, to] = [at, at + 1];
    while (from > 0 && at - from < RUN && part(from - 1)) from--;
    while (to < count && to - from < RUN && part(to)) to++;
    return [from, to];
  }

  async #decode(tokens, signal) {
    try {
      const said = await post("/detokenize", { tokens, skip_special_tokens: false }, signal);
      if (!Array.isArray(said.text) || said.text.length !== tokens.length) throw new Error("the answer is no list of texts");
      this.problem = "";
      return said.text.map(String);
    } catch (error) {
      if (signal?.aborted) throw error;
      this.problem = `The engine's /detokenize: ${error.message}. Tokens show their ids.`;
      return null;
    }
  }
}

function key(ids, [from, to]) {
  return Array.prototype.slice.call(ids, from, to).join(",");
}

/**
 * Which bytes of `whole` each token has, given what each says alone. Alone, a continuation byte is one U+FFFD, and so is the beginning of
 * a character, however many bytes it has; it stands last in its token. Null where this does not decide it.
 */
export function shares(alone, whole) {
  if (whole.includes(LOST)) return null;
  const characters = [...whole].map((character) => ({ character, bytes: new TextEncoder().encode(character) }));
  const found = alone.map(() => []);
  const texts = alone.map((text) => [...text]);
  // token, place in it, character, bytes of it that are given out
  const walk = (token, place, at, given) => {
    if (token === texts.length) return at === characters.length && given === 0;
    if (place === texts[token].length) return walk(token + 1, 0, at, given);
    if (at === characters.length) return false;
    const { character, bytes } = characters[at];
    const give = (count) => {
      found[token].push(...bytes.slice(given, given + count));
      const full = given + count === bytes.length;
      if (walk(token, place + 1, full ? at + 1 : at, full ? 0 : given + count)) return true;
      found[token].length -= count;
      return false;
    };
    if (texts[token][place] !== LOST) return given === 0 && texts[token][place] === character && give(bytes.length);
    if (given > 0) return give(1);
    if (place !== texts[token].length - 1) return false;
    for (let count = bytes.length - 1; count >= 1; count--) if (give(count)) return true;
    return false;
  };
  return walk(0, 0, 0, 0) ? found : null;
}
