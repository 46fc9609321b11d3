// SPDX-License-Identifier: Apache-2.0
// The open session, its turns, the open view, and the updates of all.

import { drop, parse, push, replace } from "./address.js";
import { dropEarly, get } from "./api.js";
import { CompareView } from "./compare.js";
import { amount, element, part } from "./element.js";
import { EmptyView } from "./empty.js";
import { Filter } from "./filter.js";
import { Forest } from "./forest.js";
import { label } from "./glyph.js";
import { siblings } from "./group.js";
import { drawKeys, keys } from "./keys.js";
import { copy } from "./link.js";
import { watch } from "./live.js";
import { PathView } from "./path.js";
import { Pictures } from "./pictures.js";
import { SamplesView } from "./samples.js";
import { rewardOf } from "./sessions.js";
import { announce, openWith, opening, run, sessions, show as showView, shown, texts } from "./start.js";
import { next as nextTheme } from "./theme.js";

const open = { session: null, list: [], running: [], version: 1 };
/** The path that is kept for a comparison. */
let kept = null;

const pictures = new Pictures();
const view = new PathView({ texts, pictures, onLeaf: () => draw(), onEnd: ended });
const compare = new CompareView({ texts, pictures, announce, onBack: back });
const samples = new SamplesView({
  announce,
  onOpen: ({ session, leaf }) => go({ view: "path", session, leaf, at: null }, true),
  onCompare: (left, right) => go({ view: "compare", left, right, at: null }, true), onBack: back,
});
const forest = new Forest((leaf, turn) => openTurn(leaf, turn), (sequence) => follow(sequence));
const filter = new Filter(() => filtered());
const empty = new EmptyView(announce);
const views = { path: view, compare, group: samples, run, empty };

Object.assign(view.actions, { link: () => view.address() && copy(view.address(), announce), compare: keepOrCompare, group: openGroup });

/** Shows one of the views. */
function show(name) {
  if (shown === "run" && name !== "run") run.close();
  if (name !== "path") view.bottomSheet.hide();
  showView(name);
  part("export").disabled = name !== "path" || !view.isWhole;
}

/** Opens the view of an address; `isNew` makes a new entry of the history. */
async function go(address, isNew = false) {
  if (isNew) push(address);
  if (address.view === "run") {
    leaveSession();
    show("run");
    return run.open(address);
  }
  if (address.view === "path") {
    // a link names the view; what is opened on the page keeps it
    if (address.isChat !== undefined) view.showChat(address.isChat);
    if (address.session === open.session && address.leaf !== null && open.list[address.leaf]) return openPath(address.leaf, { at: address.at });
    return openSession(address.session, address.leaf, address.at);
  }
  const named = address.view === "compare" ? [address.left.session, address.right.session] : [address.session];
  if (!named.includes(open.session)) await chooseSession(named[0]).catch((error) => view.problem(error));
  show(address.view);
  await views[address.view].open(address);
}

/** Returns from a comparison or a group to the path. */
function back() {
  const address = view.address();
  if (address && address.session === open.session && view.trajectory) {
    show("path");
    push(address);
    part("tokens").focus();
  } else if (open.session !== null) openSession(open.session);
}

/** Opens no session. */
function leaveSession(session = null) {
  view.close();
  Object.assign(open, { session, list: [], running: [] });
  sessions.choose(session);
  drawHeading(null);
}

/** Shows the name of the open session, and its reward and policy if `row` of the list has them. */
function drawHeading(row) {
  const { session } = open;
  const policy = row?.policy ? `policy ${label(row.policy, 80)}` : null;
  const facts = [row && rewardOf(row), policy].filter(Boolean).map((fact) => element("span", { class: "fact num" }, fact));
  part("where").replaceChildren(...(session === null ? [] : [element("span", { class: "name" }, label(session, 128)), ...facts]));
}

/** Reads a session and its turns, without opening a path. */
async function chooseSession(session) {
  leaveSession(session);
  await look();
}

/** Opens the run as it was shown last. */
function openRun() {
  return go(run.address(), true);
}

/** Opens what is shown without an address: the run, the only session, or how to make one. */
function openFirst() {
  const address = run.address();
  if (sessions.rows.length > 1) {
    replace(address);
    return go(address);
  }
  if (sessions.rows.length) return openSession(sessions.rows[0].session);
  // a search may find nothing
  if (part("search").value) return;
  show("empty");
  return empty.open();
}

/** Opens a session at the path that ends in `leaf`, or at the path of its last turn if `leaf` is null. */
async function openSession(session, leaf = null, at = null) {
  show("path");
  try {
    await chooseSession(session);
    if (open.session !== session) return;
    const last = open.list.at(-1)?.turn ?? null;
    if (leaf !== null && !open.list[leaf]) {
      const problem = `Session ${label(session, 128)} has no turn ${leaf}.${last === null ? "" : ` Its last turn is ${last}.`}`;
      view.showMessage(problem);
      announce(problem);
    } else if (leaf !== null) await openPath(leaf, { at });
    else if (last !== null) await openPath(forest.leafOf(last));
    else if (open.running.length) follow(open.running[0]);
    else view.showMessage("This session has no turns yet.");
  } catch (error) {
    view.problem(error);
  }
}

/** Opens a path that the user has chosen in the list of turns. */
function openTurn(leaf, turn) {
  push({ view: "path", session: open.session, leaf, at: null, isChat: view.isChat });
  return openPath(leaf, { turn });
}

async function openPath(leaf, { turn = null, at = null } = {}) {
  show("path");
  replace({ view: "path", session: open.session, leaf, at: at ?? -1, isChat: view.isChat });
  await view.open(open.session, leaf, { version: open.version, classes: filter.classes, turn, at });
}

function follow(sequence) {
  show("path");
  view.follow(open.session, sequence);
}

/** Keeps the open path, or compares the kept one with it. */
function keepOrCompare() {
  const path = view.address();
  if (!path) return;
  const isKept = kept && kept.session === path.session && kept.leaf === path.leaf;
  if (kept && !isKept) {
    const left = kept;
    keep(null);
    return go({ view: "compare", left, right: { session: path.session, leaf: path.leaf }, at: null }, true);
  }
  keep(isKept ? null : { session: path.session, leaf: path.leaf });
  announce(kept ? "The path is kept. Open another one and press c to compare." : "No path is kept.");
}

function keep(path) {
  kept = path;
  drawKept();
}

/** The button says what it does with the open path. */
function drawKept() {
  const isOpen = kept && kept.session === open.session && kept.leaf === view.leaf;
  const name = kept && `${label(kept.session, 40)}, path to turn ${kept.leaf}`;
  part("compare").textContent = !kept ? "Keep to compare" : isOpen ? "Kept: open another path" : "Compare with the kept path";
  part("compare").title = kept ? `Kept: ${name} (c)` : "Keep this path, then open another one and compare (c)";
  part("compare").setAttribute("aria-pressed", String(Boolean(kept)));
}

/** Opens the samples of the prompt of the chosen turn, else of the last turn of the path that was sampled more than once. */
function openGroup() {
  if (!view.trajectory || view.leaf === null) return;
  const path = view.trajectory.head.turns.map((turn) => turn.id);
  const { chosen } = view.sheet;
  const own = chosen < 0 ? null : view.trajectory.segmentOf(chosen).turn;
  const turn = own ?? path.findLast((one) => siblings(open.list, one) > 1) ?? path[0];
  go({ view: "group", session: open.session, turn, all: false, where: "" }, true);
}

/** Draws the list of turns. */
function draw() {
  filter.draw(open.session, open.list, open.version);
  forest.draw(open.list, open.running, view.leaf, filter.shown());
  const left = filter.left ? `${amount(filter.left, "more path")} not read for this flag.` : "";
  part("filter-note").textContent = left;
  drawKept();
}

/** Applies the filters. The masks of the path are those of an export of the chosen class. */
function filtered() {
  draw();
  if (shown === "path" && view.leaf !== null && view.classes !== filter.classes) openPath(view.leaf, { at: view.sheet.chosen < 0 ? null : view.sheet.chosen });
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
    drawHeading(row);
    return draw();
  }
  let found = beginning ? null : await get(`/v1/sessions/${id}`);
  // the default is the last frozen version; the open version has all turns
  const version = (found?.frozen_versions ?? 0) + 1;
  if (found && found.version !== version) found = await get(`/v1/sessions/${id}?version=${version}`);
  if (session !== open.session) return;
  Object.assign(open, { running: requests, version, list: found?.list ?? [] });
  drawHeading(found);
  draw();
}

/** Opens the turn of a followed sequence that has ended. */
async function ended(session, rid) {
  await look().catch((error) => view.problem(error));
  const turn = open.list.findLast((one) => one.rid === rid);
  if (turn && session === open.session && shown === "path") await openPath(turn.turn, { turn: turn.turn });
}

drawKeys();
part("theme").addEventListener("click", nextTheme);
part("export").addEventListener("click", () => view.save());
part("help").addEventListener("click", () => part("keys").showModal());
part("link-button").addEventListener("click", () => view.actions.link());
part("compare").addEventListener("click", keepOrCompare);
part("group").addEventListener("click", openGroup);
for (const id of ["overview", "all-sessions"]) part(id).addEventListener("click", openRun);
keys({ theme: nextTheme, run: openRun, help: () => part("keys").showModal(), search: () => part("search").focus() }, () => ({ name: shown, actions: views[shown].actions }));

view.showMessage("Choose a session on the left. Generations sent to the data port appear there.");

// the user edits the URL, follows a link or goes back; `history.replaceState` and `pushState` do not fire this event
addEventListener("hashchange", () => {
  drop();
  const address = parse(location.hash);
  if (address) go(address).catch((error) => view.problem(error));
});
openWith((address) => go(address, true));
opening.then((isOpen) => {
  const address = parse(location.hash);
  return isOpen ? null : address ? go(address) : openFirst();
}).catch((error) => view.problem(error)).finally(dropEarly);

watch(async () => {
  await sessions.load();
  if (shown === "run") return run.update();
  if (open.session === null) return openFirst();
  const before = open.list.length;
  await look(true);
  if (shown !== "path" || view.trajectory) return;
  const asked = parse(location.hash);
  // no other turn is opened instead of one that the session may get later
  if (asked?.view === "path" && asked.leaf !== null && asked.leaf >= before) return open.list[asked.leaf] && openPath(asked.leaf, { at: asked.at });
  // if no path is open, open the newest one
  if (open.running.length) follow(open.running[0]);
  else if (open.list.length > before) await openPath(forest.leafOf(open.list.at(-1).turn));
});
