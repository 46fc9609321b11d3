// SPDX-License-Identifier: Apache-2.0
// The first screen: the list of sessions, and the run if it is asked for or there are several sessions. It is drawn before the modules of
// the other views are loaded (main.js).

import { parse, replace } from "./address.js";
import { part } from "./element.js";
import { legend } from "./legend.js";
import { RunView } from "./run.js";
import { ALL } from "./selection.js";
import { Sessions } from "./sessions.js";
import { Texts } from "./texts.js";

/** The views that have one place on the page, and those with numbers beside them. */
const [VIEWS, NUMBERED] = [["path", "compare", "group", "run", "empty"], ["path", "compare"]];

/** The name of the open view. */
export let shown = "path";

/** Shows one of the views. */
export function show(name) {
  shown = name;
  for (const one of VIEWS) part(`${one}-view`).hidden = one !== name;
  for (const one of NUMBERED) part(`${one}-numbers`).hidden = one !== name;
  part("columns").dataset.view = name;
  part("all-sessions").setAttribute("aria-current", String(name === "run"));
}

const { promise: loaded, resolve } = Promise.withResolvers();
/** Receives the function of main.js that opens an address. Choices on the first screen wait for it. */
export const openWith = resolve;
const open = async (address) => (await loaded)(address);

/** Announces a text to screen readers. */
export const announce = (text) => { part("status").textContent = text; };
export const texts = new Texts();
export const sessions = new Sessions((session) => open({ view: "path", session, leaf: null, at: null }));
export const run = new RunView({ announce, texts, onMove: open });

/** Opens the run; resolves to whether it is the first screen. */
async function first() {
  await sessions.load();
  const asked = parse(location.hash);
  const address = asked ?? (sessions.rows.length > 1 ? ALL : null);
  if (address?.view !== "run") return false;
  if (!asked) replace(address);
  show("run");
  await run.open(address);
  return true;
}

legend(part("legend"));
export const opening = first();
// main.js shows the error
opening.catch(() => {});
