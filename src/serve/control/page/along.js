// SPDX-License-Identifier: Apache-2.0
// The entropies of the sampled tokens as a curve, smoothed and zoomable.

import { amount, count, part, shape } from "./element.js";
import { DEEP, HEIGHT, INNER, LEFT, TOP, WIDTH, frame, words } from "./plot.js";
import { shown } from "./scale.js";

/** The fewest tokens in view, the share of the tokens in view whose mean is a point of the line, and the factor of one step of the wheel. */
const [FEWEST, SHARE, WHEEL] = [20, 0.02, 1.3];
/** The pixels of a drag below which it is a click. */
const CLICK = 4;

/** The bar at a share of the width of a view, as a range of sampled tokens. */
function barAt([from, to], share) {
  const size = to - from;
  const bars = Math.max(1, Math.min(size, INNER));
  const bar = Math.max(0, Math.min(bars - 1, Math.floor(share * bars)));
  const first = from + Math.floor((bar * size) / bars);
  return [first, Math.max(first + 1, from + Math.floor(((bar + 1) * size) / bars))];
}

/** The number of tokens whose mean is a point of the line; 0 if each token has its own bar. */
function smoothing([from, to]) {
  return to - from <= INNER ? 0 : 1 + 2 * Math.max(2, Math.round(((to - from) * SHARE) / 2));
}

/** Says what the curve of a view shows. */
function legendOf(view, total) {
  const [from, to] = view;
  const size = to - from;
  const range = size === total ? amount(total, "sampled token") : `Sampled tokens ${count(from + 1)} to ${count(to)} of ${count(total)}`;
  const window = smoothing(view);
  return `${range}. ${window ? `Area: highest of each ${count(Math.ceil(size / INNER))}. Line: moving mean of ${count(window)}.` : "Area: each token."}`;
}

/** Plots the entropies of a view: the sampled tokens from one to before another, by default all. */
export function along(trajectory, survey, view = [0, survey.sampled.length]) {
  const [{ sampled }, [from, to]] = [survey, view];
  const size = to - from;
  const bars = Math.max(1, Math.min(size, INNER));
  const most = Math.max(0.5, Math.ceil(survey.most * 2) / 2);
  const x = (bar) => (LEFT + (bar / bars) * INNER).toFixed(1);
  const y = (value) => (TOP + DEEP * (1 - Math.min(value, most) / most)).toFixed(1);
  let [high, think] = [`M${LEFT} ${y(0)}`, ""];
  for (let bar = 0; bar < bars && size > 0; bar++) {
    const [first, end] = barAt(view, (bar + 0.5) / bars);
    let [top, thinks] = [0, 0];
    for (let at = first; at < end; at++) {
      top = Math.max(top, trajectory.entropy[sampled[at]] || 0);
      thinks += trajectory.think[sampled[at]];
    }
    high += `L${x(bar)} ${y(top)}H${x(bar + 1)}`;
    if (thinks) think += `M${x(bar)} ${TOP}H${x(bar + 1)}V${TOP + DEEP}H${x(bar)}Z`;
  }
  const label = `Entropy of ${amount(survey.sampled.length, "sampled token")}: mean ${shown(survey.mean)} nats, highest ${shown(survey.most)} nats. ${legendOf(view, sampled.length)}`;
  return frame(label, shape("path", { class: "think", d: think }), shape("path", { class: "most", d: `${high}V${y(0)}Z` }),
    shape("path", { class: "mean", d: line(trajectory, sampled, view, y) }), shape("path", { class: "at", d: "" }), shape("rect", { class: "span", y: TOP, height: DEEP, width: 0 }),
    words(LEFT - 4, TOP + 8, "end", shown(most, 1)), words(LEFT - 4, TOP + DEEP, "end", "0"), words(LEFT, HEIGHT - 3, "start", count(from + 1)),
    words(WIDTH - 2, HEIGHT - 3, "end", count(to)), words((LEFT + WIDTH) / 2, HEIGHT - 3, "middle", "sampled token"));
}

/** The moving mean of a view as a path with a point for each pixel. */
function line(trajectory, sampled, view, y) {
  const [[from, to], half] = [view, (smoothing(view) - 1) / 2];
  if (half < 0) return "";
  const [start, end] = [Math.max(0, from - half), Math.min(sampled.length, to + half)];
  const [sums, counts] = [new Float64Array(end - start + 1), new Uint32Array(end - start + 1)];
  for (let at = start; at < end; at++) {
    const value = trajectory.entropy[sampled[at]];
    sums[at - start + 1] = sums[at - start] + (value || 0);
    counts[at - start + 1] = counts[at - start] + Number(value >= 0);
  }
  let [found, isDrawn] = ["", false];
  for (let pixel = 0; pixel < INNER; pixel++) {
    const centre = from + Math.floor(((pixel + 0.5) * (to - from)) / INNER);
    const [low, high] = [Math.max(start, centre - half) - start, Math.min(end, centre + half + 1) - start];
    const known = counts[high] - counts[low];
    if (known) found += `${isDrawn ? "L" : "M"}${(LEFT + pixel + 0.5).toFixed(1)} ${y((sums[high] - sums[low]) / known)}`;
    isDrawn = known > 0;
  }
  return found;
}

/** The curve of the open path. Calls `onPick` with the token that was clicked: the one with the highest entropy of its bar. */
export class Curve {
  #view = null;
  #drag = null;
  #chosen = -1;
  /** The place of the pointer as a share of the width; null if it is elsewhere. */
  #pointer = null;

  constructor(onPick) {
    this.root = part("along");
    this.onPick = onPick;
    const { root } = this;
    root.addEventListener("wheel", (event) => {
      // the browser zooms the page with Ctrl, and scrolls it if the curve cannot show more
      if (!this.trajectory || !event.deltaY || event.ctrlKey || (event.deltaY > 0 && this.#view === null)) return;
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 1 / WHEEL : WHEEL, this.#share(event));
    }, { passive: false });
    root.addEventListener("pointerdown", (event) => this.trajectory && event.button === 0 && this.#begin(event));
    root.addEventListener("pointermove", (event) => this.#move(event));
    root.addEventListener("pointerup", (event) => this.#end(event));
    root.addEventListener("pointercancel", () => this.#stop());
    root.addEventListener("pointerleave", () => this.#read(null));
    root.addEventListener("dblclick", () => this.whole());
    part("along-whole").addEventListener("click", () => this.whole());
  }

  /** Shows a path, or the tokens that were added to it. */
  show(trajectory, survey) {
    if (trajectory !== this.trajectory) {
      this.#view = null;
      this.#drag = null;
      this.#chosen = -1;
    }
    Object.assign(this, { trajectory, survey });
    this.#draw();
  }

  /** Shows nothing. */
  clear() {
    Object.assign(this, { trajectory: null, survey: null });
    this.#drag = null;
    this.#chosen = -1;
    this.root.replaceChildren();
    part("along-whole").hidden = true;
    for (const id of ["along-legend", "along-value"]) part(id).textContent = "";
  }

  get view() {
    return this.#view ?? [0, this.survey.sampled.length];
  }

  /** Shows `factor` times as many tokens; the one at a share of the width stays there. Without a share it is the chosen token, or the middle. */
  zoom(factor, share = this.#place() ?? 0.5) {
    if (!this.trajectory) return;
    const [from, to] = this.view;
    const size = Math.max(FEWEST, Math.round((to - from) * factor));
    this.#show(Math.round(from + share * (to - from) - share * size), size);
  }

  /** Moves the view by a share of its width. */
  pan(by) {
    if (!this.trajectory) return;
    const [from, to] = this.view;
    this.#show(from + Math.round(by * (to - from)), to - from);
  }

  /** Shows all tokens. */
  whole() {
    this.#view = null;
    this.#stop();
  }

  #show(from, size) {
    const { length } = this.survey.sampled;
    const first = Math.max(0, Math.min(from, length - size));
    this.#view = size < length ? [first, first + size] : null;
    this.#stop();
  }

  /** Ends a drag without a zoom. */
  #stop() {
    this.#drag = null;
    if (this.trajectory) this.#draw();
  }

  /** Marks the chosen token, and moves the view to it. */
  mark(chosen) {
    this.#chosen = chosen;
    const place = this.#place();
    const [from, to] = this.view;
    if (place !== null && (place < 0 || place >= 1)) this.#show(this.#index() - Math.floor((to - from) / 2), to - from);
    else this.#mark();
  }

  #mark() {
    const place = this.#place();
    const at = place === null || place < 0 || place >= 1 ? null : LEFT + place * INNER;
    this.root.querySelector(".at").setAttribute("d", at === null ? "" : `M${at.toFixed(1)} ${TOP}V${TOP + DEEP}`);
  }

  /** The index of the chosen token among the sampled ones, or of the first one after it. */
  #index() {
    const { sampled } = this.survey;
    let [low, high] = [0, sampled.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sampled[middle] < this.#chosen) low = middle + 1;
      else high = middle;
    }
    return Math.min(low, sampled.length - 1);
  }

  /** The place of the chosen token as a share of the width; null if none is chosen. */
  #place() {
    if (this.#chosen < 0 || !this.survey?.sampled.length) return null;
    const [from, to] = this.view;
    return (this.#index() + 0.5 - from) / (to - from);
  }

  #draw() {
    this.root.replaceChildren(along(this.trajectory, this.survey, this.view));
    part("along-legend").textContent = legendOf(this.view, this.survey.sampled.length);
    part("along-whole").hidden = this.#view === null;
    this.#read(this.#pointer);
    this.#mark();
    this.#span();
  }

  /** The place of a pointer as a share of the width. */
  #share({ clientX }) {
    const box = this.root.firstChild.getBoundingClientRect();
    return Math.max(0, Math.min(1, (((clientX - box.left) / box.width) * WIDTH - LEFT) / INNER));
  }

  #begin(event) {
    const share = this.#share(event);
    this.#drag = { share, to: share, clientX: event.clientX };
    this.root.setPointerCapture(event.pointerId);
  }

  #move(event) {
    if (!this.trajectory) return;
    const share = this.#share(event);
    this.#read(share);
    if (!this.#drag) return;
    this.#drag.to = share;
    this.#span();
  }

  /** Shows what a drag covers. */
  #span() {
    if (!this.#drag) return;
    const [low, high] = [this.#drag.share, this.#drag.to].sort((a, b) => a - b);
    const span = this.root.querySelector(".span");
    span.setAttribute("x", LEFT + low * INNER);
    span.setAttribute("width", (high - low) * INNER);
  }

  /** Ends a drag, which zooms to what it covers, or a click. */
  #end(event) {
    const drag = this.#drag;
    if (!drag) return;
    this.#drag = null;
    const share = this.#share(event);
    if (Math.abs(event.clientX - drag.clientX) < CLICK) return this.#pick(share);
    const [[from, to], low, high] = [this.view, Math.min(share, drag.share), Math.max(share, drag.share)];
    const size = Math.max(FEWEST, Math.round((high - low) * (to - from)));
    this.#show(Math.round(from + ((low + high) / 2) * (to - from) - size / 2), size);
  }

  #pick(share) {
    const [from, to] = barAt(this.view, share);
    const bar = this.survey.sampled.slice(from, to);
    if (!bar.length) return;
    this.onPick(bar.reduce((best, at) => (this.trajectory.entropy[at] > (this.trajectory.entropy[best] || 0) ? at : best)));
  }

  /** Writes the entropies at a place of the view, which are not smoothed. */
  #read(share) {
    this.#pointer = share;
    if (!this.trajectory) return;
    if (share === null || !this.survey.sampled.length) {
      part("along-value").textContent = this.survey.sampled.length > FEWEST ? "Drag or turn the wheel to zoom." : "";
      return;
    }
    const [from, to] = barAt(this.view, share);
    const values = this.survey.sampled.slice(from, to).map((at) => this.trajectory.entropy[at]).filter((value) => value >= 0);
    const name = to - from === 1 ? `Token ${count(from + 1)}` : `Tokens ${count(from + 1)} to ${count(to)}`;
    const [low, high] = [Math.min(...values), Math.max(...values)];
    part("along-value").textContent = `${name}: ${!values.length ? "no entropy" : values.length === 1 ? `${shown(high)} nats` : `${shown(low)} to ${shown(high)} nats`}`;
  }
}
