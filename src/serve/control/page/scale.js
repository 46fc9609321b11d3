// SPDX-License-Identifier: Apache-2.0
// Maps nats to one of 24 even colour steps. An entropy has the same colour in every view.

/** The number of colour steps. */
export const STEPS = 24;
/** The nats of the last step; higher entropies have the same colour. */
export const MOST = 4;

/** The step of an entropy; -1 if it is missing. The square root spreads the many small entropies. */
export function step(nats) {
  if (!(nats >= 0)) return -1;
  return Math.round(Math.sqrt(Math.min(nats, MOST) / MOST) * (STEPS - 1));
}

/** The nats of a step. */
export function nats(at) {
  return (at / (STEPS - 1)) ** 2 * MOST;
}

/** Formats a number. */
export function shown(value, digits = 3) {
  if (!Number.isFinite(value)) return "–";
  if (value !== 0 && Math.abs(value) < 10 ** -digits) return value.toExponential(1);
  return value.toFixed(digits);
}
