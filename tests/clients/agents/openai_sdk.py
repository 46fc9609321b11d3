# SPDX-License-Identifier: Apache-2.0
"""The openai SDK in the loop that its documentation shows, non-streaming and streaming alternately."""

import json

from openai import OpenAI
from scenario import BASE, FUNCTIONS, KEY, MODEL, SYSTEM, TOOLS, USERS, check

client = OpenAI(base_url=BASE, api_key=KEY)
messages = [{"role": "system", "content": SYSTEM}]
for turn, user in enumerate(USERS):
    messages.append({"role": "user", "content": user})
    while True:
        if len(messages) % 2:
            message = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS).choices[0].message
        else:
            with client.chat.completions.stream(model=MODEL, messages=messages, tools=TOOLS) as stream:
                message = stream.get_final_completion().choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    check(turn, message.content)
