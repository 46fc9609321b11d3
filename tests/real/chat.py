# SPDX-License-Identifier: Apache-2.0
"""chat.py --direct URL --tokentap BINARY --model DIR --python SGLANG_PYTHON --work DIR

The openai SDK, tokentap and a real SGLang in a row; the calls between tokentap and SGLang are recorded. Twenty turns in each way of
calling. Compares the exports with the engine's requests and replies, the first prompts with SGLang's, and the replies with those of
SGLang's own endpoint. Prints a line per check; exit status 1 if one failed. Run by the Python of tests/openai."""
import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "openai"))

import openai

import conversation
import shapes
import wire
from tap import FORWARDED, soon, watched
from ways import WAYS, StreamAssembler

args = argparse.ArgumentParser()
for name in ("direct", "tokentap", "model", "python", "work"):
    args.add_argument(f"--{name}", required=True)
args.add_argument("--only", default="", help="run only checks whose names contain this")
args = args.parse_args()
failed = []

TOOLS = conversation.TOOLS
# SGLang enforces strict tools by a grammar, and these servers have no grammar backend
LOOSE = [tool | {"function": {k: v for k, v in tool["function"].items() if k != "strict"}} for tool in TOOLS]
CALLED = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Wie ist es in Tromsø? 🌧"},
    {"role": "assistant", "content": "Both at once.", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Tromsø"}'}},
        {"id": "c2", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": -2}'}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "rain\n\n  and wind"},
    {"role": "tool", "tool_call_id": "c2", "content": "-1"},
]


def check(name, run):
    if args.only not in name:
        return
    try:
        notes = run()
    except Exception as error:
        failed.append(name)
        print(f"FAIL  chat     {name}\n        {type(error).__name__}: {str(error)[:4000]}", flush=True)
    else:
        print(f"ok    chat     {name}", *(notes or []), sep="\n        ", flush=True)


def script_members(text):
    """The request members that make the engine sample this text."""
    reply = wire.call(args.direct, "POST", "/tokenize", {"model": "tiny", "prompt": text, "add_special_tokens": False})
    return {"custom_logit_processor": processor, "custom_params": {"say": reply.json()["tokens"]}}


def scripted(way):
    """The scripted conversation of tests/openai: thinking, calls, parallel calls."""
    session = f"script-{abs(hash(way))}"
    since = len(tap.engine.of("/generate"))
    with tap.delivery(session) as to:
        replies = conversation.converse(to, WAYS[way], script_members)
    prompts, outputs = conversation.line(tap, session)
    conversation.same_as_replies(replies, prompts, outputs)
    conversation.same_as_engine(tap, since, prompts, outputs)
    return [f"{len(prompts[-1]) + len(outputs[-1])} tokens; {sum(len(reply.calls) for reply in replies)} calls"]


def noise(way):
    """Random replies: some truncated, some ended by a stop string, some by the end token."""
    session = f"real-{abs(hash(way))}"
    since = len(tap.engine.of("/generate"))
    messages, replies = list(CALLED), []
    with tap.delivery(session) as to:
        for turn in range(conversation.TURNS):
            request = {"model": "tiny", "messages": messages, "tools": TOOLS, "max_tokens": 1 + turn * 7 % 24}
            request["temperature"] = [0.0, 1.0, 1.5][turn % 3]
            if turn % 5 == 4:
                request |= {"stop": [" ", "e", "a"], "max_tokens": 40}
            reply = WAYS[way](to, request)
            replies.append(reply)
            messages = [*messages, reply.message, *conversation.answers(reply, turn)]
    prompts, outputs = conversation.line(tap, session, causes={"extends", "extends_length"}, history=True)
    conversation.same_as_replies(replies, prompts, outputs)
    conversation.same_as_engine(tap, since, prompts, outputs)
    ends = [reply.finish for reply in replies]
    return [f"{len(prompts[-1]) + len(outputs[-1])} tokens; " + ", ".join(f"{ends.count(end)} {end}" for end in sorted(set(ends)))]


CONVERSATIONS = {
    "a word": {"messages": [{"role": "user", "content": "Hello there"}]},
    "a system": {"messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "日本語と한국어 🙂\n\n\tx  y"}]},
    "no thinking": {"messages": [{"role": "user", "content": "Hm?"}], "chat_template_kwargs": {"enable_thinking": False}},
    "a history": {"messages": [
        {"role": "user", "content": "One."}, {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nTwo."},
        {"role": "user", "content": "Three."}, {"role": "assistant", "reasoning_content": "So.", "content": "Four."},
        {"role": "user", "content": "Five."}]},
    "calls": {"messages": CALLED},
    "tools": {"messages": [{"role": "user", "content": "Weather?"}], "tools": TOOLS},
    "tools and calls": {"tools": TOOLS, "messages": [
        *CALLED, {"role": "assistant", "content": "Rain."}, {"role": "user", "content": "And now?"}]},
}


def prompt_of(case):
    with tap.delivery(None) as to:
        extra = {"chat_template_kwargs": case["chat_template_kwargs"]} if "chat_template_kwargs" in case else {}
        request = {"model": "tiny", "messages": case["messages"], "max_tokens": 1, "extra_body": extra}
        return WAYS["create"](to, request | ({"tools": case["tools"]} if "tools" in case else {})).prompt


def as_transformers():
    cases = list(CONVERSATIONS.values())
    run = subprocess.run([args.python, str(Path(__file__).parent / "rendered.py"), args.model], input=json.dumps(cases),
                         capture_output=True, text=True, check=True)
    for name, case, line in zip(CONVERSATIONS, cases, run.stdout.splitlines()):
        ours, theirs = prompt_of(case), json.loads(line)
        assert ours == theirs, f"{name}: {ours} instead of {theirs}"
    return [f"{len(cases)} conversations"]


def as_sglang():
    """Compares prompts with those of the engine's own endpoint: by ids if it returns them, else by their number."""
    with_ids = []
    for name, case in CONVERSATIONS.items():
        if "tools" in case:
            # SGLang adds members that the client did not send
            continue
        asked = {"model": "tiny", "max_tokens": 1, "return_token_ids": True} | case
        reply = wire.call(args.direct, "POST", "/v1/chat/completions", asked).json()
        ours = prompt_of(case)
        theirs = reply["choices"][0].get("prompt_token_ids")
        if theirs is None:
            assert reply["usage"]["prompt_tokens"] == len(ours), f"{name}: {reply['usage']} instead of {len(ours)}"
        else:
            assert theirs == ours, f"{name}: {ours} instead of {theirs}"
            with_ids.append(name)
    return [f"{len(with_ids)} by ids, the others by their number"]


def tokenize():
    """Compares prompts with the ids that /tokenize returns for conversations."""
    count = 0
    for name, case in CONVERSATIONS.items():
        if "tools" not in case:
            reply = wire.call(args.direct, "POST", "/tokenize", {"model": "tiny"} | case)
            if reply.status != 200:
                return [f"/tokenize does not accept conversations: {reply.status}"]
            assert reply.json()["tokens"] == prompt_of(case), name
            count += 1
    return [f"{count} conversations"]


def defaults():
    """Omitted settings have the values that SGLang takes from the model's generation_config.json."""
    with tap.delivery(None) as to:
        WAYS["create"](to, {"model": "tiny", "messages": [{"role": "user", "content": "Hello there, you"}], "max_tokens": 2})
    sampling = tap.engine.of("/generate")[-1].request["sampling_params"]
    given = json.loads((Path(args.model) / "generation_config.json").read_text())
    for name in ("temperature", "top_k", "top_p"):
        assert sampling[name] == given[name], sampling
    return [str({name: sampling[name] for name in ("temperature", "top_k", "top_p")})]


def too_long():
    request = {"model": "tiny", "messages": [{"role": "user", "content": "word " * 140_000}]}
    direct = wire.call(args.direct, "POST", "/v1/chat/completions", request)
    with tap.delivery("long", max_retries=0) as to:
        for name, way in WAYS.items():
            try:
                way(to, request)
            except openai.BadRequestError as error:
                assert "maximum context length" in error.message, f"{name}: {error}"
                message = error.message
            else:
                raise AssertionError(f"{name}: the conversation was accepted")
    return [f"via:    {message[:200]}", f"direct: {direct.status} {direct.body[:200]}"]


def early_disconnect():
    with tap.delivery("left") as to:
        request = {"model": "tiny", "messages": CALLED, "max_tokens": 1500, "extra_body": {"ignore_eos": True}}
        chunks = to.sync.chat.completions.create(**request, stream=True)
        assembler = StreamAssembler()
        for _, chunk in zip(range(4), chunks):
            assembler.add(chunk)
        chunks.close()
        soon("the turn is recorded", lambda: tap.turns("left"))
        soon("the engine is idle", lambda: wire.running(args.direct) == 0)
        assert tap.turns("left")[0]["fault"] == "disconnected", tap.turns("left")


def forwarded(stream):
    """A chat that SGLang's own endpoint serves is recorded with the sampled ids, if the engine returns them."""
    text = "Es regnet 🌧 in Tromsø."
    ids = wire.call(args.direct, "POST", "/tokenize", {"model": "tiny", "prompt": text, "add_special_tokens": False}).json()["tokens"]
    request = {"model": "tiny", "messages": CALLED, "max_tokens": len(ids), "stream": stream} | script_members(text)
    asked = request if stream else request | {"return_token_ids": True}
    session = f"forwarded-{stream}"
    reply = wire.call(f"http://{untouched.data}", "POST", f"/sessions/{session}/v1/chat/completions", asked)
    assert reply.status == 200 and b"sglext" not in reply.body, reply.body
    soon("the session is recorded", lambda: untouched.get(f"/v1/sessions/{session}"))
    shown = untouched.get(f"/v1/sessions/{session}")
    if version in ("0.5.6.post2", "0.5.12"):
        assert (shown["incomplete"], shown["list"]) == (True, []), shown
        return [f"{version} returns no ids, so the session is incomplete"]
    (turn,) = shown["list"]
    assert (shown["incomplete"], turn["fault"]) == (False, "forwarded"), shown
    (row,) = untouched.rows(session)
    ((prompt,), (output,)) = conversation.exported(row)
    assert output == ids and not any(row["loss_mask"]), (output, ids)
    own = wire.call(args.direct, "POST", "/v1/chat/completions", request | {"stream": False, "max_tokens": 1, "return_token_ids": True})
    assert prompt == own.json()["choices"][0]["prompt_token_ids"], prompt
    if not stream:
        choice = reply.json()["choices"][0]
        assert (choice["prompt_token_ids"], choice["response_token_ids"]) == (prompt, output), choice
    return [f"{len(prompt)} + {len(output)} tokens"]


saying_py = [args.python, str(Path(__file__).parent / "saying.py")]
processor = subprocess.run(saying_py, capture_output=True, text=True, check=True).stdout.strip()
engine = args.direct.removeprefix("http://")
version = wire.call(args.direct, "GET", "/get_server_info").json()["version"]
with watched(args.tokentap, engine, f"{args.work}/chat.log", "--tokenizer", args.model) as tap:
    print(f"      chat     openai {openai.__version__}, SGLang {version}")
    for way in WAYS:
        check(f"twenty turns by {way}", lambda way=way: scripted(way))
    for way in WAYS:
        check(f"twenty turns of noise by {way}", lambda way=way: noise(way))
    check("first prompts as transformers renders them", as_transformers)
    check("first prompts as SGLang's own endpoint renders them", as_sglang)
    check("first prompts as /tokenize renders them", tokenize)
    check("sampling defaults", defaults)
    cases = dict(shapes.REQUESTS)
    for name, text in shapes.SCRIPTED.items():
        thinks = {} if "thought" in name else {"enable_thinking": False}
        request = shapes.BASE | {"tools": LOOSE, "max_tokens": 200, "chat_template_kwargs": thinks} | script_members(text)
        cases |= {f"scripted: {name}": request, f"scripted: {name}, a stream": request | shapes.STREAM}
    for name, request in cases.items():
        check(f"SGLang's own reply: {name}",
              lambda name=name, request=request: shapes.same(f"{version} {name}", args.direct, f"http://{tap.data}", request))
    check("too long", too_long)
    check("early disconnect", early_disconnect)
with watched(args.tokentap, engine, f"{args.work}/passed.log", "--chat", "passthrough", ready=FORWARDED) as untouched:
    for stream in (False, True):
        check(f"SGLang's own endpoint serves, {'a stream' if stream else 'whole'}", lambda stream=stream: forwarded(stream))

print(f"{len(failed)} failed" if failed else "all checks passed")
sys.exit(bool(failed))
