// SPDX-License-Identifier: Apache-2.0
// Model output is displayed as text only: on the page, and in the exported file.

import assert from "node:assert/strict";
import { mkdtemp, readFile, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

import { SCRIPTS, launched, opened, read, tokens } from "./browser.mjs";
import { HOSTILE, TEXTS, VOCABULARY, engine } from "./engine.mjs";
import { demo, lamp } from "./lamp.mjs";
import { reward } from "./policies.mjs";
import { ask, generate, start } from "./tokentap.mjs";

/** The only elements that the page may contain. */
const OURS = new Set(["A", "ASIDE", "BODY", "BUTTON", "CAPTION", "CODE", "DD", "DIALOG", "DIV", "DL", "DT", "FORM", "H1", "H2", "H3", "HEAD", "HEADER", "HTML", "INPUT", "KBD",
  "LABEL", "LI", "LINK", "MAIN", "META", "NAV", "NOSCRIPT", "OPTION", "P", "PATH", "PRE", "RECT", "SCRIPT", "SECTION", "SELECT", "SPAN", "STRONG", "STYLE", "SVG", "TABLE", "TBODY", "TD", "TEXT", "TH", "THEAD", "TITLE", "TR", "UL"]);

/** Fails if a text became an element or a script. `within` selects the part of the page that must show the texts. */
async function harmless(page, scripts, within = "body") {
  const found = await page.evaluate((part) => ({
    names: [...new Set([...document.querySelectorAll("*")].map((node) => node.tagName.toUpperCase()))],
    scripts: document.querySelectorAll("script").length,
    handlers: [...document.querySelectorAll("*")].flatMap((node) => node.getAttributeNames().filter((name) => name.startsWith("on"))),
    hit: window.hit ?? null,
    text: document.querySelector(part).textContent,
    headings: document.querySelectorAll("h1").length,
  }), within);
  assert.deepEqual(found.names.filter((name) => !OURS.has(name)), [], "no token becomes an element");
  assert.deepEqual([found.scripts, found.handlers, found.hit, found.headings], [scripts, [], null, 1]);
  // eslint-disable-next-line no-control-regex
  assert.ok(!/[\u202a-\u202e\u2066-\u2069\u200b\u200d\ufeff\u0000-\u0008\u001b]/.test(found.text), "invisible and bidirectional characters are shown by their names");
  for (const name of ["rlo", "pdf", "lri", "zwsp", "zwj", "bom", "U+001B", "<script>window.hit = 1</script>", "1,000,000 characters"]) {
    assert.ok(found.text.includes(name), `${name} is visible`);
  }
  return found;
}

/** Opens a file without a network. */
async function alone(path) {
  const context = await (await launched()).newContext({ viewport: { width: 1200, height: 800 } });
  await context.setOffline(true);
  const page = await context.newPage();
  const faults = [];
  page.on("console", (message) => faults.push(message.text()));
  page.on("pageerror", (error) => faults.push(error.message));
  page.on("dialog", (dialog) => faults.push(dialog.message()) && dialog.dismiss());
  page.on("request", (request) => request.url().startsWith("file:") || faults.push(request.url()));
  await page.goto(pathToFileURL(path).href);
  return { page, faults, context };
}

/** Exports the view of the page; returns the path of the file. */
async function saved(page, folder) {
  const [download] = await Promise.all([page.waitForEvent("download"), page.keyboard.press("e")]);
  const path = join(folder, download.suggestedFilename());
  await download.saveAs(path);
  return path;
}

/** An exported file opens without a network and shows the same as the page. */
export async function exported() {
  const [tap, folder] = [await demo(), await mkdtemp(join(tmpdir(), "tokentap-page-"))];
  try {
    const { session, leaf } = await lamp(tap);
    const total = (await ask(tap, `/v1/sessions/${session}/paths/${leaf}`)).tokens;
    const { page, faults } = await opened(tap.control, { at: `/#/${session}/${leaf}` });
    await read(page, total);
    const path = await saved(page, folder);
    const shown = new Map((await tokens(page)).map((token) => [token.at, token]));
    const file = await alone(path);
    const found = await tokens(file.page);
    assert.equal(found.length, total, "the file has all tokens");
    for (const [at, { classes, text, colour }] of shown) {
      if (!text.includes("↵")) assert.deepEqual([found[at].classes, found[at].text, found[at].colour], [classes, text, colour], `token ${at}`);
    }
    const nats = (await ask(tap, `/v1/sessions/${session}/paths/${leaf}?from=0&limit=100000`)).entropy;
    const spike = nats.indexOf(Math.max(...nats.filter((value) => value !== null)));
    assert.ok(found[spike].title.includes(`entropy ${nats[spike].toFixed(3)} nats`) && found[spike].title.includes("interval"), found[spike].title);
    const text = await readFile(path, "utf8");
    assert.ok(text.includes("default-src &#39;none&#39;") && !/<script|https?:(?!\/\/www\.w3\.org\/2000\/svg)/.test(text), "the file has no script and no external content");
    assert.deepEqual([file.faults, faults], [[], []]);
    await file.context.close();
    return `${total} tokens in ${Math.round((await stat(path)).size / 1000)} kB, opened from a file without a network, the same colours and numbers`;
  } finally {
    await tap.stop();
    await rm(folder, { recursive: true });
  }
}

/** Tokens with markup, bidirectional and invisible characters, and a million characters. */
export async function hostile() {
  const [scripted, folder] = [await engine(), await mkdtemp(join(tmpdir(), "tokentap-page-"))];
  const tap = await start("serve", ["--upstream", scripted.url, "--vocab-size", String(VOCABULARY)]);
  try {
    const ids = TEXTS.map((_, at) => HOSTILE + at);
    await generate(tap, "hostile", { input_ids: ids, hostile: ids, sampling_params: { max_new_tokens: ids.length } });
    await generate(tap, "hostile", { input_ids: ids, hostile: [...ids].reverse(), sampling_params: { max_new_tokens: ids.length } });
    const { page, faults } = await opened(tap.control, { at: "/#/hostile/0" });
    await read(page, 2 * ids.length);
    for (let at = 0; at < 2 * ids.length; at++) {
      if (at === 0) await page.focus("#tokens");
      await page.keyboard.press(at === 0 ? "Home" : "ArrowRight");
      assert.equal(await page.getAttribute("#tokens", "aria-activedescendant"), `t${at}`);
      const card = await page.textContent("#details");
      assert.ok(card.length < 6000, `the card of token ${at} is truncated: ${card.length}`);
    }
    await page.hover("#tokens .t.s");
    assert.ok(await page.isVisible("#tip"), "the card is shown at the pointer");
    await harmless(page, SCRIPTS);
    const longest = (await tokens(page)).find((token) => token.text.includes("1,000,000 characters"));
    assert.ok(longest.text.length < 200, "a text of a million characters is truncated, with its length");
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wide <= 0, `no token makes the page wider than the window: ${wide}`);
    const names = await page.evaluate(() => [...document.querySelectorAll("#tokens .t")].every((node) => getComputedStyle(node).unicodeBidi === "isolate"));
    assert.ok(names, "the text direction of each token is isolated");
    const file = await alone(await saved(page, folder));
    await harmless(file.page, 0);
    // side by side, each token with its card
    await page.evaluate(() => { location.hash = "#compare/hostile/0/hostile/1"; });
    await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Comparison: "));
    await page.focus("#left");
    for (let at = 0; at < 2 * ids.length; at++) {
      await page.keyboard.press(at === 0 ? "Home" : "ArrowRight");
      const card = await page.textContent("#compare-details");
      assert.ok(card.length < 10_000, `the card of token ${at} is truncated: ${card.length}`);
    }
    await page.keyboard.press("Home");
    for (const side of ["#left", "#right"]) await harmless(page, SCRIPTS, side);
    // the samples, with a hostile reward
    await reward(tap, "hostile", 0, { score: 1, note: NAME });
    await page.evaluate(() => { location.hash = "#group/hostile/0"; });
    await page.waitForFunction(() => document.querySelector("#samples tbody tr td:nth-child(3)")?.textContent === "1.000");
    const title = await page.getAttribute("#samples tbody td[title]", "title");
    assert.ok(title.includes("[rlo]") && !title.includes("\u202e"), title);
    await harmless(page, SCRIPTS);
    const wider = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wider <= 0, `no text makes the page wider than the window: ${wider}`);
    assert.deepEqual([file.faults, faults], [[], []]);
    await file.context.close();
    return `${TEXTS.length} hostile tokens as prompt and as sample, on the page, side by side, in a table and in an export: no script run, no element created, no dialog, no request; 1,000,000 characters truncated with their number`;
  } finally {
    await tap.stop();
    await scripted.stop();
    await rm(folder, { recursive: true });
  }
}

/** A name with bidirectional and invisible characters and markup. */
const NAME = "tiny\u202egnp.exe\u200b<img src=x onerror=window.hit=9>";

/** Names of sessions that have a meaning in JavaScript or URLs, and the longest one. */
const SESSIONS = ["__proto__", "constructor", "toString", "hasOwnProperty", "~", "-", "...", "0", "x".repeat(128)];

/** Hostile names of models, weights, finish reasons and sessions. */
export async function names() {
  const [scripted, folder] = [await engine({ name: NAME }), await mkdtemp(join(tmpdir(), "tokentap-page-"))];
  const tap = await start("serve", ["--upstream", scripted.url, "--vocab-size", String(VOCABULARY)]);
  try {
    for (const session of SESSIONS) await generate(tap, session, { input_ids: [1, 2, 3], finish: NAME, sampling_params: { max_new_tokens: 4 } });
    const { page, faults } = await opened(tap.control, { at: "/#/__proto__/0" });
    await read(page, 7);
    const listed = await page.evaluate(() => [...document.querySelectorAll("#sessions button")].map((button) => button.dataset.session));
    assert.deepEqual([...listed].sort(), [...SESSIONS].sort());
    const shown = async () => {
      const found = await page.evaluate(() => ({ text: document.body.textContent, hit: window.hit ?? null, images: document.images.length, wide: document.documentElement.scrollWidth - innerWidth }));
      assert.deepEqual([found.hit, found.images], [null, 0]);
      assert.ok(found.wide <= 0, `no name makes the page wider than the window: ${found.wide}`);
      assert.ok(!/[\u202a-\u202e\u200b]/.test(found.text), "invisible and bidirectional characters are shown by their names");
      assert.ok(found.text.includes("tiny[rlo]gnp.exe[zwsp]<img src=x onerror=window.hit=9>"), "all other characters are unchanged");
    };
    for (const session of SESSIONS) {
      await page.click(`#sessions button[data-session="${session}"]`);
      await page.waitForFunction((name) => document.querySelector("#where .name")?.textContent === name && location.hash === `#/${name}/0`, session);
      await read(page, 7);
      await page.focus("#tokens");
      await page.keyboard.press("End");
      await shown();
    }
    for (const hash of ["#run", "#compare/__proto__/0/constructor/0", "#group/__proto__/0/all"]) {
      await page.evaluate((to) => {
        document.getElementById("status").textContent = "";
        location.hash = to;
      }, hash);
      await page.waitForFunction(() => /^All sessions: |^Comparison: |samples of one prompt\.$/.test(document.getElementById("status").textContent));
      await shown();
    }
    const named = await page.evaluate(() => document.querySelector("#samples").textContent);
    assert.ok(SESSIONS.every((name) => named.includes(`${name} · path to turn 0`)) && named.includes("tiny[rlo]gnp.exe[zwsp]"), named);
    await page.click("#group-back");
    await page.evaluate(() => new Promise((resolve) => {
      addEventListener("hashchange", () => setTimeout(resolve), { once: true });
      location.hash = "#/%";
    }));
    assert.deepEqual(faults, [], "an invalid encoding in the address is no error");
    for (const at of ["/#/%", "/#/%ff"]) {
      const link = await opened(tap.control, { at });
      await link.page.waitForSelector("#run-table tbody tr");
      assert.deepEqual(link.faults, [], `${at} opens the run`);
      await link.context.close();
    }
    const file = await alone(await saved(page, folder));
    const text = await file.page.evaluate(() => document.documentElement.outerHTML);
    assert.ok(!/[\u202a-\u202e\u200b]/.test(text) && text.includes("tiny[rlo]gnp"), "the file shows them by their names as well");
    assert.deepEqual([await file.page.evaluate(() => document.images.length), file.faults, faults], [0, [], []]);
    await file.context.close();
    return `${SESSIONS.length} hostile session names, and a model, weights and a finish reason with bidirectional characters: shown as text only`;
  } finally {
    await tap.stop();
    await scripted.stop();
    await rm(folder, { recursive: true });
  }
}

/** Names as trainers make them, and the longest one; the most lines that each may have; and a long tag. */
const [ATTEMPT, HEX, LONGEST] = ["swe-bench-django__django-16379-attempt-07-of-16-worker-3-eu1", "0f1e2d3c4b5a69788796a5b4c3d2e1f0", "n".repeat(128)];
const [LINES, TAG] = [{ [ATTEMPT]: 3, [HEX]: 2, [LONGEST]: 6, short: 2 }, "x".repeat(250)];

/** Long names are shown whole in few lines, and long tags leave room for the other columns. */
export async function long() {
  const tap = await demo();
  try {
    for (const session of Object.keys(LINES)) {
      await generate(tap, session, { text: "The lamp", session_tags: { step: 1, ...(session === "short" && { config: TAG }) }, sampling_params: { max_new_tokens: 8, sampling_seed: 3 } });
      await reward(tap, session, 0, 0.125);
    }
    for (const [width, height] of [[1400, 900], [1100, 800], [390, 844]]) {
      const { page, context, faults } = await opened(tap.control, { at: "/#run", viewport: { width, height }, isPhone: width < 800 });
      const drawn = async (first) => {
        await page.waitForSelector(`#run-table table:not([aria-busy]) ${first}`);
        return page.evaluate(() => {
          const rows = [...document.querySelectorAll("#run-table tbody tr")].map((row) => {
            const name = row.querySelector(".name");
            // a line of the text, which may be in a button with more height
            return [name.textContent, Math.round(name.offsetHeight / parseFloat(getComputedStyle(name).lineHeight))];
          });
          return { rows, table: document.querySelector("#run-table table").offsetWidth, room: document.getElementById("run-body").clientWidth, page: document.documentElement.scrollWidth - innerWidth };
        });
      };
      const sessions = await drawn("[data-session]");
      assert.deepEqual(sessions.rows.map(([name]) => name).sort(), Object.keys(LINES).sort(), "names are whole");
      for (const [name, lines] of sessions.rows) assert.ok(lines <= LINES[name], `${name} has ${lines} lines at ${width} px`);
      assert.ok(sessions.table < 1400 && sessions.page <= 0, `the table is ${sessions.table} px wide at ${width} px`);
      const tags = await page.evaluate(() => [...document.querySelectorAll("#run-table .long")].map((node) => [node.title, node.offsetHeight]));
      assert.deepEqual(tags.map(([title]) => title), [`config=${TAG}`]);
      assert.ok(tags[0][1] < 50, "a long tag has two lines");
      await page.click("#run-show-tokens");
      const highest = await drawn("[data-position]");
      for (const [name, lines] of highest.rows) assert.ok(lines <= LINES[name], `${name} has ${lines} lines at ${width} px`);
      if (width > 800) assert.ok(highest.table <= highest.room, `session, turn and position are on the screen: ${highest.table} of ${highest.room} px`);
      for (const session of [ATTEMPT, LONGEST]) {
        await page.evaluate((to) => { location.hash = to; }, `#/${session}`);
        await page.waitForFunction((text) => document.getElementById("where").textContent === text, `${session}reward 0.125policy 0`);
        const cut = await page.evaluate(() => {
          const heading = document.getElementById("where").getBoundingClientRect();
          return [...document.querySelectorAll("#where > span")].filter((node) => {
            const { right, bottom } = node.getBoundingClientRect();
            return right > heading.right + 1 || bottom > heading.bottom + 1 || node.scrollWidth > node.clientWidth + 1;
          }).map((node) => node.textContent);
        });
        assert.deepEqual(cut, [], `name, reward and policy are in the heading at ${width} px`);
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the heading is not wider than the screen");
      }
      assert.deepEqual(faults, []);
      await context.close();
    }
    return "names of 32, 60 and 128 characters whole in the tables of the run and in the heading, before reward and policy; a tag of 250 in two lines: 1400, 1100 and 390 px";
  } finally {
    await tap.stop();
  }
}
