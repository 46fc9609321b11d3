# SPDX-License-Identifier: Apache-2.0
"""The requests. Replies to greedy ones must be equal; replies to sampled ones (temperature > 0) must only have the same shape.

Every request sets its temperature, so that its kind is certain."""

IDS, MORE = [10, 11, 12], [9707, 11, 1879, 0]


def ask(prompt=IDS, max_new_tokens=12, temperature=0, sampling=None, **top):
    key = "text" if isinstance(prompt, str) or prompt and isinstance(prompt[0], str) else "input_ids"
    params = {"max_new_tokens": max_new_tokens, "temperature": temperature} | (sampling or {})
    return {key: prompt, "sampling_params": params} | top


def lp(k=0, **top):
    return {"return_logprob": True, "top_logprobs_num": k} | top


FLAT = {"return_flat_raw_output_top_logprobs": True}
B64 = FLAT | {"return_flat_raw_top_logprobs_b64": True}

GREEDY = {
    "text": ask("The quick brown fox"),
    "ids": ask(max_new_tokens=40),
    "unicode": ask("日本語 🦀 ünïcödé", 30),
    "logprobs 0": ask(**lp(0)),
    "logprobs 5": ask(**lp(5)),
    "logprobs 30": ask(**lp(30)),
    "logprobs with text": ask(**lp(2, return_text_in_logprobs=True)),
    "prompt logprobs": ask(MORE, **lp(3, logprob_start_len=0)),
    "chosen ids": ask(**lp(2, token_ids_logprob=[5, 6, 151935])),
    # members that the engine ignores without return_logprob must have no effect when tokentap sets it
    "dormant companions": ask(MORE, logprob_start_len=0, token_ids_logprob=[5], top_logprobs_num=5, **FLAT),
    "return_entropy": ask(return_entropy=True),
    "no entropy": ask(return_entropy=False),
    "no tokens": ask(max_new_tokens=0),
    "no tokens, logprobs": ask(max_new_tokens=0, **lp(3)),
    "one token": ask(max_new_tokens=1),
    "stop string": ask(MORE, 60, sampling={"stop": " "}),
    "logit bias": ask(sampling={"logit_bias": {"1234": 9.5}}, **lp(5)),
    "min new tokens": ask(sampling={"min_new_tokens": 6}),
    "batch of ids": ask([IDS, MORE]),
    "batch of texts": ask(["Hello", "One two three"], **lp(5)),
    "batch of one": ask([IDS]),
    "n = 2": ask(sampling={"n": 2}, **lp(2)),
    "batch, n = 2": ask([IDS, MORE], 6, sampling={"n": 2}),
    "lists per item": ask([IDS, MORE], return_logprob=[True, False], top_logprobs_num=[2, 0]),
    "k per item": ask([IDS, MORE], return_logprob=True, top_logprobs_num=[1, 30]),
    "parameters per item": ask([IDS, MORE]) | {"sampling_params": [
        {"max_new_tokens": 3, "temperature": 0}, {"max_new_tokens": 9, "temperature": 0}]},
    "rid": ask(rid="same-1"),
    "rids": ask([IDS, MORE], rid=["same-2", "same-3"]),
    "rid of a batch": ask([IDS, MORE], rid="same-4"),
    "flat": ask(**lp(5), **FLAT),
    "flat, base64": ask(**lp(5), **B64),
    "flat, batch": ask([IDS, MORE], **lp(3), **B64),
    "flat, no tokens": ask(max_new_tokens=0, **lp(3), **B64),
    "prompt ids": ask("Hello you", return_prompt_token_ids=True),
    "repeated key": b'{"return_logprob":false,"return_logprob":true,"input_ids":[10,11],'
                    b'"sampling_params":{"max_new_tokens":4,"temperature":0}}',
    "escaped key": b'{"\\u0072eturn_logprob":true,"input_ids":[10,11],"sampling_params":{"max_new_tokens":4,"temperature":0}}',
    "unknown member": ask(xyz={"a": [1, 2]}),
}

WHOLE = {"ignore_eos": True}  # a fixed length, independent of the sampled tokens
DRAWN = {
    "T 0.7": ask(temperature=0.7, sampling=WHOLE),
    "T 1, top-p": ask(temperature=1.0, sampling=WHOLE | {"top_p": 0.9, "top_k": 50}, **lp(5)),
    "T 1.5, n = 3": ask(temperature=1.5, sampling=WHOLE | {"n": 3}),
    "batch drawn": ask([IDS, MORE], temperature=1.0, sampling=WHOLE, **lp(2)),
    "top_k 1": ask(temperature=0.5, sampling=WHOLE | {"top_k": 1}),
    "no temperature": {"input_ids": IDS, "sampling_params": {"ignore_eos": True, "max_new_tokens": 8}},
}

# `stop` ends this stream early, but tokentap only knows the limit of 600 tokens
LONG = ask(MORE, 600, sampling={"stop": " "}, stream=True)
STREAMS = {name: body | {"stream": True} for name, body in {
    "plain": ask(max_new_tokens=24),
    "logprobs 0": ask(**lp(0)),
    "logprobs 5": ask(**lp(5)),
    "logprobs 30": ask(**lp(30)),
    "prompt logprobs": ask(MORE, **lp(2, logprob_start_len=0)),
    "chosen ids": ask(**lp(0, token_ids_logprob=[5, 6])),
    "unicode": ask("日本語 🦀", 40),
    "stop string": ask(MORE, 60, sampling={"stop": " "}),
    "batch": ask([IDS, MORE], **lp(2)),
    "n = 2": ask(sampling={"n": 2}),
    "rid": ask(rid="same-5"),
    "rid of a batch": ask([IDS, MORE], rid="same-6"),
    "no entropy": ask(return_entropy=False),
    "one token": ask(max_new_tokens=1, **lp(2)),
    "T 1": ask(temperature=1.0, sampling=WHOLE, **lp(3)),
    "T 0.7, batch": ask([IDS, MORE], temperature=0.7, sampling=WHOLE),
}.items()}

# Invalid or unusual requests that do not crash the engine: status and body must be those of the engine. (method, path, body)
ERRORS = {
    "not JSON": ("POST", "/generate", b'{"text": '),
    "an array": ("POST", "/generate", b"[1, 2]"),
    "no prompt": ("POST", "/generate", {"sampling_params": {}}),
    "empty ids": ("POST", "/generate", ask([])),
    "empty batch": ("POST", "/generate", {"text": []}),
    "text is a number": ("POST", "/generate", {"text": 5}),
    "unknown sampling parameter": ("POST", "/generate", ask(sampling={"nope": 1})),
    "temperature -1": ("POST", "/generate", ask(temperature=-1)),
    "top_p 2": ("POST", "/generate", ask(sampling={"top_p": 2})),
    "max_new_tokens -1": ("POST", "/generate", ask(max_new_tokens=-1)),
    "too long": ("POST", "/generate", ask([10] * 3000)),
    "too long together": ("POST", "/generate", ask(max_new_tokens=100000)),
    "bias out of range": ("POST", "/generate", ask(sampling={"logit_bias": {"2000000000": 1.0}})),
    "return_logprob is text": ("POST", "/generate", ask(return_logprob="maybe")),
    "temperature -1, stream": ("POST", "/generate", ask(temperature=-1, stream=True)),
    "too long, stream": ("POST", "/generate", ask([10] * 3000, stream=True)),
    "GET": ("GET", "/generate", None),
    "no such path": ("GET", "/nope", None),
    "model info": ("GET", "/get_model_info", None),
}

# Each of these crashes a real engine of at least one of the two versions (the first one: of some version): tokentap must reject it.
DEADLY = {
    "ids too deep": ask([[[1]]]),
    "empty text": ask(""),
    "empty text in a batch": ask(["a", ""]),
    "an empty row": ask([[]]),
    "id past the vocabulary": ask([10, 151936]),
    "id past the vocabulary in a batch": ask([[10], [151936]]),
    "id -1": ask([10, -1]),
    "k past the vocabulary": ask(**lp(151937)),
    "k as a list": ask(**lp([5])),
    "start as a list": ask(**lp(0, logprob_start_len=[0])),
    "start -5": ask(**lp(0, logprob_start_len=-5)),
    "chosen id past the vocabulary": ask(**lp(0, token_ids_logprob=[2000000000])),
    "rid twice": ask([IDS, MORE], rid=["twice", "twice"]),
    "rid as a list": ask(rid=["alone"]),
    "top_k past int32": ask(temperature=1.0, sampling={"top_k": 2**33}),
    "temperature NaN": b'{"input_ids":[10,11],"sampling_params":{"max_new_tokens":2,"temperature":NaN}}',
    "bias past float32": ask(temperature=1.0, sampling={"logit_bias": {"5": 1e39}}),
    "bias NaN": b'{"input_ids":[10,11],"sampling_params":{"max_new_tokens":2,"logit_bias":{"5":NaN}}}',
}

# Requests with bounds, whose entropies truth.py checks.
TRUTH = {name: body | {"entropy_options": {"bounds": True}} for name, body in {
    "greedy": ask([IDS, MORE], 48),
    "greedy, stream": ask(MORE, 32, stream=True),
    "greedy, bias": ask(max_new_tokens=24, sampling={"logit_bias": {"1234": 9.5}}),
    "T 0.7": ask([IDS, MORE], 48, 0.7),
    "T 1": ask([IDS, MORE], 48, 1.0),
    "T 1, stream": ask(max_new_tokens=32, temperature=1.0, stream=True),
    "T 1, top-p": ask(MORE, 48, 1.0, {"top_p": 0.8, "top_k": 40}),
    "T 1.5, n = 3": ask(max_new_tokens=32, temperature=1.5, sampling={"n": 3}),
    "T 1.5, own logprobs": ask(max_new_tokens=32, temperature=1.5, **lp(5)),
    "top_k 1, T 0.5": ask(max_new_tokens=24, temperature=0.5, sampling={"top_k": 1}),
}.items()}
