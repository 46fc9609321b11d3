# SPDX-License-Identifier: Apache-2.0
"""The options of one reply: samples, logprobs, stops, limits, formats."""

from __future__ import annotations

import json
from typing import Any

from conversation import TOOLS, call
from openai import BadRequestError
from pydantic import BaseModel
from tap import Tap
from ways import IDS, USAGE, WAYS, StreamAssembler, of_completion

QUESTION: list[Any] = [{"role": "user", "content": "Well?"}]


def build_request(say: str | None = None, **more: Any) -> dict[str, Any]:
    extra = {**more.pop("extra_body", {}), **({"custom_params": {"say": say}} if say else {})}
    return {"model": "demo", "messages": QUESTION, "extra_body": extra, **more}


def all_ways_give_the_same_reply(tap: Tap) -> None:
    """One reply with thinking, text with split characters, and calls, in every way of calling."""
    calls = [call("weather", '{"city": "Oslo"}'), call("add", '{"a": 1, "b": 2}')]
    say = "<think>\nHm, 🌧️ …\n</think>\n\nLet me see: é 🙂.\n" + "\n".join(calls) + "<|im_end|>"
    with tap.delivery("same") as to:
        replies = {name: way(to, build_request(say, tools=TOOLS)) for name, way in WAYS.items()}
    meanings = {name: reply.meaning() for name, reply in replies.items()}
    assert len({repr(meaning) for meaning in meanings.values()}) == 1, meanings
    assert meanings["create"][0] == "Let me see: é 🙂." and len(meanings["create"][2]) == 2, meanings
    counts = {name: (reply.usage.prompt_tokens, reply.usage.completion_tokens) for name, reply in replies.items()}
    assert len(set(counts.values())) == 1, counts
    assert all(reply.pieces > 5 for name, reply in replies.items() if "stream" in name), "streams have several chunks"


def samples(tap: Tap) -> None:
    """n = 2, with and without streaming."""
    with tap.delivery("samples") as to:
        request = build_request(n=2, temperature=1.5, max_tokens=6)
        whole = to.sync.chat.completions.create(**request | {"extra_body": IDS})
        assert [choice.index for choice in whole.choices] == [0, 1]
        assert whole.usage.completion_tokens == sum(len(choice.token_ids) for choice in whole.choices)
        pieces = [StreamAssembler(), StreamAssembler()]
        for chunk in to.sync.chat.completions.create(**request, stream=True):
            for choice in chunk.choices:
                pieces[choice.index].add(chunk)
        assert all(piece.finish in ("length", "stop") for piece in pieces)
        # the helper stores choices by position, and raises an error for a truncated reply
        for _ in range(3):
            with to.sync.chat.completions.stream(**build_request("Both.<|im_end|>", n=2)) as events:
                both = events.get_final_completion().choices
            assert [choice.message.content for choice in both] == ["Both."] * 2, both
    turns = tap.turns("samples")
    assert len(turns) == 10 and {turn["fault"] for turn in turns} == {None}, turns


def logprobs(tap: Tap) -> None:
    """One entry per token, with its bytes and the likeliest tokens, with and without streaming."""
    request = build_request("Hä? 🌧<|im_end|>", logprobs=True, top_logprobs=3)
    with tap.delivery("logprobs") as to:
        whole = to.sync.chat.completions.create(**request | {"extra_body": request["extra_body"] | IDS}).choices[0]
        with to.sync.chat.completions.stream(**request) as events:
            streamed = events.get_final_completion().choices[0]
        none = to.sync.chat.completions.create(**build_request("No.<|im_end|>")).choices[0]
    assert none.logprobs is None
    content = whole.logprobs.content
    assert len(content) == len(whole.token_ids) and all(len(entry.top_logprobs) == 3 for entry in content)
    assert all(entry.logprob <= 0 for entry in content)
    text = b"".join(bytes(entry.bytes) for entry in content)
    assert text == "Hä? 🌧<|im_end|>".encode(), text
    assert [entry.model_dump() for entry in streamed.logprobs.content] == [entry.model_dump() for entry in content]


def stops(tap: Tap) -> None:
    """One and several stop strings, and the reported match; the next turn of the session continues from the stopped turn's tokens."""
    for name, way in WAYS.items():
        session = "stop-" + "".join(filter(str.isalnum, name))
        with tap.delivery(session) as to:
            request = build_request("Look.\nObservation: none", stop=["\nObservation:", "zzz"])
            reply = way(to, request)
            assert (reply.content, reply.finish) == ("Look.", "stop"), f"{name}: {reply}"
            messages = [*QUESTION, reply.message, {"role": "user", "content": "Observation: rain"}]
            way(to, build_request("I see.<|im_end|>", messages=messages))
        turns = tap.turns(session)
        assert turns[1]["parent"] == 0 and not turns[1]["context_retokenised"], f"{name}: {turns}"
        assert turns[1]["inserted_end_of_turn"] == 1, f"{name}: {turns[1]}"
    with tap.delivery(None) as to:
        choice = to.sync.chat.completions.create(**build_request("One two", stop=" two")).choices[0]
    assert choice.message.content == "One" and choice.model_extra["matched_stop"] == " two", choice


def limits(tap: Tap) -> None:
    """max_tokens and max_completion_tokens; the next turn closes the truncated one."""
    for name in ("max_tokens", "max_completion_tokens"):
        with tap.delivery(f"limit-{name}") as to:
            request = build_request("One, two, three, four, five", **{name: 4})
            whole = of_completion(
                to.sync.chat.completions.create(**request | {"extra_body": request["extra_body"] | IDS})
            )
            assert (whole.finish, whole.usage.completion_tokens, len(whole.ids)) == ("length", 4, 4), whole
            streamed = WAYS["create(stream=True)"](to, request)
            assert streamed.meaning() == whole.meaning() and streamed.usage.completion_tokens == 4, streamed
            messages = [*QUESTION, streamed.message, {"role": "user", "content": "On."}]
            WAYS["create"](to, build_request("Six.<|im_end|>", messages=messages))
        last = tap.turns(f"limit-{name}")[-1]
        assert (last["cause"], last["inserted_end_of_turn"]) == ("extends_length", 1), last


def seeds(tap: Tap) -> None:
    """seed, temperature and top_p reach the engine under SGLang's names, and a greedy reply is reproducible."""
    request = build_request(temperature=0, seed=7, top_p=0.5, presence_penalty=0.1, max_tokens=8)
    with tap.delivery(None) as to:
        first, again = (WAYS["create"](to, request) for _ in range(2))
    assert first.ids == again.ids, (first.ids, again.ids)
    if tap.engine:
        sampling = tap.engine.of("/generate")[-1].request["sampling_params"]
        received = {
            name: sampling[name]
            for name in ("temperature", "sampling_seed", "top_p", "presence_penalty", "max_new_tokens")
        }
        assert list(received.values()) == [0, 7, 0.5, 0.1, 8], received


def usage(tap: Tap) -> None:
    """A stream has usage on request, in a last chunk without choices."""
    with tap.delivery(None) as to:
        without_usage = list(to.sync.chat.completions.create(**build_request("Yes.<|im_end|>"), stream=True))
        assert all(chunk.usage is None and chunk.choices for chunk in without_usage)
        with_usage = list(to.sync.chat.completions.create(**build_request("Yes.<|im_end|>"), stream=True, stream_options=USAGE))
        whole = to.sync.chat.completions.create(**build_request("Yes.<|im_end|>"))
    assert not with_usage[-1].choices and all(chunk.usage is None for chunk in with_usage[:-1])
    # cached tokens differ between calls
    assert with_usage[-1].usage.total_tokens == whole.usage.total_tokens, (with_usage[-1].usage, whole.usage)
    assert len({chunk.id for chunk in with_usage}) == 1 and with_usage[0].id != whole.id


def thinking(tap: Tap) -> None:
    """Thinking that the prompt opens is separated; disabled thinking is closed by the prompt."""
    with tap.delivery(None) as to:
        extra = {"chat_template_kwargs": {"enable_thinking": True}}
        for name, way in WAYS.items():
            reply = way(to, build_request("Hm.\n</think>\n\nYes.<|im_end|>", extra_body=extra))
            assert (reply.content, reply.reasoning) == ("Yes.", "Hm."), f"{name}: {reply}"
        inline = way(to, build_request("<think>\nHm.\n</think>\n\nYes.<|im_end|>", extra_body={"separate_reasoning": False}))
        assert inline.reasoning is None and "Hm." in inline.content, inline
        quiet = WAYS["create"](to, build_request("Yes.<|im_end|>", reasoning_effort="none"))
        assert (quiet.content, quiet.reasoning) == ("Yes.", None), quiet


class Weather(BaseModel):
    city: str
    degrees: float


def response_formats(tap: Tap) -> None:
    """response_format is sent to the engine as a grammar, and the SDK's parse() parses the reply."""
    say = '{"city": "Oslo", "degrees": -3.5}<|im_end|>'
    with tap.delivery(None) as to:
        try:
            parsed = to.sync.chat.completions.parse(**build_request(say), response_format=Weather)
            assert parsed.choices[0].message.parsed == Weather(city="Oslo", degrees=-3.5), parsed
            plain = to.sync.chat.completions.create(**build_request(say), response_format={"type": "json_object"})
            assert json.loads(plain.choices[0].message.content)["city"] == "Oslo"
            with to.sync.chat.completions.stream(**build_request(say), response_format=Weather) as events:
                assert events.get_final_completion().choices[0].message.parsed.city == "Oslo"
            # without a script: the grammar alone determines the reply
            free = to.sync.chat.completions.parse(**build_request(), response_format=Weather, max_tokens=400)
            assert isinstance(free.choices[0].message.parsed, Weather), free
            forced = to.sync.chat.completions.create(**build_request(), tools=TOOLS, tool_choice="required", max_tokens=400)
            made = forced.choices[0].message.tool_calls
            assert made and all(isinstance(json.loads(one.function.arguments), dict) for one in made), forced
        except BadRequestError as error:
            assert "grammar" in error.message, error
    if tap.engine:
        grammars = [one.request["sampling_params"].get("json_schema") for one in tap.engine.of("/generate")]
        assert any(grammar and "degrees" in json.loads(grammar)["properties"] for grammar in grammars if grammar), (
            "the schema reaches the engine"
        )


def parsed_tools(tap: Tap) -> None:
    """parse() gives the arguments of strict tools as objects."""
    with tap.delivery(None) as to:
        reply = to.sync.chat.completions.parse(**build_request(call("add", '{"a": 1, "b": -2}') + "<|im_end|>"), tools=TOOLS)
    (made,) = reply.choices[0].message.tool_calls
    assert made.function.parsed_arguments == {"a": 1, "b": -2}, made


def models(tap: Tap) -> None:
    """The models of the engine are listed, and each is found by name."""
    with tap.delivery("models") as to:
        assert [model.id for model in to.sync.models.list()] == ["tokentap-demo"]
        assert to.sync.models.retrieve("tokentap-demo").id == "tokentap-demo"


def raw_responses(tap: Tap) -> None:
    """with_raw_response and with_streaming_response show the session's name."""
    with tap.delivery("named") as to:
        raw = to.sync.chat.completions.with_raw_response.create(**build_request("Yes.<|im_end|>"))
        assert raw.headers["x-tokentap-session"] == "named"
        with to.sync.chat.completions.with_streaming_response.create(**build_request("Yes.<|im_end|>")) as reply:
            assert reply.headers["x-tokentap-session"] == "named" and reply.parse().choices[0].message.content == "Yes."


CHECKS = [
    all_ways_give_the_same_reply,
    samples,
    logprobs,
    stops,
    limits,
    seeds,
    usage,
    thinking,
    response_formats,
    parsed_tools,
    models,
    raw_responses,
]
