// Keyboard shortcuts.

import { part } from "./element.js";

/** Installs the shortcuts. They are off in text fields and while a dialog is open. */
export function keys(view, nextTheme) {
  const { sheet } = view;
  const everywhere = {
    j: () => view.spike(1),
    k: () => view.spike(-1),
    "[": () => view.turnBy(-1),
    "]": () => view.turnBy(1),
    e: () => view.save(),
    t: nextTheme,
    "?": () => part("keys").showModal(),
    "/": () => part("search").focus(),
  };
  const among = {
    ArrowRight: () => sheet.choose(sheet.chosen + 1),
    ArrowLeft: () => sheet.choose(Math.max(0, sheet.chosen - 1)),
    ArrowDown: () => sheet.line(1),
    ArrowUp: () => sheet.line(-1),
    Home: () => sheet.choose(0),
    End: () => sheet.choose((sheet.trajectory?.loaded ?? 0) - 1),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const writes = event.target.matches("input, textarea");
    if (writes && event.key === "Escape") event.target.blur();
    if (writes) return;
    const act = everywhere[event.key] ?? (event.target === part("tokens") ? among[event.key] : undefined);
    if (!act) return;
    event.preventDefault();
    act();
  });
}
