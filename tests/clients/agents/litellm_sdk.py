# SPDX-License-Identifier: Apache-2.0
"""litellm's completion, non-streaming and streaming alternately."""

import json

import litellm
from scenario import BASE, FUNCTIONS, KEY, MODEL, SYSTEM, TOOLS, USERS, check

to = {"model": f"openai/{MODEL}", "api_base": BASE, "api_key": KEY, "tools": TOOLS}
messages = [{"role": "system", "content": SYSTEM}]
for turn, user in enumerate(USERS):
    messages.append({"role": "user", "content": user})
    while True:
        if len(messages) % 2:
            reply = litellm.completion(messages=messages, **to)
        else:
            reply = litellm.stream_chunk_builder([*litellm.completion(messages=messages, stream=True, **to)], messages)
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    check(turn, message.content)
