// SPDX-License-Identifier: Apache-2.0
// Starts a tokentap and sends requests to it.

import { spawn } from "node:child_process";

/** Starts `tokentap COMMAND` on free ports; `stop` ends it. */
export async function start(command, flags = []) {
  const args = [command, "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", ...flags];
  const child = spawn(process.env.TOKENTAP, args, { stdio: ["ignore", "pipe", "pipe"] });
  let output = "";
  const ends = new Promise((resolve) => child.on("exit", resolve));
  const found = new Promise((resolve, reject) => {
    const look = (bytes) => {
      output += bytes;
      const [data, control] = addresses(command, output);
      if (data && control) resolve({ data, control });
    };
    child.stdout.on("data", look);
    child.stderr.on("data", look);
    ends.then((code) => reject(new Error(`tokentap ended with ${code}:\n${output}`)));
  });
  const { data, control } = await found;
  const stop = async () => {
    child.kill();
    await ends;
  };
  return { data, control, stop };
}

function addresses(command, output) {
  if (command === "demo") {
    if (!output.includes("Metrics:")) return [];
    return [/http:\/\/[0-9.:]+(?=\/generate)/.exec(output)?.[0], /http:\/\/[0-9.:]+(?=\/v1)/.exec(output)?.[0]];
  }
  return /data=(\S+) control=(\S+)/.exec(output.replace(/\u001b\[[0-9;]*m/g, ""))?.slice(1) ?? [];
}

async function json(url, body, headers = {}) {
  const answer = await fetch(url, body === undefined ? { headers } : { method: "POST", headers: { "content-type": "application/json", ...headers }, body: JSON.stringify(body) });
  const text = await answer.text();
  if (!answer.ok) throw new Error(`${url}: ${answer.status} ${text.slice(0, 300)}`);
  return JSON.parse(text);
}

/** Sends a generation of a session and returns its reply. */
export function generate(tap, session, body) {
  return json(`${tap.data}/sessions/${session}/generate`, body);
}

/** The ids of a text. */
export async function ids(tap, prompt) {
  return (await json(`${tap.data}/tokenize`, { prompt, add_special_tokens: false })).tokens;
}

/** Requests a path of the control port. */
export function ask(tap, path) {
  return json(`${tap.control}${path}`);
}
