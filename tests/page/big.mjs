// SPDX-License-Identifier: Apache-2.0
// A trajectory of 100,000 tokens: the time to the first paint, the number of elements, and the speed of navigation.

import assert from "node:assert/strict";

import { opened, read } from "./browser.mjs";
import { VOCABULARY, engine } from "./engine.mjs";
import { ask, generate, start } from "./tokentap.mjs";

const [PROMPT, TOTAL] = [2000, 100_000];
/** Limits: milliseconds to the first painted token, token elements, milliseconds of a step. */
const [FIRST, ELEMENTS, STEP] = [1000, 3000, 50];
const STEPS = 60;

/** Records the time at which the first token is painted. */
function watchFirst() {
  new MutationObserver((_, observer) => {
    if (!document.querySelector("#tokens .t.p, #tokens .t.s")) return;
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => { window.firstPainted = performance.now(); }));
  }).observe(document, { childList: true, subtree: true });
}

/** Presses keys and times each until its effect is laid out. */
async function press([keys, count]) {
  const root = document.getElementById("tokens");
  root.focus();
  const times = [];
  let most = 0;
  for (let at = 0; at < count; at++) {
    const started = performance.now();
    root.dispatchEvent(new KeyboardEvent("keydown", { key: keys[at % keys.length], bubbles: true }));
    document.body.getBoundingClientRect();
    document.getElementById(root.getAttribute("aria-activedescendant")).getBoundingClientRect();
    times.push(performance.now() - started);
    most = Math.max(most, document.querySelectorAll("#tokens .t").length);
    // most steps wait for a frame, as with a person; some share one
    if (at % 4) await new Promise((done) => requestAnimationFrame(done));
  }
  return { times: times.sort((a, b) => a - b), most };
}

const share = (times, part) => times[Math.min(times.length - 1, Math.floor(times.length * part))];

export async function big() {
  const scripted = await engine();
  const tap = await start("serve", ["--upstream", scripted.url, "--vocab-size", String(VOCABULARY), "--top-logprobs", "8"]);
  try {
    const input_ids = Array.from({ length: PROMPT }, (_, at) => 1 + (at % 900));
    await generate(tap, "big", { input_ids, sampling_params: { max_new_tokens: TOTAL - PROMPT } });
    assert.equal((await ask(tap, "/v1/sessions/big/paths/0")).tokens, TOTAL);
    const firsts = [];
    let shown;
    for (let time = 0; time < 5; time++) {
      await shown?.context.close();
      shown = await opened(tap.control, { at: "/#/big/0", init: watchFirst });
      await shown.page.waitForFunction(() => window.firstPainted !== undefined);
      firsts.push(await shown.page.evaluate(() => window.firstPainted));
    }
    const { page, faults } = shown;
    await read(page, TOTAL);
    const whole = await page.evaluate(() => performance.now());
    const last = await page.evaluate(press, [["j"], STEPS]);
    const back = await page.evaluate(press, [["k", "j", "k"], STEPS]);
    // steps between both ends
    const far = await page.evaluate(press, [["End", "k", "Home", "j"], STEPS]);
    // scrolling from the top to the end
    const scrolled = await page.evaluate(async () => {
      const root = document.getElementById("tokens");
      let [most, frames, blank] = [0, [], 0];
      for (let at = 0; at <= 100; at++) {
        const started = performance.now();
        root.scrollTop = (root.scrollHeight - root.clientHeight) * (at / 100);
        await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        frames.push(performance.now() - started);
        most = Math.max(most, document.querySelectorAll("#tokens .t").length);
        const box = root.getBoundingClientRect();
        const middle = [...document.querySelectorAll("#tokens .line")].some((line) => {
          const { top, bottom } = line.getBoundingClientRect();
          return top < box.top + box.height / 2 && bottom > box.top + box.height / 2 - 24;
        });
        blank += Number(!middle);
      }
      return { most, slowest: Math.max(...frames), blank };
    });
    const middle = share([...firsts].sort((a, b) => a - b), 0.5);
    const elements = Math.max(last.most, back.most, far.most, scrolled.most);
    const steps = [...last.times, ...back.times].sort((a, b) => a - b);
    const summary = `first paint ${firsts.map(Math.round).join(", ")} ms (median ${Math.round(middle)}), all ${TOTAL.toLocaleString("en")} tokens read after ${Math.round(whole)} ms, `
      + `at most ${elements} token elements, a step ${share(steps, 0.5).toFixed(1)} ms (95 % ${share(steps, 0.95).toFixed(1)}, most ${steps.at(-1).toFixed(1)}), from end to end ${share(far.times, 0.5).toFixed(1)} (95 % ${share(far.times, 0.95).toFixed(1)}, most ${far.times.at(-1).toFixed(1)}), scrolling ${Math.round(scrolled.slowest)} ms at most`;
    assert.ok(middle < FIRST, `first paint: ${summary}`);
    assert.ok(elements < ELEMENTS && elements > 100, `elements: ${summary}`);
    // a few steps may be slow because of other processes on the machine
    for (const times of [steps, far.times]) assert.ok(share(times, 0.98) < STEP, `steps: ${summary}`);
    assert.equal(scrolled.blank, 0, "tokens are visible at every scroll position");
    assert.deepEqual(faults, []);
    return summary;
  } finally {
    await tap.stop();
    await scripted.stop();
  }
}
