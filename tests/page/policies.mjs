// SPDX-License-Identifier: Apache-2.0
// Two policies and a group of the demo engine: the same prompts under two sets of weights, and rewarded samples of one prompt.

import { ask, generate, ids } from "./tokentap.mjs";

const PROMPT = "<|im_start|>user\nWho keeps the lamp?<|im_end|>\n<|im_start|>assistant\n<think>\n";

async function post(url, body) {
  const answer = await fetch(url, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${url}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}

/** Loads other weights into the engine; the policy epoch advances. */
export function update(tap, name) {
  return post(`${tap.control}/update_weights_from_disk`, { model_path: "tokentap-demo", weight_version: name });
}

/** Names the policy epoch of an adapter, which advances. */
export function named(tap, version, adapter) {
  return post(`${tap.control}/v1/policy`, { version, adapter });
}

/** Sets the reward of a path. */
export function reward(tap, session, leaf, value) {
  return post(`${tap.control}/v1/sessions/${session}/reward`, { reward: value, leaf });
}

/**
 * Samples one prompt before and after an update of the weights, as the sessions `step-0` and `step-1`. Returns both paths. With these
 * seeds the first 60 sampled tokens are equal.
 */
export async function policies(tap) {
  const input_ids = await ids(tap, "The lamp");
  const say = (session, sampling_seed) => generate(tap, session, { input_ids, entropy_options: { bounds: true, stats: true }, sampling_params: { max_new_tokens: 150, temperature: 0.9, sampling_seed, ignore_eos: true } });
  await say("step-0", 8);
  await update(tap, "step-1");
  await say("step-1", 4);
  const [left, right] = await Promise.all(["step-0", "step-1"].map((session) => path(tap, session, 0)));
  return { left, right };
}

/** A path with all its tokens. */
export async function path(tap, session, leaf) {
  const at = `/v1/sessions/${session}/paths/${leaf}`;
  return { ...(await ask(tap, at)), ...(await ask(tap, `${at}?from=0&limit=100000`)) };
}

/** Samples one prompt `count` times in a session and rewards the samples, except the last one. */
export async function group(tap, session = "group", count = 8) {
  const input_ids = await ids(tap, PROMPT);
  for (let sample = 0; sample < count; sample++) {
    const sampling_params = { max_new_tokens: 60 + 25 * (sample % 4), temperature: 1.2, sampling_seed: 100 + sample, ignore_eos: true };
    await generate(tap, session, { input_ids, entropy_options: { bounds: true }, sampling_params });
    if (sample + 1 < count) await reward(tap, session, sample, sample % 3 === 0 ? 1 : 0.25 * (sample % 3) - 0.5);
  }
  return { session, count };
}
