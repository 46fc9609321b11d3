#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Record the results of DeepSeek's own encoders, for models that have code in place of a chat template.

    encodings.py [--from target/templates] [--into encodings.json]

Writes 200 random conversations (fixed seed), and for each the length and sha256 of the text of each encoder, or its error: V3.2 by the
encoder that SGLang serves the model with, V4 by the package deepseek-recipe. The conversations reach them as SGLang 0.5.23 passes them.
"""

import argparse
import copy
import hashlib
import importlib.util
import json
import random
from pathlib import Path

import deepseek_recipe

HERE = Path(__file__).resolve().parent
WORDS = 'rain Oslo the light of far – ü 日本 🙂 {"a": 1} <b>x</b> 1.10 \n two  spaces \t <think>so</think> \\ " null {{ x }} %s'.split(" ")
EFFORTS = [None, None, "minimal", "low", "medium", "high", "max"]


class Conversations:
    """Random conversations that both encoders accept, except for a few arguments that are no object."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    @staticmethod
    def id(number):
        """In the order of the calls, because deepseek-recipe sorts calls and results by their ids; tokentap keeps the order of the calls."""
        return f"call{number:03}"

    def text(self, most=6):
        return " ".join(self.rng.choice(WORDS) for _ in range(self.rng.randint(0, most)))

    def content(self):
        """A text, or a text in parts."""
        if self.rng.random() < 0.8:
            return self.text()
        return [{"type": "text", "text": self.text()} for _ in range(self.rng.randint(1, 3))]

    def value(self, depth=0):
        rng = self.rng
        leaves = [lambda: self.text(3), lambda: rng.randint(-5, 10**9), lambda: rng.choice([0.1, 1.0, -0.0, 1e22, 1e-7, 2.5]),
                  lambda: rng.choice([True, False, None]), lambda: 123456789012345678901234567890]
        if depth > 1 or rng.random() < 0.7:
            return rng.choice(leaves)()
        if rng.random() < 0.5:
            return [self.value(depth + 1) for _ in range(rng.randint(0, 3))]
        return {rng.choice("abcü\"") + str(at): self.value(depth + 1) for at in range(rng.randint(0, 3))}

    def tool(self, name):
        rng = self.rng
        properties = {key: {"type": rng.choice(["string", "number", "object"]), "description": self.text(4)} for key in rng.sample("abcd", rng.randint(0, 3))}
        parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
        if rng.random() < 0.2:
            parameters["x-extra"] = self.value(1)
        return {"type": "function", "function": {"name": name, "description": self.text(), "parameters": parameters}}

    def call(self, number):
        arguments = {key: self.value() for key in self.rng.sample(["city", "n", "ü", "q"], self.rng.randint(0, 3))}
        if self.rng.random() < 0.03:
            arguments = self.rng.choice(['{"city": ', "[1]"])
        return {"id": self.id(number), "type": "function", "function": {"name": self.rng.choice(["weather", "add"]), "arguments": arguments}}

    def conversation(self):
        rng, messages, calls_so_far = self.rng, [], 0
        if rng.random() < 0.6:
            messages.append({"role": "system", "content": self.content()})
        if rng.random() < 0.1:
            messages.append({"role": "system", "content": self.content()})
        for _ in range(rng.randint(0, 3)):
            messages += [{"role": "user", "content": self.content()} for _ in range(rng.choice([1, 1, 1, 2]))]
            for _ in range(rng.choice([0, 0, 1, 2])):
                calls = [self.call(calls_so_far + at) for at in range(rng.randint(1, 3))]
                calls_so_far += len(calls)
                messages.append({"role": "assistant", "content": self.content(), "reasoning_content": self.text(), "tool_calls": calls})
                results = [{"role": "tool", "tool_call_id": call["id"], "content": self.content()} for call in calls]
                rng.shuffle(results)
                messages += results
                if rng.random() < 0.3:
                    messages.append({"role": "user", "content": self.content()})
            messages.append({"role": "assistant", "content": self.content(), "reasoning_content": self.text() + "r"})
        end = rng.random()
        if end < 0.7 or len(messages) < 2:
            messages.append({"role": "user", "content": self.content()})
        elif end < 0.9 and messages[-1]["role"] == "assistant":
            messages[-1]["tool_calls"] = [self.call(calls_so_far)]
            messages.append({"role": "tool", "tool_call_id": self.id(calls_so_far), "content": self.content()})
        recorded = {"messages": messages, "thinking": rng.random() < 0.6}
        if rng.random() < 0.5:
            recorded["tools"] = [self.tool(name) for name in ["weather", "add"][:rng.randint(1, 2)]]
        if effort := rng.choice(EFFORTS):
            recorded["reasoning_effort"] = effort
        return recorded


def v32(encoder, conversation):
    messages = copy.deepcopy(conversation["messages"])
    for message in messages:  # as SGLang gives them to the encoder
        if isinstance(message["content"], list):
            message["content"] = " ".join(part["text"] for part in message["content"])
    if messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": ""})
    if "tools" in conversation:
        messages[0]["tools"] = conversation["tools"]
    return encoder.encode_messages(messages, thinking_mode="thinking" if conversation["thinking"] else "chat")


def v4(conversation):
    body = {"model": "DeepSeek-V4-Pro", "messages": copy.deepcopy(conversation["messages"]),
            "thinking": {"type": "enabled" if conversation["thinking"] else "disabled"}}
    body |= {name: conversation[name] for name in ("tools", "reasoning_effort") if name in conversation}
    for message in body["messages"]:
        for call in message.get("tool_calls", []):
            if not isinstance(arguments := call["function"]["arguments"], str):
                call["function"]["arguments"] = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    converted = deepseek_recipe.ChatCompletionRequest(body).convert(deepseek_recipe.ConversionOptions())
    return deepseek_recipe.DeepseekV4Encoding().render_conversation(converted.conversation).prompt


def record(encode):
    try:
        text = encode()
    except Exception as error:  # any refusal of an encoder is recorded
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    return {"chars": len(text), "sha256": hashlib.sha256(text.encode("utf-8")).hexdigest()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="fetched", type=Path, default=HERE.parent.parent / "target" / "templates")
    parser.add_argument("--into", type=Path, default=HERE / "encodings.json")
    asked = parser.parse_args()
    spec = importlib.util.spec_from_file_location("encoding_dsv32", asked.fetched / "encoders" / "encoding_dsv32.py")
    encoder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(encoder)
    random_conversations, lines = Conversations(39), []
    for _ in range(200):
        conversation = random_conversations.conversation()
        results = {"v32": record(lambda: v32(encoder, conversation)), "v4": record(lambda: v4(conversation))}
        lines.append(json.dumps(conversation | {"expected": results}, ensure_ascii=False, separators=(",", ":")))
    asked.into.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    errors = [name for name in ("v32", "v4") for line in lines if "error" in json.loads(line)["expected"][name]]
    print(f"{len(lines)} conversations; refused by v32: {errors.count('v32')}, by v4: {errors.count('v4')}")


if __name__ == "__main__":
    main()
