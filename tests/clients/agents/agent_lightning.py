# SPDX-License-Identifier: Apache-2.0
"""The openai SDK through the gateway of Agent Lightning, which sends the calls of a rollout on to its model server."""

import json
import threading

import httpx
import uvicorn
from agentlightning.server.app import create_app
from openai import OpenAI
from scenario import BASE, FUNCTIONS, KEY, MODEL, SYSTEM, TOOLS, USERS, check

proxy = {"model_name": MODEL, "train": {"temperature": 1}, "val": {"temperature": 0.7}}
started = threading.Event()


class Server(uvicorn.Server):
    async def startup(self, sockets: list | None = None) -> None:
        await super().startup(sockets)
        started.set()


server = Server(uvicorn.Config(create_app({"key": "", "default_proxy": proxy}), port=0, log_level="warning"))
threading.Thread(target=server.run, daemon=True).start()
started.wait()
gateway = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
for path, body in (
    ("models", [{"model": MODEL, "endpoint": BASE}]),
    ("rollouts", [{"input": "", "rollout_id": "one"}]),
):
    httpx.post(f"{gateway}/api/{path}", json=body).raise_for_status()

client = OpenAI(base_url=f"{gateway}/proxy/rollout/one/attempt/0/mode/train/openai/v1", api_key=KEY, max_retries=0)
messages = [{"role": "system", "content": SYSTEM}]
for turn, user in enumerate(USERS):
    messages.append({"role": "user", "content": user})
    while True:
        reply = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    check(turn, message.content)
events = httpx.get(f"{gateway}/api/rollouts/one/events").json()
assert len(events) == 6, events
