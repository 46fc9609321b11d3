// The entry point: the open session, its turns, and the updates of the views.

import { get } from "./api.js";
import { part } from "./element.js";
import { Forest } from "./forest.js";
import { label } from "./glyph.js";
import { keys } from "./keys.js";
import { legend } from "./legend.js";
import { watch } from "./live.js";
import { PathView } from "./path.js";
import { Sessions } from "./sessions.js";
import { next as nextTheme, show as showTheme } from "./theme.js";

const open = { session: null, list: [], running: [], version: 1 };
const view = new PathView({ onLeaf: (leaf) => forest.draw(open.list, open.running, leaf), onEnd: ended });
const sessions = new Sessions((session) => openSession(session));
const forest = new Forest((leaf, turn) => openPath(leaf, turn), (sequence) => view.follow(open.session, sequence));

/** Opens a session at the path that ends in `leaf`, or at the path of its last turn. */
async function openSession(session, leaf = null) {
  view.close();
  Object.assign(open, { session, list: [], running: [] });
  sessions.choose(session);
  part("where").textContent = label(session, 128);
  try {
    await look();
    if (open.session !== session) return;
    const last = open.list.length ? forest.leafOf(open.list.at(-1).turn) : null;
    const chosen = leaf !== null && open.list[leaf] ? leaf : last;
    if (chosen !== null) await openPath(chosen);
    else if (open.running.length) view.follow(session, open.running[0]);
    else view.showMessage("This session has no turns yet.");
  } catch (error) {
    view.problem(error);
  }
}

async function openPath(leaf, turn = null) {
  history.replaceState(null, "", `#/${encodeURIComponent(open.session)}/${leaf}`);
  await view.open(open.session, leaf, open.version, turn);
}

/** Fetches the running sequences of the open session, and its turns if there may be new ones. */
async function look(isSame = false) {
  const { session } = open;
  if (session === null) return;
  const id = encodeURIComponent(session);
  const { requests } = await get(`/v1/requests?session=${id}`);
  if (session !== open.session) return;
  // a session exists from its first turn on
  const beginning = requests.some(({ listed }) => !listed);
  const row = sessions.rows.find((one) => one.session === session);
  const isKnown = row && open.list.length > 0 && row.turns === open.list.length && row.frozen_versions + 1 === open.version;
  if (isKnown && isSame) {
    open.running = requests;
    return forest.draw(open.list, open.running, view.leaf);
  }
  let found = beginning ? null : await get(`/v1/sessions/${id}`);
  // the default is the last frozen version; the open version has all turns
  const version = (found?.frozen_versions ?? 0) + 1;
  if (found && found.version !== version) found = await get(`/v1/sessions/${id}?version=${version}`);
  if (session !== open.session) return;
  Object.assign(open, { running: requests, version, list: found?.list ?? [] });
  forest.draw(open.list, open.running, view.leaf);
}

/** Opens the turn of a followed sequence that has ended. */
async function ended(session, rid) {
  await look().catch((error) => view.problem(error));
  const turn = open.list.findLast((one) => one.rid === rid);
  if (turn && session === open.session) await openPath(turn.turn, turn.turn);
}

legend(part("legend"));
showTheme();
part("theme").addEventListener("click", nextTheme);
part("export").addEventListener("click", () => view.save());
part("help").addEventListener("click", () => part("keys").showModal());
keys(view, nextTheme);

view.showMessage("Choose a session on the left. Generations sent to the data port appear there.");
/** The session and the turn in the URL's fragment, or null. */
function named() {
  const parts = /^#\/([^/]+)(?:\/(\d+))?$/.exec(location.hash);
  try {
    return parts && [decodeURIComponent(parts[1]), parts[2] === undefined ? null : Number(parts[2])];
  } catch {
    return null; // not UTF-8 in percent encoding, such as `#/%` or `#/%ff`
  }
}

// the user edits the URL or follows a link; `history.replaceState` does not fire this event
addEventListener("hashchange", () => {
  if (named()) openSession(...named()).catch((error) => view.problem(error));
});
sessions.load().then(() => {
  if (named()) return openSession(...named());
  if (sessions.rows.length) return openSession(sessions.rows[0].session);
}).catch((error) => view.problem(error));

watch(async () => {
  await sessions.load();
  if (open.session === null) {
    if (sessions.rows.length) await openSession(sessions.rows[0].session);
    return;
  }
  const before = open.list.length;
  await look(true);
  // if no path is open, open the newest one
  if (!view.trajectory && open.running.length) view.follow(open.session, open.running[0]);
  else if (!view.trajectory && open.list.length > before) await openPath(forest.leafOf(open.list.at(-1).turn));
});
