# SPDX-License-Identifier: Apache-2.0
"""Compares the replies of two endpoints to the same greedy request: members and their order, values, and chunks."""
import json
import re

import wire

QUESTION = [{"role": "user", "content": "Hello there"}]
# without thinking, because random replies with thinking are parsed differently: see KNOWN
BASE = {"model": "tiny", "messages": QUESTION, "max_tokens": 12, "temperature": 0, "chat_template_kwargs": {"enable_thinking": False}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
REQUESTS = {
    "plain": BASE,
    "two samples": BASE | {"n": 2},
    "logprobs": BASE | {"logprobs": True, "top_logprobs": 2},
    "a stop string": BASE | {"stop": [" munch", "e"]},
    "ids and meta_info": BASE | {"return_token_ids": True, "return_meta_info": True},
    "noise that thinks": BASE | {"chat_template_kwargs": {}},
    "a stream": BASE | STREAM,
    "a stream of two samples": BASE | STREAM | {"n": 2},
    "a stream with logprobs": BASE | STREAM | {"logprobs": True, "top_logprobs": 2},
    "a stream with a stop string": BASE | STREAM | {"stop": [" munch", "e"]},
    "a stream with usage throughout": BASE | {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "no messages": BASE | {"messages": []},
    "a wrong temperature": BASE | {"temperature": -1.5},
    "a wrong temperature, streamed": BASE | STREAM | {"temperature": -1.5},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Troms\u00f8"}}\n</tool_call>'
SUM = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": -2}}\n</tool_call>'
SCRIPTED = {
    "text": "It rains: \U0001f327 \u00e9.\n\n- a<|im_end|>",
    "a thought": "<think>\nHm, \U0001f327.\n</think>\n\nYes.<|im_end|>",
    "a thought without its opening": "Hm.\n</think>\n\nYes.<|im_end|>",
    "a thought and nothing": "<think>\nHm.\n</think>\n\n<|im_end|>",
    "a call": CALL + "<|im_end|>",
    "a text and a call": "Let me see.\n" + CALL + "<|im_end|>",
    "a thought and two calls": "<think>\nBoth.\n</think>\n\n" + CALL + "\n" + SUM + "<|im_end|>",
    "a thought, a text and two calls": "<think>\nBoth.\n</think>\n\nNow:\n\n" + CALL + "\n" + SUM + "<|im_end|>",
    "a call of an unknown tool": CALL.replace("weather", "climate") + "<|im_end|>",
    "a call with invalid JSON": CALL.replace("}}", "") + "<|im_end|>",
    "a call and a text after it": CALL + "\nSo.<|im_end|>",
}
OLD = r"^0\.5\.(6|12)\b"
# The allowed differences of replies, by a pattern of the case names. Differences in spelling are printed and always allowed.
KNOWN = [
    # members that tokentap adds on request
    ("ids and meta_info", r"only tokentap has (prompt_token_ids|token_ids|output_token_entropy, entropy_info)$"),
    # the weight version is also in the usage of streams
    ("stream", r"chunk only of .*\{choices\[\], usage\{"),
    # a token without text has its logprob in a separate chunk
    ("a stream with logprobs", r"chunk only of tokentap: .*delta\{reasoning_content=null\}, logprobs\{"),
    # 0.5.23 writes null members into the tools of a prompt
    ("scripted", r"usage.*\.(prompt_tokens|total_tokens): "),
    # SGLang's deltas of calls and after thinking have all members, null or not
    ("scripted", r"a chunk only of "),
    # /generate counts thinking tokens only with `require_reasoning`, which SGLang's own endpoint sets
    ("thought|thinks", r"(reasoning_tokens|completion_tokens_details): "),
    # for 0.5.23 everything before </think> is thinking, for tokentap the text after <think>
    ("noise that thinks|without its opening", r"(content|reasoning|reasoning_content): "),
    # SGLang drops these calls completely or in part, and returns an empty reply
    ("unknown tool|invalid JSON", r"tool_calls|\.finish|matched_stop|calls|content: "),
    # SGLang drops the text after a call
    ("text after it", r"content: 'So\.' instead of (''|None)"),
    # the error of SGLang's members is also in OpenAI's member `error`
    ("no messages|a wrong temperature", r"reply: only tokentap has error$"),
    # before 0.5.23: members that are null in every message and chunk, an index of -1 in calls, and fewer extra members
    (OLD, r"only SGLang has tool_calls=None|only tokentap has completion_tokens_details|a chunk only of "),
    (OLD + ".*scripted", r"content: '' instead of None|\.index: \d instead of -1"),
    (OLD + ".*ids and meta_info", r"only tokentap has prompt_token_ids, response_token_ids, token_ids, meta_info"),
    # in a stream SGLang drops the end of the text before a call
    ("^0.5.6.*text and two calls, a stream", r"content: 'Now:' instead of"),
    # if a token is part of a character, its bytes are those of the replacement character
    (OLD + ".*logprobs", r"bytes: \["),
    # an error in a stream is an event
    ("^0.5.6.*temperature, streamed", r"status 400 instead of 200|content-type|reply: "),
]
# members whose values differ in each reply
OWN = {"id", "created", "e2e_latency", "request_received_ts", "response_sent_to_client_ts"}
# cached tokens differ between calls
OWN |= {"cached_tokens", "cached_tokens_details", "prompt_tokens_details"}

# members that every chunk has, and those that are null if the engine does not report cached tokens
ALWAYS = {"id", "object", "created", "model"}
UNCOUNTED = {"prompt_tokens_details", "completion_tokens_details"}


def differences(ours, theirs, at=""):
    """The differences of two values as lines, including members of objects and their order."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        out = []
        more, less = [k for k in ours if k not in theirs], [k for k in theirs if k not in ours]
        out += [f"{at}: only tokentap has {', '.join(more)}"] if more else []
        out += [f"{at}: only SGLang has {', '.join(f'{k}={str(theirs[k])[:40]}' for k in less)}"] if less else []
        if [k for k in ours if k in theirs] != [k for k in theirs if k in ours]:
            out.append(f"{at}: {list(ours)} in the order of {list(theirs)}")
        return out + [d for k in ours if k in theirs and k not in OWN for d in differences(ours[k], theirs[k], f"{at}.{k}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [d for a, b in zip(ours, theirs) for d in differences(a, b, f"{at}[]")]
    if isinstance(ours, float) and isinstance(theirs, float):
        # float32 sums depend on the batch
        return [] if abs(ours - theirs) < 1e-3 else [f"{at}: {ours} instead of {theirs}"]
    if is_spelling(ours, theirs):
        return [] if ours == theirs else [f"{SPELLED}{at}: {ours!r:.200} instead of {theirs!r:.200}"]
    return [] if ours == theirs else [f"{at}: {ours!r:.200} instead of {theirs!r:.200}"]


SPELLED = "other spelling: "


def is_spelling(ours, theirs):
    """Whether two texts differ in the white space around them, or two objects in how their JSON is written."""
    if not (isinstance(ours, str) and isinstance(theirs, str)):
        return False
    try:
        return ours.strip() == theirs.strip() or json.loads(ours) == json.loads(theirs)
    except ValueError:
        return False


def skeleton(value, name=""):
    """The members of a chunk and their order, and which are null."""
    if name in UNCOUNTED:
        return name
    if isinstance(value, dict):
        return f"{name}{{{', '.join(skeleton(inner, key) for key, inner in value.items() if key not in ALWAYS)}}}"
    if isinstance(value, list):
        return f"{name}[{skeleton(value[0]) if value else ''}]"
    return f"{name}=null" if value is None else name


def together(events):
    """The joined choices of a stream, the kinds of chunks in order of appearance, and the usage."""
    choices, kinds = {}, []
    for event in events:
        kind = skeleton(event)
        kinds += [kind] if kind not in kinds else []
        for choice in event["choices"]:
            whole = choices.setdefault(str(choice["index"]), {"content": "", "reasoning": "", "calls": [], "logprobs": [], "finish": None})
            delta = choice["delta"]
            whole["content"] += delta.get("content") or ""
            whole["reasoning"] += delta.get("reasoning_content") or ""
            whole["logprobs"] += (choice.get("logprobs") or {}).get("content") or []
            for call in delta.get("tool_calls") or []:
                function = call["function"]
                if call.get("id"):
                    whole["calls"].append([call["index"], call["type"], function["name"], ""])
                whole["calls"][-1][3] += function.get("arguments") or ""
            whole["finish"] = [choice["finish_reason"], choice.get("matched_stop")]
    return dict(sorted(choices.items())), kinds, [event["usage"] for event in events if event.get("usage")][-1:]


def same(name, direct, via, request):
    """Compares the replies of both endpoints; returns the differences, all of which must be known ones."""
    theirs, ours = (wire.call(base, "POST", "/v1/chat/completions", request) for base in (direct, via))
    found = [] if ours.status == theirs.status else [f"status {ours.status} instead of {theirs.status}"]
    kinds = [reply.headers.get("content-type") for reply in (ours, theirs)]
    found += [] if kinds[0] == kinds[1] else [f"content-type {kinds[0]} instead of {kinds[1]}"]
    if request.get("stream") and ours.status == theirs.status == 200 and all(b".chunk" in reply.body for reply in (ours, theirs)):
        (a, a_kinds, a_usage), (b, b_kinds, b_usage) = together(ours.events()), together(theirs.events())
        found += differences(a, b, "message") + differences(a_usage, b_usage, "usage")
        found += [f"a chunk only of tokentap: {kind}" for kind in a_kinds if kind not in b_kinds]
        found += [f"a chunk only of SGLang: {kind}" for kind in b_kinds if kind not in a_kinds]
        found += [] if ours.done() == theirs.done() else ["[DONE]"]
    elif b"data: " in (ours.body[:6], theirs.body[:6]):
        found += [] if ours.body == theirs.body else [f"reply: {ours.body[:300]} instead of {theirs.body[:300]}"]
    else:
        found += differences(ours.json(), theirs.json(), "reply")
    found = list(dict.fromkeys(found))
    known = [how for which, how in KNOWN if re.search(which, name)]
    new = [one for one in found if not one.startswith(SPELLED) and not any(re.search(how, one) for how in known)]
    assert not new, "\n        ".join(new)
    return found
