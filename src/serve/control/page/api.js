// SPDX-License-Identifier: Apache-2.0
// Requests to the control port. The token, if one is needed, stays in this tab: in memory and session storage, never in a URL.

import { part } from "./element.js";

const STORAGE_KEY = "tokentap-control-token";
let token = stored();
let asking = null;

/** An error reply. */
export class ReplyError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function stored() {
  try {
    return sessionStorage.getItem(STORAGE_KEY) ?? "";
  } catch {
    return ""; // storage is not available, so the user enters the token again
  }
}

/** Keeps what the page reads out of the access log. An export is not marked. */
const VIEWER = { "x-tokentap-viewer": "page" };

/** Requests that were sent ahead, by path. */
const early = new Map();

/** Sends GET before its reply is needed. The next `get` of this path returns this reply. */
export function ahead(path) {
  const reply = get(path);
  // `get` returns the same promise, so its caller handles the error
  reply.catch(() => {});
  early.set(path, reply);
}

/** Drops unused early replies, which would be outdated later. */
export function dropEarly() {
  early.clear();
}

/** Sends GET and returns the JSON reply. Asks the user for the token if it is missing or wrong. */
export async function get(path, signal) {
  const reply = early.get(path);
  early.delete(path);
  return reply ?? (await call(path, { headers: VIEWER, signal })).json();
}

/** Sends POST with JSON, which changes nothing, and returns the JSON reply. */
export async function post(path, body, signal) {
  return (await call(path, posted(body, { headers: VIEWER, signal }))).json();
}

const posted = (body, { headers, signal }) => ({ method: "POST", headers: { "content-type": "application/json", ...headers }, body: JSON.stringify(body), signal });

/** Sends POST with JSON and returns the body of the reply as a Blob, and its headers. */
export async function postBlob(path, body, signal) {
  const answer = await call(path, posted(body, { signal }));
  return { blob: await answer.blob(), headers: answer.headers };
}

/** Sends GET and returns the bytes of the reply as an ArrayBuffer. */
export async function getBytes(path, signal) {
  return (await call(path, { headers: VIEWER, signal })).arrayBuffer();
}

async function call(path, options) {
  for (;;) {
    const used = token;
    const headers = { ...options.headers, ...(used ? { authorization: `Bearer ${used}` } : {}) };
    const answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit", referrerPolicy: "no-referrer" });
    if (answer.ok) return answer;
    if (answer.status === 401) {
      // concurrent calls share one dialog
      if (used === token) await (asking ??= ask(used !== ""));
      continue;
    }
    throw new ReplyError(answer.status, await message(answer));
  }
}

async function message(answer) {
  try {
    const body = await answer.json();
    return body.error?.message ?? body.message ?? answer.statusText;
  } catch {
    return answer.statusText;
  }
}

function ask(wasWrong) {
  const [dialog, input] = [part("ask"), part("token")];
  part("ask-problem").textContent = wasWrong ? "This is not the token." : "";
  input.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      token = input.value;
      input.value = "";
      asking = null;
      try {
        sessionStorage.setItem(STORAGE_KEY, token);
      } catch {
        // storage is not available: the token is only in memory
      }
      resolve();
    }, { once: true });
  });
}
