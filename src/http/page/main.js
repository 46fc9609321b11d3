// The page: which session and which path are open, and who is told when that changes.

import { get } from "./api.js";
import { about, card, tip } from "./details.js";
import { element, part } from "./element.js";
import { file, save } from "./exported.js";
import { Forest } from "./forest.js";
import { label } from "./glyph.js";
import { keys } from "./keys.js";
import { Follower, watch } from "./live.js";
import { along, histogram, mark } from "./plot.js";
import { MOST, STEPS, nats, shown } from "./scale.js";
import { Sessions } from "./sessions.js";
import { Sheet } from "./sheet.js";
import { Texts } from "./texts.js";
import { next as nextTheme, show as showTheme } from "./theme.js";
import { Trajectory } from "./trajectory.js";

const texts = new Texts();
const view = { session: null, leaf: null, list: [], running: [], trajectory: null, survey: null, plot: null };
let opening = new AbortController();
let follower = null;

const sheet = new Sheet(part("tokens"), texts, { onPick: picked, onPoint: pointed });
const sessions = new Sessions((session) => openSession(session));
const forest = new Forest((leaf, turn) => openPath(leaf, turn), follow);

function tell(said) {
  part("status").textContent = said;
}

function problem(error) {
  if (error.name === "AbortError") return;
  sheet.show(null, error.status === 410 || error.status === 404 ? error.message : `This could not be read: ${error.message}`);
}

/** Opens a session, and of it the path that was last added to, or the one that is named. */
async function openSession(session, leaf = null) {
  stop();
  Object.assign(view, { session, leaf: null, list: [], running: [], trajectory: null });
  sessions.choose(session);
  part("where").textContent = label(session, 128);
  try {
    await look();
    const last = view.list.length ? forest.leafOf(view.list.at(-1).turn) : null;
    const chosen = leaf !== null && view.list[leaf] ? leaf : last;
    if (chosen !== null) await openPath(chosen);
    else if (view.running.length) follow(view.running[0]);
    else sheet.show(null, "This session has no turn yet.");
  } catch (error) {
    problem(error);
  }
}

function stop() {
  opening.abort();
  opening = new AbortController();
  follower?.stop();
  follower = null;
}

/** Reads what turns the open session has, and what of it is running. */
async function look() {
  const { session } = view;
  if (session === null) return;
  const id = encodeURIComponent(session);
  const [running, said] = await Promise.all([get(`/v1/requests?session=${id}`), get(`/v1/sessions/${id}`).catch((error) => {
    if (error.status === 404) return null;
    throw error;
  })]);
  if (session !== view.session) return;
  view.running = running.requests;
  // a version that is frozen is not all there is
  const frozen = said?.frozen_versions ?? 0;
  view.version = frozen + 1;
  const all = frozen && said.version !== view.version ? await get(`/v1/sessions/${id}?version=${view.version}`) : said;
  if (session !== view.session) return;
  view.list = all?.list ?? [];
  forest.draw(view.list, view.running, view.leaf);
}

/** Opens the path that ends in `leaf`, and goes to one of its turns. */
async function openPath(leaf, turn = null) {
  if (view.trajectory?.head.leaf === leaf && turn !== null && !follower) return toTurn(turn);
  stop();
  const { signal } = opening;
  view.leaf = leaf;
  forest.draw(view.list, view.running, leaf);
  history.replaceState(null, "", `#/${encodeURIComponent(view.session)}/${leaf}`);
  try {
    const trajectory = await Trajectory.open(view.session, leaf, view.version, signal);
    let isFirst = true;
    while (await trajectory.more(signal)) {
      // the text of what is seen first, then of all that is there
      await texts.load(trajectory.ids.subarray(isFirst ? 0 : 0, isFirst ? Math.min(2048, trajectory.loaded) : trajectory.loaded), signal);
      if (isFirst) begin(trajectory);
      await texts.load(trajectory.ids.subarray(0, trajectory.loaded), signal);
      await texts.loadRuns(trajectory.ids, 0, trajectory.loaded, signal);
      grown();
      isFirst = false;
    }
    if (isFirst) begin(trajectory);
    part("export").disabled = false;
    if (turn !== null) toTurn(turn);
    tell(`${trajectory.total.toLocaleString("en")} tokens, ${view.survey.spikes.length.toLocaleString("en")} entropy spikes.`);
  } catch (error) {
    problem(error);
  }
}

function begin(trajectory) {
  view.trajectory = trajectory;
  sheet.show(trajectory);
  part("details").replaceChildren(element("p", { class: "sub" }, "Point at a token, or go with j and k from spike to spike."));
  grown();
}

/** More is known of the open trajectory. */
function grown() {
  const { trajectory } = view;
  sheet.refresh();
  view.survey = trajectory.survey();
  view.plot = along(trajectory, view.survey, (at) => sheet.choose(at));
  part("along").replaceChildren(view.plot);
  part("histogram").replaceChildren(histogram(trajectory, view.survey));
  part("facts").replaceChildren(about(trajectory, view.survey));
  mark(view.plot, view.survey, sheet.chosen);
  above();
}

/** The line above the tokens. */
function above() {
  const { trajectory, survey } = view;
  const { head } = trajectory;
  const missing = trajectory.loaded < trajectory.total ? `${trajectory.loaded.toLocaleString("en")} of ${trajectory.total.toLocaleString("en")} tokens read` : null;
  const thinking = head.think_token_count ? `thinking ${head.think_token_count.toLocaleString("en")} tokens, mean ${shown(head.think_entropy_mean)} nats` : null;
  const facts = [trajectory.live ? "running" : `path to turn ${head.leaf}`, `mean ${shown(survey.mean)} nats`, `${survey.spikes.length.toLocaleString("en")} spikes`, thinking, missing, texts.problem || null];
  part("about").replaceChildren(...facts.filter(Boolean).map((fact, at) => element(at ? "span" : "strong", { class: at || !trajectory.live ? "num" : "live" }, fact)));
}

function toTurn(turn) {
  const segment = view.trajectory.segments.find((one) => one.turn === turn && one.kind === "response") ?? view.trajectory.segments.find((one) => one.turn === turn);
  if (segment) sheet.choose(segment.start);
}

/** Follows a sequence that is running; when it has ended, its turn is opened. */
function follow({ rid, index }) {
  stop();
  view.leaf = null;
  const { session } = view;
  begin(Trajectory.running(session, rid, index));
  part("export").disabled = true;
  tell("Following a running generation.");
  follower = new Follower({ rid, index }, view.trajectory, async (count, finished) => {
    const { trajectory } = view;
    if (count) {
      const wasAtEnd = sheet.isAtEnd();
      await texts.load(trajectory.ids.subarray(trajectory.loaded - count, trajectory.loaded).filter((id) => id !== 0xffff_ffff));
      if (view.trajectory !== trajectory) return;
      grown();
      if (wasAtEnd && sheet.chosen < 0) sheet.toEnd();
    }
    if (!finished) return;
    await look();
    const turn = view.list.findLast((one) => one.rid === rid);
    tell(`The generation has ended: ${trajectory.loaded.toLocaleString("en")} tokens.`);
    if (turn && session === view.session) await openPath(turn.turn, turn.turn);
  });
}

function picked(at) {
  part("details").replaceChildren(...card(texts, view.trajectory, at));
  mark(view.plot, view.survey, at);
}

function pointed(at, event) {
  const box = part("tip");
  if (at < 0 || !view.trajectory || at >= view.trajectory.loaded) {
    box.hidden = true;
    return;
  }
  box.replaceChildren(...tip(texts, view.trajectory, at));
  box.hidden = false;
  const token = event.target.closest(".t").getBoundingClientRect();
  const [width, height] = [box.offsetWidth, box.offsetHeight];
  box.style.left = `${Math.max(8, Math.min(token.left, innerWidth - width - 8))}px`;
  box.style.top = `${token.bottom + 6 + height > innerHeight ? token.top - height - 6 : token.bottom + 6}px`;
}

/** Goes to the spike before or behind the chosen token. */
function spike(by) {
  const spikes = view.survey?.spikes ?? [];
  if (!spikes.length) return;
  const found = by > 0 ? spikes.findIndex((at) => at > sheet.chosen) : spikes.findLastIndex((at) => at < (sheet.chosen < 0 ? Infinity : sheet.chosen));
  if (found < 0) return tell(by > 0 ? "This was the last spike." : "This was the first spike.");
  sheet.choose(spikes[found]);
  tell(`Spike ${found + 1} of ${spikes.length}: ${sheet.label(spikes[found])}`);
}

function turnBy(by) {
  const segments = (view.trajectory?.segments ?? []).filter((segment) => segment.kind === "response");
  const at = Math.max(0, sheet.chosen);
  const found = by > 0 ? segments.find((segment) => segment.start > at) : segments.findLast((segment) => segment.start < at);
  if (found) sheet.choose(found.start);
}

async function exportView() {
  const { trajectory, survey } = view;
  if (!trajectory || part("export").disabled) return;
  const colours = await (await fetch("/page/tokens.css")).text();
  const table = [...part("facts").querySelectorAll("dt")].map((name) => [name.textContent, name.nextElementSibling.textContent]);
  const title = `${label(view.session, 128)}, path to turn ${trajectory.head.leaf}`;
  const plots = [along(trajectory, survey, () => {}), histogram(trajectory, survey)];
  save(file(trajectory, sheet, { title, table: [["session", label(view.session, 128)], ...table], plots, colours }), `tokentap-${view.session}-${trajectory.head.leaf}`);
  tell("The view is saved as one HTML file.");
}

function legend() {
  const ramp = Array.from({ length: STEPS }, (_, level) => element("span", { class: `t s e${level}`, title: `${shown(nats(level), 2)} nats` }));
  part("legend").replaceChildren(element("span", { class: "words" }, "entropy"), element("span", {}, "0"), element("span", { class: "ramp" }, ramp), element("span", {}, `${MOST}+ nats`));
}

legend();
showTheme();
part("theme").addEventListener("click", nextTheme);
part("export").addEventListener("click", exportView);
part("help").addEventListener("click", () => part("keys").showModal());
keys({ spike, turnBy, exportView, nextTheme, sheet });

const named = /^#\/([^/]+)(?:\/(\d+))?$/.exec(location.hash);
sheet.show(null, "Choose a session on the left. Generations sent to the data port appear there.");
sessions.load().then(() => {
  if (named) return openSession(decodeURIComponent(named[1]), named[2] === undefined ? null : Number(named[2]));
  if (sessions.rows.length) return openSession(sessions.rows[0].session);
}).catch(problem);

watch(async () => {
  await sessions.load();
  if (view.session === null) {
    if (sessions.rows.length) await openSession(sessions.rows[0].session);
    return;
  }
  const before = view.list.length;
  await look();
  // somebody who looks at nothing else wants to see what comes
  if (!view.trajectory && view.running.length) follow(view.running[0]);
  else if (!view.trajectory && view.list.length > before) await openPath(forest.leafOf(view.list.at(-1).turn));
});
