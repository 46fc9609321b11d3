// SPDX-License-Identifier: Apache-2.0
// The curves of a run over its steps, and the scatter of its sessions, drawn as SVG.

import { count, element, shape } from "./element.js";
import { label } from "./glyph.js";
import { DEEP, HEIGHT, INNER, LEFT, TOP, WIDTH, frame, words } from "./plot.js";
import { shown } from "./scale.js";

const percent = (value) => `${shown(100 * value, 1)} %`;
const rounded = (value) => shown(value, 1);

/** Whether the tokens between think tokens have entropies in a step. */
const thinks = (step) => step.thinking_entropy !== null;

/** The curves: their value at a step, the distribution around it, whether zero is always on the axis, the format of a number, and which steps one of them needs. */
export const CURVES = [
  { id: "entropy", title: "entropy, nats", mean: (step) => step.entropy?.mean, band: (step) => step.entropy, zero: true, text: shown },
  { id: "thinking", title: "entropy of thinking, nats", mean: (step) => step.thinking_entropy?.mean, band: (step) => step.thinking_entropy, zero: true, text: shown },
  { id: "answers", title: "entropy of answers, nats", mean: (step) => step.answer_entropy?.mean, band: (step) => step.answer_entropy, zero: true, text: shown, needs: thinks },
  { id: "reward", title: "reward", mean: (step) => step.reward?.mean, band: (step) => step.reward, text: (value) => shown(value).replace("-", "−") },
  { id: "length", title: "sampled tokens of a row", mean: (step) => step.length?.mean, band: (step) => step.length, zero: true, text: rounded },
  { id: "truncated", title: "rows that ended by length", mean: (step) => step.truncated_share, zero: true, text: percent },
  { id: "faults", title: "sessions with a fault", mean: (step) => step.fault_share, zero: true, text: percent },
  { id: "one-reward", title: "groups with one reward", mean: (step) => (step.groups.count ? step.groups.one_reward / step.groups.count : null), zero: true, text: percent },
];

const isKnown = (value) => Number.isFinite(value);

/** An axis from a round number to a round number, which holds all values. */
function axis(values, zero) {
  let [low, high] = [zero ? 0 : Math.min(...values), Math.max(...values)];
  // one value needs a second one
  if (low === high) [low, high] = [Math.min(low, 0), Math.max(high, 0) || Number(low === 0)];
  const size = (high - low) / 4;
  const unit = 10 ** Math.floor(Math.log10(size));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= size);
  return [Math.floor(low / step) * step, Math.ceil(high / step) * step];
}

/** The number at the end of an axis. */
function tick(value, text) {
  if (text === percent) return `${Number((100 * value).toPrecision(3))}%`;
  if (Math.abs(value) >= 10_000) return `${Number((value / 1000).toPrecision(3))}k`;
  return String(Number(value.toPrecision(3))).replace("-", "−");
}

/** The place of the step with this index among `size` steps. */
const place = (at, size) => LEFT + 5 + (size > 1 ? at / (size - 1) : 0.5) * (INNER - 10);

/** A curve as a figure with a heading; null if no step has a value, or none that it needs. `onPick` gets the index of a clicked step, `onPoint` that below the pointer, or -1. */
export function curve({ id, title, mean, band, zero, text, needs }, steps, { onPick, onPoint }) {
  const [means, bands] = [steps.map(mean), steps.map((step) => band?.(step) ?? null)];
  const values = [...means, ...bands.flatMap((one) => (one ? [one.p10, one.p90] : []))].filter(isKnown);
  if (!values.length || (needs && !steps.some(needs))) return null;
  const [low, high] = axis(values, zero);
  const x = (at) => place(at, steps.length).toFixed(1);
  const y = (value) => (TOP + DEEP * (1 - (value - low) / (high - low))).toFixed(1);
  const runs = [];
  means.forEach((value, at) => {
    if (!isKnown(value)) return;
    if (at > 0 && isKnown(means[at - 1])) runs.at(-1).push(at);
    else runs.push([at]);
  });
  const line = (run, of) => run.map((at) => `${x(at)} ${y(of(at))}`).join("L");
  const area = (lower, upper) => runs.map((run) => `M${line(run, (at) => bands[at][lower])}L${line([...run].reverse(), (at) => bands[at][upper])}Z`).join("");
  const known = means.filter(isKnown);
  const name = `${title}, by step: ${known.length} values, ${text(Math.min(...known))} to ${text(Math.max(...known))}, last ${text(known.at(-1))}`;
  const plot = frame(name, band ? [shape("path", { class: "outer", d: area("p10", "p90") }), shape("path", { class: "inner", d: area("p25", "p75") })] : null,
    shape("path", { class: "curve", d: runs.map((run) => `M${line(run, (at) => means[at])}`).join("") }),
    steps.length > 60 ? null : means.map((value, at) => (isKnown(value) ? shape("circle", { class: "dot", cx: x(at), cy: y(value), r: 2 }) : null)),
    shape("path", { class: "at", d: "" }), words(LEFT - 4, TOP + 8, "end", tick(high, text)), words(LEFT - 4, TOP + DEEP, "end", tick(low, text)),
    words(LEFT, HEIGHT - 3, "start", label(steps[0].step, 16)), steps.length > 1 ? words(WIDTH - 2, HEIGHT - 3, "end", label(steps.at(-1).step, 16)) : null);
  const at = (event) => {
    const box = plot.getBoundingClientRect();
    const share = (((event.clientX - box.left) / box.width) * WIDTH - LEFT - 5) / (INNER - 10);
    return Math.max(0, Math.min(steps.length - 1, Math.round(share * (steps.length - 1))));
  };
  plot.addEventListener("click", (event) => onPick(at(event)));
  plot.addEventListener("pointermove", (event) => onPoint(at(event)));
  plot.addEventListener("pointerleave", () => onPoint(-1));
  return element("figure", { "data-curve": id }, element("figcaption", {}, element("span", {}, title), element("span", { class: "num", id: `run-${id}` })), plot);
}

/** Marks a step in a figure and writes its value; `chosen` is the step of the mark, or -1. */
export function markStep(figure, { id, mean, band, text }, steps, at, chosen) {
  const [value, around] = [mean(steps[at]), band?.(steps[at])];
  figure.querySelector(`#run-${id}`).textContent = isKnown(value) ? [text(value), ...(around ? [`(${text(around.p10)} to ${text(around.p90)})`] : [])].join(" ") : "–";
  figure.querySelector(".at").setAttribute("d", chosen < 0 ? "" : `M${place(chosen, steps.length).toFixed(1)} ${TOP}V${TOP + DEEP}`);
}

/** The pixels between a click and a point of the scatter that it still chooses. */
const NEAR = 12;

/** The sessions with a reward and an entropy as points; null if there are none. `onPick` gets the row of a clicked point. */
export function scatter(rows, onPick) {
  const points = rows.filter((row) => isKnown(row.reward) && isKnown(row.mean_entropy));
  if (!points.length) return null;
  const [left, right] = axis(points.map((row) => row.mean_entropy), true);
  const [low, high] = axis(points.map((row) => row.reward), false);
  const at = (row) => [LEFT + 5 + (row.mean_entropy - left) / (right - left) * (INNER - 10), TOP + DEEP * (1 - (row.reward - low) / (high - low))];
  const plot = frame(`Reward and mean entropy of ${points.length} sessions: the table below has the same numbers.`,
    points.map((row) => shape("circle", { class: "point", cx: at(row)[0].toFixed(1), cy: at(row)[1].toFixed(1), r: 3 }, shape("title", {}, `${label(row.session, 128)}: reward ${shown(row.reward)}, entropy ${shown(row.mean_entropy)} nats`))),
    words(LEFT - 4, TOP + 8, "end", tick(high)), words(LEFT - 4, TOP + DEEP, "end", tick(low)), words(LEFT, HEIGHT - 3, "start", tick(left)), words(WIDTH - 2, HEIGHT - 3, "end", `${tick(right)} nats`));
  plot.addEventListener("click", (event) => {
    const box = plot.getBoundingClientRect();
    const scale = box.width / WIDTH;
    const near = points.map((row) => [row, Math.hypot(box.left + at(row)[0] * scale - event.clientX, box.top + at(row)[1] * scale - event.clientY)]);
    const [row, pixels] = near.reduce((best, one) => (one[1] < best[1] ? one : best));
    if (pixels <= NEAR) onPick(row);
  });
  return element("figure", { "data-curve": "scatter" }, element("figcaption", {}, element("span", {}, "reward by mean entropy"),
    element("span", { class: "num" }, `${count(points.length)} of ${count(rows.length)}`)), plot);
}
