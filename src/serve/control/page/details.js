// SPDX-License-Identifier: Apache-2.0
// The details of a token and the summary of a path, as text and numbers.

import { amount, count, element, numbers } from "./element.js";
import { label, lines } from "./glyph.js";
import { methodOf } from "./measured.js";
import { UNKNOWN } from "./trajectory.js";
import { shown, step } from "./scale.js";

/** The maximum number of characters of a token's text in its details. */
const SHOWN = 2000;
/** The maximum number of characters of a name from an engine or a trainer. */
const NAME = 200;

/** The text of a token as nodes, with invisible characters made visible. */
export function text(texts, trajectory, at) {
  const id = trajectory.ids[at];
  if (trajectory.pictureAt(at)) return [element("span", { class: "g" }, "picture")];
  const known = id === UNKNOWN ? undefined : texts.of(id);
  const split = texts.split(trajectory.ids, at, trajectory.loaded);
  if (known === undefined) return [element("span", { class: "g" }, "no text")];
  if (split) {
    const bytes = split.bytes?.map((byte) => byte.toString(16).toUpperCase().padStart(2, "0")).join(" ");
    return [bytes ? `bytes ${bytes}, part of ${split.whole}` : "bytes of an incomplete character"];
  }
  const rows = lines(known, SHOWN);
  return rows.flatMap((row, at) => [at > 0 ? "\n" : "", ...row.map(({ text, kind }) => (kind === "plain" ? text : element("span", { class: kind === "odd" ? "g odd" : "g" }, text)))]);
}

/** The entropy interval of a token, as text. */
export function interval(trajectory, at) {
  const measured = trajectory.turnOf(at)?.measured;
  const [lower, upper] = [trajectory.lower[at], trajectory.upper[at]];
  if (Number.isNaN(trajectory.entropy[at])) return measured?.reason ? `none: ${measured.reason}` : "–";
  if (measured?.source === "exact") return "exact";
  if (!Number.isNaN(lower) || !Number.isNaN(upper)) return `${shown(lower)} to ${shown(upper)}`;
  return measured?.estimator === "lower" ? "at least this" : "not recorded";
}

/** The names and values that describe a token. */
export function facts(trajectory, at) {
  const [segment, turn, policy] = [trajectory.segmentOf(at), trajectory.turnOf(at), trajectory.policyOf(at)];
  const sampled = segment.kind === "response";
  const nats = trajectory.entropy[at];
  const id = trajectory.ids[at] === UNKNOWN ? "–" : String(trajectory.ids[at]);
  const place = `${(at + 1).toLocaleString("en")} of ${trajectory.total.toLocaleString("en")}`;
  const rest = [["loss mask", String(trajectory.mask[at])], ["turn", String(segment.turn)]];
  const picture = trajectory.pictureAt(at);
  if (picture) {
    const { start, end, sha256, media_type: type, bytes } = picture;
    const [first, last] = [start + 1, end].map((value) => value.toLocaleString("en"));
    const tokens = (end - start).toLocaleString("en");
    return [["id", id], ["kind", "picture"], ["format", type], ["bytes", bytes.toLocaleString("en")], ["tokens", tokens], ["places", `${first} to ${last}`], ["sha256", sha256], ...rest];
  }
  if (!sampled) return [["id", id], ["place", place], ["kind", "prompt"], ...rest];
  const logprob = trajectory.logprobs[at];
  const rank = trajectory.rank[at];
  return [
    ["id", id],
    ["entropy", `${shown(nats)} nats`],
    ["interval", interval(trajectory, at)],
    ["logprob", Number.isNaN(logprob) ? "–" : `${shown(logprob)}  (${shown(100 * Math.exp(logprob), 1)} %)`],
    ["rank", Number.isNaN(rank) ? (Number.isNaN(trajectory.lower[at]) ? "not recorded" : "outside the top-k, or not recorded") : String(rank)],
    ["loss mask", String(trajectory.mask[at])],
    ["policy", policy ? policyText(policy) : "–"],
    ["adapter", policy?.adapter ? adapterOf(policy) : null],
    ["turn", segment.turn < 0 ? "running" : String(segment.turn)],
    ["place", place],
    ["measured", methodOf(turn?.measured)],
    ["thinking", trajectory.think[at] ? "yes" : null],
  ];
}

/** The epoch of a span. Those of different tokentaps cannot be compared, so it names the tokentap if sessions are shared. */
export function epochOf(span) {
  return span.process ? `${span.epoch} of ${span.process.slice(0, 4)}` : String(span.epoch);
}

/** The name of the weights of a span: the trainer's, or else that of the engine; null if there is none. */
const versionOf = ({ version, weight_version: weights }) => version ?? (weights && weights !== "default" ? weights : null);

/** The policy of a span without its adapter: the name, if it has one, and the epoch. */
export function policyText(span) {
  const epochs = `epoch ${span.until ? `${span.epoch} to ${span.until}` : epochOf(span)}`;
  const name = versionOf(span);
  return name === null ? epochs : `${label(name, NAME)}, ${epochs}`;
}

/** A short name of the policy of a span: that of the adapter, if it has one. */
export function policyName(span) {
  if (span.adapter) return `${span.adapter} ${span.adapter_version ?? `epoch ${span.adapter_epoch}`}`;
  return versionOf(span) ?? `epoch ${span.epoch}`;
}

/** The adapter of a span and its epoch; null for the base weights alone. */
export function adapterOf(span) {
  if (!span.adapter) return null;
  const epochs = span.adapter_until ? `${span.adapter_epoch} to ${span.adapter_until}` : span.adapter_epoch;
  return [label(span.adapter, NAME), `epoch ${epochs}`, ...(span.adapter_version ? [label(span.adapter_version, NAME)] : [])].join(", ");
}

/** The details of the chosen token. */
export function card(texts, pictures, trajectory, at) {
  const picture = trajectory.pictureAt(at);
  const shown = picture ? pictures.frame(trajectory.head.session, picture, true) : element("div", { class: "text", tabindex: "0", role: "group", "aria-label": "Text of the token" }, text(texts, trajectory, at));
  return [shown, numbers(facts(trajectory, at).map(([name, value]) => [name, swatch(name, value, trajectory.entropy[at])]))];
}

/** The tooltip of a token. */
export function tip(texts, trajectory, at) {
  const selected = facts(trajectory, at).filter(([name]) => !["place", "measured", "turn"].includes(name));
  return [element("div", { class: "text" }, text(texts, trajectory, at)), numbers(selected)];
}

function swatch(name, value, nats) {
  const level = step(nats);
  if (name !== "entropy" || level < 0) return value;
  return [element("span", { class: `t s e${level} swatch` }), value];
}

/** The type and the name of the agent of a turn; null if it has none. */
function agent(labels) {
  const names = [labels?.agent_type, labels?.agent].filter(Boolean).map((name) => label(name, NAME));
  return names.join(" ") || null;
}

/** The summary of the path. */
export function about(trajectory, survey) {
  const { head } = trajectory;
  const leaf = head.turns.at(-1);
  const policies = [...new Set(head.policy.map(policyText))];
  const trained = head.segments.reduce((sum, segment) => sum + (segment.loss_mask ? segment.end - segment.start : 0), 0);
  const inPictures = trajectory.pictures.reduce((sum, { start, end }) => sum + end - start, 0);
  const sources = [...new Set(head.turns.map((turn) => methodOf(turn.measured)).filter(Boolean))];
  return numbers([
    ["tokens", count(trajectory.total)],
    ["sampled", count(survey.sampled.length)],
    ["pictures", inPictures ? `${count(trajectory.pictures.length)}, ${amount(inPictures, "token")}` : null],
    ["trained here", trajectory.live ? null : count(trained)],
    ["mean entropy", `${shown(survey.mean)} nats`],
    ["spikes", `${count(survey.spikes.length)} from ${shown(survey.threshold)} nats`],
    ["above 0.672 nats", Number.isFinite(head.high_entropy_share) ? `${shown(100 * head.high_entropy_share, 1)} %` : null],
    ["thinking", head.think_token_count ? `${amount(head.think_token_count, "token")}${head.think_closed ? "" : ", not closed"}` : head.think ? "none" : null],
    ["its mean entropy", Number.isFinite(head.think_entropy_mean) ? `${shown(head.think_entropy_mean)} nats` : null],
    ["measured", sources.join(", ") || null],
    ["finish", leaf?.finish_reason ? label(leaf.finish_reason, NAME) : null],
    ["reward", head.reward === null ? null : label(JSON.stringify(head.reward), SHOWN)],
    ["tags", head.tags ? label(Object.entries(head.tags).map((tag) => tag.join("=")).join(", "), SHOWN) : null],
    ["policy", policies.join("; ") || null],
    ["class", leaf?.labels?.request_class ?? null],
    ["agent", agent(leaf?.labels)],
    ["client", leaf?.labels?.client ? label(leaf.labels.client, NAME) : null],
    ["model", leaf?.model ? label(leaf.model, NAME) : null],
    ["flags", head.flags.join(", ") || null],
  ]);
}
