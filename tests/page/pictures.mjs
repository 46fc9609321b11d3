// SPDX-License-Identifier: Apache-2.0
// Pictures in the path: shown as pixels, one element for all tokens of each, and never interpreted as anything else.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { join } from "node:path";

import { SCRIPTS, audit, launched, opened, read } from "./browser.mjs";
import { AFTER, BEFORE, PICTURE, VOCABULARY, engine, tokensOf } from "./engine.mjs";
import { HOSTILE_FILES, bmp, gif, plain, png } from "./files.mjs";
import { ask, generate, start } from "./tokentap.mjs";

const TOKEN = "secret";
const uri = (bytes) => `data:image/png;base64,${bytes.toString("base64")}`;
const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");
/** A prompt with these pictures, and text around each. */
const prompt = (files, first = 1) => [first, 2, 3, ...files.flatMap((_, at) => [10 + at, 11 + at, 12 + at, BEFORE, PICTURE, AFTER, 97])];

async function pictured(tap, session, files, more = {}) {
  return generate(tap, session, { input_ids: prompt(files, more.first), image_data: files.map(uri), sampling_params: { max_new_tokens: more.tokens ?? 40 } });
}

/** Waits until tokentap has found out that the engine echoes prompts. */
async function probed(tap) {
  const file = plain(2, 2, [0, 0, 0]);
  for (let at = 0; at < 200; at++) {
    await pictured(tap, `probe-${at}`, [file], { tokens: 2 });
    const { faults } = await ask(tap, `/v1/sessions/probe-${at}`);
    if (!Object.keys(faults).length) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error("the engine was not probed");
}

async function started(flags = []) {
  const scripted = await engine();
  const tap = await start("serve", ["--upstream", scripted.url, "--vocab-size", String(VOCABULARY), ...flags]);
  const stop = async () => {
    await tap.stop();
    await scripted.stop();
  };
  return { tap, stop };
}

/** Keeps the object URLs that the page makes and revokes. */
function countUrls() {
  window.urls = [];
  const { createObjectURL: make, revokeObjectURL: revoke } = URL;
  URL.createObjectURL = (blob) => {
    window.urls.push(make.call(URL, blob));
    return window.urls.at(-1);
  };
  URL.revokeObjectURL = (url) => {
    window.urls.push(`revoked ${url}`);
    revoke.call(URL, url);
  };
}

/** The picture with this number, scrolled into view and drawn: what its element shows. */
async function picture(page, start) {
  await page.focus("#tokens");
  await page.evaluate((at) => { location.hash = `${location.hash.split("/").slice(0, 3).join("/")}/${at}`; }, start);
  await page.waitForFunction((at) => document.getElementById("tokens").getAttribute("aria-activedescendant") === `t${at}`, start);
  const drawn = (at) => {
    const sub = document.querySelector(`#t${at} .frame .sub`)?.textContent;
    return sub && sub !== "reading…" && sub;
  };
  const text = await (await page.waitForFunction(drawn, start)).jsonValue();
  return page.evaluate(([at, found]) => {
    const node = document.getElementById(`t${at}`);
    const canvas = node.querySelector("canvas");
    const pixel = (x, y) => [...canvas.getContext("2d").getImageData(Math.floor(x * canvas.width), Math.floor(y * canvas.height), 1, 1).data];
    return {
      text: found, caption: [...node.querySelectorAll(".caption span")].map((line) => line.textContent), label: node.getAttribute("aria-label"), role: node.getAttribute("role"),
      pixels: canvas && [pixel(0.25, 0.5), pixel(0.75, 0.5)], card: document.querySelector("#details").textContent, height: node.offsetHeight, classes: node.className,
      outline: canvas && canvas.width <= 480 && canvas.height <= 480,
    };
  }, [start, text]);
}

/** Hostile and valid pictures in one prompt. */
export async function pictures() {
  const { tap, stop } = await started();
  try {
    await probed(tap);
    const red = (x) => (x < 640 ? [200, 0, 0] : [0, 0, 200]);
    // noise cannot be compressed
    let seed = 7;
    const noise = png(1000, 800, () => [0, 8, 16].map((bits) => ((seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) >>> bits) & 0xff));
    const valid = { screenshot: png(1280, 720, red), gif: gif([1, 1]), bmp: bmp(30, 20) };
    const files = { ...valid, ...Object.fromEntries(Object.entries(HOSTILE_FILES).map(([name, [bytes]]) => [name, bytes])), noise, last: plain(300, 200, [0, 200, 0]) };
    const names = Object.keys(files);
    const list = Object.values(files);
    await pictured(tap, "gallery", list);
    const head = await ask(tap, "/v1/sessions/gallery/paths/0");
    const tokens = await ask(tap, "/v1/sessions/gallery/paths/0?from=0&limit=100000");
    assert.deepEqual(head.images.map((image) => image.sha256), list.map(sha256), "the turn has all pictures");
    assert.deepEqual(head.turns.map((turn) => turn.fault), [null], "the turn is trained");
    // the browser advises this check, which reads the pixels
    const { page, faults, asked, context } = await opened(tap.control, { at: "/#/gallery/0", init: countUrls, expected: (text) => text.includes("willReadFrequently") });
    await read(page, head.tokens);
    const fetched = () => asked.filter((url) => url.includes("/images/")).map((url) => url.split("/").at(-1));
    const place = Object.fromEntries(names.map((name, at) => [name, head.images[at]]));
    await page.waitForFunction(() => document.querySelector("#tokens .picture canvas"));
    await page.waitForTimeout(500);
    const outside = await page.evaluate(() => {
      const { bottom } = document.getElementById("tokens").getBoundingClientRect();
      return [...document.querySelectorAll("#tokens .frame")].filter((node) => node.getBoundingClientRect().top > bottom).map((node) => node.dataset.picture);
    });
    assert.ok(outside.length > 2 && fetched().length > 1, `${outside.length} elements of pictures are ready below the visible ones`);
    assert.deepEqual(fetched().filter((digest) => outside.includes(digest) || digest === place.last.sha256), [], "only pictures in view are fetched");
    if (process.env.PICTURES) await page.screenshot({ path: join(process.env.PICTURES, "pictures.png") });
    // each picture is one element
    for (const name of names) {
      const [bytes, { start, end, media_type: type }] = [files[name], place[name]];
      const [, why] = HOSTILE_FILES[name] ?? [null, ""];
      const shown = await picture(page, start);
      assert.equal(end - start, tokensOf(bytes), name);
      assert.deepEqual([shown.role, shown.classes, shown.height], ["option", "t p picture", 114], name);
      const place_ = `${end - start} tokens, ${(start + 1).toLocaleString("en")} to ${end.toLocaleString("en")}`;
      assert.deepEqual(shown.caption.slice(1), [`sha256 ${sha256(bytes).slice(0, 12)}…`, place_], name);
      assert.ok(shown.caption[0].startsWith(`${type}, `) && shown.label === null, shown.label);
      assert.ok(shown.card.includes(sha256(bytes)) && shown.card.includes(bytes.length.toLocaleString("en")), `${name}: ${shown.card}`);
      if (name === "noise") continue;
      assert.equal(shown.pixels === null, why !== "", `${name}: ${shown.text}`);
      if (why) assert.ok(shown.text.endsWith(why), `${name}: ${shown.text}`);
      else assert.match(shown.text, /^[\d,]+ × [\d,]+ pixels$/, name);
      assert.ok(shown.outline ?? true, `${name} has a small canvas`);
    }
    const first = await picture(page, place.screenshot.start);
    assert.deepEqual([first.text, first.pixels], ["1,280 × 720 pixels", [[200, 0, 0, 255], [0, 0, 200, 255]]]);
    await page.click("#chat");
    const inChat = await picture(page, place.screenshot.start);
    assert.deepEqual([inChat.classes, inChat.caption, inChat.pixels], [first.classes, first.caption, first.pixels], "the chat view has pictures in their places");
    await page.click("#chat");
    const unfetched = ["SVG with a script", "HTML", "noise"];
    for (const name of unfetched) assert.ok(!fetched().includes(place[name].sha256), `${name} is not fetched`);
    assert.equal(new Set(fetched()).size, fetched().length, "each picture is fetched once");
    assert.ok(await page.evaluate(() => document.images.length === 0 && window.hit === undefined));
    assert.equal(await page.locator("script").count(), SCRIPTS);
    // a large one on request
    const large = await picture(page, place.noise.start);
    assert.match(large.text, /^2\.\d MB: click to load$/);
    await page.focus("#details .frame button");
    await page.keyboard.press("Enter");
    await page.waitForFunction((at) => document.querySelector(`#t${at} canvas`) && document.querySelector("#details canvas"), place.noise.start);
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Full size", "the button that follows has the focus");
    assert.deepEqual((await audit(page)).reported, []);
    // full size, and what remains of it
    await page.click("#details .frame button");
    const full = await page.waitForFunction(() => {
      const image = document.querySelector("#picture[open] img");
      return image?.complete && { url: image.src, wide: image.naturalWidth, fits: image.getBoundingClientRect().right <= innerWidth };
    });
    const { url, wide, fits } = await full.jsonValue();
    assert.ok(url.startsWith("blob:") && wide === 1000 && fits);
    assert.deepEqual((await audit(page)).reported, []);
    if (process.env.PICTURES) await page.screenshot({ path: join(process.env.PICTURES, "picture-full.png") });
    await page.keyboard.press("Escape");
    await page.waitForFunction(() => document.images.length === 0);
    const left = await page.evaluate(() => [...window.urls, document.images.length]);
    assert.deepEqual(left, [url, `revoked ${url}`, 0], "the URL of a picture is revoked when the dialog closes");
    // the keys step over the tokens of a picture
    const { start, end } = place.gif;
    const chosen = () => page.getAttribute("#tokens", "aria-activedescendant");
    const steps = [];
    await picture(page, start);
    for (const key of ["ArrowLeft", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp", "ArrowUp"]) {
      await page.keyboard.press(key);
      steps.push(Number((await chosen()).slice(1)));
    }
    assert.deepEqual(steps.slice(0, 4), [start - 1, start, end, start]);
    assert.ok(steps[4] === end && steps[5] === start && steps[6] < start, `lines: ${steps}`);
    await picture(page, end - 1).catch(() => {});
    assert.equal(await chosen(), `t${start}`, "a link to a token inside shows the picture");
    // the numbers are those of the tokens
    const facts = await page.textContent("#facts");
    const inside = head.images.reduce((sum, image) => sum + image.end - image.start, 0);
    const nats = tokens.entropy.filter((value) => value !== null);
    assert.equal(nats.length, 40);
    assert.ok(facts.includes(`pictures${list.length}, ${inside.toLocaleString("en")} tokens`) && facts.includes(`tokens${head.tokens.toLocaleString("en")}`), facts);
    assert.ok(facts.includes(`mean entropy${(nats.reduce((sum, value) => sum + value, 0) / nats.length).toFixed(3)} nats`), facts);
    await page.fill("#find", "<|image|>");
    await page.waitForFunction(() => document.getElementById("find-count").textContent === "0 found");
    await page.fill("#find", "<|/vision|>");
    await page.waitForFunction((count) => document.getElementById("find-count").textContent.endsWith(` of ${count}`), list.length);
    // rows of lines above the first visible one
    await page.fill("#find", "");
    await page.evaluate(() => { document.getElementById("tokens").scrollTop = 0; });
    await page.waitForTimeout(100);
    const top = await page.evaluate(async (at) => {
      const root = document.getElementById("tokens");
      const y = parseFloat(document.getElementById(`t${at}`).parentElement.style.top);
      root.scrollTop = 1e6;
      await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(resolve))));
      root.scrollTop = y + 100;
      // the frame is drawn after the first callback
      await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
      return document.getElementById(`t${at}`) !== null;
    }, place.screenshot.start);
    assert.ok(top, "a picture that is partly scrolled away is drawn in the first frame");
    const [download] = await Promise.all([page.waitForEvent("download"), page.focus("#tokens").then(() => page.keyboard.press("e"))]);
    const saved = await (await download.createReadStream()).reduce((text, part) => text + part, "");
    assert.ok(!saved.includes("<img") && !saved.includes("window.hit") && saved.split("[picture, ").length === list.length + 1, "the exported file names the pictures");
    assert.deepEqual(faults, []);
    await context.close();
    await equalTokens(tap);
    await withToken();
    return `${list.length} pictures, of which ${Object.keys(HOSTILE_FILES).length} are hostile: no script run, none decoded above the limit, each fetched once and in view, full size revoked; keys, search, numbers and export are right`;
  } finally {
    await stop();
  }
}

/** Two pictures with the same tokens are not the same prompt. */
async function equalTokens(tap) {
  const [one, other] = [plain(8, 8, [0, 0, 255]), plain(8, 8, [0, 255, 0])];
  assert.equal(one.length, other.length);
  for (const file of [one, other, one]) await pictured(tap, "twins", [file]);
  const { list } = await ask(tap, "/v1/sessions/twins");
  assert.deepEqual(list.map((turn) => [turn.parent, turn.images.map((image) => image.sha256)]), [one, other, one].map((file) => [null, [sha256(file)]]));
  const { start, end } = list[0].images[0];
  const { page, faults, context } = await opened(tap.control, { at: "/#compare/twins/0/twins/1" });
  await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Comparison: "));
  assert.match(await page.textContent("#status"), new RegExp(`0 tokens compared, token ${start + 1} is the first that differs`));
  await page.waitForFunction(() => document.querySelectorAll("#pair .picture canvas").length === 2);
  const heads = await page.$$eval("#left .head", (nodes) => nodes.map((node) => node.textContent));
  assert.ok(heads[0].includes(`${end} tokens · 1 picture`) && heads[1].startsWith("context differs"), heads.join("\n"));
  assert.ok(await page.evaluate((at) => document.getElementById(`left${at}`).classList.contains("fork"), start));
  for (const key of ["ArrowRight", "ArrowRight"]) {
    await page.focus("#left");
    await page.keyboard.press("v");
    await page.keyboard.press(key);
    assert.equal(await page.getAttribute("#left", "aria-activedescendant"), `left${end}`);
  }
  if (process.env.PICTURES) await page.screenshot({ path: join(process.env.PICTURES, "pictures-compare.png") });
  await page.evaluate(() => { location.hash = "#group/twins/0"; });
  await page.waitForFunction(() => document.getElementById("status").textContent === "2 samples of one prompt.");
  assert.deepEqual(faults, []);
  await context.close();
}

/** Pictures are fetched with the control token, and one that fails is fetched again by a click. */
async function withToken() {
  const { tap, stop } = await started(["--control-token", TOKEN]);
  try {
    const file = plain(60, 40, [0, 0, 255]);
    const headers = { authorization: `Bearer ${TOKEN}` };
    const images = async () => {
      const answer = await fetch(`${tap.control}/v1/sessions/shut/paths/0`, { headers });
      return answer.ok ? (await answer.json()).images : undefined;
    };
    while (!(await images())?.length) {
      await fetch(`${tap.control}/v1/sessions/shut`, { method: "DELETE", headers });
      await pictured(tap, "shut", [file]);
    }
    const context = await (await launched()).newContext();
    await context.addInitScript((token) => sessionStorage.setItem("tokentap-control-token", token), TOKEN);
    const page = await context.newPage();
    let isBroken = true;
    const authorised = [];
    await page.route("**/images/*", (route) => {
      authorised.push(route.request().headers().authorization);
      return isBroken ? route.abort() : route.continue();
    });
    await page.goto(`${tap.control}/#/shut/0`);
    const [{ start, end }] = await images();
    await read(page, end + 2 + 40);
    assert.match((await picture(page, start)).text, /^not read: /);
    isBroken = false;
    await page.click(`#t${start} .frame`);
    await page.waitForFunction((at) => document.querySelector(`#t${at} canvas`), start);
    assert.ok(authorised.length >= 2 && authorised.every((one) => one === `Bearer ${TOKEN}`), `${authorised}`);
    assert.equal(await page.evaluate(() => document.cookie + location.search), "");
    await context.close();
  } finally {
    await stop();
  }
}

/** The sizes that headers declare are those that the browser decodes; damaged headers have none, or a size that the browser agrees with. */
export async function pixels() {
  const { tap, stop } = await started();
  try {
    const { page, faults, context } = await opened(tap.control);
    const own = { "image/gif": gif([3, 2], [5, 7]), "image/bmp": bmp(30, -20), "image/png": plain(13, 17, [1, 2, 3]) };
    const found = await page.evaluate(async (given) => {
      const { sizeOf } = await import("/page/pixels.js");
      const files = given.map(([type, bytes]) => [type, new Uint8Array(bytes)]);
      for (const [type, quality, alpha] of [["image/jpeg", 0.5, 1], ["image/webp", 0.5, 1], ["image/webp", 1, 1], ["image/webp", 0.5, 0.3], ["image/png", 1, 1]]) {
        const canvas = Object.assign(document.createElement("canvas"), { width: 211, height: 97 });
        const context = canvas.getContext("2d", { alpha: alpha < 1 });
        context.fillStyle = `rgb(9 90 200 / ${alpha})`;
        context.fillRect(0, 0, 150, 60);
        const blob = await new Promise((resolve) => canvas.toBlob(resolve, type, quality));
        const bytes = new Uint8Array(await blob.arrayBuffer());
        files.push([blob.type, bytes]);
        if (type === "image/webp" && alpha === 1) files.push([type, simple(bytes)]);
      }
      /** The chunk of a WebP that has the picture, as a file without the extended header. */
      function simple(bytes) {
        const view = new DataView(bytes.buffer);
        for (let at = 12, size; ; at += 8 + size + (size & 1)) {
          size = view.getUint32(at + 4, true);
          if (!/VP8[ L]/.test(String.fromCharCode(...bytes.slice(at, at + 4)))) continue;
          const file = new Uint8Array([...bytes.slice(0, 12), ...bytes.slice(at, at + 8 + size + (size & 1))]);
          new DataView(file.buffer).setUint32(4, file.length - 8, true);
          return file;
        }
      }
      const kinds = new Set();
      for (const [type, bytes] of files) {
        const bitmap = await createImageBitmap(new Blob([bytes], { type }));
        const size = sizeOf(type, bytes.buffer);
        if (String(size) !== String([bitmap.width, bitmap.height])) return `${type}: ${size}, decoded ${[bitmap.width, bitmap.height]}`;
        for (const [other] of files) if (other !== type && sizeOf(other, bytes.buffer)) return `${type} is read as ${other}`;
        kinds.add(type === "image/webp" ? type + String.fromCharCode(...bytes.slice(12, 16)) : type);
      }
      // damaged headers of small pictures
      let [state, decoded, refused] = [1, 0, 0];
      const next = (most) => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0) % most;
      for (let round = 0; round < 30_000; round++) {
        const [type, bytes] = files[next(files.length)];
        const bad = bytes.slice(0, next(4) ? bytes.length : next(bytes.length));
        for (let change = 0; bad.length && change < 1 + next(3); change++) bad[next(Math.min(bad.length, 60))] = next(256);
        const size = sizeOf(type, bad.buffer);
        if (size && !size.every((side) => Number.isInteger(side) && side > 0)) return `${type}: ${size}`;
        if (round % 20 || (size && size[0] * size[1] > 4e6)) continue;
        const bitmap = await createImageBitmap(new Blob([bad], { type })).catch(() => null);
        if (!bitmap) continue;
        if (!size) refused++;
        else if (String(size) !== String([bitmap.width, bitmap.height])) return `${type}: ${size}, decoded ${[bitmap.width, bitmap.height]}: ${[...bad.slice(0, 64)]}`;
        else decoded++;
        bitmap.close();
      }
      return [[...kinds].sort(), decoded, refused];
    }, Object.entries(own).map(([type, bytes]) => [type, [...bytes]]));
    assert.ok(Array.isArray(found), String(found));
    const [kinds, decoded, refused] = found;
    assert.deepEqual(kinds, ["image/bmp", "image/gif", "image/jpeg", "image/png", "image/webpVP8 ", "image/webpVP8L", "image/webpVP8X"]);
    assert.ok(decoded > 100, `${decoded}`);
    assert.deepEqual(faults, []);
    await context.close();
    return `sizes of ${kinds.length} kinds of headers are those that the browser decodes, also of ${decoded} damaged ones; ${refused} that it decodes are refused; 30,000 damaged headers read`;
  } finally {
    await stop();
  }
}
