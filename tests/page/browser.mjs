// SPDX-License-Identifier: Apache-2.0
// Headless Chromium that records faults: errors, dialogs and requests to other origins.

import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";

import bundled from "@sparticuz/chromium";
import { chromium } from "playwright-core";

/** The number of script elements of the page; a text must add none. */
export const SCRIPTS = 3;

let browser;

/** The browser, started once. */
export async function launched() {
  browser ??= await chromium.launch({ executablePath: await bundled.executablePath(), headless: true });
  return browser;
}

export async function closed() {
  await browser?.close();
}

/** A page whose `faults` are console errors, failed scripts, dialogs, requests to anywhere but `origin`, and wrong marks of requests. */
export async function opened(origin, { at = "/", theme = "light", viewport = { width: 1400, height: 900 }, isPhone = false, expected = () => false, init } = {}) {
  const context = await (await launched()).newContext({ viewport: isPhone ? { width: 390, height: 844 } : viewport, isMobile: isPhone, hasTouch: isPhone, colorScheme: theme, acceptDownloads: true });
  const page = await context.newPage();
  if (init) await page.addInitScript(init);
  const faults = [];
  const asked = [];
  const fault = (text) => expected(text) || faults.push(text);
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && fault(`console: ${message.text()}`));
  page.on("pageerror", (error) => fault(`script: ${error.stack}`));
  page.on("dialog", (dialog) => {
    fault(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("request", (request) => {
    asked.push(request.url());
    if (!request.url().startsWith(`${origin}/`) && !request.url().startsWith("blob:")) fault(`request: ${request.url()}`);
    // what the page reads is marked, so that the access log can leave it out; exports are not
    const { pathname } = new URL(request.url());
    const isMarked = request.headers()["x-tokentap-viewer"] === "page";
    if (/^\/(v1\/|detokenize$)/.test(pathname) && isMarked === (pathname === "/v1/samples")) fault(`${isMarked ? "marked" : "not marked"}: ${request.url()}`);
  });
  await page.goto(origin + at);
  return { page, context, faults, asked };
}

/** What axe reports about the page, and the number of the rules that pass. */
export async function audit(page) {
  // injected through the debugger, because the page's security policy forbids other scripts
  await page.evaluate(await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8"));
  const { violations, passes } = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
  const reported = violations.map(({ id, help, nodes }) => `${id}: ${help}\n  ${nodes.slice(0, 3).map((node) => `${node.target} ${node.failureSummary}`).join("\n  ")}`);
  return { reported, passed: passes.length };
}

/** Waits until a path is open and all its tokens are loaded. */
export async function read(page, tokens) {
  await page.waitForFunction((count) => document.getElementById("status").textContent.startsWith(`${count.toLocaleString("en")} tokens`), tokens, { timeout: 60_000 });
}

/** The tokens that have elements: position, classes, text and colour. */
export function tokens(page) {
  return page.evaluate(() => [...document.querySelectorAll("#tokens .t[data-at], pre .t")].map((node) => ({
    at: Number(node.dataset.at ?? -1), classes: node.className, text: node.textContent, colour: getComputedStyle(node).backgroundColor, title: node.title,
  })));
}
