// SPDX-License-Identifier: Apache-2.0
// A fake engine that answers /generate with the requested tokens: hostile texts, and trajectories of any length. `holes` are the positions
// of tokens without top logprobs. It replaces the placeholder of each picture of `image_data` by a run of the same token, and echoes the
// prompt, as SGLang does.

import { createServer } from "node:http";

/** Tokens of the vocabulary. */
export const VOCABULARY = 32_000;
/** The first id of the hostile tokens. */
export const HOSTILE = 31_000;

/** The placeholder of a picture, and the tokens before and after it. */
export const [PICTURE, BEFORE, AFTER] = [30_900, 30_901, 30_902];

/** The number of tokens of a picture; that of two with equally many bytes is equal. */
export function tokensOf(bytes) {
  return 300 + (bytes.length % 50);
}

/** The tokens of a prompt whose placeholders have become runs. */
export function expanded(ids, pictures) {
  const left = [...pictures];
  return ids.flatMap((id) => (id === PICTURE && left.length ? new Array(tokensOf(left.shift())).fill(id) : [id]));
}

/** Hostile texts: markup, scripts, control characters, and very long text. */
export const TEXTS = [
  "<script>window.hit = 1</script>", "<img src=x onerror=\"window.hit=2\">", "</span></pre></div><h1>out</h1>", "\"><svg onload=window.hit=3>",
  "javascript:window.hit=4", "\u202egnp.exe\u202c", "\u2066\u2067\u2069", "a\u200bb\u200dc\ufeff", "\u0000\u0007\u001b[31m", "{{constructor.constructor('window.hit=5')()}}",
  "<!--", "-->", "<style>*{display:none}</style>", "<iframe srcdoc='<script>parent.hit=6</script>'></iframe>", "&lt;b&gt;&amp;", "\u0301\u0302\u0303 marks",
  "X".repeat(1_000_000), "\u2028\u2029", "", "\r\n", "\ud83d\udc69\u200d\ud83d\udcbb", "]]>", "${window.hit=7}", "</title></style></script><script>window.hit=8</script>",
];

const SYLLABLES = ["lo", "ra", "min", "te", "sol", "ver", "an", "du", "quis", "el", "or", "bit"];

/** The text of a token. */
export function text(id) {
  if (id >= PICTURE && id <= AFTER) return ["<|image|>", "<|vision|>", "<|/vision|>"][id - PICTURE];
  if (id >= HOSTILE) return TEXTS[id - HOSTILE] ?? "?";
  if (id % 97 === 0) return "\n";
  let [word, rest] = ["", id];
  do {
    word += SYLLABLES[rest % SYLLABLES.length];
    rest = Math.floor(rest / SYLLABLES.length);
  } while (rest > 0 && word.length < 7);
  return id % 5 === 0 ? word : ` ${word}`;
}

/** Pseudo-random numbers between 0 and 1 from a fixed seed. */
function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

function reply(asked, name) {
  const pictures = (asked.image_data ?? []).map((uri) => Buffer.from(uri.slice(uri.indexOf(",") + 1), "base64"));
  const prompt = expanded(Array.isArray(asked.input_ids) ? asked.input_ids : [1, 2, 3], pictures);
  const count = asked.sampling_params?.max_new_tokens ?? 8;
  const next = random(prompt.length * 7919 + count);
  const k = asked.top_logprobs_num ?? 0;
  const stop = asked.sampling_params?.stop ?? [];
  const wanted = Array.isArray(stop) ? stop.filter((id) => typeof id === "number") : [];
  const [ids, chosen, rows] = [[], [], []];
  for (let at = 0; at < count; at++) {
    // most rows are nearly certain, some are very uncertain
    const decay = next() < 0.8 ? 2 + 5 * next() : 0.1 + next();
    const rank = Math.min(4, Math.floor(-Math.log(1 - next()) / decay));
    const first = 1 + Math.floor(next() * (HOSTILE - 40));
    const id = asked.hostile?.[at] ?? first + rank;
    const total = 1 / (1 - Math.exp(-decay));
    const logprob = (place) => Number((-decay * place - Math.log(total)).toFixed(6));
    ids.push(id);
    chosen.push([logprob(rank), id, null]);
    rows.push(asked.holes?.includes(at) ? null : Array.from({ length: k }, (_, place) => [logprob(place), place === rank ? id : first + place, null]));
  }
  const meta = {
    id: asked.rid ?? "r", finish_reason: { type: asked.finish ?? "length", length: count }, prompt_tokens: prompt.length, completion_tokens: count,
    weight_version: name ?? "w1", ...(pictures.length ? { image_tokens: prompt.filter((id) => id === PICTURE).length } : {}),
    ...(asked.return_logprob ? { output_token_logprobs: chosen, ...(k ? { output_top_logprobs: rows } : {}) } : {}),
  };
  return { text: "", output_ids: ids, meta_info: meta, ...(asked.return_prompt_token_ids ? { prompt_token_ids: prompt } : {}) };
}

/** Writes the reply as a stream of the tokens that are new. Before an event it waits for `next`, which gives the number of all tokens then. */
async function streamed(answer, whole, next) {
  const { output_ids: ids, meta_info: meta } = whole;
  const lists = ["output_token_logprobs", "output_top_logprobs"].filter((key) => meta[key]);
  answer.writeHead(200, { "content-type": "text/event-stream" });
  for (let from = 0, to; from < ids.length; from = to) {
    to = Math.min(await next(), ids.length);
    const added = Object.fromEntries(lists.map((key) => [key, meta[key].slice(from, to)]));
    const state = { completion_tokens: to, finish_reason: to === ids.length ? meta.finish_reason : null };
    answer.write(`data: ${JSON.stringify({ ...whole, output_ids: ids.slice(from, to), meta_info: { ...meta, ...added, ...state } })}\n\n`);
  }
  answer.end("data: [DONE]\n\n");
}

/**
 * Starts the engine; returns its `url` and `stop`. `strips`: its tokenizer drops the space at the beginning of a text, as Llama 2's does.
 * `name` is the name of its model and weights. `next` paces streams of requests with `paced`.
 */
export async function engine({ strips = false, name, next } = {}) {
  const decode = (ids) => ids.map(text).join("").replace(strips ? /^ / : "", "");
  const server = createServer((request, answer) => {
    let body = "";
    request.on("data", (bytes) => { body += bytes; });
    request.on("end", () => {
      const say = (status, value) => answer.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value));
      const asked = body ? JSON.parse(body) : {};
      if (request.url === "/generate") {
        // tokentap's probe for the vocabulary size
        if (asked.sampling_params?.logit_bias) return say(400, { error: { message: `logit_bias must has keys in [0, ${VOCABULARY - 1}]` } });
        return asked.paced ? streamed(answer, reply(asked, name), next) : say(200, reply(asked, name));
      }
      if (request.url === "/detokenize") return say(200, { text: asked.tokens.map(decode) });
      if (request.url === "/model_info") return say(200, { model_path: "scripted", served_model_name: name ?? "scripted", is_generation: true, weight_version: name ?? "w1" });
      if (request.url === "/server_info") return say(200, { version: "0.5.23", frontend: "python", incremental_streaming_output: true });
      if (request.url === "/v1/models") return say(200, { data: [{ id: name ?? "scripted" }] });
      return say(404, { error: { message: "not here" } });
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const stop = () => new Promise((resolve) => {
    server.closeAllConnections();
    server.close(resolve);
  });
  return { url: `http://127.0.0.1:${server.address().port}`, stop };
}
