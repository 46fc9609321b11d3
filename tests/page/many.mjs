// SPDX-License-Identifier: Apache-2.0
// A run of 20,000 sessions: the time to the first paint, and of a sort of its table and of its groups. It needs a release build and some
// minutes, so it runs only if it is named.

import assert from "node:assert/strict";

import { opened } from "./browser.mjs";
import { demo } from "./lamp.mjs";
import { reward } from "./policies.mjs";
import { ask, generate } from "./tokentap.mjs";

/** Sessions, steps, and samples of a prompt. */
const [SESSIONS, STEPS, SAMPLES] = [20_000, 100, 8];
/** Requests at once while sessions are created. */
const AT_ONCE = 16;
/** Limits of the medians, in milliseconds: first paint, and sort. */
const [FIRST, SORT] = [300, 100];
/** How often the page is opened, how often each sort is done, and how often a reply is requested from the server alone. */
const [LOADS, ROUNDS, REPLIES] = [5, 3, 7];
/** The columns that are clicked, with the orders that they request. */
const TABLES = {
  sessions: { path: "/v1/sessions", rows: ({ sessions }) => sessions, clicks: [["reward", "-reward"], ["reward", "reward"], ["mean_entropy", "-mean_entropy"], ["sampled_tokens", "-sampled_tokens"], ["session", "session"], ["turns", "-turns"]] },
  groups: { path: "/v1/groups", rows: ({ groups }) => groups, clicks: [["pass_rate", "-pass_rate"], ["pass_rate", "pass_rate"], ["std", "-std"], ["mean", "-mean"]] },
};

/** Creates the sessions: the samples of a prompt are neighbours, and each has a reward. */
async function create(tap) {
  let next = 0;
  const one = async (at) => {
    const step = 1 + Math.floor((at * STEPS) / SESSIONS);
    const sampling_params = { max_new_tokens: 8 + (at % 9), temperature: 0.8, sampling_seed: at, ignore_eos: true };
    await generate(tap, `s${at}`, { input_ids: [5, 6, 7, step, Math.floor(at / SAMPLES) % 200], session_tags: { step, task: at % 2 ? "sea" : "land" }, sampling_params });
    await reward(tap, `s${at}`, 0, (at * 7) % 11 > 5 ? 1 : 0);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, async () => {
    while (next < SESSIONS) await one(next++);
  }));
}

/** Records the time at which curves and rows are painted, and whether the rows then fill the screen. */
function watchFirst() {
  new MutationObserver((_, observer) => {
    if (!document.querySelector("#run-curves svg") || !document.querySelector("#run-table tbody tr")) return;
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => {
      const time = performance.now();
      window.first = { time, isFilled: document.querySelector("#run-table tbody").getBoundingClientRect().bottom >= innerHeight };
    }));
  }).observe(document, { childList: true, subtree: true });
}

/** Clicks the title of a column; returns the milliseconds until the rows on the screen are painted, and until all rows are. */
function sort(id) {
  const painted = (done) => requestAnimationFrame(() => setTimeout(done));
  const [root, started] = [document.getElementById("run-table"), performance.now()];
  const before = root.firstElementChild;
  return new Promise((resolve) => {
    let screen;
    const observer = new MutationObserver(() => {
      const table = root.firstElementChild;
      if (table === before) return;
      if (!screen) {
        screen = new Promise((done) => painted(() => done(performance.now() - started)));
      }
      if (table.hasAttribute("aria-busy")) return;
      observer.disconnect();
      painted(async () => resolve({ screen: await screen, whole: performance.now() - started }));
    });
    observer.observe(root, { childList: true, subtree: true, attributes: true, attributeFilter: ["aria-busy"] });
    document.getElementById(id).click();
  });
}

const median = (times) => [...times].sort((a, b) => a - b)[Math.floor(times.length / 2)];
const round = (times) => times.map(Math.round).join(", ");

/** The median of the milliseconds that a reply takes, without the page. */
async function replied(tap, path) {
  const times = [];
  for (let at = 0; at < REPLIES; at++) {
    const started = performance.now();
    await ask(tap, path);
    times.push(performance.now() - started);
  }
  return median(times);
}

/** Sorts a table by each column; every order is that of the server. */
async function sorted(page, tap, { path, rows, clicks }) {
  const times = [];
  for (let round = 0; round < ROUNDS; round++) {
    for (const [column, order] of clicks) {
      await page.waitForSelector("#run-table table:not([aria-busy])");
      times.push(await page.evaluate(sort, `run-by-${column}`));
      const expected = rows(await ask(tap, `${path}?limit=200&sort=${order}`)).map(({ session }) => session);
      const shown = await page.evaluate(() => [...document.querySelectorAll("#run-table tbody [data-session]")].map((node) => node.dataset.session));
      assert.deepEqual(shown, expected, order);
    }
  }
  return times;
}

export async function many() {
  const tap = await demo();
  try {
    await create(tap);
    assert.equal((await ask(tap, "/v1/sessions?sort=session&limit=1")).matched, SESSIONS);
    const firsts = [];
    let view;
    for (let time = 0; time < LOADS; time++) {
      await view?.context.close();
      view = await opened(tap.control, { init: watchFirst });
      await view.page.waitForFunction(() => window.first !== undefined);
      const { time: first, isFilled } = await view.page.evaluate(() => window.first);
      assert.ok(isFilled, "the first rows fill the screen");
      firsts.push(first);
    }
    const { page, faults } = view;
    const sorts = { sessions: await sorted(page, tap, TABLES.sessions) };
    await page.click("#run-show-groups");
    await page.waitForSelector("#run-table [data-step]");
    sorts.groups = await sorted(page, tap, TABLES.groups);
    assert.deepEqual(faults, []);
    const lines = [["first paint", median(firsts), FIRST, round(firsts)]];
    for (const [name, times] of Object.entries(sorts)) {
      const [screen, whole] = ["screen", "whole"].map((kind) => times.map((time) => time[kind]));
      lines.push([`sort of ${name}`, median(screen), SORT, round(screen)], [`  with the rows below the screen`, median(whole), null, round(whole)]);
    }
    for (const path of ["/v1/steps?by=step", "/v1/sessions?limit=200&sort=-reward", "/v1/groups?limit=200&sort=-std"]) lines.push([`  of these, ${path}`, await replied(tap, path), null, `median of ${REPLIES}`]);
    const table = lines.map(([name, middle, limit, all]) => `  ${name.padEnd(48)} ${middle.toFixed(0).padStart(5)} ms ${(limit === null ? "" : `below ${limit}`).padEnd(10)} ${all}`).join("\n");
    const slow = lines.filter(([, middle, limit]) => limit !== null && middle >= limit).map(([name]) => name);
    assert.deepEqual(slow, [], `too slow, median of all times:\n${table}`);
    return `${SESSIONS.toLocaleString("en")} sessions of ${STEPS} steps, median and all times:\n${table}`;
  } finally {
    await tap.stop();
  }
}
