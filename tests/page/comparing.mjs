// SPDX-License-Identifier: Apache-2.0
// Two paths side by side: differences of entropy where the tokens before are equal, and nowhere else.

import assert from "node:assert/strict";
import { join } from "node:path";

import { opened } from "./browser.mjs";
import { VOCABULARY, engine } from "./engine.mjs";
import { demo } from "./lamp.mjs";
import { path, policies } from "./policies.mjs";
import { generate, start } from "./tokentap.mjs";
import { expected } from "./seeing.mjs";

/** The steps to each side and the nats of the last one, repeated here on purpose. */
const [STEPS, MOST] = [8, 2];

/** The expected colour classes of a difference in nats. */
function painted(difference) {
  const step = Math.round(Math.sqrt(Math.min(Math.abs(difference), MOST) / MOST) * STEPS);
  return step === 0 ? ["d0"] : [`d${step}`, difference > 0 ? "up" : "down"];
}

/** Waits until a comparison is read. */
async function compared(page) {
  await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Comparison: "), null, { timeout: 30_000 });
}

/** The tokens of one side that have elements, while it is scrolled from the top to the end. */
async function side(page, name) {
  const seen = new Map();
  await page.hover(`#${name}`);
  await page.evaluate((id) => { document.getElementById(id).scrollTop = 0; }, name);
  for (let scrolled = true; scrolled;) {
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    const found = await page.evaluate((id) => [...document.querySelectorAll(`#${id} .t[data-at]`)].map((node) => [Number(node.dataset.at), node.className.split(" ")]), name);
    for (const [at, classes] of found) seen.set(at, classes);
    scrolled = await page.evaluate((id) => {
      const root = document.getElementById(id);
      const before = root.scrollTop;
      root.scrollTop += root.clientHeight / 2;
      return root.scrollTop > before;
    }, name);
  }
  return seen;
}

const kind = (one, at) => one.segments.find(({ start, end }) => at >= start && at < end)?.kind;

/** The differences that may be shown, from the data of /v1: up to the first token that differs, where both sampled. */
function differences({ left, right }) {
  let shared = 0;
  while (shared < Math.min(left.tokens, right.tokens) && left.token_ids[shared] === right.token_ids[shared]) shared++;
  const found = new Map();
  for (let at = 0; at <= shared; at++) {
    if (kind(left, at) !== "response" || kind(right, at) !== "response") continue;
    const [one, other] = [left.entropy?.[at] ?? null, right.entropy?.[at] ?? null];
    found.set(at, one === null || other === null ? null : other - one);
  }
  return { shared, found };
}

/** Paths that were measured at other temperatures, and estimates with another k. */
export async function measurements() {
  const tap = await demo();
  try {
    const sampling = { max_new_tokens: 10, sampling_seed: 1 };
    for (const temperature of [1, 0.5]) await generate(tap, `t${temperature}`, { text: "The sea", sampling_params: { ...sampling, temperature } });
    for (const top_k of [5, 64]) await generate(tap, `k${top_k}`, { text: "The sea", sampling_params: sampling, entropy_options: { top_k } });
    for (const [paths, expected, other] of [["t1/0/t0.5/0", "The temperatures differ (1 and 0.5)", "The k of"], ["k5/0/k64/0", "The k of the estimates differ (5 and 64)", "temperatures"]]) {
      const { page, context, faults } = await opened(tap.control, { at: `/#compare/${paths}` });
      await compared(page);
      const facts = await page.textContent("#compare-facts");
      assert.ok(facts.includes(expected) && !facts.includes(other), facts);
      assert.deepEqual(faults, []);
      await context.close();
    }
    return "other temperatures and other k are named";
  } finally {
    await tap.stop();
  }
}

/** Each token with a difference has its colour; each later one has the colour of its own entropy. */
export async function compare() {
  const tap = await demo();
  try {
    const paths = await policies(tap);
    const { shared, found } = differences(paths);
    const values = [...found.values()];
    assert.ok(values.length > 40 && shared < paths.left.tokens && values.every((value) => value !== null), `${values.length} differences`);
    assert.ok(values.some((value) => value > 0.05) && values.some((value) => value < -0.05), "the policies differ to both sides");
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    let checked = 0;
    for (const theme of ["light", "dark"]) {
      const { page, context, faults } = await opened(tap.control, { at: "/#compare/step-0/0/step-1/0", theme, viewport: { width: 1240, height: 440 } });
      await compared(page);
      for (const [name, own] of [["left", paths.left], ["right", paths.right]]) {
        const seen = await side(page, name);
        assert.equal(seen.size, own.tokens, `every token of ${name} was seen`);
        for (const [at, classes] of seen) {
          const text = `token ${at} of ${name} has ${classes}`;
          assert.equal(classes.includes("fork"), at === shared, text);
          if (kind(own, at) !== "response") continue;
          const steps = classes.filter((one) => /^(d\d|up|down|e\d+)$/.test(one));
          assert.deepEqual(steps, at <= shared ? painted(found.get(at)) : [expected(own.entropy[at])], text);
          checked++;
        }
      }
      // the other side follows, and shows the same position
      await page.hover("#left");
      await page.evaluate(() => { document.getElementById("left").scrollTop = 100; });
      await page.waitForFunction(() => document.getElementById("right").scrollTop === 100);
      const summary = await page.textContent("#compare-about");
      for (const part of [`${mean > 0 ? "+" : "−"}${Math.abs(mean).toFixed(3)} nats`, `over ${values.length} tokens after equal tokens`, `first different token: ${shared + 1}`]) assert.ok(summary.includes(part), `${part} is in ${summary}`);
      const [a, b] = [await page.textContent("#left-about"), await page.textContent("#right-about")];
      assert.ok(a.includes("step-0") && a.includes("epoch 0") && !a.includes("default") && b.includes("step-1, epoch 1"), `both policies are named: ${a} ${b}`);
      // the card has both entropies, the difference, and its interval
      const at = [...found.keys()].reduce((best, one) => (Math.abs(found.get(one)) > Math.abs(found.get(best)) ? one : best));
      await page.focus("#left");
      await page.keyboard.press("Home");
      const large = new Set();
      for (let last = null, now = 0; now !== last;) {
        last = now;
        await page.keyboard.press("j");
        now = await page.getAttribute("#left", "aria-activedescendant");
        large.add(Number(now.slice(4)));
      }
      assert.ok(large.has(at) && [...large].every((one) => found.has(one)), `j visits the largest difference at ${at}: ${[...large]}`);
      await page.evaluate((hash) => { location.hash = hash; }, `#compare/step-0/0/step-1/0/${at}`);
      await page.waitForFunction((id) => document.getElementById("right").getAttribute("aria-activedescendant") === id, `right${at}`);
      assert.equal(await page.getAttribute("#left", "aria-activedescendant"), `left${at}`, "the same position is chosen on both sides");
      const card = await page.textContent("#compare-details");
      const signed = (value) => `${value > 0 ? "+" : "−"}${Math.abs(value).toFixed(3)}`;
      for (const part of [`${signed(found.get(at))} nats`, paths.left.entropy[at].toFixed(3), paths.right.entropy[at].toFixed(3), `${signed(paths.right.lower[at] - paths.left.upper[at])} to ${signed(paths.right.upper[at] - paths.left.lower[at])}`]) {
        assert.ok(card.includes(part), `${part} is in ${card}`);
      }
      await page.setViewportSize({ width: 1240, height: 760 });
      if (process.env.PICTURES) await page.screenshot({ path: join(process.env.PICTURES, `page-compare-${theme}.png`) });
      // after the first different token there is no difference, and the card says why
      await page.focus("#right");
      await page.keyboard.press("v");
      assert.equal(await page.getAttribute("#left", "aria-activedescendant"), `left${shared}`);
      assert.ok((await page.textContent("#compare-details")).includes(signed(found.get(shared))), "the first different token has a difference: its distribution has the same context");
      await page.keyboard.press("ArrowRight");
      assert.ok((await page.textContent("#compare-details")).includes("none: the tokens before differ"));
      // own entropies instead of differences, and the swapped comparison
      await page.keyboard.press("d");
      const own = await page.evaluate((one) => document.getElementById(`right${one}`).className, shared);
      assert.ok(own.split(" ").includes(expected(paths.right.entropy[shared])), own);
      await page.keyboard.press("d");
      await page.keyboard.press("x");
      await page.waitForFunction(() => document.getElementById("left-about").textContent.includes("step-1, epoch 1"));
      await page.waitForFunction((text) => document.getElementById("compare-about").textContent.includes(text), `${signed(-mean)} nats`);
      assert.deepEqual(faults, []);
      await context.close();
    }
    return `${checked} tokens of two policies: ${values.length} differences in their colours, none after token ${shared + 1}, which differs; mean ${mean.toFixed(3)} nats, light and dark`;
  } finally {
    await tap.stop();
  }
}

/** A missing entropy, a given token, other prompts, and other ways of measuring give no difference. */
export async function without() {
  const scripted = await engine();
  const tap = await start("serve", ["--upstream", scripted.url, "--vocab-size", String(VOCABULARY), "--top-logprobs", "8"]);
  try {
    const sampling_params = { max_new_tokens: 40 };
    const input_ids = [5, 6, 7, 8];
    const first = await generate(tap, "first", { input_ids, sampling_params });
    await generate(tap, "holes", { input_ids, sampling_params, holes: [3, 9] });
    await generate(tap, "given", { input_ids: [...input_ids, ...first.output_ids.slice(0, 10)], sampling_params, hostile: first.output_ids.slice(10) });
    for (const estimator of ["lower", "upper", "renormalized"]) {
      for (const name of [estimator, `${estimator}-2`]) await generate(tap, name, { input_ids, sampling_params, entropy_options: { estimator } });
    }
    const turn = await generate(tap, "branched", { input_ids, sampling_params });
    for (let sample = 0; sample < 2; sample++) await generate(tap, "branched", { input_ids: [...input_ids, ...turn.output_ids, 7], sampling_params });
    await generate(tap, "prompt", { input_ids: [5, 6, 9, 8], sampling_params });
    const look = async (other, base = "first", leaves = [0, 0]) => {
      const { page, context, faults } = await opened(tap.control, { at: `/#compare/${base}/${leaves[0]}/${other}/${leaves[1]}`, viewport: { width: 1400, height: 860 } });
      await compared(page);
      const seen = await side(page, "right");
      const shown = [...seen].filter(([, classes]) => classes.includes("d")).map(([at]) => at).sort((a, b) => a - b);
      const facts = await page.textContent("#compare-facts");
      const about = await page.textContent("#compare-about");
      assert.deepEqual(faults, []);
      await context.close();
      return { shown, seen, facts, about };
    };
    const range = (from, to) => Array.from({ length: to - from }, (_, at) => from + at);
    const holes = await path(tap, "holes", 0);
    const missing = range(4, 44).filter((at) => holes.entropy[at] === null);
    assert.ok(missing.length > 0 && missing.length < 40, `some entropies are missing: ${missing}`);
    const lacking = await look("holes");
    assert.deepEqual(lacking.shown, range(4, 44).filter((at) => !missing.includes(at)));
    assert.ok(missing.every((at) => lacking.seen.get(at).includes("none")) && lacking.facts.includes(`${missing.length} positions`), lacking.facts);
    const given = await look("given");
    assert.deepEqual(given.shown, range(14, 44), "tokens that one path was given have no difference");
    assert.ok(given.about.includes("one path is the beginning of the other"), given.about);
    const lower = await look("lower");
    assert.deepEqual(lower.shown, []);
    assert.ok(lower.about.includes("no entropy to compare") && lower.facts.includes("measured in different ways"), lower.facts);
    for (const bound of ["lower", "upper", "renormalized"]) assert.deepEqual((await look(`${bound}-2`, bound)).shown, [], `two numbers of ${bound} have no difference`);
    const branched = await look("branched", "branched", [1, 2]);
    assert.deepEqual(branched.shown, range(45, 85), "a turn is not compared with itself");
    assert.ok(branched.facts.includes("40 tokens, not compared"), branched.facts);
    const prompt = await look("prompt");
    assert.deepEqual(prompt.shown, []);
    assert.ok(prompt.about.includes("first different token: 3"), prompt.about);
    return `no difference for ${missing.length} missing entropies, given tokens, lower bounds and another prompt`;
  } finally {
    await tap.stop();
    await scripted.stop();
  }
}
