// SPDX-License-Identifier: Apache-2.0
// What the lines of a view are made of: sections, which together have all tokens of a path. Each begins with a heading, or continues the
// section before it.

import { amount } from "./element.js";
import { label } from "./glyph.js";

/** The kind of a segment: "response", "prompt" or "between". */
export function kindOf(trajectory, segment) {
  if (segment.kind === "response") return "response";
  return segment.turn === trajectory.segments[0].turn ? "prompt" : "between";
}

/** What is recorded of the sampling of a segment, as texts. */
export function endOf(trajectory, { turn, loss_mask: trained, isCut }) {
  const about = trajectory.turns.get(turn);
  return [
    !isCut && about?.finish_reason ? `ends by ${label(about.finish_reason)}` : null, about?.fault,
    about && !about.fault && !trajectory.live && !trained ? "not trained in this row" : null,
  ].filter(Boolean);
}

/** Why a segment does not continue the turn before; null if it does. */
export function causeOf(trajectory, { turn }) {
  const cause = trajectory.turns.get(turn)?.cause;
  return cause && cause !== "first" ? cause : null;
}

/** The number of pictures in a range of tokens, as text; null if there are none. */
export function picturesIn(trajectory, start, end) {
  const held = trajectory.pictures.filter((picture) => picture.start >= start && picture.start < end).length;
  return held ? amount(held, "picture") : null;
}

/** The heading of a segment. `note` follows its name. */
export function titleOf(trajectory, segment, note = "") {
  const { turn, start, end, context } = segment;
  const kind = kindOf(trajectory, segment);
  const name = { prompt: "prompt", between: "prompt, new in this turn", response: trajectory.live ? "running" : "sampled" }[kind];
  const isSampled = kind === "response";
  return [
    context === "other" ? "context differs" : null, turn >= 0 ? `turn ${turn}` : null, `${name}${note}`, amount(end - start, "token"),
    picturesIn(trajectory, start, end), ...(isSampled ? endOf(trajectory, segment) : [causeOf(trajectory, segment)]),
  ].filter(Boolean).join(" · ");
}

/**
 * The segments of a path as sections: `{start, body, end, kind, title}`. The tokens from `start` to `body` are in the heading. A section
 * without a title has no heading; one that `isFolded` shows its heading only, with a `preview`.
 */
export function segments(trajectory) {
  return trajectory.segments.map((segment) => ({
    start: segment.start, body: segment.start, end: segment.end, kind: kindOf(trajectory, segment), title: () => titleOf(trajectory, segment),
  }));
}

/** The section that has a token. */
export function sectionAt(sections, at) {
  let [low, high] = [0, sections.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (sections[middle].start <= at) low = middle;
    else high = middle - 1;
  }
  return sections[low];
}
