// How the entropies of a turn were obtained: the member `measured` of a turn.

/** The estimator, the source, k and the temperature as text; null if no entropies were recorded. */
export function methodOf(measured) {
  if (!measured?.estimator) return null;
  const { estimator, source, top_k: k, temperature } = measured;
  const number = (value) => (value === null ? "unknown" : Number(value.toPrecision(6)));
  return [`${estimator} (${source})`, source === "top_k" ? `k = ${number(k)}` : null, `T = ${number(temperature)}`].filter(Boolean).join(", ");
}

/** Whether two entropies are numbers of one kind. The difference of two bounds is not that of the entropies. */
export function isComparable(one, other) {
  if (!one || !other || one.estimator !== other.estimator || one.source !== other.source) return false;
  return one.source === "exact" || ["estimate", "sampled"].includes(one.estimator);
}

/** The temperatures of a path as text. */
export function temperatures({ head }) {
  return distinct(head.turns.map((turn) => turn.measured?.temperature));
}

/** The k of the estimates of a path as text; empty if it has none. */
export function widths({ head }) {
  const isEstimate = (measured) => measured?.source === "top_k" && measured.estimator === "estimate";
  return distinct(head.turns.map((turn) => turn.measured).filter(isEstimate).map((measured) => measured.top_k));
}

function distinct(values) {
  return [...new Set(values.map((value) => value ?? "unknown"))].join(", ");
}
