# SPDX-License-Identifier: Apache-2.0
"""The openai SDK with Responses: create(), create(stream=True) and stream() in turn; items are returned unchanged."""

import json
from typing import Any

from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from scenario import BASE, FUNCTION_TOOLS, FUNCTIONS, KEY, MODEL, SYSTEM, USERS, check

client = OpenAI(base_url=BASE, api_key=KEY, max_retries=0)
EVENT, RESPONSE = TypeAdapter(ResponseStreamEvent), TypeAdapter(Response)


def of_events(request: dict[str, Any]) -> Response:
    """The last event's response, if the events are valid, numbered, and their items are those of the response."""
    items, numbers = [], []
    for event in client.responses.create(**request, stream=True):
        EVENT.validate_json(event.to_json())
        numbers.append(event.sequence_number)
        if event.type == "response.output_item.done":
            items.append(event.item)
    assert numbers == [*range(len(numbers))], numbers
    assert event.type == "response.completed", event.type
    assert [item.to_dict() for item in items] == [item.to_dict() for item in event.response.output]
    return event.response


def of_stream(request: dict[str, Any]) -> Response:
    with client.responses.stream(**request) as stream:
        return stream.get_final_response()


WAYS = [lambda request: client.responses.create(**request), of_events, of_stream]
history: list[Any] = []
calls = 0
for turn, user in enumerate(USERS):
    history.append({"role": "user", "content": user})
    while True:
        request = {"model": MODEL, "instructions": SYSTEM, "tools": FUNCTION_TOOLS, "input": history, "store": False}
        response = WAYS[calls % 3]({**request, "include": ["reasoning.encrypted_content"]})
        RESPONSE.validate_json(response.to_json())
        calls += 1
        history += [item.to_dict(exclude_none=True) for item in response.output]
        made = [item for item in response.output if item.type == "function_call"]
        if not made:
            break
        for call in made:
            result = FUNCTIONS[call.name](**json.loads(call.arguments))
            history.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
    check(turn, response.output_text)
