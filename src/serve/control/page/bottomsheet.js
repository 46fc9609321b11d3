// SPDX-License-Identifier: Apache-2.0
// The details of a token on a narrow screen: a sheet at the bottom, which a tap on a token opens.

import { part } from "./element.js";

/** The width up to which the details are a sheet, as in the style sheet. */
const NARROW = matchMedia("(max-width: 800px)");
/** The pixels between the token and the sheet. */
const GAP = 12;

export class BottomSheet {
  /** `onBack` is called when Back or a tap has closed the sheet, with the history at the entry before it. */
  constructor(onBack) {
    this.root = part("token-sheet");
    /** The URL of the entry before that of the sheet. */
    this.href = "";
    this.isOpen = false;
    this.isClosing = false;
    part("token-close").addEventListener("click", () => this.close());
    NARROW.addEventListener("change", () => this.close());
    document.addEventListener("click", (event) => this.#tapped(event), { capture: true });
    document.addEventListener("keydown", (event) => {
      if (!this.isOpen || event.key !== "Escape" || document.querySelector("dialog[open]")) return;
      event.stopPropagation();
      this.close();
    }, { capture: true });
    addEventListener("popstate", () => {
      if (history.state?.sheet) return this.#leave();
      if (!this.isOpen && !this.isClosing) return;
      this.isClosing = false;
      this.hide();
      // a link to another address also closes the sheet
      if (location.href === this.href) onBack();
    });
    this.#leave();
  }

  /** Leaves the entry of a closed sheet, to which a reload or the history returned: on it, Back would do nothing. */
  #leave() {
    if (history.state?.sheet && !this.isOpen) history.back();
  }

  /** Opens the sheet if the screen is narrow, above which the element `token` stays visible. Back closes it, so it is an entry of the history. */
  open(token) {
    if (!NARROW.matches) return;
    if (!this.isOpen) {
      this.href = location.href;
      history.pushState({ sheet: true }, "", this.href);
    }
    this.isOpen = true;
    this.root.classList.add("open");
    const hidden = () => token.getBoundingClientRect().bottom + GAP - this.root.getBoundingClientRect().top;
    if (hidden() > 0) token.closest(".tokens").scrollTop += hidden();
    if (hidden() > 0) scrollBy(0, hidden());
  }

  /** Closes the sheet and removes its entry of the history. */
  close() {
    if (!this.isOpen) return;
    this.hide();
    if (!history.state?.sheet) return;
    this.isClosing = true;
    history.back();
  }

  /** Closes the sheet for another view. */
  hide() {
    this.isOpen = false;
    this.root.classList.remove("open");
  }

  /** A tap outside closes the sheet and does nothing else, except that on another token, which the sheet shows then. */
  #tapped(event) {
    if (!this.isOpen || this.root.contains(event.target) || event.target.closest("#tokens .t, dialog")) return;
    event.preventDefault();
    event.stopPropagation();
    this.close();
  }
}
