// SPDX-License-Identifier: Apache-2.0
// A session of the demo engine with several turns, tool results, forks, thinking, and characters of more than one token.

import { generate, ids, start } from "./tokentap.mjs";

/** Starts the demo with the ids of its think tokens. */
export function demo(flags = []) {
  return start("demo", ["--think-tokens", "1020,1021", ...flags]);
}

/** Generates the turns; returns the session and the leaf of its longest path. */
export async function lamp(tap, session = "lamp-story") {
  const asked = { entropy_options: { bounds: true, stats: true } };
  const say = (input_ids, tokens, temperature, seed) => generate(tap, session, { input_ids, ...asked, sampling_params: { max_new_tokens: tokens, temperature, ignore_eos: true, sampling_seed: seed } });
  const user = "<|im_start|>user\nWho keeps the lamp — and what is a “café”?<|im_end|>\n<|im_start|>assistant\n<think>\n";
  const tool = "</think><|im_end|>\n<|im_start|>tool\n{\"lamp\": \"lit\", \"oil\": 3}<|im_end|>\n<|im_start|>assistant\n<think>\n";
  let prompt = await ids(tap, user);
  let turns = 0;
  for (let turn = 0; turn < 4; turn++) {
    const reply = await say(prompt, 150, 1.1, turn);
    turns++;
    if (turn === 1) {
      for (const seed of [11, 12]) await say(prompt, 40, 1.4, seed);
      await say([...prompt.slice(0, -4), ...(await ids(tap, " edited"))], 20, 1, 13);
      turns += 3;
    }
    prompt = [...prompt, ...reply.output_ids, ...(await ids(tap, tool))];
  }
  return { session, leaf: turns - 1 };
}
