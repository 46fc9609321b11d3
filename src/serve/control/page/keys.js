// SPDX-License-Identifier: Apache-2.0
// The keyboard shortcuts, and the dialog that lists them.

import { element, part } from "./element.js";

/** `keys` as the event names them, what is shown for them, what they do, and the name of the action. */
const EVERYWHERE = [
  [["/"], "search sessions by name", "search"], [["s"], "the run: steps and all sessions", "run"], [["t"], "light, dark or the system's theme", "theme"], [["?"], "this list", "help"],
];
const TOKENS = [
  [["ArrowLeft", "ArrowRight"], "previous and next token", "step"], [["ArrowUp", "ArrowDown"], "line above and below", "line"],
  [["Home", "End"], "first and last token", "end"],
];
const CURVE = [
  [["+", "=", "-"], "zoom in and out around the chosen token", "zoom"], [["ArrowLeft", "ArrowRight"], "earlier and later tokens", "pan"], [["0"], "all tokens", "whole"],
];
const PATH = [
  [["j", "k"], "next and previous entropy spike", "peak"], [["[", "]"], "previous and next turn", "turn"],
  [["f"], "search for a text in the path", "find"], [["n", "N"], "next and previous match", "match"],
  [["v"], "the path as a conversation, or as its tokens", "chat"], [["z"], "in a conversation: fold or unfold the text of the chosen token", "fold"],
  [["m"], "emphasise the trained tokens", "trained"], [["l"], "copy the link to the chosen token", "link"],
  [["c"], "keep the path for a comparison, then compare it with the open one", "compare"],
  [["g"], "the samples of the prompt of the chosen turn", "group"], [["e"], "export this view as one HTML file", "save"],
];
const COMPARE = [
  [["j", "k"], "next and previous large difference", "peak"], [["v"], "the first token that differs", "divergence"],
  [["d"], "colours: the difference, or each path's own entropy", "colours"], [["x"], "swap both paths", "swap"],
  [["l"], "copy the link to the comparison", "link"], [["Escape"], "back to the path", "back"],
];
const GROUP = [
  [["c"], "compare the two chosen samples", "compare"], [["o"], "the samples of the prompt in other sessions as well", "others"], [["r"], "read the samples again", "refresh"],
  [["l"], "copy the link to the group", "link"], [["Escape"], "back to the path", "back"],
];
const RUN = [
  [["[", "]"], "previous and next step", "step"], [["r"], "read the run again", "refresh"], [["y"], "copy the command that exports the selection", "command"],
  [["l"], "copy the link to the selection", "link"], [["Escape"], "all steps", "all"],
];
const EMPTY = [[["y"], "copy the command that makes a first session", "copy"]];
const VIEWS = { path: PATH, compare: COMPARE, group: GROUP, run: RUN, empty: EMPTY };
const TITLES = [["Everywhere", EVERYWHERE], ["Path and comparison, in the tokens", TOKENS], ["Entropy along the response, in the curve", CURVE], ["Path", PATH], ["Comparison", COMPARE], ["Group", GROUP], ["Run", RUN], ["Without sessions", EMPTY]];
const SIGNS = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Escape: "Esc" };

/** Lists all keys in the dialog. */
export function drawKeys() {
  part("all-keys").replaceChildren(...TITLES.map(([title, rows]) => element("section", {}, element("h3", {}, title),
    element("dl", {}, rows.map(([keys, what]) => [element("dt", {}, keys.map((key) => [element("kbd", {}, SIGNS[key] ?? key), " "])), element("dd", {}, what)])))));
}

/**
 * Installs the shortcuts. They are off in fields and while a dialog is open. `current` returns the name of the open view and its actions;
 * an action gets the place of the key among the keys of its row.
 */
export function keys(everywhere, current) {
  const run = (rows, actions, event) => {
    const row = rows.find(([keys]) => keys.includes(event.key));
    const act = row && actions[row[2]];
    if (!act) return false;
    event.preventDefault();
    act(row[0].indexOf(event.key));
    return true;
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const isField = event.target.matches("input:not([type=checkbox]), textarea, select");
    if (isField && event.key === "Escape") event.target.blur();
    if (isField) return;
    const { name, actions } = current();
    const isTokens = event.target.matches(".tokens");
    if (isTokens && run(TOKENS, actions, event)) return;
    if (event.target.matches("#along") && run(CURVE, actions, event)) return;
    if (!run(VIEWS[name], actions, event)) run(EVERYWHERE, everywhere, event);
  });
}
