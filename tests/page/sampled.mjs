// SPDX-License-Identifier: Apache-2.0
// The samples of one prompt: which turns they are, their rewards and advantages, and the way to their paths.

import assert from "node:assert/strict";
import { join } from "node:path";

import { opened, read } from "./browser.mjs";
import { VOCABULARY, engine } from "./engine.mjs";
import { demo } from "./lamp.mjs";
import { group, path, reward } from "./policies.mjs";
import { ask, generate, start } from "./tokentap.mjs";

/** Waits until a group is read. */
export async function grouped(page) {
  await page.waitForFunction(() => /samples? of one prompt\.$/.test(document.getElementById("status").textContent), null, { timeout: 30_000 });
}

/** The rows of the table: the texts of their cells by column. */
export function table(page) {
  return page.evaluate(() => {
    const names = [...document.querySelectorAll("#samples thead th")].map((cell) => cell.textContent.replace(/ [▴▾]$/, ""));
    return [...document.querySelectorAll("#samples tbody tr")].map((row) => Object.fromEntries([...row.cells].slice(1).map((cell, at) => [names[at], cell.textContent])));
  });
}

const shown = (value) => (value === null ? "–" : value.toFixed(3).replace("-", "−"));
const signed = (value) => (value > 0 ? `+${shown(value)}` : shown(value));

async function advantages(tap, body) {
  const answer = await fetch(`${tap.control}/v1/advantages`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  assert.equal(answer.status, 200);
  return (await answer.json()).groups[0];
}

/** The table has the rewards, and the advantages of the server. A sample without a reward has none. */
export async function samples() {
  const tap = await demo();
  try {
    const { session, count } = await group(tap);
    const outside = await generate(tap, session, { text: "Another prompt", sampling_params: { max_new_tokens: 5 } });
    assert.ok(outside.output_ids.length);
    await group(tap, "elsewhere", 2);
    const { token_ids: prompt } = await ask(tap, `/v1/sessions/${session}/paths/0?from=0&limit=16`);
    for (const [name, input_ids] of [["as-long", [...prompt.slice(0, 15), prompt[15] + 1]], ["shorter", [5, 6]]]) await generate(tap, name, { input_ids, sampling_params: { max_new_tokens: 5 } });
    for (let other = 0; other < 52; other++) await generate(tap, `later-${other}`, { input_ids: [7, 8], sampling_params: { max_new_tokens: 1 } });
    const paths = await Promise.all(Array.from({ length: count }, (_, leaf) => path(tap, session, leaf)));
    const rewarded = paths.filter((one) => one.reward !== null);
    assert.equal(rewarded.length, count - 1);
    const body = (more) => ({ groups: [{ id: "g", samples: rewarded.map(({ leaf, reward: value }) => ({ session, leaf, reward: value })) }], ...more });
    const answers = { grpo: await advantages(tap, body({})), "grpo-mean": await advantages(tap, body({ normalize_std: false })), egpo: await advantages(tap, body({ estimator: "egpo" })) };
    for (const theme of ["light", "dark"]) {
      const { page, context, faults } = await opened(tap.control, { at: `/#group/${session}/3`, theme, viewport: { width: 1240, height: 600 } });
      await grouped(page);
      for (const [estimator, answer] of Object.entries(answers)) {
        await page.selectOption("#estimator", estimator);
        const first = signed(answer.samples[0].advantage);
        await page.waitForFunction((text) => document.querySelector("#samples tbody tr").cells[3].textContent === text, first);
        const rows = await table(page);
        assert.equal(rows.length, count, "the turn with another prompt is not in the group");
        rows.forEach((row, at) => {
          const { leaf, reward: value, entropy, segments } = paths[at];
          const [, { start, end }] = segments;
          const known = entropy.slice(start, end).filter((one) => one !== null);
          const advantage = answer.samples.find((sample) => sample.leaf === leaf)?.advantage ?? null;
          const mean = known.reduce((sum, one) => sum + one, 0) / known.length;
          assert.deepEqual([row.sample, row.reward, row.advantage, row.tokens, row["mean entropy"], row.finish, row.policy],
            [`${session} · path to turn ${leaf}`, shown(value), advantage === null ? "–" : signed(advantage), String(end - start), mean.toFixed(3), "length", "epoch 0"], `${estimator}, sample ${at}`);
        });
      }
      await page.selectOption("#estimator", "grpo");
      const about = await page.textContent("#group-about");
      assert.ok(about.includes(`mean reward ${answers.grpo.mean.toFixed(3)}, standard deviation ${answers.grpo.std.toFixed(3)}`), about);
      assert.ok((await page.textContent("#group-note")).includes(`1 of ${count} samples has no reward.`));
      assert.ok(!(await page.textContent("#group-note")).includes("not of one kind"));
      assert.equal(await page.locator("#samples svg.small").count(), count, "each sample has its entropies");
      await page.waitForFunction((text) => document.querySelector("#samples tbody tr").cells[3].textContent === text, signed(answers.grpo.samples[0].advantage));
      if (process.env.PICTURES) await page.screenshot({ path: join(process.env.PICTURES, `page-group-${theme}.png`) });
      // the order: by reward, the highest first, missing ones last
      await page.click("#by-reward");
      const order = (await table(page)).map((row) => row.reward);
      const sorted = rewarded.map((one) => one.reward).sort((a, b) => b - a).map(shown);
      assert.deepEqual(order, [...sorted, "–"]);
      assert.equal(await page.getAttribute("#samples th[aria-sort]", "aria-sort"), "descending");
      // the lowest first, missing ones last; texts from A
      await page.click("#by-reward");
      assert.deepEqual((await table(page)).map((row) => row.reward), [...[...sorted].reverse(), "–"]);
      assert.equal(await page.getAttribute("#samples th[aria-sort]", "aria-sort"), "ascending");
      await page.click("#by-policy");
      assert.equal(await page.getAttribute("#samples th[aria-sort]", "aria-sort"), "ascending");
      // sessions that the list does not show
      assert.equal(await page.locator("#sessions [data-session=elsewhere]").count(), 0, "the list has newer sessions");
      await page.click("#others");
      await page.waitForFunction((all) => document.querySelectorAll("#samples tbody tr").length === all, count + 2);
      await grouped(page);
      const names = new Set((await table(page)).map((row) => row.sample.split(" · ")[0]));
      assert.deepEqual([...names].sort(), ["elsewhere", session], "sessions with another prompt are not in the group");
      assert.equal(await page.evaluate(() => location.hash), `#group/${session}/3/all`);
      // those that meet conditions
      await page.evaluate((to) => { location.hash = to; }, `#group/${session}/3/all?where=turns%3E2`);
      await page.waitForFunction((all) => document.querySelectorAll("#samples tbody tr").length === all, count);
      assert.ok((await page.textContent("#group-about")).includes("where turns>2"));
      await page.goBack();
      await page.waitForFunction((all) => document.querySelectorAll("#samples tbody tr").length === all, count + 2);
      await grouped(page);
      // to a path and back
      await page.click("#samples tr:has-text('path to turn 5') button");
      await page.waitForFunction(() => location.hash === "#/group/5");
      await read(page, paths[5].tokens);
      // the heading and the list have the reward of the session
      const [own] = (await ask(tap, `/v1/sessions?where=session%3D${session}`)).sessions;
      const fact = `reward ${String(Number(own.reward.toFixed(3))).replace("-", "−")}`;
      await page.waitForFunction((text) => document.getElementById("where").textContent === text, `${session}${fact}policy 0`);
      await page.fill("#search", session);
      await page.waitForFunction(([name, text]) => document.querySelector(`#sessions [data-session="${name}"]`)?.textContent.includes(text), [session, fact]);
      await page.fill("#search", "");
      await page.goBack();
      await grouped(page);
      assert.ok(await page.isVisible("#samples"));
      if (theme === "dark") {
        // a reward that is set later is read by r
        await reward(tap, session, count - 1, 2);
        await page.focus("#samples");
        await page.keyboard.press("r");
        await page.waitForFunction((text) => [...document.querySelectorAll("#samples tbody tr")].some((row) => row.cells[2].textContent === text), shown(2));
      }
      assert.deepEqual(faults, []);
      await context.close();
    }
    // a single reward has no mean and no deviation, and other temperatures are named
    for (let sample = 0; sample < 5; sample++) await generate(tap, "single", { text: "A prompt with one reward", sampling_params: { max_new_tokens: 5, ignore_eos: true, temperature: 1 + 0.1 * sample } });
    await reward(tap, "single", 1, 0.7);
    const { page, context, faults } = await opened(tap.control, { at: "/#group/single/0" });
    await grouped(page);
    const [about, note] = [await page.textContent("#group-about"), await page.textContent("#group-note")];
    assert.ok(!about.includes("standard deviation"), about);
    assert.ok(note.includes("One sample with a reward is no group"), note);
    assert.ok(note.replaceAll("\u00a0", " ").includes("not of one kind: estimate (top_k), k = 20, T = 1; estimate (top_k), k = 20, T = 1.1; estimate (top_k), k = 20, T = 1.2 and 2 more."), note);
    assert.deepEqual(faults, []);
    await context.close();
    return `${count} samples with the rewards and advantages of the server for ${Object.keys(answers).length} estimators, 2 of another session, none with another prompt`;
  } finally {
    await tap.stop();
  }
}

/** Equal lengths do not make a group, equal prompts do; equal rewards and rewards that are no number are named. */
export async function grouping() {
  const scripted = await engine();
  const tap = await start("serve", ["--upstream", scripted.url, "--vocab-size", String(VOCABULARY), "--top-logprobs", "8"]);
  try {
    const say = (input_ids, tokens) => generate(tap, "mixed", { input_ids, sampling_params: { max_new_tokens: tokens } });
    const first = await say([1, 2, 3], 6);
    await say([4, 5, 6], 7);
    await say([1, 2, 3], 8);
    await say([4, 5, 6], 9);
    await say([7, 8, 9], 10);
    // the first sample goes on, in two ways
    await say([1, 2, 3, ...first.output_ids, 50], 5);
    await say([1, 2, 3, ...first.output_ids, 51], 4);
    for (const leaf of [5, 6]) await reward(tap, "mixed", leaf, 1);
    const { list } = await ask(tap, "/v1/sessions/mixed");
    assert.deepEqual(list.map((turn) => turn.parent), [null, null, null, null, null, 0, 0]);
    const { page, faults } = await opened(tap.control, { expected: (text) => text.includes("400") });
    const leaves = async (turn) => {
      await page.evaluate((at) => {
        document.getElementById("status").textContent = "";
        location.hash = `#group/mixed/${at}`;
      }, turn);
      await grouped(page);
      return page.evaluate(() => [...document.querySelectorAll("#samples .row")].map((row) => Number(row.dataset.leaf)));
    };
    assert.deepEqual(await leaves(1), [1, 3]);
    assert.deepEqual(await leaves(4), [4]);
    assert.deepEqual(await leaves(0), [5, 6, 2], "each path of a sample is a row");
    const note = await page.textContent("#group-note");
    assert.ok(note.includes("All rewards are equal: every advantage is 0"), note);
    const rows = await table(page);
    assert.deepEqual(rows.map((row) => [row.reward, row.advantage, row.tokens]), [["1.000", "0.000", "11"], ["1.000", "0.000", "10"], ["–", "–", "8"]]);
    const own = await path(tap, "mixed", 5);
    const known = own.entropy.filter((value) => value !== null);
    assert.equal(rows[0]["mean entropy"], (known.reduce((sum, value) => sum + value, 0) / known.length).toFixed(3), "the mean is that of the sampled tokens of all turns");
    // this engine has no think tokens, so the server refuses EGPO
    await page.selectOption("#estimator", "egpo");
    await page.waitForFunction(() => document.getElementById("group-note").textContent.includes("The server computed no advantages: "));
    assert.ok((await table(page)).every((row) => row.advantage === "–"), "a refused request leaves no advantage");
    assert.deepEqual(faults, []);
    return "prompts of equal length are told apart by their ids; a sample that goes on in two ways is two rows; equal rewards and a missing one are named";
  } finally {
    await tap.stop();
    await scripted.stop();
  }
}

