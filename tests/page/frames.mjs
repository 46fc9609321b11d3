// SPDX-License-Identifier: Apache-2.0
// Frames while 100,000 tokens are scrolled: the intervals between them, and the CPU time of the page's main thread in each.

import assert from "node:assert/strict";

import { opened, read } from "./browser.mjs";
import { VOCABULARY, engine } from "./engine.mjs";
import { generate, start } from "./tokentap.mjs";

const [PROMPT, TOTAL] = [2000, 100_000];
/** Seconds of scrolling. */
const SECONDS = 6;
/** The scrolled views, with pixels per frame: slow reading, a fast wheel, and jumps of more than a screen; and a comparison. */
const RUNS = [["#/big/0", "tokens", 40], ["#/big/0", "tokens", 240], ["#/big/0", "tokens", 1200], ["#compare/big/0/big/1", "left", 240]];
/** Milliseconds of a frame at 60 frames a second. */
const FRAME = 1000 / 60;
/** The part of the frames whose CPU time must be below that of a frame. Intervals are reported only: they depend on other processes. */
const WITHIN = 0.9;

/** Scrolls by `pixels` in each frame, back at the ends, and returns the intervals between frames. */
async function scroll([id, pixels, seconds]) {
  const root = document.getElementById(id);
  root.scrollTop = root.scrollHeight / 3;
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const times = [];
  const box = root.getBoundingClientRect();
  let [blank, by] = [0, pixels];
  for (const end = performance.now() + seconds * 1000; performance.now() < end;) {
    const before = root.scrollTop;
    root.scrollTop += by;
    if (root.scrollTop === before) by = -by;
    times.push(await new Promise((done) => requestAnimationFrame(done)));
    // the frame before this one was painted with these elements
    blank += Number(!document.elementFromPoint(box.left + 60, box.top + box.height / 2)?.closest(".line"));
  }
  return { intervals: times.slice(1).map((time, at) => time - times[at]), blank };
}

/** Records `devtools.timeline` events while `act` runs. Returns the events of the page's main thread. */
async function traced(page, act) {
  const session = await page.context().newCDPSession(page);
  const events = [];
  session.on("Tracing.dataCollected", ({ value }) => events.push(...value));
  await session.send("Tracing.start", { transferMode: "ReportEvents", traceConfig: { includedCategories: ["devtools.timeline", "disabled-by-default-devtools.timeline"] } });
  const result = await act();
  const complete = new Promise((resolve) => session.once("Tracing.tracingComplete", resolve));
  await session.send("Tracing.end");
  await complete;
  await session.detach();
  const main = events.find((event) => event.name === "FireAnimationFrame");
  return { result, events: events.filter((event) => event.pid === main?.pid && event.tid === main?.tid && event.ph === "X") };
}

/** CPU milliseconds of the main thread for each frame: all its tasks from one rendering to the next, and their parts. */
function work(events) {
  // a frame has several callbacks in one task
  const tasks = events.filter((event) => event.name === "RunTask");
  const isWithin = (event, task) => event.ts >= task.ts && event.ts < task.ts + task.dur;
  const callbacks = events.filter((event) => event.name === "FireAnimationFrame");
  const starts = tasks.filter((task) => callbacks.some((event) => isWithin(event, task))).map((task) => task.ts).sort((a, b) => a - b);
  const parts = { whole: ["RunTask"], script: ["FireAnimationFrame"], style: ["UpdateLayoutTree"], layout: ["Layout"], paint: ["PrePaint", "Paint", "Layerize", "Commit"] };
  const frames = starts.map(() => ({ whole: 0, script: 0, style: 0, layout: 0, paint: 0 }));
  for (const event of events) {
    let [low, high] = [-1, starts.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (starts[middle] <= event.ts) low = middle;
      else high = middle - 1;
    }
    if (low < 0) continue;
    for (const [part, names] of Object.entries(parts)) if (names.includes(event.name)) frames[low][part] += (event.tdur ?? event.dur) / 1000;
  }
  return frames.slice(1, -1);
}

const share = (values, part) => [...values].sort((a, b) => a - b)[Math.min(values.length - 1, Math.floor(values.length * part))];
const percent = (values, above) => (100 * values.filter((value) => value > above).length) / values.length;

export async function frames() {
  const scripted = await engine();
  const tap = await start("serve", ["--upstream", scripted.url, "--vocab-size", String(VOCABULARY), "--top-logprobs", "8"]);
  try {
    const input_ids = Array.from({ length: PROMPT }, (_, at) => 1 + (at % 900));
    for (let sample = 0; sample < 2; sample++) await generate(tap, "big", { input_ids, sampling_params: { max_new_tokens: TOTAL - PROMPT } });
    const { page, faults } = await opened(tap.control, { at: `/${RUNS[0][0]}` });
    await read(page, TOTAL);
    const lines = [];
    for (const [hash, id, speed] of RUNS) {
      if (await page.evaluate((to) => location.hash !== to, hash)) {
        await page.evaluate((to) => { location.hash = to; }, hash);
        await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Comparison: "), null, { timeout: 60_000 });
      }
      const { result: { intervals, blank }, events } = await traced(page, () => page.evaluate(scroll, [id, speed, SECONDS]));
      const tasks = work(events);
      const whole = tasks.map((frame) => frame.whole);
      const mean = (part) => (tasks.reduce((sum, frame) => sum + frame[part], 0) / tasks.length).toFixed(1);
      lines.push(`${id === "left" ? "comparison, " : ""}${speed} px a frame: ${intervals.length} frames in ${SECONDS} s, interval p50 ${share(intervals, 0.5).toFixed(1)}, p95 ${share(intervals, 0.95).toFixed(1)}, p99 ${share(intervals, 0.99).toFixed(1)}, most ${share(intervals, 1).toFixed(1)} ms, `
        // timestamps of frames are rounded to 0.1 ms
        + `${percent(intervals, FRAME + 0.2).toFixed(1)} % over 16.7 ms, ${percent(intervals, 2 * FRAME).toFixed(1)} % over 33 ms; `
        + `CPU of the main thread p50 ${share(whole, 0.5).toFixed(1)}, p95 ${share(whole, 0.95).toFixed(1)}, p99 ${share(whole, 0.99).toFixed(1)} ms a frame, ${percent(whole, FRAME).toFixed(1)} % over 16.7 ms (means: script ${mean("script")}, style ${mean("style")}, layout ${mean("layout")}, paint ${mean("paint")})`);
      assert.equal(blank, 0, `tokens are visible: ${lines.at(-1)}`);
      assert.ok(share(whole, WITHIN) < FRAME, `work per frame: ${lines.at(-1)}`);
    }
    assert.deepEqual(faults, []);
    return lines.join("\n        ");
  } finally {
    await tap.stop();
    await scripted.stop();
  }
}
