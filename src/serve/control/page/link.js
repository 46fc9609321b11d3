// Copies the address of a view.

import { format } from "./address.js";
import { part } from "./element.js";

/** Copies the link to an address. Browsers allow this only on https and localhost; elsewhere a dialog shows the link. */
export async function copy(address, announce) {
  const link = `${location.origin}${location.pathname}${format(address)}`;
  try {
    await navigator.clipboard.writeText(link);
    announce("The link is copied.");
  } catch {
    part("link-text").value = link;
    part("link").showModal();
    part("link-text").select();
  }
}
