// SPDX-License-Identifier: Apache-2.0
// The curve of 50,000 entropies: what it smooths, true values below the pointer, and zoom by wheel, drag and keys.

import assert from "node:assert/strict";
import { join } from "node:path";

import { audit, opened, read } from "./browser.mjs";
import { VOCABULARY, engine } from "./engine.mjs";
import { ask, generate, start } from "./tokentap.mjs";

const [PROMPT, SAMPLED] = [100, 50_000];
/** The width of the curve in its own units, as in plot.js, and the milliseconds that a zoom may take. */
const [LEFT, INNER, DEEP, TOP, SLOW] = [26, 272, 86, 6, 30];

/** Whether the curve takes turns of the wheel: their deltas, and whether Ctrl is held. */
const taken = (page, turns) => page.evaluate((all) => all.map(([deltaY, ctrlKey]) => {
  const root = document.getElementById("along");
  const event = new WheelEvent("wheel", { deltaY, ctrlKey, clientX: root.getBoundingClientRect().left + 150, bubbles: true, cancelable: true });
  return !root.dispatchEvent(event);
}), turns);

/** A drag over the curve of a running sequence goes on when tokens are added. */
async function dragged(tap) {
  const { page, context } = await opened(tap.control, { at: "/#/nothing/0", expected: (text) => text.includes("404") });
  await page.waitForFunction(() => document.querySelector("#tokens .empty")?.textContent.includes("nothing"));
  await page.evaluate(async () => {
    const [{ Curve }, { Trajectory }] = await Promise.all([import("/page/along.js"), import("/page/trajectory.js")]);
    const [curve, running] = [new Curve(() => {}), Trajectory.running("s", "r", 0)];
    window.grow = () => {
      running.append(null, Array.from({ length: 500 }, (_, at) => (at % 7) / 7));
      curve.show(running, running.survey());
    };
    window.grow();
  });
  const { x, y, width } = await page.locator("#along svg").boundingBox();
  const place = (share) => [x + ((LEFT + share * INNER) / 300) * width, y + 20];
  const span = () => page.evaluate(() => Number(document.querySelector("#along .span").getAttribute("width")));
  await page.mouse.move(...place(0.2));
  await page.mouse.down();
  await page.mouse.move(...place(0.5), { steps: 3 });
  const before = await span();
  assert.ok(before > 0.2 * INNER);
  await page.evaluate(() => window.grow());
  assert.equal(await span(), before, "new tokens leave the drag as it is");
  await page.mouse.move(...place(0.6));
  await page.mouse.up();
  assert.match(await page.textContent("#along-legend"), /^Sampled tokens (19|20)\d to (59|60)\d of 1,000/);
  await context.close();
}

export async function zoom() {
  const scripted = await engine();
  const tap = await start("serve", ["--upstream", scripted.url, "--vocab-size", String(VOCABULARY), "--top-logprobs", "8"]);
  try {
    await generate(tap, "long", { input_ids: Array.from({ length: PROMPT }, (_, at) => 1 + at), sampling_params: { max_new_tokens: SAMPLED } });
    const { entropy } = await ask(tap, `/v1/sessions/long/paths/0?from=${PROMPT}&limit=100000`);
    assert.equal(entropy.length, SAMPLED);
    await generate(tap, "short", { input_ids: [1, 2], sampling_params: { max_new_tokens: 38 } });
    const times = [];
    for (const theme of ["light", "dark"]) {
      const { page, context, faults } = await opened(tap.control, { at: "/#/long/0", theme });
      await read(page, PROMPT + SAMPLED);
      const legend = () => page.textContent("#along-legend");
      const value = () => page.textContent("#along-value");
      const view = async () => {
        const found = /Sampled tokens ([\d,]+) to ([\d,]+) of/.exec(await legend());
        return found ? [Number(found[1].replaceAll(",", "")) - 1, Number(found[2].replaceAll(",", ""))] : [0, SAMPLED];
      };
      let box = await page.locator("#along svg").boundingBox();
      const place = (share) => [box.x + ((LEFT + share * INNER) / 300) * box.width, box.y + box.height / 2];
      // the legend says what is smoothed, and the line has these means
      assert.equal(await legend(), "50,000 sampled tokens. Area: highest of each 184. Line: moving mean of 1,001.");
      const most = Math.max(0.5, Math.ceil(2 * Math.max(...entropy)) / 2);
      const points = (await page.getAttribute("#along .mean", "d")).split(/[ML]/).slice(1).map((point) => point.split(" ").map(Number));
      assert.equal(points.length, INNER);
      for (const pixel of [0, 40, 135, 271]) {
        const centre = Math.floor(((pixel + 0.5) * SAMPLED) / INNER);
        const around = entropy.slice(Math.max(0, centre - 500), centre + 501);
        const mean = around.reduce((sum, one) => sum + one, 0) / around.length;
        assert.ok(Math.abs(points[pixel][1] - (TOP + DEEP * (1 - mean / most))) < 0.1, `the mean at pixel ${pixel}`);
      }
      // below the pointer are true values
      const bar = 100;
      await page.mouse.move(...place((bar + 0.5) / INNER));
      const [first, end] = [bar, bar + 1].map((at) => Math.floor((at * SAMPLED) / INNER));
      const held = entropy.slice(first, end);
      const text = (number) => (number !== 0 && number < 0.001 ? number.toExponential(1) : number.toFixed(3));
      assert.equal(await value(), `Tokens ${(first + 1).toLocaleString("en")} to ${end.toLocaleString("en")}: ${text(Math.min(...held))} to ${text(Math.max(...held))} nats`);
      // a click chooses the highest token of the bar
      await page.mouse.down();
      await page.mouse.up();
      const peak = first + held.indexOf(Math.max(...held));
      assert.equal(await page.getAttribute("#tokens", "aria-activedescendant"), `t${PROMPT + peak}`);
      if (process.env.PICTURES) await page.screenshot({ path: join(process.env.PICTURES, `curve-${theme}.png`) });
      // the wheel: the token below the pointer stays there
      const share = (bar + 0.5) / INNER;
      // the details of the token are above the curve
      box = await page.locator("#along svg").boundingBox();
      await page.mouse.move(...place(share));
      for (let turn = 0; turn < 12; turn++) await page.mouse.wheel(0, -100);
      await page.waitForFunction(() => !document.getElementById("along-whole").hidden);
      await page.waitForFunction(() => document.getElementById("along-value").textContent !== "");
      const [from, to] = await view();
      assert.ok(to - from < SAMPLED / 10 && to - from > 500, `${from} to ${to}`);
      assert.ok(Math.abs(from + share * (to - from) - share * SAMPLED) < 0.05 * (to - from) + 2, "the place below the pointer stays");
      times.push(...await page.evaluate(async () => {
        const found = [];
        const root = document.getElementById("along");
        for (let at = 0; at < 20; at++) {
          const started = performance.now();
          root.dispatchEvent(new WheelEvent("wheel", { deltaY: at % 2 ? -100 : 100, clientX: root.getBoundingClientRect().left + 150, bubbles: true, cancelable: true }));
          root.getBoundingClientRect();
          found.push(performance.now() - started);
        }
        return found;
      }));
      // a drag zooms to what it covers, until each token has a bar
      for (let time = 0; time < 3 && (await view())[1] - (await view())[0] > INNER; time++) {
        const [low, high] = await view();
        await page.mouse.move(...place(0.4));
        await page.mouse.down();
        await page.mouse.move(...place(0.5), { steps: 4 });
        await page.mouse.up();
        const [newLow, newHigh] = await view();
        assert.ok(Math.abs(newLow - (low + 0.4 * (high - low))) <= 0.02 * (high - low) + 1 && Math.abs(newHigh - (low + 0.5 * (high - low))) <= 0.02 * (high - low) + 1, `${[low, high]} to ${[newLow, newHigh]}`);
      }
      assert.match(await legend(), /^Sampled tokens [\d,]+ to [\d,]+ of 50,000\. Area: each token\.$/);
      await page.mouse.move(...place(0.303));
      const one = Number(/^Token ([\d,]+): /.exec(await value())[1].replaceAll(",", "")) - 1;
      assert.equal(await value(), `Token ${(one + 1).toLocaleString("en")}: ${text(entropy[one])} nats`);
      if (process.env.PICTURES) await page.screenshot({ path: join(process.env.PICTURES, `curve-zoomed-${theme}.png`) });
      // a token that is chosen outside of the view moves it
      await page.focus("#tokens");
      await page.keyboard.press("End");
      assert.equal((await view())[1], SAMPLED);
      assert.notEqual(await page.getAttribute("#along .at", "d"), "");
      // keys
      await page.focus("#along");
      const size = async () => (await view())[1] - (await view())[0];
      const before = await size();
      await page.keyboard.press("-");
      assert.equal(await size(), 2 * before);
      await page.keyboard.press("+");
      assert.equal(await size(), before);
      const [start] = await view();
      await page.keyboard.press("ArrowLeft");
      assert.equal((await view())[0], start + Math.round(-before / 2));
      await page.keyboard.press("0");
      assert.equal(await size(), SAMPLED);
      assert.ok(!await page.isVisible("#along-whole"));
      await page.keyboard.press("+");
      const { reported } = await audit(page);
      assert.deepEqual(reported, [], reported.join("\n"));
      await page.dblclick("#along svg");
      assert.equal(await size(), SAMPLED, "a double click shows all");
      await page.keyboard.press("+");
      await page.click("#along-whole");
      assert.equal(await size(), SAMPLED);
      // what the curve cannot show is left to the browser
      assert.deepEqual(await taken(page, [[100, false], [-100, true], [-100, false], [100, true], [100, false]]), [false, false, true, false, true]);
      // another path has no mark of this one
      await page.focus("#tokens");
      await page.keyboard.press("End");
      assert.notEqual(await page.getAttribute("#along .at", "d"), "");
      await page.evaluate(() => { location.hash = "#/short/0"; });
      await read(page, 40);
      assert.equal(await page.getAttribute("#along .at", "d"), "", "no token of the other path is chosen");
      assert.deepEqual(faults, []);
      await context.close();
    }
    await dragged(tap);
    times.sort((a, b) => a - b);
    const middle = times[Math.floor(times.length / 2)];
    // some may be slow because of other processes on the machine
    assert.ok(middle < SLOW, `a zoom takes ${times} ms`);
    return `50,000 tokens: means and values of /v1, wheel, drag, keys, double click; a drag while tokens are added; a zoom ${middle.toFixed(1)} ms (most ${times.at(-1).toFixed(1)})`;
  } finally {
    await tap.stop();
    await scripted.stop();
  }
}
