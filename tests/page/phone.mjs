// SPDX-License-Identifier: Apache-2.0
// A narrow screen with touch: the path comes first, and a tapped token opens a sheet with its details.

import assert from "node:assert/strict";
import { join } from "node:path";

import { audit, opened, read } from "./browser.mjs";
import { demo, lamp } from "./lamp.mjs";
import { ask, generate } from "./tokentap.mjs";

export async function phone() {
  const tap = await demo();
  try {
    await generate(tap, "another", { text: "The sea", sampling_params: { max_new_tokens: 12 } });
    const { session, leaf } = await lamp(tap);
    const all = await ask(tap, `/v1/sessions/${session}/paths/${leaf}?from=0&limit=100000`);
    for (const theme of ["light", "dark"]) {
      const { page, context, faults } = await opened(tap.control, { at: "/#/another/0", theme, isPhone: true });
      await read(page, 14);
      const depth = () => page.evaluate(() => history.length);
      await page.evaluate((to) => { location.hash = to; }, `#/${session}/${leaf}`);
      await read(page, all.token_ids.length);
      const top = (name) => page.evaluate((selector) => document.querySelector(selector).getBoundingClientRect().top, name);
      assert.ok(await top("#path-view") < await top("#sessions") && await top("#sessions") < await top("#along"), "the path is first, the numbers are last");
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "nothing is wider than the screen");
      assert.ok(await top("#tokens") < 300, "the tokens begin in the upper part of the screen");
      assert.ok(!await page.isVisible("#token-sheet"));
      if (process.env.PICTURES) await page.screenshot({ path: join(process.env.PICTURES, `phone-${theme}.png`) });
      const before = await depth();
      // the lowest visible token with some width
      const lowest = await page.evaluate(() => {
        const bottom = Math.min(innerHeight, document.getElementById("tokens").getBoundingClientRect().bottom);
        return [...document.querySelectorAll("#tokens .t.s")].filter((node) => node.getBoundingClientRect().bottom < bottom - 4 && node.getBoundingClientRect().width > 20).at(-1).dataset.at;
      });
      await page.tap(`#t${lowest}`);
      await page.waitForSelector("#token-sheet", { state: "visible" });
      const sheet = () => page.textContent("#token-sheet");
      assert.ok((await sheet()).includes(all.entropy[lowest].toFixed(3)), await sheet());
      const [tokenBottom, sheetTop, sheetBottom] = await page.evaluate((at) => [document.getElementById(`t${at}`).getBoundingClientRect().bottom, ...["top", "bottom"].map((side) => document.getElementById("token-sheet").getBoundingClientRect()[side])], lowest);
      assert.ok(tokenBottom <= sheetTop && Math.abs(sheetBottom - 844) <= 1, `the token is above the sheet: ${tokenBottom}, ${sheetTop}, ${sheetBottom}`);
      assert.ok(!await page.isVisible("#tip"), "a touch shows no tooltip");
      if (process.env.PICTURES) await page.screenshot({ path: join(process.env.PICTURES, `phone-sheet-${theme}.png`) });
      const { reported } = await audit(page);
      assert.deepEqual(reported, [], reported.join("\n"));
      // another token, while the sheet is open
      const other = await page.evaluate((at) => [...document.querySelectorAll("#tokens .t.s")].filter((node) => node.getBoundingClientRect().top > 100 && node.getBoundingClientRect().width > 20 && Number(node.dataset.at) < at).at(-1).dataset.at, Number(lowest));
      await page.tap(`#t${other}`);
      assert.ok((await sheet()).includes(all.entropy[other].toFixed(3)));
      assert.equal(await depth(), before + 1, "the sheet is one entry of the history");
      const closed = async () => {
        await page.waitForSelector("#token-sheet", { state: "hidden" });
        await page.waitForFunction((hash) => location.hash === hash && !history.state?.sheet, `#/${session}/${leaf}/${other}`);
        assert.equal(await page.getAttribute("#tokens", "aria-activedescendant"), `t${other}`, "the token stays chosen");
      };
      const scrolled = await page.evaluate(() => document.getElementById("tokens").scrollTop);
      // a tap outside, here on a button, only closes the sheet
      await page.evaluate(() => scrollTo(0, 0));
      await page.tap("#overview");
      await closed();
      assert.ok(await page.isVisible("#path-view"));
      await page.tap(`#t${other}`);
      await page.keyboard.press("Escape");
      await closed();
      await page.tap(`#t${other}`);
      await page.tap("#token-close");
      await closed();
      await page.tap(`#t${other}`);
      await page.waitForSelector("#token-sheet", { state: "visible" });
      await page.goBack();
      await closed();
      assert.equal(await page.evaluate(() => document.getElementById("tokens").scrollTop), scrolled, "Back does not read the path again");
      // a link that is opened above the sheet, and Back to the path
      const path = `#/${session}/${leaf}/${other}`;
      const atPath = () => page.waitForFunction((hash) => location.hash === hash && history.state === null, path);
      await page.tap(`#t${other}`);
      await page.waitForSelector("#token-sheet", { state: "visible" });
      await page.evaluate(() => { location.hash = "#/another/0"; });
      await read(page, 14);
      assert.ok(!await page.isVisible("#token-sheet"));
      assert.ok((await page.evaluate(() => location.hash)).startsWith("#/another/0"), "the sheet does not undo the link");
      await page.evaluate(() => history.back());
      await atPath();
      await read(page, all.token_ids.length);
      // a reload closes the sheet
      await page.tap(`#t${other}`);
      await page.waitForSelector("#token-sheet", { state: "visible" });
      await page.reload();
      await atPath();
      await read(page, all.token_ids.length);
      await page.evaluate(() => history.back());
      await page.waitForFunction(() => location.hash.startsWith("#/another/0"));
      // on a wide screen the details are in their column
      await read(page, 14);
      await page.setViewportSize({ width: 1400, height: 900 });
      await page.tap("#tokens .t.s");
      assert.ok(await page.isVisible("#details") && !await page.isVisible("#token-close"));
      assert.equal(await page.evaluate(() => history.state), null);
      assert.deepEqual(faults, []);
      await context.close();
    }
    return "390 x 844 with touch, light and dark: path first, the sheet opens above its token, and closes by a tap outside, Escape, Close and Back";
  } finally {
    await tap.stop();
  }
}
