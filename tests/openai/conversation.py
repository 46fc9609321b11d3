# SPDX-License-Identifier: Apache-2.0
"""Twenty turns of an agent with tools in each way of calling, and checks of the recorded session."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

from tap import Tap
from ways import Delivery, Reply, Way

TURNS = 20
# the prompt ids and the sampled ids of each turn
Ids = tuple[list[list[int]], list[list[int]]]


def tool(name: str, **properties: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "strict": True, "parameters": parameters}}


TOOLS = [tool("weather", city="string"), tool("add", a="integer", b="integer")]


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def script(turn: int) -> tuple[str, tuple[Any, ...]]:
    """The output of the model in a turn, and the expected reply."""
    oslo, sum = '{"city": "Tromsø 🌧"}', f'{{"a": {turn}, "b": -2}}'
    match turn % 4:
        case 0:
            text = f"<think>\nTurn {turn}.\n</think>\n\n{call('weather', oslo)}"
            expected = ("", f"Turn {turn}.", [("weather", oslo)], "tool_calls")
        case 1:
            text = f"Both.\n{call('add', sum)}\n{call('weather', oslo)}"
            expected = ("Both.", None, [("add", sum), ("weather", oslo)], "tool_calls")
        case 2:
            text, expected = "It rains: 🌧 é.", ("It rains: 🌧 é.", None, [], "stop")
        case _:
            text = "<think>\nNo tool.\n</think>\n\nYes,  two  spaces.\n\n- a\n- b"
            expected = ("Yes,  two  spaces.\n\n- a\n- b", "No tool.", [], "stop")
    return text + "<|im_end|>", expected


def answers(reply: Reply, turn: int) -> list[dict[str, Any]]:
    """The messages after a reply: results of its tools, or a user message."""
    if not reply.calls:
        return [{"role": "user", "content": f"And {turn}?"}]
    results = zip(reply.call_ids, reply.calls, strict=True)
    return [{"role": "tool", "tool_call_id": id, "content": f"{name}: {turn}"} for id, (name, _) in results]


def demo(text: str) -> dict[str, Any]:
    """The request members that make the demo engine sample this text."""
    return {"custom_params": {"say": text}}


def converse(to: Delivery, way: Way, script_members: Callable[[str], dict[str, Any]] = demo) -> list[Reply]:
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Oslo?"}]
    replies = []
    for turn in range(TURNS):
        text, expected = script(turn)
        reply = way(to, {"model": "any", "messages": messages, "tools": TOOLS, "extra_body": script_members(text)})
        got = reply.content, reply.reasoning, [(name, norm(a)) for name, a in reply.calls], reply.finish
        assert got == (*expected[:2], [(name, norm(a)) for name, a in expected[2]], expected[3]), (
            f"turn {turn}: {got} instead of {expected}"
        )
        assert len(set(reply.call_ids)) == len(reply.calls)
        usage = reply.usage
        assert usage and usage.prompt_tokens + usage.completion_tokens == usage.total_tokens, f"turn {turn}: {usage}"
        replies.append(reply)
        messages += [reply.message, *answers(reply, turn)]
    return replies


def norm(arguments: str) -> Any:
    return json.loads(arguments)


def exported(row: dict[str, Any]) -> Ids:
    prompts, outputs = [], []
    for segment in row["segments"]:
        if segment["kind"] == "response":
            prompts.append(row["token_ids"][: segment["start"]])
            outputs.append(row["token_ids"][segment["start"] : segment["end"]])
    return prompts, outputs


def line(tap: Tap, session: str, causes: Collection[str] = ("extends",), history: bool = False) -> Ids:
    """Checks that a session is one path of turns with these causes; returns the exported prompts and outputs."""
    turns = tap.turns(session)
    first, *others = [turn["cause"] for turn in turns]
    assert first == "first" and set(others) <= set(causes), (first, others)
    assert {turn["fault"] for turn in turns} == {None}, turns
    # a session that starts with the client's own history starts with text
    assert not any(turn["context_retokenised"] for turn in turns[history:]), turns
    (row,) = tap.rows(session)
    prompts, outputs = exported(row)
    assert len(prompts) == TURNS, len(prompts)
    trained = [at for at, mask in enumerate(row["loss_mask"]) if mask]
    assert trained == [at for p, o in zip(prompts, outputs, strict=True) for at in range(len(p), len(p) + len(o))]
    for turn in range(1, TURNS):
        before = prompts[turn - 1] + outputs[turn - 1]
        assert prompts[turn][: len(before)] == before, f"turn {turn} does not begin with the tokens of the previous turn"
    return prompts, outputs


def same_as_replies(replies: list[Reply], prompts: list[list[int]], outputs: list[list[int]]) -> int:
    """Compares replies with the export; returns the number of replies with ids. The helper drops the usage of a truncated reply."""
    with_ids = 0
    for turn, (reply, prompt, output) in enumerate(zip(replies, prompts, outputs, strict=True)):
        counts = (reply.usage.prompt_tokens, reply.usage.completion_tokens) if reply.usage else None
        assert counts in ((len(prompt), len(output)), None), f"turn {turn}: {counts}"
        if reply.ids is not None:
            assert (reply.prompt, reply.ids) == (prompt, output), (
                f"turn {turn}: the ids of the reply differ from the exported ones"
            )
            with_ids += 1
    return with_ids


def same_as_engine(tap: Tap, since: int, prompts: list[list[int]], outputs: list[list[int]]) -> None:
    assert tap.engine, "the calls to the engine are recorded"
    seen = tap.engine.of("/generate")[since:]
    assert len(seen) == len(prompts), f"{len(seen)} calls for {len(prompts)} turns"
    for turn, (one, prompt, output) in enumerate(zip(seen, prompts, outputs, strict=True)):
        assert one.prompt == prompt, f"turn {turn}: the engine received other ids"
        assert one.sampled() == output, f"turn {turn}: the engine sampled other ids"
