// SPDX-License-Identifier: Apache-2.0
// Finding a token: by its text, by a link, and by the class and the flags of its turn.

import assert from "node:assert/strict";

import { opened, read, tokens } from "./browser.mjs";
import { HOSTILE, TEXTS, VOCABULARY, engine, text } from "./engine.mjs";
import { demo, lamp } from "./lamp.mjs";
import { named, path, update } from "./policies.mjs";
import { ask, generate, start } from "./tokentap.mjs";

const chosen = async (page) => Number((await page.getAttribute("#tokens", "aria-activedescendant"))?.slice(1) ?? -1);

/** Types a text into the search field and waits for the number of matches. */
async function search(page, query, matches) {
  await page.fill("#find", query);
  await page.waitForFunction((end) => new RegExp(`(^| of )${end}( found)?$`).test(document.getElementById("find-count").textContent), matches.toLocaleString("en"));
}

/** Every match is found, also across tokens; the keys go to each of them. */
export async function find() {
  const scripted = await engine();
  const tap = await start("serve", ["--upstream", scripted.url, "--vocab-size", String(VOCABULARY)]);
  try {
    const input_ids = Array.from({ length: 500 }, (_, at) => 100 + ((7 * at) % 800));
    await generate(tap, "words", { input_ids, sampling_params: { max_new_tokens: 3000 } });
    const { token_ids: all } = await path(tap, "words", 0);
    const whole = all.map(text).join("");
    const starts = [];
    all.reduce((at, id) => starts.push(at) && at + text(id).length, 0);
    const { page, faults } = await opened(tap.control, { at: "/#/words/0" });
    await read(page, all.length);
    // a text that begins inside a token and ends inside a later one, in capitals; and a text with the signs of patterns
    const from = starts[700] + 2;
    const spanning = whole.slice(from, starts[703] + 2);
    let visited = 0;
    for (const query of ["lo", "min", spanning.toUpperCase()]) {
      const expected = [];
      for (let at = whole.toLowerCase().indexOf(query.toLowerCase()); at >= 0; at = whole.toLowerCase().indexOf(query.toLowerCase(), at + query.length)) expected.push(starts.findLastIndex((begin) => begin <= at));
      assert.ok(expected.length > 0);
      await page.focus("#tokens");
      await page.keyboard.press("Home");
      await page.keyboard.press("f");
      await search(page, query, expected.length);
      await page.focus("#tokens");
      await page.keyboard.press("Home");
      const found = [];
      for (let step = 0; step < Math.min(12, expected.length); step++) {
        await page.keyboard.press("n");
        found.push(await chosen(page));
      }
      const firsts = [...new Set(expected)].filter((at) => at > 0);
      const seen = [...new Set(found)];
      assert.deepEqual(seen, firsts.slice(0, seen.length), `n visits the matches of ${query}`);
      visited += found.length;
      await page.keyboard.press("N");
      if (seen.length > 1) assert.equal(await chosen(page), seen.at(-2), "N goes back");
    }
    const marked = (await page.evaluate(() => [...document.querySelectorAll("#tokens .t.hit")].map((node) => Number(node.dataset.at))));
    assert.deepEqual(marked, [700, 701, 702, 703], "all tokens of a match are marked");
    await page.focus("#find");
    await search(page, "(.*)[-/", 0);
    await page.fill("#find", "");
    await page.waitForFunction(() => document.getElementById("find-count").textContent === "" && !document.querySelector("#tokens .hit"));
    // Enter and Shift+Enter in the field, and around the end
    await page.fill("#find", spanning);
    await page.keyboard.press("Enter");
    await page.keyboard.press("Shift+Enter");
    assert.equal(await chosen(page), 700);
    assert.deepEqual(faults, []);
    return `matches in ${all.length.toLocaleString("en")} tokens, ${visited} visited; one spans 4 tokens; signs of patterns are text`;
  } finally {
    await tap.stop();
    await scripted.stop();
  }
}

/** Characters of several tokens, and hostile texts, are found as text. */
export async function odd() {
  const scripted = await engine();
  const tap = await start("serve", ["--upstream", scripted.url, "--vocab-size", String(VOCABULARY)]);
  const lit = await demo();
  try {
    const hostile = TEXTS.map((_, at) => HOSTILE + at);
    await generate(tap, "odd", { input_ids: [1, 2, 3], hostile, sampling_params: { max_new_tokens: hostile.length } });
    const { page, faults } = await opened(tap.control, { at: "/#/odd/0" });
    await read(page, hostile.length + 3);
    for (const [query, at] of [["<img src=x onerror", 1], ["\u202egnp", 5], ["XXXXX".repeat(100), 16]]) {
      await search(page, query, query.startsWith("X") ? 2000 : 1);
      await page.waitForFunction((id) => document.getElementById("tokens").getAttribute("aria-activedescendant") === id, `t${3 + at}`);
    }
    const { session, leaf } = await lamp(lit);
    const other = await opened(lit.control, { at: `/#/${session}/${leaf}` });
    await read(other.page, (await ask(lit, `/v1/sessions/${session}/paths/${leaf}`)).tokens);
    await search(other.page, "lamp — and", 1);
    assert.equal(await other.page.evaluate(() => window.hit ?? null), null);
    assert.deepEqual([faults, other.faults], [[], []]);
    return "markup, bidirectional characters, a million characters, and a dash of three tokens";
  } finally {
    await lit.stop();
    await tap.stop();
    await scripted.stop();
  }
}

/** A link opens the session, the path and the token. */
export async function link() {
  const tap = await demo();
  try {
    const { session, leaf } = await lamp(tap);
    const all = await path(tap, session, leaf);
    const at = 555;
    const { page, context, faults } = await opened(tap.control, { at: `/#/${session}/${leaf}/${at}` });
    await read(page, all.tokens);
    assert.equal(await chosen(page), at);
    assert.ok(await page.isVisible(`#t${at}`), "the token is scrolled into view");
    assert.ok((await page.textContent("#details")).includes(`${at + 1} of ${all.tokens}`));
    await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: tap.control });
    // moving the choice changes the address, and l copies it
    await page.focus("#tokens");
    await page.keyboard.press("ArrowRight");
    await page.waitForFunction((hash) => location.hash === hash, `#/${session}/${leaf}/${at + 1}`);
    await page.keyboard.press("l");
    await page.waitForFunction(() => document.getElementById("status").textContent === "The link is copied.");
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), `${tap.control}/#/${session}/${leaf}/${at + 1}`);
    // without permission to copy a dialog shows it
    await page.evaluate(() => Object.defineProperty(navigator, "clipboard", { value: undefined }));
    await page.click("#link-button");
    assert.equal(await page.inputValue("#link-text"), `${tap.control}/#/${session}/${leaf}/${at + 1}`);
    await page.keyboard.press("Escape");
    // a token that the path does not have
    await page.evaluate((hash) => { location.hash = hash; }, `#/${session}/${leaf}/${all.tokens}`);
    await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("This path has no token"));
    assert.equal(await page.textContent("#details"), `This path has no token ${all.tokens + 1}.`);
    // a turn that the session does not have yet: no other one is opened, and it is when it exists
    const { list } = await ask(tap, `/v1/sessions/${session}`);
    const last = list.at(-1).turn;
    await page.evaluate((hash) => { location.hash = hash; }, `#/${session}/${last + 2}/3`);
    await page.waitForFunction((line) => document.querySelector("#tokens .empty")?.textContent === line, `Session ${session} has no turn ${last + 2}. Its last turn is ${last}.`);
    for (const more of [1, 2]) {
      await generate(tap, session, { text: `The sea ${more}`, sampling_params: { max_new_tokens: 5 } });
      await page.waitForSelector(`#forest [data-turn="${last + more}"]`);
      if (more === 1) assert.ok(await page.isVisible("#tokens .empty"), "no other turn is opened");
    }
    await page.waitForFunction((hash) => location.hash === hash && document.getElementById("tokens").getAttribute("aria-activedescendant") === "t3", `#/${session}/${last + 2}/3`);
    // links to other views
    for (const [hash, shown] of [[`#compare/${session}/${leaf}/${session}/2/40`, "#left40"], [`#group/${session}/1`, "#samples table"], [`#/${session}/2/1`, "#t1"]]) {
      const other = await opened(tap.control, { at: `/${hash}` });
      await other.page.waitForSelector(shown);
      assert.deepEqual(other.faults, [], hash);
      await other.context.close();
    }
    assert.deepEqual(faults, []);
    return `a link chooses token ${at} of ${all.tokens}; the address follows the choice; copied, or shown where copying is not allowed`;
  } finally {
    await tap.stop();
  }
}

const turns = (page) => page.evaluate(() => [...document.querySelectorAll("#forest [data-turn]")].map((node) => Number(node.dataset.turn)));

/** The filters show the turns of a class or with a flag; the masks of the path are those of an export of the class. */
export async function filter() {
  const tap = await demo();
  try {
    const say = (name, tokens, seed) => fetch(`${tap.data}/sessions/classes/generate`, {
      method: "POST", headers: { "content-type": "application/json", ...(name && { "x-claude-code-request-class": name }) },
      body: JSON.stringify({ input_ids: tokens, sampling_params: { max_new_tokens: 12, sampling_seed: seed, ignore_eos: true } }),
    }).then((answer) => answer.json());
    let prompt = [299, 467];
    for (const [at, name] of ["main", "compaction", "main", "auxiliary", null].entries()) {
      if (at === 2) await update(tap, "later");
      const { output_ids } = await say(name, prompt, at);
      prompt = [...prompt, ...output_ids, 300 + at];
    }
    const { list } = await ask(tap, "/v1/sessions/classes");
    const named = (name) => list.filter((turn) => (turn.labels?.request_class ?? "unlabelled") === name).map((turn) => turn.turn);
    assert.deepEqual(["main", "compaction", "auxiliary", "unlabelled"].map(named), [[0, 2], [1], [3], [4]], JSON.stringify(list.map((turn) => turn.labels)));
    const { page, faults } = await opened(tap.control, { at: "/#/classes/4" });
    const all = await path(tap, "classes", 4);
    await read(page, all.tokens);
    assert.deepEqual(await turns(page), [0, 1, 2, 3, 4]);
    for (const name of ["main", "compaction", "auxiliary", "unlabelled"]) {
      await page.selectOption("#class", name);
      await page.waitForFunction((text) => document.getElementById("turns-left")?.textContent === text, `${named(name).length} of 5 turns`);
      assert.deepEqual(await turns(page), named(name));
      const expected = await ask(tap, `/v1/sessions/classes/paths/4?from=0&limit=1000&classes=${name}`);
      await page.waitForFunction((masks) => {
        const sampled = [...document.querySelectorAll("#tokens .t.s")];
        return sampled.length > 0 && sampled.every((node) => node.classList.contains("m") === (masks[Number(node.dataset.at)] === 0));
      }, expected.loss_mask);
    }
    // only the trained tokens keep their colours
    const colours = async () => (await tokens(page)).filter((token) => token.classes.includes(" m")).map((token) => token.colour);
    assert.ok((await colours()).some((colour) => colour !== "rgba(0, 0, 0, 0)"));
    await page.focus("#tokens");
    await page.keyboard.press("m");
    assert.equal(await page.getAttribute("#trained", "aria-pressed"), "true");
    const plain = await colours();
    assert.ok(plain.length > 10 && plain.every((colour) => colour === "rgba(0, 0, 0, 0)"), `${plain}`);
    // flags: of rows, and of turns
    await page.selectOption("#class", "");
    await page.selectOption("#flag", "crosses_versions");
    await page.waitForFunction(() => document.getElementById("turns-left")?.textContent === "5 of 5 turns");
    await page.selectOption("#flag", "any fault");
    await page.waitForFunction(() => document.getElementById("turns-left")?.textContent === "0 of 5 turns");
    await page.selectOption("#flag", "policy_uncertain");
    await page.waitForFunction(() => document.getElementById("turns-left")?.textContent === "0 of 5 turns");
    assert.deepEqual(faults, []);
    return "five turns of four classes; the stripes are those of an export of each class; a row that crosses versions";
  } finally {
    await tap.stop();
  }
}

/** The value of a name in the details of the chosen token; null without it. */
const fact = (page, name) => page.evaluate((wanted) => {
  const term = [...document.querySelectorAll("#details dt")].find((node) => node.textContent === wanted);
  return term?.nextElementSibling.textContent ?? null;
}, name);

/** The details of a token name its adapter, and the filter finds the rows of several adapters. */
export async function adapters() {
  const scripted = await engine();
  const tap = await start("serve", ["--upstream", scripted.url, "--vocab-size", String(VOCABULARY)]);
  try {
    // a name with markup is text
    const [coder, judge] = ["coder", "<b>judge</b>"];
    const say = async (input_ids, lora_path) => {
      const reply = await generate(tap, "adapters", { input_ids, ...(lora_path && { lora_path }), sampling_params: { max_new_tokens: 6 } });
      return [...input_ids, ...reply.output_ids];
    };
    await named(tap, "coder-7", coder);
    const mixed = await say([5, 6, 7], coder);
    await say([...mixed, 8], judge);
    const alone = await say([9, 10], coder);
    await say([11, 12, 13, 14]);
    await named(tap, "coder-8", coder);
    await say([...alone, 15], coder);
    const { list } = await ask(tap, "/v1/sessions/adapters");
    assert.deepEqual(list.map((turn) => turn.parent), [null, 0, null, null, 2]);

    const { page, faults } = await opened(tap.control, { at: "/#/adapters/1/3" });
    await read(page, 16);
    // of two adapters in one path, of another epoch of the first one, of a prompt, and of the base weights
    for (const [leaf, at, total, expected] of [
      [1, 3, 16, "coder, epoch 1, coder-7"], [1, 10, 16, "<b>judge</b>, epoch 0"], [1, 9, 16, null],
      [4, 14, 15, "coder, epoch 2, coder-8"], [3, 4, 10, null],
    ]) {
      await page.evaluate((hash) => { location.hash = hash; }, `#/adapters/${leaf}/${at}`);
      await page.waitForFunction((place) => [...document.querySelectorAll("#details dd")].some((node) => node.textContent === place), `${at + 1} of ${total}`);
      assert.equal(await fact(page, "adapter"), expected, `token ${at} of path ${leaf}`);
    }
    assert.equal(await fact(page, "policy"), "w1, epoch 0", "the token of the base weights");
    assert.equal(await page.textContent("#where"), "adapterspolicy coder-8", "the policy of the latest turn is that of its adapter");
    for (const [flag, expected] of [["mixed_adapters", [0, 1]], ["crosses_versions", [0, 1, 2, 4]]]) {
      await page.selectOption("#flag", flag);
      await page.waitForFunction((text) => document.getElementById("turns-left")?.textContent === text, `${expected.length} of 5 turns`);
      assert.deepEqual((await turns(page)).sort(), expected, flag);
    }
    assert.deepEqual(faults, []);
    return "tokens of two adapters, of two epochs of one, and of the base weights; mixed_adapters finds one path of three";
  } finally {
    await tap.stop();
    await scripted.stop();
  }
}
