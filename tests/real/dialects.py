# SPDX-License-Identifier: Apache-2.0
"""dialects.py: sends 200 Messages and 200 Responses requests to SGLang's own endpoints and through tokentap, and compares the token ids of
the prompts. Requests with a known difference are counted by its reason.

The requests are random, with a fixed seed: system texts, reminders between messages, thinking, parallel calls, results in parts, tools.
"""
from __future__ import annotations

import argparse
import collections
import json
import random
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

WORDS = "rain wind Oslo light keeper the of is far and – ü 日本 {\"a\": 1} <b> \n two  spaces".split(" ")


def text(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 8))) + "."


def schema(rng: random.Random) -> dict[str, Any]:
    properties = {name: {"type": "string", "description": text(rng)} for name in rng.sample(["city", "day", "unit"], rng.randint(1, 3))}
    return {"type": "object", "properties": properties, "required": list(properties)[:1]}


def arguments(rng: random.Random) -> dict[str, Any]:
    return {"city": text(rng), "n": rng.choice([1, 2.5, None, True, [1, "x"]])}


class Messages:
    """Requests for /v1/messages."""

    path = "/v1/messages"

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def blocks(self) -> Any:
        """A content: a text, or a list of text blocks."""
        rng = self.rng
        return text(rng) if rng.random() < 0.5 else [{"type": "text", "text": text(rng)} for _ in range(rng.choice([1, 1, 1, 2]))]

    def request(self) -> dict[str, Any]:
        rng, messages = self.rng, []
        for turn in range(rng.randint(1, 4)):
            messages.append({"role": "user", "content": self.blocks()})
            if rng.random() < 0.2:
                messages.append({"role": "system", "content": self.blocks()})
            calls = [{"type": "tool_use", "id": f"t{turn}_{at}", "name": "weather", "input": arguments(rng)}
                     for at in range(rng.choice([0, 0, 1, 2]))]
            if not calls and turn == 3:
                break
            thinking = [{"type": "thinking", "thinking": text(rng), "signature": "s"}] if rng.random() < 0.2 else []
            said = [{"type": "text", "text": text(rng)}] if rng.random() < 0.7 or not calls else []
            messages.append({"role": "assistant", "content": thinking + said + calls})
            if calls:
                results = [{"type": "tool_result", "tool_use_id": call["id"], "content": self.blocks(),
                            **({"is_error": True} if rng.random() < 0.2 else {})} for call in calls]
                messages.append({"role": "user", "content": results})
        if messages[-1]["role"] == "assistant":
            messages.append({"role": "user", "content": self.blocks()})
        body: dict[str, Any] = {"model": "tiny", "max_tokens": 1, "messages": messages}
        if rng.random() < 0.7:
            body["system"] = self.blocks()
        if rng.random() < 0.5:
            body["tools"] = [{"name": name, "description": text(rng), "input_schema": schema(rng)}
                             for name in ("weather", "forecast")[:rng.randint(1, 2)]]
        if rng.random() < 0.3:
            body["thinking"] = rng.choice([{"type": "disabled"}, {"type": "adaptive"}, {"type": "enabled", "budget_tokens": 1024}])
        return body


class Responses:
    """Requests for /v1/responses."""

    path = "/v1/responses"

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def request(self) -> dict[str, Any]:
        rng, items = self.rng, []
        if rng.random() < 0.4:
            items.append(self.message("developer", "input_text"))
        for turn in range(rng.randint(1, 4)):
            items.append(self.message("user", "input_text"))
            calls = [{"type": "function_call", "call_id": f"t{turn}_{at}", "name": "weather", "arguments": json.dumps(arguments(rng))}
                     for at in range(rng.choice([0, 0, 1, 2]))]
            if rng.random() < 0.2:
                items.append({"type": "reasoning", "id": f"rs_{turn}", "summary": [], "content": [{"type": "reasoning_text", "text": text(rng)}]})
            if rng.random() < 0.7 or not calls:
                items.append(self.message("assistant", "output_text"))
            items += calls
            items += [{"type": "function_call_output", "call_id": call["call_id"], "output": text(rng)} for call in calls]
        items.append(self.message("user", "input_text"))
        body: dict[str, Any] = {"model": "tiny", "max_output_tokens": 16, "input": items, "store": False}
        if rng.random() < 0.5:
            body["instructions"] = text(rng)
        if rng.random() < 0.5:
            body["tools"] = [{"type": "function", "name": name, "description": text(rng), "parameters": schema(rng)}
                             for name in ("weather", "forecast")[:rng.randint(1, 2)]]
        return body

    def message(self, role: str, kind: str) -> dict[str, Any]:
        rng = self.rng
        content: Any = text(rng) if rng.random() < 0.5 else [{"type": kind, "text": text(rng)}]
        return {"type": "message", "role": role, "content": content}


# The known differences of prompts: the reason, and a change of both texts that removes it.
DIFFERENCES = {
    "SGLang adds members to tools that the client did not send":
        lambda prompt: prompt.replace(', "strict": false', "").replace(', "defer_loading": null', ""),
    "SGLang writes a heading before the text of a developer":
        lambda prompt: prompt.replace("Developer instructions:\n", ""),
    "SGLang leaves a space between a thought and the text after it":
        lambda prompt: re.sub(r"(<\|im_start\|>assistant\n(?:<think>\n.*?\n</think>\n\n)?)\s+", r"\1", prompt, flags=re.S),
}


def explain(sglang: str, tokentap: str) -> str | None:
    """The known differences between two prompts; None if they do not explain it."""
    reasons = []
    for reason, change in DIFFERENCES.items():
        if sglang != tokentap and (changed := change(sglang)) != sglang:
            reasons.append(reason)
            sglang, tokentap = changed, change(tokentap)
    return ", ".join(reasons) if sglang == tokentap else None


def post(url: str, body: dict[str, Any]) -> str:
    """Sends a request. Returns an error of the server, or an empty text."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            reply.read()
        return ""
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read()[:300]!r}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--direct", required=True)
    parser.add_argument("--via", required=True)
    parser.add_argument("--log", required=True, type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("apis", nargs="*", default=["messages", "responses"])
    args = parser.parse_args()
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{args.model}/tokenizer.json")

    def prompt(url: str, body: dict[str, Any]) -> tuple[list[int] | None, str]:
        before = len(args.log.read_text().splitlines())
        error = post(url, body)
        lines = args.log.read_text().splitlines()[before:]
        return (json.loads(lines[-1]) if lines else None), error

    failed = 0
    for name in args.apis:
        rng = random.Random(7)
        api = {"messages": Messages, "responses": Responses}[name](rng)
        counts: collections.Counter[str] = collections.Counter()
        for _ in range(args.requests):
            body = api.request()
            (direct, refused), (via, error) = prompt(args.direct + api.path, body), prompt(args.via + api.path, body)
            if direct is None:
                counts[f"refused by SGLang: {refused[:100]}"] += 1
            elif direct == via:
                counts["equal"] += 1
            else:
                texts = [tokenizer.decode(ids or [], skip_special_tokens=False) for ids in (direct, via)]
                reason = explain(*texts)
                counts[f"differs: {reason or 'UNEXPLAINED'}"] += 1
                if not reason:
                    failed += 1
                    if failed <= 5:
                        print(f"--- {json.dumps(body, ensure_ascii=False)}\n{error}\nsglang:   {texts[0]!r}\ntokentap: {texts[1]!r}")
        for what, count in counts.most_common():
            print(f"{'ok  ' if 'UNEXPLAINED' not in what else 'FAIL'} {name}: {count} {what}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
