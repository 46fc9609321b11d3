// SPDX-License-Identifier: Apache-2.0
// The colours of a difference of entropies: eight even steps to each side over the square root of nats.

import { element } from "./element.js";
import { shown } from "./scale.js";

/** The number of steps to each side, and the nats of the last one. */
const [STEPS, MOST] = [8, 2];

/** The CSS classes of a difference in nats. More entropy has a bar below the token, less has one above it. */
export function classesOf(difference) {
  if (Number.isNaN(difference)) return "none";
  const step = Math.round(Math.sqrt(Math.min(Math.abs(difference), MOST) / MOST) * STEPS);
  return `d d${step} ${step === 0 ? "" : difference > 0 ? "up" : "down"}`;
}

/** A difference as text, with its sign. */
export function signed(difference, digits = 3) {
  if (!Number.isFinite(difference)) return "–";
  return difference > 0 ? `+${shown(difference, digits)}` : shown(difference, digits).replace("-", "−");
}

/** Draws the legend. */
export function legend() {
  const at = (step) => Math.sign(step) * (step / STEPS) ** 2 * MOST;
  const ramp = Array.from({ length: 2 * STEPS + 1 }, (_, index) => index - STEPS);
  return element("div", { class: "legend", role: "img", "aria-label": `Colours: entropy of B minus entropy of A, from −${MOST} to +${MOST} nats; bars above a token: less, below: more` },
    element("span", {}, `B − A  −${MOST}`), element("span", { class: "ramp" }, ramp.map((step) => element("span", { class: `t s ${classesOf(at(step))}`, title: `${signed(at(step), 2)} nats` }))), element("span", {}, `+${MOST} nats`));
}
