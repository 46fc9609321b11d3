// SPDX-License-Identifier: Apache-2.0
// The samples of one prompt: turns of a session, and of the sessions that the server names for it.

import { get } from "./api.js";

/** The maximum number of samples, and of other sessions that are read. */
export const MOST = 256;
/** Requests that run at the same time. */
const PARALLEL = 6;

/** Runs `work` for each item, a few at a time. */
export async function each(items, work) {
  const waiting = [...items];
  await Promise.all(Array.from({ length: PARALLEL }, async () => {
    while (waiting.length) await work(waiting.shift());
  }));
}

/** A session with all its turns. */
export async function sessionOf(session, signal) {
  const path = `/v1/sessions/${encodeURIComponent(session)}`;
  let found = await get(path, signal);
  // the default is the last frozen version; the open version has all turns
  const version = found.frozen_versions + 1;
  if (found.version !== version) found = await get(`${path}?version=${version}`, signal);
  return { session, list: found.list, version };
}

/** The number of tokens before a turn. */
export function before(list, turn) {
  let tokens = 0;
  for (let at = turn.parent; at !== null; at = list[at].parent) tokens += list[at].prompt_tokens + list[at].sampled_tokens;
  return tokens;
}

/** The ids that are new in the prompt of a turn and its pictures, as a text that equal prompts share. */
async function promptOf({ session, list, version }, turn, signal) {
  const path = `/v1/sessions/${encodeURIComponent(session)}/paths/${turn.turn}?version=${version}`;
  const reading = turn.prompt_tokens ? get(`${path}&from=${before(list, turn)}&limit=${turn.prompt_tokens}`, signal) : null;
  const pictures = (turn.images ?? []).map(({ start, end, sha256 }) => [start, end, sha256]);
  return JSON.stringify([(await reading)?.token_ids, pictures]);
}

/** Whether the prompt of a turn is known. */
export const isKnown = (turn) => turn.fault !== "prompt_unknown" && turn.cause !== "unplaced";

/** The other turns that may have the prompt of `turn`: they continue the same turn, by as many tokens. */
const candidates = (list, turn) => list.filter((one) => one.parent === turn.parent && one.prompt_tokens === turn.prompt_tokens && isKnown(one));

/** Whether candidates have one prompt: a turn of cause `sample` repeats a prompt, so a single other turn has that of all. */
const isOnePrompt = (turns) => turns.filter((one) => one.cause !== "sample").length <= 1;

/** The turns of a session that sampled the prompt of the turn with this number. */
export async function samplesOf(of, number, signal) {
  const turn = of.list[number];
  if (!turn || !isKnown(turn)) return turn ? [turn] : [];
  const found = candidates(of.list, turn);
  if (isOnePrompt(found)) return found;
  const wanted = await promptOf(of, turn, signal);
  const same = new Set([number]);
  await each(found, async (one) => {
    if (one.turn !== number && (await promptOf(of, one, signal)) === wanted) same.add(one.turn);
  });
  return found.filter((one) => same.has(one.turn));
}

/** The number of turns of a list that may have the prompt of `turn`, `turn` included. */
export function siblings(list, number) {
  const turn = list[number];
  return turn && isKnown(turn) ? candidates(list, turn).length : 1;
}

/**
 * The samples of the same prompt in other sessions that meet the conditions `where`: `[session, turns]` for each, in the order of their
 * creation, and the number of sessions on the server. The turn must continue no other.
 */
export async function samplesElsewhere(of, number, where, onProgress, signal) {
  const query = new URLSearchParams({ same_prompt: `${of.session}/${number}`, sort: "created_ms", limit: MOST, ...(where && { where }) });
  const { sessions, matched } = await get(`/v1/sessions?${query}`, signal);
  const names = sessions.map((row) => row.session).filter((name) => name !== of.session);
  const turn = of.list[number];
  let [done, wanted] = [0, null];
  const sampled = async (other) => {
    const turns = candidates(other.list, turn);
    // one of them has the prompt, as the server has found
    if (isOnePrompt(turns)) return turns;
    wanted ??= promptOf(of, turn, signal);
    const same = [];
    for (const one of turns) if ((await promptOf(other, one, signal)) === await wanted) same.push(one);
    return same;
  };
  const found = new Map();
  await each(names, async (name) => {
    // a session may have been deleted since the list was read
    const other = await sessionOf(name, signal).catch((error) => (signal.aborted ? Promise.reject(error) : null));
    if (other) found.set(name, [other, await sampled(other)]);
    onProgress(++done, names.length);
  });
  return { found: names.filter((name) => found.has(name)).map((name) => found.get(name)), matched };
}

/** All paths that begin with a turn, one for each leaf below it: the leaf, the number of turns, and the sum of their sampled tokens. */
export function pathsFrom(list, turn) {
  const children = new Map();
  for (const one of list) {
    if (!children.has(one.parent)) children.set(one.parent, []);
    children.get(one.parent).push(one);
  }
  const paths = [];
  const waiting = [{ leaf: turn, turns: 1, tokens: turn.sampled_tokens }];
  while (waiting.length) {
    const path = waiting.pop();
    const below = children.get(path.leaf.turn) ?? [];
    if (!below.length) paths.push(path);
    for (const one of [...below].reverse()) waiting.push({ leaf: one, turns: path.turns + 1, tokens: path.tokens + one.sampled_tokens });
  }
  return paths;
}
