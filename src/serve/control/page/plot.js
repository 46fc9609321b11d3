// SPDX-License-Identifier: Apache-2.0
// The frame of plots, the plot of a difference, and the entropy histogram, drawn as SVG.

import { signed } from "./difference.js";
import { amount, shape } from "./element.js";
import { MOST, STEPS, nats, shown, step } from "./scale.js";

export const [WIDTH, HEIGHT] = [300, 108];
const BOTTOM = 16;
export const [LEFT, TOP] = [26, 6];
export const INNER = WIDTH - LEFT - 2;
export const DEEP = HEIGHT - BOTTOM - TOP;

/** A plot with its axes. */
export function frame(label, ...children) {
  return shape("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
    shape("path", { class: "axis", d: `M${LEFT} ${TOP}V${TOP + DEEP}H${WIDTH - 2}` }), children);
}

/** A text in a plot. */
export function words(x, y, anchor, text) {
  return shape("text", { x, y, "text-anchor": anchor }, text);
}

/** Calls `onPick` with the position that was clicked. */
function picks(plot, positions, onPick) {
  plot.addEventListener("click", (event) => {
    const box = plot.getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width) * WIDTH - LEFT;
    const at = positions[Math.max(0, Math.min(positions.length - 1, Math.floor((share / INNER) * positions.length)))];
    if (at !== undefined) onPick(at);
  });
}

function markIn(plot, positions, chosen) {
  let [low, high] = [0, positions.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (positions[middle] < chosen) low = middle + 1;
    else high = middle;
  }
  const at = LEFT + ((low + 0.5) / Math.max(1, positions.length)) * INNER;
  plot?.querySelector(".at").setAttribute("d", chosen < 0 ? "" : `M${at.toFixed(1)} ${TOP}V${TOP + DEEP}`);
}

/** Plots the largest difference to each side among the tokens of each bar. Calls `onPick` with the token that was clicked. */
export function differences(alignment, onPick) {
  const { compared, difference } = alignment;
  const bars = Math.max(1, Math.min(compared.length, INNER));
  const size = compared.reduce((most, at) => Math.max(most, Math.abs(difference[at])), 0);
  const most = Math.max(0.1, Math.ceil(size * 10) / 10);
  const x = (at) => (LEFT + (at / bars) * INNER).toFixed(1);
  const y = (value) => (TOP + (DEEP * (1 - value / most)) / 2).toFixed(1);
  const sides = { up: `M${LEFT} ${y(0)}`, down: `M${LEFT} ${y(0)}` };
  for (let bar = 0; bar < bars; bar++) {
    const from = Math.floor((bar * compared.length) / bars);
    const to = Math.max(from + 1, Math.floor(((bar + 1) * compared.length) / bars));
    const values = compared.slice(from, to).map((at) => difference[at]);
    sides.up += `L${x(bar)} ${y(Math.max(0, ...values))}H${x(bar + 1)}`;
    sides.down += `L${x(bar)} ${y(Math.min(0, ...values))}H${x(bar + 1)}`;
  }
  const label = `Difference of the entropies of ${compared.length} tokens, B minus A: mean ${signed(alignment.means().difference)} nats, largest ${shown(size)} nats to either side.`;
  const plot = frame(label, shape("path", { class: "more", d: `${sides.up}V${y(0)}Z` }), shape("path", { class: "less", d: `${sides.down}V${y(0)}Z` }),
    shape("path", { class: "axis", d: `M${LEFT} ${y(0)}H${WIDTH - 2}` }), shape("path", { class: "at", d: "" }),
    words(LEFT - 4, TOP + 8, "end", signed(most, 1)), words(LEFT - 4, Number(y(0)) + 4, "end", "0"), words(LEFT - 4, TOP + DEEP, "end", signed(-most, 1)), words(LEFT, HEIGHT - 3, "start", "1"),
    words(WIDTH - 2, HEIGHT - 3, "end", compared.length.toLocaleString("en")), words((LEFT + WIDTH) / 2, HEIGHT - 3, "middle", "compared token"));
  picks(plot, compared, onPick);
  return plot;
}

/** Marks the position of the chosen token among the compared ones. */
export function markDifference(plot, { compared, context }, chosen) {
  markIn(plot, compared, chosen < context ? chosen : -1);
}

/** The histogram of tokens by colour, with logarithmic heights. */
export function histogram(trajectory, survey) {
  const counts = new Array(STEPS).fill(0);
  for (const at of survey.sampled) {
    const level = step(trajectory.entropy[at]);
    if (level >= 0) counts[level]++;
  }
  const most = Math.max(1, ...counts);
  const wide = INNER / STEPS;
  const bars = counts.map((count, level) => {
    const high = (Math.log1p(count) / Math.log1p(most)) * DEEP;
    const label = `${amount(count, "token")} around ${shown(nats(level), 2)} nats`;
    return shape("rect", { class: `bin e${level}`, x: (LEFT + level * wide + 0.5).toFixed(1), y: (TOP + DEEP - high).toFixed(1), width: (wide - 1).toFixed(1), height: high.toFixed(1) }, shape("title", {}, label));
  });
  const tick = (value) => words(LEFT + (Math.sqrt(value / MOST) * (STEPS - 1) + 0.5) * wide, HEIGHT - 3, "middle", String(value));
  const label = `Of ${survey.known} tokens with an entropy ${counts.slice(0, step(0.1) + 1).reduce((sum, count) => sum + count, 0)} have about 0.1 nats or less.`;
  return frame(label, bars, [0, 0.1, 0.5, 1, 2].map(tick), words(WIDTH - 2, HEIGHT - 3, "end", "4+ nats"), words(LEFT - 4, TOP + 8, "end", compact(most)));
}

function compact(count) {
  return count < 10_000 ? String(count) : `${Math.round(count / 1000)}k`;
}

/** The width and height of a small plot, in pixels. */
const [SMALL, LOW] = [180, 22];

/** A small plot of the highest entropy of each bar, on the scale of the colours. Its width is this share of the longest one. */
export function sparkline(values, share) {
  const wide = Math.max(2, Math.round(SMALL * share));
  const bars = Math.max(1, Math.min(values.length, wide));
  let line = `M0 ${LOW}`;
  for (let bar = 0; bar < bars; bar++) {
    const part = values.subarray(Math.floor((bar * values.length) / bars), Math.max(Math.floor((bar * values.length) / bars) + 1, Math.floor(((bar + 1) * values.length) / bars)));
    const top = part.reduce((most, value) => Math.max(most, value || 0), 0);
    line += `L${((bar / bars) * wide).toFixed(1)} ${(LOW * (1 - Math.sqrt(Math.min(top, MOST) / MOST))).toFixed(1)}H${(((bar + 1) / bars) * wide).toFixed(1)}`;
  }
  const label = `Entropy of ${amount(values.length, "sampled token")}`;
  return shape("svg", { class: "plot small", viewBox: `0 0 ${SMALL} ${LOW}`, width: SMALL, height: LOW, role: "img", "aria-label": label }, shape("path", { class: "axis", d: `M0 ${LOW - 0.5}H${wide}` }), shape("path", { class: "most", d: `${line}V${LOW}Z` }));
}
