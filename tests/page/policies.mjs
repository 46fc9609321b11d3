// Two policies and a group of the demo engine: the same prompts under two sets of weights, and rewarded samples of one prompt.

import { generate, ids } from "./tokentap.mjs";

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

/** Sets the reward of a path. */
export function reward(tap, session, leaf, value) {
  return post(`${tap.control}/v1/sessions/${session}/reward`, { reward: value, leaf });
}

/**
 * Samples one prompt under two policies, as `step-1` and `step-2`: greedily for `tokens` tokens. The second one is given the first tokens of the first one's response as
 * its prompt's end where `forced` is not 0.
 */
export async function policies(tap, { tokens = 200 } = {}) {
  const input_ids = await ids(tap, PROMPT);
  const asked = { input_ids, entropy_options: { bounds: true, stats: true }, sampling_params: { max_new_tokens: tokens, temperature: 0.6, sampling_seed: 5, ignore_eos: true } };
  const first = await generate(tap, "step-1", asked);
  await update(tap, "step-2");
  const second = await generate(tap, "step-2", asked);
  return { prompt: input_ids.length, first: first.output_ids, second: second.output_ids };
}

/** Samples one prompt `count` times in a session and rewards the samples, except the last one. */
export async function group(tap, session = "group", count = 8) {
  const input_ids = await ids(tap, PROMPT);
  for (let sample = 0; sample < count; sample++) {
    const sampling_params = { max_new_tokens: 60 + 25 * (sample % 4), temperature: 1 + 0.1 * sample, sampling_seed: 100 + sample, ignore_eos: true };
    await generate(tap, session, { input_ids, entropy_options: { bounds: true }, sampling_params });
    if (sample + 1 < count) await reward(tap, session, sample, sample % 3 === 0 ? 1 : 0.25 * (sample % 3) - 0.5);
  }
  return { session, count };
}
