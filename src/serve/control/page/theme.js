// SPDX-License-Identifier: Apache-2.0
// The theme: light, dark, or the system's.

import { part } from "./element.js";

const STORAGE_KEY = "tokentap-theme";
const THEMES = ["system", "light", "dark"];

function chosen() {
  try {
    const theme = localStorage.getItem(STORAGE_KEY);
    return THEMES.includes(theme) ? theme : "system";
  } catch {
    return document.documentElement.dataset.theme ?? "system";
  }
}

/** Applies a theme; by default the last one that was chosen. */
export function show(theme = chosen()) {
  const root = document.documentElement;
  if (theme === "system") delete root.dataset.theme;
  else root.dataset.theme = theme;
  part("theme").textContent = `Theme: ${theme}`;
}

/** Switches to the next theme. */
export function next() {
  const theme = THEMES[(THEMES.indexOf(chosen()) + 1) % THEMES.length];
  try {
    localStorage.setItem(STORAGE_KEY, theme);
  } catch {
    // storage is not available: the choice lasts until the page is closed
  }
  show(theme);
}
