// SPDX-License-Identifier: Apache-2.0
// Keyboard navigation, accessibility, and the control token.

import assert from "node:assert/strict";

import { audit, opened, read } from "./browser.mjs";
import { demo, lamp } from "./lamp.mjs";
import { policies } from "./policies.mjs";
import { grouped } from "./sampled.mjs";
import { ask, generate } from "./tokentap.mjs";

async function shown(tap, more = {}) {
  const { session, leaf } = await lamp(tap);
  const total = (await ask(tap, `/v1/sessions/${session}/paths/${leaf}`)).tokens;
  const view = await opened(tap.control, { at: `/#/${session}/${leaf}`, ...more });
  await read(view.page, total);
  return { ...view, session, leaf, total };
}

/** Back and Forward walk through the sessions and turns that were opened. */
export async function history() {
  const tap = await demo();
  try {
    await generate(tap, "another", { text: "The sea", sampling_params: { max_new_tokens: 12 } });
    const { page, faults, session, leaf, total } = await shown(tap);
    const at = async (hash) => {
      await page.waitForFunction((wanted) => location.hash === wanted, hash);
      const [name, turn] = [decodeURIComponent(hash.split("/")[1]), hash.split("/")[2]];
      await page.waitForFunction((wanted) => document.querySelector("#sessions [aria-current=true]")?.dataset.session === wanted, name);
      await page.waitForFunction((wanted) => document.querySelector(`#forest [data-turn="${wanted}"]`)?.ariaCurrent === "true", turn);
    };
    const [first, second] = [`#/${session}/${leaf}`, "#/another/0"];
    await at(first);
    await page.click("#sessions [data-session=another]");
    await at(second);
    await page.click(`#sessions [data-session=${session}]`);
    // the address of the latest path follows once it is read
    await page.waitForFunction((name) => {
      const [, session, turn] = location.hash.split("/");
      return session === name && document.querySelectorAll("#forest [data-turn]").length > 1 && document.querySelector(`#forest [data-turn="${turn}"]`)?.ariaCurrent === "true";
    }, session);
    const third = await page.evaluate(() => location.hash);
    const other = await page.evaluate((open) => [...document.querySelectorAll("#forest [data-turn]")].map((node) => node.dataset.turn).find((turn) => `#/lamp-story/${turn}` !== open), third);
    await page.click(`#forest [data-turn="${other}"]`);
    await page.waitForFunction((wanted) => location.hash !== wanted, third);
    const fourth = await page.evaluate(() => location.hash);
    await page.goBack();
    await page.waitForFunction((wanted) => location.hash === wanted, third);
    await page.goBack();
    await at(second);
    await page.goBack();
    await at(first);
    for (let count = 0; count < 3; count++) await page.goForward();
    await page.waitForFunction((wanted) => location.hash === wanted, fourth);
    assert.deepEqual(faults, []);
    return `${total} tokens, four entries of the history back and forward`;
  } finally {
    await tap.stop();
  }
}

/** All functions can be used with the keyboard alone. */
export async function keyboard() {
  const tap = await demo();
  try {
    await generate(tap, "another", { text: "The sea", sampling_params: { max_new_tokens: 12 } });
    const { page, faults, session, leaf, total } = await shown(tap);
    const path = await ask(tap, `/v1/sessions/${session}/paths/${leaf}?from=0&limit=100000`);
    const at = async () => Number((await page.getAttribute("#tokens", "aria-activedescendant"))?.slice(1) ?? -1);
    const press = async (key) => {
      await page.keyboard.press(key);
      return at();
    };
    // spikes: forward through all, then one back; each is a local maximum
    const spikes = [];
    for (let last = -2; last !== await at();) {
      last = await at();
      const found = await press("j");
      if (found !== last) spikes.push(found);
    }
    assert.ok(spikes.length >= 10 && spikes.every((one, index) => index === 0 || one > spikes[index - 1]), `${spikes}`);
    const known = path.entropy.filter((value) => value !== null).sort((a, b) => a - b);
    const threshold = known[Math.floor(known.length * 0.95)];
    spikes.forEach((one) => assert.ok(path.entropy[one] >= threshold && path.entropy[one] >= (path.entropy[one + 1] ?? 0), `token ${one}`));
    assert.equal(await press("k"), spikes.at(-2));
    assert.match(await page.textContent("#status"), /^Spike \d+ of \d+: .+ nats/);
    // the tab key reaches each element once
    const stops = [];
    await page.evaluate(() => document.activeElement?.blur());
    for (let count = 0; count < 60; count++) {
      await page.keyboard.press("Tab");
      const stop = await page.evaluate(() => {
        const { activeElement: node } = document;
        const style = getComputedStyle(node);
        return { name: node.id || node.dataset.session || (node.dataset.turn && `turn ${node.dataset.turn}`) || node.className || node.tagName, ring: style.outlineStyle !== "none" };
      });
      if (stops.some((one) => one.name === stop.name) || stop.name === "BODY") break;
      stops.push(stop);
    }
    const names = stops.map((stop) => stop.name);
    for (const name of ["skip", "overview", "export", "theme", "help", "all-sessions", "search", "class", "flag", "find", "trained", "group", "compare", "link-button", session, "another", "turn 0", `turn ${leaf}`, "tokens"]) assert.ok(names.includes(name), `${name} is reached: ${names}`);
    assert.ok(stops.every((stop) => stop.ring), `the focus is visible: ${JSON.stringify(stops.filter((stop) => !stop.ring))}`);
    await page.focus("#tokens");
    assert.equal(await press("Home"), 0);
    assert.equal(await press("ArrowRight"), 1);
    assert.equal(await press("ArrowLeft"), 0);
    const below = await press("ArrowDown");
    assert.ok(below > 1 && await press("ArrowUp") === 0, "ArrowDown and ArrowUp move by a line");
    assert.equal(await press("End"), total - 1);
    assert.ok(await press("[") < total - 1, "[ moves to the previous turn");
    assert.equal(await page.evaluate(() => document.querySelectorAll("[aria-selected=true]").length), 1);
    const label = await page.evaluate(() => document.getElementById(document.getElementById("tokens").getAttribute("aria-activedescendant")).getAttribute("aria-label"));
    assert.match(label, /token \d+, entropy .+ nats, logprob/, "the label of a token has its numbers");
    // the samples of the prompt of turn 1, two of them chosen and compared
    await page.evaluate(() => { location.hash = "#/lamp-story/2/150"; });
    await page.waitForFunction(() => document.getElementById("tokens").getAttribute("aria-activedescendant") === "t150");
    await press("End");
    await press("g");
    await grouped(page);
    const boxes = [];
    for (let count = 0; count < 60 && boxes.length < 2; count++) {
      await page.keyboard.press("Tab");
      if (!await page.evaluate(() => document.activeElement.type === "checkbox")) continue;
      await page.keyboard.press("Space");
      boxes.push(await page.evaluate(() => document.activeElement.id));
    }
    assert.deepEqual(boxes, ["choose-1", "choose-2"]);
    await press("c");
    await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Comparison: "));
    const difference = async () => (await page.getAttribute("#left", "aria-activedescendant"))?.slice(4);
    await press("v");
    const diverged = await difference();
    assert.ok(Number(diverged) > 0 && await page.getAttribute("#right", "aria-activedescendant") === `right${diverged}`);
    await page.focus("#right");
    await press("ArrowLeft");
    assert.equal(Number(await difference()), Number(diverged) - 1, "the other side follows");
    await press("Escape");
    assert.ok(await page.isVisible("#tokens") && await page.evaluate(() => document.activeElement.id === "tokens"), "Escape returns to the path");
    // keep a path, open another one, compare
    await press("c");
    assert.equal(await page.getAttribute("#compare", "aria-pressed"), "true");
    await page.focus("#forest [data-turn='4']");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => location.hash.startsWith("#/lamp-story/4"));
    await press("c");
    await page.waitForFunction(() => location.hash === "#compare/lamp-story/2/lamp-story/4");
    await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Comparison: "));
    await press("Escape");
    // theme, help, search, another session
    await press("t");
    assert.equal(await page.getAttribute("html", "data-theme"), "light");
    await press("t");
    assert.equal(await page.getAttribute("html", "data-theme"), "dark");
    await press("?");
    assert.ok(await page.isVisible("#keys"));
    const listed = await page.evaluate(() => [...document.querySelectorAll("#keys kbd")].map((key) => key.textContent));
    for (const key of ["j", "k", "[", "]", "f", "n", "N", "m", "l", "c", "g", "e", "v", "d", "x", "o", "/", "t", "?", "←", "→", "↑", "↓", "Home", "End", "Esc"]) assert.ok(listed.includes(key), `${key} is listed: ${listed}`);
    await press("Escape");
    assert.ok(!await page.isVisible("#keys"));
    await press("/");
    await page.keyboard.type("AnOth");
    await page.waitForFunction(() => document.querySelectorAll("#sessions button").length === 1);
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => location.hash === "#/another/0");
    await page.waitForFunction(() => document.querySelector("#where .name")?.textContent === "another");
    assert.deepEqual(faults, []);
    return `${spikes.length} spikes forward and back, ${names.length} stops of the tab key, arrows, Home, End, turns, samples, comparison, theme, help, search, another session`;
  } finally {
    await tap.stop();
  }
}

/** The contrast of text on each step of the legend of differences, by the formula of WCAG 2.2. */
function contrast() {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const luminance = (colour) => {
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ink = luminance(getComputedStyle(document.body).color);
  return [...document.querySelectorAll("#compare-legend .t")].map((node) => {
    const ground = luminance(getComputedStyle(node).backgroundColor);
    return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
  });
}

/** axe reports no violation in either theme. */
export async function access() {
  const tap = await demo();
  try {
    await policies(tap);
    const counts = [];
    for (const theme of ["light", "dark"]) {
      const { page, context, faults, session, leaf } = await shown(tap, { theme });
      await page.keyboard.press("j");
      await page.keyboard.press("j");
      const look = () => audit(page);
      const found = await look();
      await page.keyboard.press("?");
      const dialog = await look();
      await page.keyboard.press("Escape");
      await page.fill("#find", "lamp");
      await page.waitForFunction(() => document.querySelector("#tokens .hit"));
      await page.click("#trained");
      const marked = await look();
      const views = [];
      for (const [hash, status] of [["#compare/step-0/0/step-1/0/2", /^Comparison: /], [`#group/${session}/1`, /samples of one prompt/], ["#run", /^All sessions/]]) {
        await page.evaluate((to) => { location.hash = to; }, hash);
        await page.waitForFunction((text) => new RegExp(text).test(document.getElementById("status").textContent), status.source);
        views.push(await look());
      }
      for (const { reported } of [found, dialog, marked, ...views]) assert.deepEqual(reported, [], `${theme}\n${reported.join("\n")}`);
      const contrasts = await page.evaluate(contrast);
      assert.equal(contrasts.length, 17, "the legend has all steps of a difference");
      assert.ok(contrasts.every((one) => one >= 4.5), `${theme}: text is readable on each step of a difference: ${contrasts.map((one) => one.toFixed(1))}`);
      counts.push(found.passed);
      assert.ok(views.every((one) => one.passed > 20));
      assert.deepEqual(faults, []);
      await context.close();
    }
    return `axe 4.14.1: no violation of WCAG 2.2 A and AA nor of its best practices; ${counts[0]} rules passed light, ${counts[1]} dark`;
  } finally {
    await tap.stop();
  }
}

/** The control token is requested once, kept in the tab, and never part of a URL. */
export async function token() {
  const tap = await demo(["--control-token", "the secret"]);
  try {
    await generate(tap, "kept", { text: "The sea", sampling_params: { max_new_tokens: 12 } });
    const { page, faults, asked, context } = await opened(tap.control, { expected: (text) => text.includes("401") });
    await page.waitForSelector("#ask[open]");
    await page.fill("#token", "a guess");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.getElementById("ask-problem").textContent === "This is not the token.");
    await page.fill("#token", "the secret");
    await page.keyboard.press("Enter");
    await page.waitForSelector("#tokens .t.s");
    await page.reload();
    await page.waitForSelector("#tokens .t.s");
    assert.ok(!await page.isVisible("#ask"), "the tab keeps the token");
    assert.ok(asked.every((url) => !/secret|guess/.test(decodeURIComponent(url))), String(asked));
    assert.ok(!/secret/.test(await page.evaluate(() => `${location.href}${document.cookie}${JSON.stringify(localStorage)}${document.documentElement.textContent}`)));
    const other = await (await context.browser().newContext()).newPage();
    await other.goto(tap.control);
    await other.waitForSelector("#ask[open]");
    assert.deepEqual(faults, []);
    return "requested once, a wrong token is reported, a reload keeps it, another tab does not have it, no URL contains it";
  } finally {
    await tap.stop();
  }
}
