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
  /** A token to stand in front of others, where the first of a text loses its space. */
  #anchor;
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
      const texts = await this.#alone(batch, signal);
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

  /** The texts of tokens by themselves. Some tokenizers drop the space before the first one of a text: there another stands in front. */
  async #alone(ids, signal) {
    if (this.#anchor === undefined) {
      const texts = await this.#decode([...ids.map((id) => [id]), [ids[0], ...ids.slice(0, 8)]], signal);
      if (!texts) return null;
      const joint = texts.pop();
      const whole = texts[0] + texts.slice(0, 8).join("");
      this.#anchor = whole === joint || joint.includes(LOST) || joint.length <= whole.length ? null : ids[0];
      // where characters meet nothing can be seen of it; it is looked for again
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
 * a character, however many bytes it has; it stands last in its token. Null where this leaves more than one way, or none.
 */
export function shares(alone, whole) {
  if (whole.includes(LOST)) return null;
  const characters = [...whole].map((character) => ({ character, bytes: new TextEncoder().encode(character) }));
  const found = alone.map(() => []);
  const texts = alone.map((text) => [...text]);
  const ways = [];
  // token, place in it, character, bytes of it that are given out
  const walk = (token, place, at, given) => {
    if (ways.length > 1) return;
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
  };
  walk(0, 0, 0, 0);
  return ways.length === 1 ? ways[0] : null;
}
