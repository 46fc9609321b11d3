// SPDX-License-Identifier: Apache-2.0
// The legend of the colours.

import { element } from "./element.js";
import { MOST, STEPS, nats, shown } from "./scale.js";

/** Draws the colour ramp. */
export function legend(root) {
  const ramp = Array.from({ length: STEPS }, (_, level) => element("span", { class: `t s e${level}`, title: `${shown(nats(level), 2)} nats` }));
  root.replaceChildren(element("span", { class: "words" }, "entropy"), element("span", {}, "0"), element("span", { class: "ramp" }, ramp), element("span", {}, `${MOST}+ nats`));
}
