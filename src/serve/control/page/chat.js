// SPDX-License-Identifier: Apache-2.0
// A path as a conversation: the sections of its tokens are messages and their parts. The first system messages, tool definitions and reasoning are
// folded.

import { amount } from "./element.js";
import { label } from "./glyph.js";
import { messages } from "./messages.js";
import { causeOf, endOf, picturesIn, segments, titleOf } from "./sections.js";
import { GROWS } from "./sessions.js";

/** The maximum number of characters of a role, and of the text that the heading of a folded section has. */
const [NAME, PREVIEW] = [64, 60];
/** The parts that are folded until they are opened. */
const FOLDED = new Set(["reasoning", "tool definitions"]);
/** The channel of gpt-oss's reasoning. */
const ANALYSIS = "<|channel|>analysis";

export class Chat {
  merges = true;
  #folds = new Map();

  constructor(texts) {
    this.texts = texts;
  }

  fold({ key }, isFolded) {
    this.#folds.set(key, isFolded);
  }

  /** The sections of the loaded tokens. What is folded is kept while the trajectory is shown. */
  sections(trajectory) {
    if (trajectory !== this.of) this.#folds.clear();
    this.of = trajectory;
    if (!trajectory.loaded) return segments(trajectory);
    const { list, between } = messages(trajectory, this.texts);
    this.between = between;
    const hasRoles = list.some(({ role }) => role !== null);
    const talk = list.findIndex(({ role, by }) => role !== null && by !== "system");
    return list.flatMap((message, at) => (message.role === null ? this.#unknown(message, hasRoles) : this.#message(message, talk < 0 || at < talk)));
  }

  /** A message without a role: its segments, as they are recorded. */
  #unknown({ start, end, note, parts }, hasRoles) {
    const why = this.texts.problem ? "no texts that could mark roles" : hasRoles ? note : "roles are not marked";
    let next = 0;
    return this.of.segmentsOf(start, end).flatMap((segment) => {
      const own = { ...segment, start: Math.max(start, segment.start), end: Math.min(end, segment.end) };
      const isSampled = segment.kind === "response";
      const section = { start: own.start, body: own.start, end: own.end, kind: isSampled ? "chat assistant" : "chat other", key: `${own.start}` };
      const held = [];
      for (; parts[next]?.start < own.end; next++) held.push({ ...parts[next], end: Math.min(parts[next].end, own.end) });
      return this.#withParts({ ...section, title: () => titleOf(this.of, own, isSampled && !hasRoles ? "" : `, ${why}`) }, held);
    });
  }

  /** A message with a role. `isFirst` is true before the first one of a user or an assistant. */
  #message({ start, body, end, role, by, parts }, isFirst) {
    const isQuiet = (isFirst && by === "system") || role.includes(ANALYSIS);
    const isFolded = this.#folds.get(`${start}`) ?? isQuiet;
    const section = { start, body, end, kind: `chat ${by}`, key: `${start}`, isFolded };
    section.title = () => [label(role.replaceAll("<|channel|>", ", "), NAME), ...this.#facts(start, end, by)].filter(Boolean).join(" · ");
    section.preview = () => this.#preview(body, end);
    return isFolded ? [section] : this.#withParts(section, parts);
  }

  /** A section until its first part, its parts, and the texts after them. */
  #withParts(section, parts) {
    const { end, kind } = section;
    const found = [{ ...section, end: parts[0]?.start ?? end }];
    found[0].body = Math.min(section.body, found[0].end);
    parts.forEach((part, at) => {
      const own = { start: part.start, body: part.body, end: part.end, kind: `${kind} part`, key: `${part.start} ${part.name}` };
      // a mark in the text may be a mention of it until its end is read
      own.isFolded = this.#folds.get(own.key) ?? (FOLDED.has(part.name) && (part.isToken || part.isClosed));
      const tag = part.isToken ? null : `tagged ${part.from} in the text`;
      const open = part.to && !part.isClosed ? "not closed" : null;
      own.title = () => [part.name, tag, amount(part.end - part.start, "token"), open].filter(Boolean).join(" · ");
      own.preview = () => this.#preview(part.body, part.close);
      found.push(own);
      const next = parts[at + 1]?.start ?? end;
      if (part.end < next) found.push({ start: part.end, body: part.end, end: next, kind });
    });
    return found;
  }

  /** The number of tokens, and what is recorded of their sampling, if they were sampled. */
  #facts(start, end, by) {
    const { of } = this;
    const sampled = of.segmentsOf(start, end).filter((segment) => segment.kind === "response");
    const turns = sampled.map(({ turn }) => turn).filter((turn) => turn >= 0);
    const who = turns.length ? `sampled in ${turns.length > 1 ? "turns" : "turn"} ${turns.join(", ")}` : !sampled.length && by === "assistant" ? "given in the prompt" : null;
    const causes = sampled.map((segment) => causeOf(of, segment)).filter((cause) => cause && !GROWS.has(cause));
    const ends = sampled.filter((segment) => segment.end <= end).flatMap((segment) => endOf(of, segment));
    return [who, amount(end - start, "token"), picturesIn(of, start, end), ...causes, ...ends];
  }

  /** The first characters of a text, on one line. */
  #preview(start, end) {
    const characters = [...this.between(start, end).trim().slice(0, 4 * PREVIEW)];
    return `${label(characters.slice(0, PREVIEW).join(""), PREVIEW)}${characters.length > PREVIEW ? "…" : ""}`;
  }
}
