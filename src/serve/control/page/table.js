// SPDX-License-Identifier: Apache-2.0
// Tables whose columns are sorted by their titles.

import { element } from "./element.js";

/**
 * A table. A column is its title, the key that it is sorted by (null if it is not), the content of a cell, and whether it holds numbers.
 * `order` is the key of the order, with a minus if it is descending. `onSort` gets the order after a click on a title: numbers from the
 * highest one, texts from A, the second time in the other direction.
 */
export function table({ caption, columns, rows, order, onSort, prefix }) {
  const [by, falls] = [order.replace(/^-/, ""), order.startsWith("-")];
  const head = ([title, key, , isNumber]) => {
    const isChosen = key !== null && key === by;
    const next = `${(isChosen ? !falls : isNumber) ? "-" : ""}${key}`;
    return element("th", { scope: "col", "aria-sort": isChosen ? (falls ? "descending" : "ascending") : null, class: isNumber ? "right" : null },
      key === null ? title : element("button", { type: "button", id: `${prefix}-${key}`, onclick: () => onSort(next) }, title, isChosen ? (falls ? " ▾" : " ▴") : ""));
  };
  return element("table", { class: "samples" }, element("caption", { class: "hidden" }, caption), element("thead", {}, element("tr", {}, columns.map(head))),
    element("tbody", {}, rows.map((row) => element("tr", {}, columns.map(([, , content, isNumber]) => element("td", { class: isNumber ? "right num" : null }, content(row)))))));
}

/** Replaces the content of an element, and keeps the focus on the same button. */
export function refill(node, ...content) {
  const same = ({ id, dataset }) => JSON.stringify([id, { ...dataset }]);
  const focused = node.contains(document.activeElement) ? same(document.activeElement) : null;
  node.replaceChildren(...content);
  if (focused !== null) [...node.querySelectorAll("button")].find((button) => same(button) === focused)?.focus();
}
