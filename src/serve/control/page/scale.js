// From nats to one of 24 even steps of colour. The same entropy has the same colour in every view.

/** Steps of the ramp. */
export const STEPS = 24;
/** Nats at the end of the ramp; what is above looks the same. */
export const MOST = 4;

/** The step of an entropy; -1 where there is none. The root gives the many small ones room. */
export function step(nats) {
  if (!(nats >= 0)) return -1;
  return Math.round(Math.sqrt(Math.min(nats, MOST) / MOST) * (STEPS - 1));
}

/** The nats at which a step begins to be meant. */
export function nats(at) {
  return (at / (STEPS - 1)) ** 2 * MOST;
}

/** Nats as text. */
export function shown(value, digits = 3) {
  if (!Number.isFinite(value)) return "–";
  if (value !== 0 && Math.abs(value) < 10 ** -digits) return value.toExponential(1);
  return value.toFixed(digits);
}
