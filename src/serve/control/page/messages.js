// SPDX-License-Identifier: Apache-2.0
// The messages of a path, found by the marks in the texts of its tokens. What no mark tells apart stays one message without a role.

import { joined, tokenAt } from "./find.js";
import { isStart, marks, roleAfter } from "./marks.js";

/** The roles whose messages have tool calls and reasoning, and those whose messages have tool definitions. */
const [ASSISTANT, SYSTEM] = [new Set(["assistant", "model", "ai"]), new Set(["system", "developer", "tool_declare", "tool definitions"])];

/** Whose messages are those of a role: "assistant", "system", or "user" for all others. */
function speaker(role) {
  const [name] = role.split(/[<\s]/, 1);
  return ASSISTANT.has(name) ? "assistant" : SYSTEM.has(role) ? "system" : "user";
}

/** Reads the messages of the loaded tokens. */
class Reader {
  constructor(trajectory, texts) {
    Object.assign(this, { trajectory, ...joined(trajectory, texts) });
    const { start, end } = trajectory.head.think ?? {};
    const thinking = [start, end].map((id) => (id === undefined ? undefined : texts.of(id)));
    this.marks = marks(this.text, thinking.every(Boolean) ? thinking : null);
    // the parts of the last message without an end mark: one of a token, or any that are marked in the text
    this.open = [];
    this.found = [];
  }

  /** The text of the tokens from one to before another. */
  between(from, to) {
    return this.text.slice(this.starts[from] ?? this.text.length, this.starts[to] ?? this.text.length);
  }

  isBlank(from, to) {
    return this.between(from, to).trim() === "";
  }

  /** The token `at`, or the one after it if `at` has line ends only. */
  afterLineEnd(at) {
    const { trajectory } = this;
    return at < trajectory.loaded && !trajectory.pictureAt(at) && /^\n+$/.test(this.between(at, at + 1)) ? at + 1 : at;
  }

  begin(start, body, role = null, note = null) {
    this.#endMessage(start);
    const before = this.found.at(-1);
    if (before) before.end = start;
    this.found.push({ start, body, end: this.trajectory.loaded, role, note, by: role === null ? null : speaker(role), parts: [] });
  }

  /** Ends the parts of the last message before a token. A mark in the text that has no end mark is text, unless the end may be sampled yet. */
  #endMessage(end, isSampling = false) {
    const part = this.open.find(({ isToken }) => isToken || isSampling);
    this.open = [];
    if (part) this.#add(part, end, end);
  }

  /** Adds a part that ends before a token. `close` is the token that begins the mark of its end. */
  #add(part, end, close) {
    if (this.isBlank(part.body, close)) return;
    // the line ends after its mark are not the text after it
    while (close < end && this.afterLineEnd(end) > end) end++;
    const { parts } = this.found.at(-1);
    while (parts.at(-1)?.start > part.start) parts.pop();
    parts.push({ ...part, close, end, isClosed: close < end });
  }

  read() {
    this.begin(0, 0);
    let headEnd = 0;
    for (const mark of this.marks) {
      if (mark.index < headEnd) continue;
      const end = mark.index + mark.mark.length;
      const [first, last] = [mark.index, end - 1].map((index) => tokenAt(this.starts, index));
      // a role is that of one token, never of a text that looks like it
      const isToken = first === last && this.starts[first] === mark.index && (this.starts[last + 1] ?? this.text.length) === end;
      if (mark.kind === "begins") headEnd = isToken ? this.#message(mark, end, first) : headEnd;
      else if (mark.kind === "ends") isToken && this.#end(mark.next, first, last + 1);
      else if (mark.kind === "opens") this.#open(mark.part, first, last, isToken);
      else this.#close(mark.mark, first, last, isToken);
    }
    this.#endMessage(this.trajectory.loaded, this.trajectory.live);
    return this.#tidied();
  }

  /** Begins a message whose mark is the token `first`, if its role can be read. Returns the end of its heading in the text. */
  #message({ role, until, isInner }, end, first) {
    const before = this.found.at(-1);
    if (isInner && before.role === role && this.isBlank(before.body, first)) {
      before.body = this.afterLineEnd(first + 1);
      return end;
    }
    if (role) {
      this.begin(first, this.afterLineEnd(first + 1), role);
      return end;
    }
    const found = roleAfter(this.text, end, until);
    if (!found) return end;
    let body = tokenAt(this.starts, found.end - 1) + 1;
    // the last token of the heading may have the first characters of the message, too
    if (this.text.slice(found.end, this.starts[body] ?? this.text.length).trim()) body--;
    this.begin(first, this.text[found.end - 1] === "\n" ? body : this.afterLineEnd(body), found.role);
    return found.end;
  }

  /** Ends a message whose end mark is the token `first`. After a tool's message, the text has the role `next`. */
  #end(next, first, after) {
    const { role, isImplied, body } = this.found.at(-1);
    if (role === null) return;
    // a mark after that of a tool's result ends the same message
    if (isImplied && this.isBlank(body, first)) this.found.pop();
    const own = this.found.at(-1).role === "tool" ? next : null;
    this.begin(after, after, own, own ? null : "outside of a message");
    this.found.at(-1).isImplied = own !== null;
  }

  #open(part, first, last, isToken) {
    const message = this.found.at(-1);
    const by = message.by ?? (this.trajectory.isSampled(first) ? "assistant" : null);
    if (by !== part.by || this.open.some((one) => one.isToken || (!isToken && one.from === part.from))) return;
    if (isToken) this.open = [];
    this.open.push({ ...part, start: first, body: this.afterLineEnd(last + 1), isToken });
  }

  /** Closes the last part with this end mark. A text that looks like the mark does not close a part of a token. */
  #close(mark, first, last, isToken) {
    const at = this.open.findLastIndex((part) => part.to === mark && (isToken || !part.isToken));
    if (at < 0) return;
    const [part] = this.open.splice(at);
    this.#add(part, last + 1, first);
  }

  /** Whether a message is only a rest of the one before: blank, or a role that ended a reply, as those of GLM do. */
  #isRest({ start, body, end, role, isImplied }) {
    if (role === null || isImplied) return this.isBlank(start, end);
    return this.trajectory.isSampled(start) && this.isBlank(start + 1, end) && !this.trajectory.pictureAt(body);
  }

  /** Adds rests to the message or part before them, and the marks of the beginning to the first message. */
  #tidied() {
    const [first, second] = this.found;
    if (second && first.role === null && isStart(this.between(0, first.end))) {
      this.found.shift();
      second.start = 0;
    } else if (second) {
      first.note = "before the first role";
    }
    const messages = [];
    for (const message of this.found) {
      const before = messages.at(-1);
      if (before && this.#isRest(message)) before.end = message.end;
      else messages.push(message);
    }
    for (const { parts, end } of messages) {
      parts.forEach((part, at) => {
        const next = parts[at + 1]?.start ?? end;
        if (this.isBlank(part.end, next)) part.end = next;
      });
    }
    return messages;
  }
}

/**
 * The messages of the loaded tokens: `{start, body, end, role, note, by, parts}`. The tokens from `start` to `body` name the role. `role`
 * is null where no mark names one, and `note` then says where the text is. `parts` are reasoning, tool calls, results and definitions,
 * with `start`, `body`, `close` and `end`, and `isToken` if their mark is one token. Also returns a function that returns the text of tokens.
 */
export function messages(trajectory, texts) {
  const reader = new Reader(trajectory, texts);
  return { list: reader.read(), between: (from, to) => reader.between(from, to) };
}
