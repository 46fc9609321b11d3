# SPDX-License-Identifier: Apache-2.0
"""The asynchronous anthropic SDK: create() and stream() alternately, with thinking switched on."""

import asyncio

from anthropic import AsyncAnthropic
from scenario import FUNCTIONS, KEY, MESSAGES_TOOLS, MODEL, ROOT, SYSTEM, USERS, check


async def main() -> None:
    client = AsyncAnthropic(base_url=ROOT, api_key=KEY, max_retries=0)
    messages, thoughts = [], 0
    for turn, user in enumerate(USERS):
        messages.append({"role": "user", "content": user})
        while True:
            request = {"model": MODEL, "system": SYSTEM, "tools": MESSAGES_TOOLS, "messages": messages}
            request |= {"max_tokens": 4096, "thinking": {"type": "enabled", "budget_tokens": 1024}}
            if len(messages) % 4 == 1:
                message = await client.messages.create(**request)
            else:
                async with client.messages.stream(**request) as stream:
                    message = await stream.get_final_message()
            thoughts += sum(block.type == "thinking" and bool(block.signature) for block in message.content)
            messages.append({"role": "assistant", "content": message.content})
            uses = [block for block in message.content if block.type == "tool_use"]
            if not uses:
                break
            results = [
                {"type": "tool_result", "tool_use_id": use.id, "content": FUNCTIONS[use.name](**use.input)}
                for use in uses
            ]
            messages.append({"role": "user", "content": results})
        check(turn, "".join(block.text for block in message.content if block.type == "text"))
    assert thoughts >= 3, f"only {thoughts} thinking blocks with a signature"


asyncio.run(main())
