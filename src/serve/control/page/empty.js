// SPDX-License-Identifier: Apache-2.0
// The screen without sessions: where agents send their requests, and a command that makes a first session.

import { get } from "./api.js";
import { element, part } from "./element.js";
import { copyText } from "./link.js";

/** Addresses of all interfaces. */
const ALL = new Set(["0.0.0.0", "[::]"]);

/** The URL of the data port for clients that reach this page: a port of all interfaces has the name of the page's host. */
export function baseUrl(url, hostname) {
  const base = new URL(url);
  return ALL.has(base.hostname) ? url.replace(base.hostname, hostname) : url;
}

/** The command that samples a first turn. */
export function command(base, needsKey) {
  const key = needsKey ? " -H \"Authorization: Bearer $KEY\"" : "";
  return `curl -s ${base}/sessions/first/generate${key} -H 'content-type: application/json' -d '{"text":"The sea","sampling_params":{"max_new_tokens":32}}'`;
}

/** The clients, the member that has the base URL, and what follows the name of the session. */
const CLIENTS = [["OpenAI clients", "/v1"], ["Anthropic clients", ""], ["SGLang's API", ""]];

export class EmptyView {
  constructor(announce) {
    this.actions = { copy: () => this.line && copyText(this.line, () => announce("The command is copied.")) };
    part("empty-copy").addEventListener("click", this.actions.copy);
  }

  /** Shows the addresses. They do not change while tokentap runs. */
  async open() {
    if (this.line) return;
    const { url, needs_key: needsKey } = await get("/v1/data-port");
    const base = baseUrl(url, location.hostname);
    this.line = command(base, needsKey);
    part("empty-urls").replaceChildren(...CLIENTS.flatMap(([name, end]) => [element("dt", {}, name), element("dd", {}, element("code", {}, `${base}/sessions/NAME${end}`))]));
    part("empty-key").hidden = !needsKey;
    part("empty-command").textContent = this.line;
  }
}
