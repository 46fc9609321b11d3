// What the control port is asked. The token, where one is needed, stays in this tab: in memory and in its session storage, in no URL.

import { part } from "./element.js";

const KEPT = "tokentap-control-token";
let token = stored();
let asking = null;

/** An answer that says no. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function stored() {
  try {
    return sessionStorage.getItem(KEPT) ?? "";
  } catch {
    return ""; // storage may be forbidden; then it is asked for again
  }
}

/** JSON of a route. Asks the person for the token where it is missing or wrong. */
export async function get(path, signal) {
  return (await call(path, { signal })).json();
}

/** JSON of a route that is sent JSON. */
export async function post(path, body, signal) {
  const headers = { "content-type": "application/json" };
  return (await call(path, { method: "POST", headers, body: JSON.stringify(body), signal })).json();
}

async function call(path, options) {
  for (;;) {
    const used = token;
    const headers = { ...options.headers, ...(used ? { authorization: `Bearer ${used}` } : {}) };
    const answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit", referrerPolicy: "no-referrer" });
    if (answer.ok) return answer;
    if (answer.status === 401) {
      // several calls may have found out at once
      if (used === token) await (asking ??= ask(used !== ""));
      continue;
    }
    throw new Refusal(answer.status, await message(answer));
  }
}

async function message(answer) {
  try {
    const said = await answer.json();
    return said.error?.message ?? said.message ?? answer.statusText;
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
        sessionStorage.setItem(KEPT, token);
      } catch {
        // kept in memory alone
      }
      resolve();
    }, { once: true });
  });
}
