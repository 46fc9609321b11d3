// SPDX-License-Identifier: Apache-2.0
// The page shows the data of /v1: colours, numbers, and the tokens of running generations.

import assert from "node:assert/strict";
import { join } from "node:path";

import { opened, read, tokens } from "./browser.mjs";
import { demo, lamp } from "./lamp.mjs";
import { VOCABULARY, engine, text } from "./engine.mjs";
import { ask, generate, start } from "./tokentap.mjs";

/** The number of colour steps and the nats of the last one. Repeated here on purpose, so that a change must be made in both places. */
const [STEPS, MOST] = [24, 4];

/** The expected colour class of an entropy in nats. */
export const expected = (nats) => `e${Math.round(Math.sqrt(Math.min(nats, MOST) / MOST) * (STEPS - 1))}`;

const lightness = (colour) => Number(/oklch\(([0-9.]+)/.exec(colour)?.[1] ?? NaN);

/** Tokens have the colours of their entropies, in both themes. */
export async function opens() {
  const tap = await demo();
  try {
    const { session, leaf } = await lamp(tap);
    const path = `/v1/sessions/${session}/paths/${leaf}`;
    const [head, all] = [await ask(tap, path), await ask(tap, `${path}?from=0&limit=100000`)];
    let compared = 0;
    const shades = {};
    for (const theme of ["light", "dark"]) {
      const { page, context, faults, asked } = await opened(tap.control, { at: `/#/${session}/${leaf}`, theme, viewport: { width: 1240, height: 760 } });
      await read(page, head.tokens);
      const seen = new Map();
      // scrolls from the top to the end
      for (let scrolled = true; scrolled;) {
        for (const token of await tokens(page)) seen.set(token.at, token);
        scrolled = await page.evaluate(() => {
          const root = document.getElementById("tokens");
          const before = root.scrollTop;
          root.scrollTop += root.clientHeight / 2;
          return root.scrollTop > before;
        });
        await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
      }
      assert.equal(seen.size, head.tokens, "every token was seen");
      const byClass = new Map();
      for (const [at, token] of seen) {
        const classes = token.classes.split(" ");
        const nats = all.entropy?.[at] ?? null;
        const segment = head.segments.find(({ start, end }) => at >= start && at < end);
        assert.equal(classes.includes("s"), segment.kind === "response", `token ${at} is ${segment.kind}: ${token.classes}`);
        if (segment.kind !== "response") continue;
        assert.ok(classes.includes(expected(nats)), `token ${at} has ${nats} nats and the classes ${token.classes}`);
        assert.equal(classes.includes("m"), all.loss_mask[at] === 0, `token ${at} shows its mask`);
        const known = byClass.get(expected(nats)) ?? token.colour;
        assert.equal(token.colour, known, "each step has one colour");
        byClass.set(expected(nats), known);
        compared++;
      }
      const order = [...byClass].sort(([a], [b]) => Number(a.slice(1)) - Number(b.slice(1))).map(([, colour]) => lightness(colour));
      const falls = theme === "light" ? 1 : -1;
      order.forEach((value, at) => assert.ok(at === 0 || falls * (order[at - 1] - value) > 0.005, `${theme}: each step differs in lightness: ${order}`));
      shades[theme] = order.length;
      // prompt tokens look different
      const [quiet, loud] = await page.evaluate(() => [".t.p", ".t.s"].map((one) => getComputedStyle(document.querySelector(`#tokens ${one}`)).color));
      assert.notEqual(quiet, loud, "prompt tokens look different from sampled tokens");
      // the card of a spike has the numbers of /v1
      await page.locator("#tokens").evaluate((root) => { root.scrollTop = 0; });
      for (let step = 0; step < 3; step++) await page.keyboard.press("j");
      const at = Number((await page.getAttribute("#tokens", "aria-activedescendant")).slice(1));
      const card = await page.textContent("#details");
      for (const part of [String(all.token_ids[at]), all.entropy[at].toFixed(3), `${all.lower[at].toFixed(3)} to ${all.upper[at].toFixed(3)}`, all.logprobs[at].toFixed(3), "epoch 0"]) {
        assert.ok(card.includes(part), `${part} is in ${card}`);
      }
      const facts = await page.textContent("#facts");
      assert.ok(facts.includes(head.think_entropy_mean.toFixed(3)) && facts.includes(`${head.think_token_count} tokens`), facts);
      const forest = await page.textContent("#forest");
      for (const cause of ["sample", "forks"]) assert.ok(forest.includes(cause), `${cause} is in ${forest}`);
      assert.ok(await page.locator("#tokens .t.bytes").count() > 0, "parts of characters are shown as bytes");
      assert.ok((await page.textContent("#tokens")).includes("‹E2›‹80›‹94›"), "the dash of the prompt is three tokens");
      if (process.env.PICTURES) await page.screenshot({ path: join(process.env.PICTURES, `page-${theme}.png`) });
      assert.deepEqual(faults, []);
      assert.ok(asked.every((url) => url.startsWith(`${tap.control}/`)), String(asked));
      await context.close();
    }
    // one of a kind is in singular
    await generate(tap, "one-spike", { text: "The sea", sampling_params: { max_new_tokens: 12, ignore_eos: true, sampling_seed: 1 } });
    const { page, faults } = await opened(tap.control, { at: "/#/one-spike/0" });
    await page.waitForFunction(() => document.getElementById("status").textContent === "14 tokens, 1 entropy spike.");
    assert.ok((await page.textContent("#about")).endsWith(" nats1 spike"), await page.textContent("#about"));
    assert.deepEqual(faults, []);
    return `${compared} tokens in the colours of their entropies (${shades.light} and ${shades.dark} steps seen, light and dark), no error, no request elsewhere`;
  } finally {
    await tap.stop();
  }
}

/** Texts of a tokenizer whose tokens are single bytes: long stretches of tokens that are no complete characters. */
const BYTES = { "rare characters": "𓀀".repeat(16), "two bytes each": "éü".repeat(40), "three bytes each": "日本".repeat(60), "of all lengths": "é—𓀀".repeat(70) };

/** The characters of each token of these texts, in a page whose engine has such a tokenizer: the milliseconds, and the tokens with other ones. */
async function readBytes(cases) {
  const { Texts } = await import("/page/texts.js");
  const engine = window.fetch;
  window.fetch = async (path, { body }) => Response.json({ text: JSON.parse(body).tokens.map((bytes) => new TextDecoder().decode(Uint8Array.from(bytes))) });
  const found = [];
  for (const [name, text] of Object.entries(cases)) {
    const ids = new TextEncoder().encode(text);
    const texts = new Texts();
    const started = performance.now();
    await texts.load(ids);
    await texts.loadRuns(ids, 0, ids.length);
    const wrong = [];
    const expected = [...text];
    for (let at = 0; at < ids.length; at++) {
      // all but the first byte of a character begin with the bits 10
      const isFirst = ids[at] >> 6 !== 2;
      const own = isFirst ? expected.shift() : "";
      const [characters, split] = [texts.charactersOf(ids, at, ids.length), texts.split(ids, at, ids.length)];
      if (characters !== own || split.bytes?.join() !== String(ids[at])) wrong.push([at, characters, own, split]);
    }
    found.push([name, performance.now() - started, wrong]);
  }
  window.fetch = engine;
  return found;
}

/** Each token has its own text, also if the tokenizer drops spaces or the token is part of a character. */
export async function texts() {
  const scripted = await engine({ strips: true });
  const tap = await start("serve", ["--upstream", scripted.url, "--vocab-size", String(VOCABULARY)]);
  try {
    const input_ids = Array.from({ length: 300 }, (_, at) => 100 + 7 * at);
    await generate(tap, "spaces", { input_ids, sampling_params: { max_new_tokens: 300 } });
    const { page, faults } = await opened(tap.control, { at: "/#/spaces/0" });
    await read(page, 600);
    const { token_ids: ids } = await ask(tap, "/v1/sessions/spaces/paths/0?from=0");
    const seen = (await tokens(page)).filter(({ text }) => !text.includes("↵"));
    assert.ok(seen.length > 200);
    seen.forEach((token) => assert.equal(token.text, text(ids[token.at]), `token ${token.at}`));
    // texts split into tokens at random bytes; the page derives the bytes of each token from its text alone and the whole text
    const { wrong, open } = await page.evaluate(async () => {
      const { shares } = await import("/page/texts.js");
      const some = ["a", " ", "é", "—", "日", "本", "👩", "𝄞", "ß", "z"];
      let state = 7;
      const random = (below) => (state = (state * 48271) % 2147483647) % below;
      const wrong = [];
      let open = 0;
      for (let round = 0; round < 3000; round++) {
        const whole = Array.from({ length: 1 + random(5) }, () => some[random(some.length)]).join("");
        const bytes = [...new TextEncoder().encode(whole)];
        const cuts = [];
        for (let at = 0; at < bytes.length;) cuts.push(bytes.slice(at, at += 1 + random(4)));
        const found = shares(cuts.map((cut) => new TextDecoder().decode(Uint8Array.from(cut))), whole);
        if (!found) open++;
        else if (found.some((share, at) => share.join() !== cuts[at].join())) wrong.push([whole, cuts, found]);
      }
      return { wrong, open };
    });
    assert.deepEqual(wrong, []);
    assert.ok(open < 600, `${open} of 3,000 are undetermined`);
    for (const [name, milliseconds, wrongCharacters] of await page.evaluate(readBytes, BYTES)) {
      assert.deepEqual(wrongCharacters, [], name);
      assert.ok(milliseconds < 1000, `${name}: ${milliseconds} ms`);
    }
    assert.deepEqual(faults, []);
    return `${seen.length} tokens of a tokenizer that drops spaces; 3,000 texts cut into tokens at any byte: none wrong, ${open} undetermined; ${Object.keys(BYTES).length} texts of single bytes`;
  } finally {
    await tap.stop();
    await scripted.stop();
  }
}

/** Values that wait to be taken, or their takers for values. */
function queue() {
  const [values, takers] = [[], []];
  const put = (value) => (takers.length ? takers.shift()(value) : values.push(value));
  const take = () => (values.length ? Promise.resolve(values.shift()) : new Promise((resolve) => { takers.push(resolve); }));
  return { put, take };
}

/** A generation is shown while it runs, and its turn after it has ended. */
export async function live() {
  const [count, step] = [12_000, 1000];
  const lengths = queue();
  const scripted = await engine({ next: lengths.take });
  const tap = await start("serve", ["--upstream", scripted.url, "--vocab-size", String(VOCABULARY)]);
  try {
    const { page, faults } = await opened(tap.control);
    await page.waitForSelector("text=No sessions yet.");
    const body = { input_ids: [1, 2], rid: "long", stream: true, paced: true, sampling_params: { max_new_tokens: count, temperature: 1, ignore_eos: true } };
    const reply = fetch(`${tap.data}/sessions/running/generate`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
    const drained = (async () => { for await (const _ of (await reply).body); })();
    const statuses = new Set();
    const shown = (sampled) => page.waitForFunction((text) => document.getElementById("facts").textContent.replace(/\s/g, "").includes(`sampled${text}`), sampled.toLocaleString("en"), { timeout: 20_000 });
    for (let sampled = step; sampled <= count; sampled += step) {
      lengths.put(sampled);
      if (sampled < count) await shown(sampled);
      if (sampled === step) await page.waitForSelector("#about .live", { timeout: 20_000 });
      statuses.add(await page.textContent("#status"));
    }
    await drained;
    await read(page, count + 2);
    statuses.add(await page.textContent("#status"));
    assert.ok(statuses.size <= 3, `a screen reader gets few announcements: ${[...statuses]}`);
    const turn = await ask(tap, "/v1/sessions/running/paths/0?from=2&limit=100000");
    const seen = (await tokens(page)).filter((token) => token.at >= 2);
    seen.forEach((token) => assert.ok(token.classes.includes(expected(turn.entropy[token.at - 2])), `token ${token.at}`));
    assert.ok(seen.length > 0);
    assert.deepEqual(faults, []);
    return `${count / step - 1} sizes below ${count} tokens seen while it ran, then the turn; ${statuses.size} announcements`;
  } finally {
    await tap.stop();
    await scripted.stop();
  }
}
