# SPDX-License-Identifier: Apache-2.0
"""The anthropic SDK: create(), create(stream=True) and stream() in turn, and count_tokens before each call.

The SDK builds its types without validating them, so each event and message is validated here.
"""

import json
from typing import Any

from anthropic import Anthropic
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter
from scenario import FUNCTIONS, KEY, MESSAGES_TOOLS, MODEL, ROOT, SYSTEM, USERS, check

client = Anthropic(base_url=ROOT, api_key=KEY, max_retries=0)
EVENT, MESSAGE = TypeAdapter(RawMessageStreamEvent), TypeAdapter(Message)


def validated(message: Message) -> Message:
    """The message, if its JSON is that of the type without a missing or unknown member."""
    MESSAGE.validate_json(message.to_json())
    assert not message.model_extra, message.model_extra
    return message


def of_events(request: dict[str, Any]) -> Message:
    """The message that the raw events describe."""
    kinds, message, texts = [], None, {}
    for event in client.messages.create(**request, stream=True):
        EVENT.validate_json(event.to_json())
        kinds.append(event.type)
        if event.type == "message_start":
            message = event.message
            assert (message.content, message.stop_reason) == ([], None), message
            assert message.usage.input_tokens > 0, message
        elif event.type == "content_block_start":
            assert event.index == len(message.content), "blocks have consecutive indexes"
            message.content.append(event.content_block)
            texts[event.index] = ""
        elif event.type == "content_block_delta":
            block, delta = message.content[event.index], event.delta
            match delta.type:
                case "text_delta":
                    block.text += delta.text
                case "thinking_delta":
                    block.thinking += delta.thinking
                case "signature_delta":
                    block.signature = delta.signature
                case "input_json_delta":
                    texts[event.index] += delta.partial_json
        elif event.type == "content_block_stop" and message.content[event.index].type == "tool_use":
            message.content[event.index].input = json.loads(texts[event.index] or "{}")
        elif event.type == "message_delta":
            message.stop_reason, message.usage.output_tokens = event.delta.stop_reason, event.usage.output_tokens
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"]), kinds
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == len(message.content), kinds
    return message


def of_stream(request: dict[str, Any]) -> Message:
    """The message of the helper, which must collect the same text."""
    with client.messages.stream(**request) as stream:
        text = "".join(event.text for event in stream if event.type == "text")
        message = stream.get_final_message()
    assert text == "".join(block.text for block in message.content if block.type == "text")
    return message


WAYS = [lambda request: client.messages.create(**request), of_events, of_stream]
messages, calls = [], 0
for turn, user in enumerate(USERS):
    messages.append({"role": "user", "content": user})
    while True:
        prompt = {"model": MODEL, "system": SYSTEM, "tools": MESSAGES_TOOLS, "messages": messages}
        counted = client.messages.count_tokens(**prompt).input_tokens
        message = validated(WAYS[calls % 3]({**prompt, "max_tokens": 4096}))
        calls += 1
        usage = message.usage
        assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0), (
            f"{counted} tokens instead of {usage}"
        )
        messages.append({"role": "assistant", "content": message.content})
        uses = [block for block in message.content if block.type == "tool_use"]
        assert message.stop_reason == ("tool_use" if uses else "end_turn"), message.stop_reason
        if not uses:
            break
        results = [
            {"type": "tool_result", "tool_use_id": use.id, "content": FUNCTIONS[use.name](**use.input)} for use in uses
        ]
        messages.append({"role": "user", "content": results})
    check(turn, "".join(block.text for block in message.content if block.type == "text"))
