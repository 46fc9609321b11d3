// SPDX-License-Identifier: Apache-2.0
// Copies the address of a view, and commands.

import { format } from "./address.js";
import { part } from "./element.js";

/** Copies the link to an address. */
export function copy(address, announce) {
  return copyText(`${location.origin}${location.pathname}${format(address)}`, () => announce("The link is copied."));
}

/** Copies a text. Browsers allow this only on https and localhost; elsewhere a dialog shows the text. */
export async function copyText(text, onCopied) {
  try {
    await navigator.clipboard.writeText(text);
    onCopied();
  } catch {
    part("link-text").value = text;
    part("link").showModal();
    part("link-text").select();
  }
}

/** Downloads bytes as a file. */
export function download(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
