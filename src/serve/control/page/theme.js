// Light, dark, or as the system has it.

import { part } from "./element.js";

const KEPT = "tokentap-theme";
const THEMES = ["system", "light", "dark"];

function chosen() {
  try {
    const theme = localStorage.getItem(KEPT);
    return THEMES.includes(theme) ? theme : "system";
  } catch {
    return document.documentElement.dataset.theme ?? "system";
  }
}

/** Shows the page as it was last chosen. */
export function show(theme = chosen()) {
  const root = document.documentElement;
  if (theme === "system") delete root.dataset.theme;
  else root.dataset.theme = theme;
  part("theme").textContent = `Theme: ${theme}`;
}

/** Goes on to the next. */
export function next() {
  const theme = THEMES[(THEMES.indexOf(chosen()) + 1) % THEMES.length];
  try {
    localStorage.setItem(KEPT, theme);
  } catch {
    // it lasts as long as the page
  }
  show(theme);
}
