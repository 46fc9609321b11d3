// The samples of one prompt: turns of a session, and the first turns of other sessions.

import { get } from "./api.js";

/** The maximum number of samples. */
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
const isKnown = (turn) => turn.fault !== "prompt_unknown" && turn.cause !== "unplaced";

/** The other turns that may have the prompt of `turn`: they continue the same turn, by as many tokens. */
const candidates = (list, turn) => list.filter((one) => one.parent === turn.parent && one.prompt_tokens === turn.prompt_tokens && isKnown(one));

/** The turns of a session that sampled the prompt of the turn with this number. */
export async function samplesOf(of, number, signal) {
  const turn = of.list[number];
  if (!turn || !isKnown(turn)) return turn ? [turn] : [];
  const found = candidates(of.list, turn);
  // a turn of cause `sample` repeats a prompt, so a single other turn has the prompt of all
  if (found.filter((one) => one.cause !== "sample").length <= 1) return found;
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
 * The samples of the same prompt in other sessions: `[session, turns]` for each that has one. The prompt must be that of a first turn. A
 * session costs one request, and one for each first turn with a prompt of the same length.
 */
export async function samplesElsewhere(of, number, names, onProgress, signal) {
  const turn = of.list[number];
  const wanted = await promptOf(of, turn, signal);
  const found = new Map();
  let done = 0;
  await each(names, async (name) => {
    // a session may have been deleted since the list was read
    const other = await sessionOf(name, signal).catch((error) => (signal.aborted ? Promise.reject(error) : null));
    for (const one of other?.list ?? []) {
      if (one.parent !== null || one.prompt_tokens !== turn.prompt_tokens || !isKnown(one)) continue;
      if ((await promptOf(other, one, signal)) === wanted) found.set(name, [other, [...(found.get(name)?.[1] ?? []), one]]);
    }
    onProgress(++done);
  });
  return names.filter((name) => found.has(name)).map((name) => found.get(name));
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
