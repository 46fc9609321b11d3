"""The openai SDK in the loop that its documentation shows, whole replies and streams in turn."""

import json

from openai import OpenAI
from scenario import BASE, KEY, MODEL, SYSTEM, USERS, check, fahrenheit, weather


def function(name: str, **properties: str):
    schema = {"type": "object", "properties": {k: {"type": v} for k, v in properties.items()}, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


client = OpenAI(base_url=BASE, api_key=KEY)
functions = {"weather": weather, "fahrenheit": fahrenheit}
tools = [function("weather", city="string"), function("fahrenheit", celsius="integer")]
messages = [{"role": "system", "content": SYSTEM}]
for turn, user in enumerate(USERS):
    messages.append({"role": "user", "content": user})
    while True:
        if len(messages) % 2:
            message = client.chat.completions.create(model=MODEL, messages=messages, tools=tools).choices[0].message
        else:
            with client.chat.completions.stream(model=MODEL, messages=messages, tools=tools) as stream:
                message = stream.get_final_completion().choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            result = functions[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    check(turn, message.content)
