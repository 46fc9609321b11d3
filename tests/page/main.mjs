// SPDX-License-Identifier: Apache-2.0
// Runs the checks, prints the result of each, and exits with 1 if one failed.

import { api } from "./api.mjs";
import { closed } from "./browser.mjs";
import { pictures, pixels } from "./pictures.mjs";
import { access, history, keyboard, token } from "./using.mjs";
import { big } from "./big.mjs";
import { frames } from "./frames.mjs";
import { compare, measurements, without } from "./comparing.mjs";
import { adapters, filter, find, link, odd } from "./finding.mjs";
import { exported, hostile, long, names } from "./hostile.mjs";
import { chat } from "./talking.mjs";
import { many } from "./many.mjs";
import { phone } from "./phone.mjs";
import { run } from "./run.mjs";
import { grouping, samples } from "./sampled.mjs";
import { live, opens, texts } from "./seeing.mjs";
import { empty } from "./starting.mjs";
import { zoom } from "./zooming.mjs";

const CHECKS = { empty, api, opens, texts, chat, live, export: exported, hostile, names, long, pictures, pixels, big, zoom, frames, compare, without, measurements, samples, grouping, run, find, odd, link, filter, adapters, history, keyboard, access, phone, token };
/** Checks that take minutes: they run only if they are named. */
const LONG = { many };

const chosen = process.argv.slice(2);
const all = { ...CHECKS, ...LONG };
const unknown = chosen.filter((name) => !all[name]);
if (unknown.length) {
  console.error(`no such check: ${unknown}; there are ${Object.keys(all).join(" ")}`);
  process.exit(2);
}
let failed = 0;
for (const [name, check] of Object.entries(all)) {
  if (chosen.length ? !chosen.includes(name) : LONG[name]) continue;
  try {
    console.log(`ok      ${name.padEnd(12)} ${await check()}`);
  } catch (error) {
    failed++;
    console.log(`FAILED  ${name.padEnd(12)} ${error.stack}`);
  }
}
await closed();
process.exit(failed ? 1 : 0);
