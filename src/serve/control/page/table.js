// SPDX-License-Identifier: Apache-2.0
// Tables whose columns are sorted by their titles.

import { element } from "./element.js";

/** Runs `work` after the next paint. */
const afterPaint = (work) => requestAnimationFrame(() => requestAnimationFrame(work));

/**
 * A table. A column is its title, the key that it is sorted by (null if it is not), the content of a cell, and whether it holds numbers.
 * `order` is the key of the order, with a minus if it is descending. `onSort` gets the order after a click on a title: numbers from the
 * highest one, texts from A, the second time in the other direction. The table has the `first` rows; the others follow after these are
 * painted, and until then it is busy.
 */
export function table({ caption, columns, rows, first = rows.length, order, onSort, prefix }) {
  const [by, falls] = [order.replace(/^-/, ""), order.startsWith("-")];
  const head = ([title, key, , isNumber]) => {
    const isChosen = key !== null && key === by;
    const next = `${(isChosen ? !falls : isNumber) ? "-" : ""}${key}`;
    return element("th", { scope: "col", "aria-sort": isChosen ? (falls ? "descending" : "ascending") : null, class: isNumber ? "right" : null },
      key === null ? title : element("button", { type: "button", id: `${prefix}-${key}`, onclick: () => onSort(next) }, title, isChosen ? (falls ? " ▾" : " ▴") : ""));
  };
  const line = (row) => element("tr", {}, columns.map(([, , content, isNumber]) => element("td", { class: isNumber ? "right num" : null }, content(row))));
  const body = element("tbody", {}, rows.slice(0, first).map(line));
  const isPart = first < rows.length;
  const whole = element("table", { class: "samples", "aria-busy": isPart ? "true" : null }, element("caption", { class: "hidden" }, caption), element("thead", {}, element("tr", {}, columns.map(head))), body);
  if (isPart) {
    afterPaint(() => {
      // another table may have replaced it
      if (!whole.isConnected) return;
      body.append(...rows.slice(first).map(line));
      whole.removeAttribute("aria-busy");
    });
  }
  return whole;
}

/** The least height of a row with a button, in pixels. */
const ROW = 30;

/** The number of rows of a table in `node` down to the end of the screen; all, if one of them has the focus. */
export function rowsOnScreen(node) {
  if (node.querySelector("tbody")?.contains(document.activeElement)) return Infinity;
  // without a table nothing is scrolled, and its place would need a layout of the page
  const above = node.firstChild ? Math.max(0, -node.getBoundingClientRect().top) : 0;
  return Math.ceil((above + innerHeight) / ROW);
}

/** Replaces the content of an element, and keeps the focus on the same button. */
export function refill(node, ...content) {
  const same = ({ id, dataset }) => JSON.stringify([id, { ...dataset }]);
  const focused = node.contains(document.activeElement) ? same(document.activeElement) : null;
  node.replaceChildren(...content);
  if (focused !== null) [...node.querySelectorAll("button")].find((button) => same(button) === focused)?.focus();
}
