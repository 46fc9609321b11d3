// SPDX-License-Identifier: Apache-2.0
// The selection of a run as its address has it: the sessions that meet the conditions `where`, and of them those of a step. `by` names what
// the steps are.

import { TABLES } from "./columns.js";

/** The table that is shown first. */
export const FIRST = "sessions";
/** The address of the whole run. */
export const ALL = { view: "run", step: null, by: null, where: "", sort: null, show: null };

/** The conditions of a selection, as `where` of the server and of the command line. */
export function conditionsOf({ step, by, where }) {
  const name = by === null ? "step" : by === "policy" ? by : `tag.${by}`;
  return [where, step === null ? "" : `${name}=${encodeURIComponent(step)}`].filter(Boolean).join(",");
}

/** The name of the table of a selection. */
export const shownOf = ({ show }) => (TABLES.has(show) ? show : FIRST);

/** The order of the table of a selection; null if it has a single one. */
export function orderOf(selection) {
  const { first } = TABLES.get(shownOf(selection));
  return first === null ? null : selection.sort ?? first;
}

/** The path of the steps by a name. */
export const stepsPath = ({ where }, name) => `/v1/steps?${new URLSearchParams({ by: name, ...(where && { where }) })}`;

/** The path of a page of the table; `name` is what the steps are, which only some tables need, and `after` continues a page. */
export function pagePath(selection, { name, after } = {}) {
  const { path, limit, isByStep } = TABLES.get(shownOf(selection));
  const [order, where] = [orderOf(selection), conditionsOf(selection)];
  return `${path}?${new URLSearchParams({ limit, ...(isByStep && { by: name }), ...(order !== null && { sort: order }), ...(where && { where }), ...(after && { after }) })}`;
}
