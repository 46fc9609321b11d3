"""litellm's completion, whole replies and streams in turn."""

import json

import litellm
from scenario import BASE, KEY, MODEL, SYSTEM, USERS, check, fahrenheit, weather


def function(name: str, **properties: str):
    schema = {"type": "object", "properties": {k: {"type": v} for k, v in properties.items()}, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


functions = {"weather": weather, "fahrenheit": fahrenheit}
to = {"model": f"openai/{MODEL}", "api_base": BASE, "api_key": KEY}
to["tools"] = [function("weather", city="string"), function("fahrenheit", celsius="integer")]
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
            result = functions[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    check(turn, message.content)
