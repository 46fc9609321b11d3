// SPDX-License-Identifier: Apache-2.0
// How the entropies of a turn were obtained: the member `measured` of a turn.

/** The estimator, the source, k and the temperature as text; null if no entropy was asked for. */
export function methodOf(measured) {
  if (!measured?.estimator) return null;
  const { estimator, source, top_k: k, temperature } = measured;
  // an older tokentap sends no k
  const number = (value) => (value == null ? "unknown" : Number(value.toPrecision(6)));
  return [`${estimator} (${source})`, source === "top_k" ? `k\u00a0=\u00a0${number(k)}` : null, `T\u00a0=\u00a0${number(temperature)}`].filter(Boolean).join(", ");
}

/** Whether two entropies are numbers of one kind. The difference of two bounds is not that of the entropies. */
export function isComparable(one, other) {
  if (!one || !other || one.estimator !== other.estimator || one.source !== other.source) return false;
  return one.source === "exact" || ["estimate", "sampled"].includes(one.estimator);
}
