// SPDX-License-Identifier: Apache-2.0
// Search by text in the open path. A match may span tokens.

import { UNKNOWN } from "./trajectory.js";

/** The maximum number of matches. */
const MOST = 100_000;

/** The matches of `query` in the loaded tokens, as `[first token, last token]`. Upper and lower case are equal. */
export function find(trajectory, texts, query) {
  const { text, starts } = joined(trajectory, texts);
  const found = [];
  const pattern = new RegExp(query.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"), "giu");
  for (let match; found.length < MOST && (match = pattern.exec(text));) {
    found.push([tokenAt(starts, match.index), tokenAt(starts, match.index + match[0].length - 1)]);
  }
  return found;
}

/** The text of the loaded tokens, and the index of the first character of each. Tokens of pictures and those without a text have none. */
export function joined(trajectory, texts) {
  const { ids, loaded } = trajectory;
  const starts = new Uint32Array(loaded);
  const all = [];
  let length = 0;
  for (let at = 0; at < loaded; at++) {
    starts[at] = length;
    let text = ids[at] === UNKNOWN || trajectory.pictureAt(at) ? "" : texts.of(ids[at]) ?? "";
    if (text.includes("\ufffd")) {
      // the characters that several tokens share belong to the last of them
      const split = texts.split(ids, at, loaded);
      if (split.whole) text = split.isLast ? split.whole : "";
    }
    all.push(text);
    length += text.length;
  }
  return { text: all.join(""), starts };
}

/** The token that has this character: of those that begin there or before, the last one. */
export function tokenAt(starts, index) {
  let [low, high] = [0, starts.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= index) low = middle;
    else high = middle - 1;
  }
  return low;
}
