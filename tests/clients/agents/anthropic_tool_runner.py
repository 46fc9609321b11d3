# SPDX-License-Identifier: Apache-2.0
"""The tool runner of the anthropic SDK, without and with streams."""

from anthropic import Anthropic, beta_tool
from scenario import KEY, MODEL, ROOT, SYSTEM, USERS, check, fahrenheit, weather

client = Anthropic(base_url=ROOT, api_key=KEY, max_retries=0)
tools = [beta_tool(weather), beta_tool(fahrenheit)]
messages = []
for turn, user in enumerate(USERS):
    messages.append({"role": "user", "content": user})
    request = {"model": MODEL, "system": SYSTEM, "max_tokens": 4096, "tools": tools, "messages": messages}
    runner = client.beta.messages.tool_runner(**request, stream=turn == 1)
    for reply in runner:
        message = reply.get_final_message() if turn == 1 else reply
        messages.append({"role": "assistant", "content": message.content})
        if results := runner.generate_tool_call_response():
            messages.append(results)
    check(turn, "".join(block.text for block in message.content if block.type == "text"))
