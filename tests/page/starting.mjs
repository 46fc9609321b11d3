// SPDX-License-Identifier: Apache-2.0
// The screen without sessions: its addresses, its command, which is run by a shell, and its links.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";

import { audit, opened, read } from "./browser.mjs";
import { demo } from "./lamp.mjs";

/** Runs a command line as a person does who pastes it. */
async function pasted(line, env = {}) {
  const { stdout } = await promisify(execFile)("bash", ["-c", line], { env: { ...process.env, ...env } });
  return JSON.parse(stdout);
}

export async function empty() {
  const seen = [];
  for (const [theme, isPhone, flags] of [["light", false, []], ["dark", true, ["--agent-token", "the key"]]]) {
    const tap = await demo(flags);
    try {
      const { page, context, faults } = await opened(tap.control, { theme, isPhone, viewport: { width: 1240, height: 760 } });
      await page.waitForSelector("#empty-command:not(:empty)");
      const urls = await page.evaluate(() => [...document.querySelectorAll("#empty-urls dd")].map((node) => node.textContent));
      assert.deepEqual(urls, ["/v1", "", ""].map((end) => `${tap.data}/sessions/NAME${end}`));
      assert.equal(await page.isVisible("#empty-key"), flags.length > 0);
      if (isPhone) assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "nothing is wider than the screen");
      const links = await page.evaluate(() => [...document.querySelectorAll("#empty-view a")].map((node) => node.getAttribute("href")));
      assert.deepEqual(links, ["/page/openapi.html", "/openapi.json", "/readyz", "/metrics"]);
      for (const link of links) assert.equal((await fetch(tap.control + link)).status, 200, link);
      const { reported } = await audit(page);
      assert.deepEqual(reported, [], reported.join("\n"));
      if (process.env.PICTURES) await page.screenshot({ path: join(process.env.PICTURES, `empty-${theme}.png`) });
      const hosts = await page.evaluate(async () => {
        const { baseUrl } = await import("/page/empty.js");
        return [["http://0.0.0.0:30001", "host"], ["https://[::]:30001", "host.example"], ["http://127.0.0.1:30001", "host"], ["http://[::1]:30001", "host"]].map(([url, name]) => baseUrl(url, name));
      });
      assert.deepEqual(hosts, ["http://host:30001", "https://host.example:30001", "http://127.0.0.1:30001", "http://[::1]:30001"]);
      const line = await page.textContent("#empty-command");
      // the key of the engine, or that of the data port, is a variable of the shell
      const reply = await pasted(line, { KEY: "the key" });
      assert.equal(reply.meta_info.completion_tokens, 32);
      await page.waitForFunction(() => location.hash === "#/first/0");
      await read(page, reply.meta_info.prompt_tokens + 32);
      assert.ok(await page.isVisible("#tokens") && !await page.isVisible("#empty-view"));
      seen.push(line.length);
      assert.deepEqual(faults, []);
      await context.close();
    } finally {
      await tap.stop();
    }
  }
  return `a pasted command of ${seen[0]} characters makes the first session, also with --agent-token; base URLs and links, wide and phone`;
}
