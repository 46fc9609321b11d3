// SPDX-License-Identifier: Apache-2.0
// The view of a run: curves by step, selections, and the table of sessions.

import assert from "node:assert/strict";
import { exec } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { promisify } from "node:util";

import { opened, read } from "./browser.mjs";
import { demo } from "./lamp.mjs";
import { reward } from "./policies.mjs";
import { grouped } from "./sampled.mjs";
import { ask, generate, ids } from "./tokentap.mjs";

/** Steps, sessions of each, and sessions without the tag `step`. */
const [STEPS, EACH, OTHERS] = [6, 40, 3];
/** The sessions of a page of the table. */
const PAGE = 200;
/** Limit: milliseconds to the first painted curves and table. */
const FIRST = 1000;

/** Runs `work` for each item, eight at a time. */
async function parallel(items, work) {
  const waiting = [...items];
  await Promise.all(Array.from({ length: 8 }, async () => {
    while (waiting.length) await work(waiting.shift());
  }));
}

/** A session of a step. Three of four have a reward; those of the first prompt of a step have one reward. */
async function sample(tap, prompts, step, at) {
  const [session, prompt] = [`s${step}-${at}`, at % 4];
  const sampling_params = { max_new_tokens: 6 + 2 * step + (at % 5), temperature: 0.4 + 0.2 * step, sampling_seed: 100 * step + at };
  await generate(tap, session, { input_ids: prompts[prompt], session_tags: { step, task: prompt < 2 ? "sea" : "land" }, sampling_params });
  if (prompt < 3) await reward(tap, session, 0, prompt === 0 ? 1 : ((at * 7 + step) % 11) / 10);
}

/** Records the time at which curves and rows are painted. */
function watchFirst() {
  new MutationObserver((_, observer) => {
    if (!document.querySelector("#run-curves svg") || !document.querySelector("#run-table tbody tr")) return;
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => { window.firstPainted = performance.now(); }));
  }).observe(document, { childList: true, subtree: true });
}

/** A browser without a clipboard shows what it would copy. */
const noClipboard = () => Object.defineProperty(navigator, "clipboard", { value: undefined });

const shown = (value, digits = 3) => (value !== 0 && Math.abs(value) < 10 ** -digits ? value.toExponential(1) : value.toFixed(digits));
const percent = (share) => `${shown(100 * share, 1)} %`;
const band = (one, digits) => (one === null ? "–" : `${shown(one.mean, digits)} (${shown(one.p10, digits)} to ${shown(one.p90, digits)})`);

/** The numbers beside the curves that one of the steps of `/v1/steps` should have. Steps without thinking have no curves of its parts. */
const expected = (step, steps) => ({
  ...(steps.some((one) => one.thinking_entropy !== null) && { thinking: band(step.thinking_entropy), answers: band(step.answer_entropy) }),
  entropy: band(step.entropy), reward: band(step.reward), length: band(step.length, 1), truncated: percent(step.truncated_share), faults: percent(step.fault_share),
  "one-reward": step.groups.count ? percent(step.groups.one_reward / step.groups.count) : "–",
});

const numbers = (page) => page.evaluate(() => Object.fromEntries([...document.querySelectorAll("#run-curves figure:not([data-curve=scatter])")].map((figure) => [figure.dataset.curve, figure.querySelector(".num").textContent])));

/** The rows of the table: the texts of their cells by column. The rows below the screen follow after the first paint. */
async function table(page) {
  await page.waitForSelector("#run-table table:not([aria-busy])");
  return page.evaluate(() => {
    const names = [...document.querySelectorAll("#run-table th")].map((cell) => cell.textContent.replace(/ [▴▾]$/, ""));
    return [...document.querySelectorAll("#run-table tbody tr")].map((row) => Object.fromEntries([...row.cells].map((cell, at) => [names[at], cell.textContent])));
  });
}

/** The cells that a session of `/v1/sessions` should have; the age depends on the clock. */
const cells = (row) => ({
  session: row.session, step: row.tags.step ?? "–", reward: row.reward === null ? "–" : shown(row.reward), "mean entropy": shown(row.mean_entropy), "above 0.672": percent(row.high_entropy_share),
  sampled: String(row.sampled_tokens), trained: String(row.trained_tokens), turns: String(row.turns), finish: row.finish_reason, policy: row.policy, faults: "–", flags: row.flags.join(", ") || "–", tags: `task=${row.tags.task}`,
});

/** The table equals that of the server for a query; returns the number of rows. */
async function equals(page, tap, query) {
  const { sessions, matched } = await ask(tap, `/v1/sessions?limit=${PAGE}&${query}`);
  await page.waitForFunction((first) => document.querySelector("#run-table tbody tr [data-session]")?.dataset.session === first, sessions[0].session);
  const rows = (await table(page)).map(({ age, ...row }) => row);
  assert.deepEqual(rows, sessions.map(cells), query);
  assert.ok((await page.textContent("#run-about")).includes(`${matched} sessions`), query);
  return rows.length;
}

const at = (page, hash) => page.waitForFunction((wanted) => location.hash === wanted, hash);

/** Clicks the curve of entropies at a step. */
async function pick(page, index, count) {
  const curve = page.locator("[data-curve=entropy] svg");
  const { width, height } = await curve.boundingBox();
  await curve.click({ position: { x: (width * (31 + (index / (count - 1)) * 262)) / 300, y: height / 2 } });
}

/** The cells that a group of `/v1/groups` should have. */
const groupCells = (row) => ({
  "first sample": row.session, step: row.step, samples: row.rewarded < row.samples ? `${row.rewarded} rewarded of ${row.samples}` : String(row.samples),
  "pass rate (reward > 0)": row.pass_rate === null ? "–" : percent(row.pass_rate), mean: row.mean === null ? "–" : shown(row.mean), deviation: row.std === null ? "–" : shown(row.std),
  lowest: row.min === null ? "–" : shown(row.min), highest: row.max === null ? "–" : shown(row.max), sessions: String(row.sessions), variance: row.one_reward ? "zero" : "",
});

/** The groups of a step: their numbers follow from the rewards of their sessions, and a click shows the samples of the step. */
async function groups(page, tap) {
  await page.evaluate(() => { location.hash = "#run/3"; });
  await equals(page, tap, "sort=-created_ms&where=step%3D3");
  await page.click("#run-show-groups");
  await at(page, "#run/3?show=groups");
  const equal = async (sort) => {
    const reply = await ask(tap, `/v1/groups?sort=${sort}&where=step%3D3&limit=${PAGE}`);
    const wanted = reply.groups.map(groupCells);
    await page.waitForFunction((text) => {
      const names = [...document.querySelectorAll("#run-table th")].map((cell) => cell.textContent.replace(/ [▴▾]$/, ""));
      return JSON.stringify([...document.querySelectorAll("#run-table tbody tr")].map((row) => Object.fromEntries([...row.cells].map((cell, one) => [names[one], cell.textContent])))) === text;
    }, JSON.stringify(wanted));
    return reply;
  };
  const { groups: found, matched, pass_above: limit } = await equal("-step");
  assert.deepEqual([found.length, matched, limit], [4, 4, 0]);
  assert.ok((await page.textContent("#run-about")).includes("4 groups"));
  const { sessions } = await ask(tap, "/v1/sessions?where=step%3D3&sort=created_ms&limit=100");
  for (const group of found) {
    const prompt = Number(group.session.split("-")[1]) % 4;
    const rewards = sessions.filter((row) => Number(row.session.split("-")[1]) % 4 === prompt).map((row) => row.reward);
    const known = rewards.filter((one) => one !== null);
    const mean = known.length ? known.reduce((sum, one) => sum + one, 0) / known.length : null;
    const deviation = known.length ? Math.sqrt(known.reduce((sum, one) => sum + (one - mean) ** 2, 0) / (known.length - 1)) : null;
    const round = (value) => (value === null ? null : Math.round(value * 1e9) / 1e9);
    assert.deepEqual([group.samples, group.rewarded, round(group.pass_rate), round(group.mean), round(group.std), group.one_reward],
      [EACH / 4, known.length, known.length ? round(known.filter((one) => one > 0).length / known.length) : null, round(mean), round(deviation), prompt === 0], `prompt ${prompt}`);
  }
  await page.click("#run-by-pass_rate");
  await equal("-pass_rate");
  await page.click("#run-by-pass_rate");
  await equal("pass_rate");
  await at(page, "#run/3?show=groups&sort=pass_rate");
  if (process.env.PICTURES) await page.screenshot({ path: join(process.env.PICTURES, "page-run-groups.png") });
  const [{ session, samples }] = found;
  await page.click(`#run-table [data-session="${session}"]`);
  await at(page, `#group/${session}/0/all?where=step%3D3`);
  await grouped(page);
  const names = await page.evaluate(() => [...document.querySelectorAll("#samples tbody .name")].map((cell) => cell.textContent));
  assert.deepEqual([names.length, names.every((name) => name.startsWith("s3-"))], [samples, true], "the prompt was also sampled in other steps");
  await page.goBack();
  await at(page, "#run/3?show=groups&sort=pass_rate");
}

/** The tokens with the highest entropies: those of all paths of the selection, with their places. */
async function highest(page, tap) {
  await page.evaluate(() => { location.hash = "#run/3?show=tokens"; });
  await page.waitForSelector("#run-table [data-position]");
  const reply = await ask(tap, "/v1/high-entropy-tokens?where=step%3D3&limit=100");
  const { sessions } = await ask(tap, "/v1/sessions?where=step%3D3&sort=created_ms&limit=100");
  const paths = new Map(await Promise.all(sessions.map(async ({ session }) => [session, await ask(tap, `/v1/sessions/${session}/paths/0?from=0&limit=100000`)])));
  const all = [...paths.values()].flatMap((path) => path.entropy.filter((value) => value !== null)).sort((a, b) => b - a);
  assert.deepEqual([reply.measured, reply.sessions, reply.next], [all.length, EACH, null]);
  assert.deepEqual(reply.tokens.map((token) => token.entropy), all.slice(0, 100));
  for (const { session, turn, position, token_id: id, before, after, entropy } of reply.tokens) {
    const path = paths.get(session);
    assert.deepEqual([turn, path.token_ids[position], path.entropy[position]], [0, id, entropy], `${session} ${position}`);
    assert.deepEqual([...before, id, ...after], path.token_ids.slice(position - before.length, position + 1 + after.length));
  }
  const rows = await table(page);
  assert.deepEqual(rows.map((row) => [row["entropy, nats"], row.session, row.turn, row.position]), reply.tokens.map((token) => [shown(token.entropy), token.session, String(token.turn), String(token.position)]));
  assert.ok(rows.every((row) => row.token.length > 0 && row.text.includes(row.token)), "each token has its text, in the text around it");
  assert.ok((await page.textContent("#run-about")).includes(`the highest entropies of ${all.length} tokens`));
  if (process.env.PICTURES) await page.screenshot({ path: join(process.env.PICTURES, "page-run-tokens.png") });
  const [first] = reply.tokens;
  await page.click("#run-table [data-position]");
  await at(page, `#/${first.session}/0/${first.position}`);
  await page.waitForFunction((chosen) => document.getElementById("tokens").getAttribute("aria-activedescendant") === `t${chosen}`, first.position);
  await page.goBack();
  await at(page, "#run/3?show=tokens");
}

/** The files of the selection have the rows of its sessions. */
async function exports(page, tap) {
  const { sessions } = await ask(tap, "/v1/sessions?where=step%3D3&sort=created_ms&limit=100");
  const files = {};
  for (const format of ["jsonl", "parquet"]) {
    const [download] = await Promise.all([page.waitForEvent("download"), page.click(`#run-${format}`)]);
    assert.equal(download.suggestedFilename(), `rows.${format}`);
    files[format] = await readFile(await download.path());
    await page.waitForFunction((text) => document.getElementById("run-note").textContent === text, `${EACH} rows saved as rows.${format}.`);
  }
  const rows = files.jsonl.toString().trim().split("\n").map((line) => JSON.parse(line)).filter((row) => row.token_ids);
  assert.deepEqual(rows.map((row) => row.session), sessions.map((row) => row.session));
  assert.ok(rows.every((row) => JSON.parse(row.tags).step === "3"));
  assert.equal(files.parquet.subarray(0, 4).toString(), "PAR1");
}

/** The copied command writes its file in the folder in which it runs. */
async function exportsBy(command) {
  const cwd = await mkdtemp(join(tmpdir(), "tokentap-page-"));
  try {
    await promisify(exec)(command, { cwd, env: { ...process.env, PATH: `${dirname(process.env.TOKENTAP)}:${process.env.PATH}` } });
    assert.equal((await readFile(join(cwd, "rows.parquet"))).subarray(0, 4).toString(), "PAR1");
  } finally {
    await rm(cwd, { recursive: true });
  }
}

export async function run() {
  const tap = await demo();
  try {
    const prompts = await Promise.all(["The lamp", "The sea", "The house", "The road<think>\n"].map((text) => ids(tap, text)));
    const all = Array.from({ length: STEPS * EACH }, (_, one) => [1 + Math.floor(one / EACH), one % EACH]);
    await parallel(all, ([step, one]) => sample(tap, prompts, step, one));
    for (let one = 0; one < OTHERS; one++) await generate(tap, `other-${one}`, { input_ids: prompts[0], session_tags: { task: "none" }, sampling_params: { max_new_tokens: 5 } });
    const { steps } = await ask(tap, "/v1/steps");
    assert.equal(steps.length, STEPS);
    assert.ok(steps.every((one) => one.thinking_entropy !== null), "the last prompt makes the model think");
    assert.ok(steps[0].groups.one_reward >= 1 && steps[0].reward.count < steps[0].sessions);
    const firsts = [];
    for (const theme of ["light", "dark", "light", "dark", "light"]) {
      const { page, context, faults } = await opened(tap.control, { theme, viewport: { width: 1240, height: 820 }, init: watchFirst });
      await page.waitForFunction(() => window.firstPainted !== undefined);
      firsts.push(await page.evaluate(() => window.firstPainted));
      assert.equal(await page.evaluate(() => location.hash), "#run", "the run is the first screen");
      assert.ok(await page.evaluate(() => document.activeElement === document.body), "no element has the name of an address");
      assert.deepEqual(await numbers(page), expected(steps.at(-1), steps), "the curves show the last step");
      if (process.env.PICTURES) await page.screenshot({ path: join(process.env.PICTURES, `page-run-${theme}.png`) });
      assert.deepEqual(faults, []);
      await context.close();
    }
    const { page, faults } = await opened(tap.control, { init: noClipboard, expected: (text) => text.includes("400") });
    await page.waitForSelector("#run-table tbody tr");
    await equals(page, tap, "sort=-created_ms");
    await page.click("#run-more");
    await page.waitForFunction((total) => new Set([...document.querySelectorAll("#run-table [data-session]")].map((node) => node.dataset.session)).size === total, STEPS * EACH + OTHERS);
    assert.ok(!await page.isVisible("#run-more"), "all sessions are in the table");
    assert.equal(await page.locator("[data-curve=scatter] circle").count(), 0.75 * STEPS * EACH, "each session with a reward is a point");
    // a click on a step selects it
    await pick(page, 2, STEPS);
    await at(page, "#run/3");
    assert.equal(await equals(page, tap, "sort=-created_ms&where=step%3D3"), EACH);
    await page.mouse.move(5, 5);
    assert.deepEqual(await numbers(page), expected(steps[2], steps));
    assert.equal(await page.inputValue("#run-step"), "=3");
    // sorted by the server, both ways, sessions without a reward last
    await page.click("#run-by-reward");
    await equals(page, tap, "sort=-reward&where=step%3D3");
    assert.equal(await page.getAttribute("#run-table th[aria-sort]", "aria-sort"), "descending");
    await page.click("#run-by-reward");
    await equals(page, tap, "sort=reward&where=step%3D3");
    assert.equal((await table(page)).at(-1).reward, "–");
    const selected = await page.evaluate(() => location.hash);
    assert.equal(selected, "#run/3?sort=reward");
    // the place in the table stays
    const scrolled = () => page.evaluate(() => document.getElementById("run-body").scrollTop);
    await page.evaluate(() => document.getElementById("run-body").scrollTo(0, 1e6));
    const below = await scrolled();
    assert.ok(below > 300, "the table is longer than the screen");
    await page.evaluate(() => document.getElementById("run-by-turns").click());
    await equals(page, tap, "sort=-turns&where=step%3D3");
    await page.evaluate(() => document.getElementById("run-by-reward").click());
    await equals(page, tap, "sort=-reward&where=step%3D3");
    await page.evaluate(() => document.getElementById("run-by-reward").click());
    await equals(page, tap, "sort=reward&where=step%3D3");
    assert.equal(await scrolled(), below);
    // a session, and back by the history and by a key
    const { session } = (await table(page))[1];
    const tokens = (await ask(tap, `/v1/sessions/${session}/paths/0`)).tokens;
    await page.click(`#run-table [data-session="${session}"]`);
    await at(page, `#/${session}/0`);
    await read(page, tokens);
    await page.goBack();
    await at(page, selected);
    await page.waitForSelector("#run-table", { state: "visible" });
    await equals(page, tap, "sort=reward&where=step%3D3");
    await page.goForward();
    await read(page, tokens);
    await page.keyboard.press("s");
    await at(page, selected);
    await page.waitForSelector("#run-table", { state: "visible" });
    // a point of the scatter
    const point = await page.locator("[data-curve=scatter] circle").nth(4).evaluate((node) => {
      const { left, top, width, height } = node.getBoundingClientRect();
      return { x: left + width / 2, y: top + height / 2, title: node.textContent };
    });
    await page.mouse.click(point.x, point.y);
    await page.waitForFunction(() => location.hash.startsWith("#/"));
    const name = await page.evaluate(() => location.hash.split("/")[1]);
    const [clicked, titled] = await Promise.all([name, point.title.split(":")[0]].map((one) => ask(tap, `/v1/sessions?sort=session&where=session%3D${one}`)));
    assert.deepEqual([clicked, titled].map(({ sessions: [row] }) => [row.reward, row.mean_entropy])[0], [titled.sessions[0].reward, titled.sessions[0].mean_entropy], "the point belongs to the session");
    await page.click("#all-sessions");
    await at(page, selected);
    assert.equal(await page.getAttribute("#all-sessions", "aria-current"), "true");
    // Back walks through the selections
    await page.selectOption("#run-step", "=5");
    await at(page, "#run/5?sort=reward");
    await page.goBack();
    await at(page, selected);
    await equals(page, tap, "sort=reward&where=step%3D3");
    // keys: the next step, and all steps
    await page.evaluate(() => document.activeElement?.blur());
    await page.keyboard.press("]");
    await at(page, "#run/4?sort=reward");
    await page.keyboard.press("[");
    await page.keyboard.press("Escape");
    await at(page, "#run?sort=reward");
    // conditions, for the curves as well
    await page.fill("#run-where", "reward>=0.5,task=sea");
    await page.keyboard.press("Enter");
    const where = encodeURIComponent("reward>=0.5,task=sea");
    await page.waitForFunction((wanted) => new URLSearchParams(location.hash.split("?")[1]).get("where") === wanted, "reward>=0.5,task=sea");
    await equals(page, tap, `sort=reward&where=${where}`);
    const { steps: some } = await ask(tap, `/v1/steps?where=${where}`);
    assert.ok(some.every((one) => one.thinking_entropy === null && one.answer_entropy !== null));
    assert.deepEqual(await numbers(page), expected(some.at(-1), some), "no curves of thinking and of answers without thinking");
    await page.selectOption("#run-step", "=2");
    await equals(page, tap, `sort=reward&where=${where},step%3D2`);
    await page.click("#run-command");
    const command = await page.inputValue("#link-text");
    assert.equal(command, `tokentap export --control ${tap.control} --where 'reward>=0.5,task=sea,step=2' --format parquet --out rows.parquet`);
    await exportsBy(command);
    await page.keyboard.press("Escape");
    await page.fill("#run-where", "reward");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.getElementById("run-note").textContent.startsWith("where: \"reward\" is not a condition"));
    assert.equal(await page.getAttribute("#run-where", "aria-invalid"), "true");
    assert.equal(await page.locator("#run-table tr, #run-curves svg").count(), 0, "nothing of another selection is shown");
    // sessions without the tag: by policy
    await page.evaluate(() => { location.hash = "#run?where=task%3Dnone"; });
    await equals(page, tap, "sort=-created_ms&where=task%3Dnone");
    assert.equal(await page.textContent("#run-by"), "Policy");
    const [policy] = (await ask(tap, "/v1/steps?by=policy&where=task%3Dnone")).steps;
    assert.deepEqual(await numbers(page), Object.fromEntries(Object.entries(expected(policy, [policy])).filter(([name]) => !["reward", "one-reward"].includes(name))));
    // by another tag
    await page.evaluate(() => { location.hash = "#run/sea?by=task"; });
    await equals(page, tap, "sort=-created_ms&where=task%3Dsea");
    const { steps: tasks } = await ask(tap, "/v1/steps?by=task");
    assert.deepEqual(await numbers(page), expected(tasks.find((one) => one.step === "sea"), tasks));
    assert.equal(await page.textContent("#run-step option"), "all values of task");
    await page.evaluate(() => { location.hash = "#run?by=task"; });
    await page.waitForFunction((total) => document.getElementById("run-about").textContent.endsWith(`${total} values of task`), tasks.length);
    await groups(page, tap);
    await highest(page, tap);
    await exports(page, tap);
    // a new step appears
    await page.focus("#run-where");
    await page.keyboard.type("ignored");
    await page.evaluate(() => { location.hash = "#run"; });
    await page.waitForFunction(() => document.querySelectorAll("#run-step option").length === 7);
    await sample(tap, prompts, STEPS + 1, 0);
    await page.waitForFunction(() => document.querySelector("#run-step option:last-child").value === "=7", null, { timeout: 20_000 });
    await page.waitForFunction(() => document.querySelector("#run-table tbody [data-session]").dataset.session === "s7-0");
    assert.deepEqual(faults, []);
    const middle = [...firsts].sort((a, b) => a - b)[2];
    assert.ok(middle < FIRST, `first paint ${firsts}`);
    return `${STEPS * EACH + OTHERS} sessions of ${STEPS} steps: curves, tables, sort and conditions equal /v1, groups their rewards, and exports the selection; first paint ${firsts.map(Math.round).join(", ")} ms; Back, keys, command, policies, a new step`;
  } finally {
    await tap.stop();
  }
}
