# SPDX-License-Identifier: Apache-2.0
"""The ways in which agents call the SDK. Each requests one completion and returns it in a comparable form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI, LengthFinishReasonError, OpenAI
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessage,
    ChatCompletionMessageFunctionToolCall,
)


@dataclass
class Reply:
    """A reply, in the same form for every way of calling."""

    message: Any
    content: str
    reasoning: str | None
    calls: list[tuple[str, str]]
    call_ids: list[str]
    finish: str | None
    usage: Any = None
    # None unless they were requested, which streams do not support
    prompt: list[int] | None = None
    ids: list[int] | None = None
    pieces: int = 1

    def meaning(self) -> tuple[Any, ...]:
        """The members that must be equal in every way of calling."""
        return self.content, self.reasoning, self.calls, self.finish


@dataclass
class Delivery:
    """The SDK's clients with the base URL of a session: `/sessions/{session}/v1`."""

    sync: OpenAI
    asynchronous: AsyncOpenAI
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    @classmethod
    def to(cls, data: str, session: str | None, key: str = "none", **options: Any) -> Delivery:
        base = f"http://{data}/sessions/{session}/v1" if session else f"http://{data}/v1"
        return cls(OpenAI(base_url=base, api_key=key, **options), AsyncOpenAI(base_url=base, api_key=key, **options))

    def close(self) -> None:
        self.sync.close()
        self.loop.run_until_complete(self.asynchronous.close())
        self.loop.close()


def of_completion(completion: ChatCompletion) -> Reply:
    """Checks the types of a complete reply and converts it; the ids are extra members."""
    assert isinstance(completion, ChatCompletion), type(completion)
    assert completion.object == "chat.completion" and completion.id and completion.created > 1_700_000_000, completion
    choice = completion.choices[0]
    message, extra = choice.message, choice.model_extra or {}
    assert isinstance(message, ChatCompletionMessage) and message.role == "assistant"
    calls = message.tool_calls or []
    for call in calls:
        assert isinstance(call, ChatCompletionMessageFunctionToolCall) and call.type == "function" and call.id, call
    return Reply(
        message=message,
        content=message.content or "",
        reasoning=(message.model_extra or {}).get("reasoning_content"),
        calls=[(call.function.name, call.function.arguments) for call in calls],
        call_ids=[call.id for call in calls],
        finish=choice.finish_reason,
        usage=completion.usage,
        prompt=extra.get("prompt_token_ids"),
        ids=extra.get("token_ids"),
    )


class StreamAssembler:
    """Joins the chunks of a stream, as an agent without the SDK's helper does."""

    def __init__(self) -> None:
        self.content, self.reasoning, self.finish, self.usage, self.pieces = "", "", None, None, 0
        self.calls: list[dict[str, Any]] = []
        self.role: str | None = None

    def add(self, chunk: ChatCompletionChunk) -> None:
        assert isinstance(chunk, ChatCompletionChunk) and chunk.object == "chat.completion.chunk", chunk
        assert self.usage is None, "a chunk after the usage"
        self.usage = chunk.usage
        for choice in chunk.choices:
            assert self.finish is None, f"a chunk after the finish reason: {chunk}"
            self.pieces += 1
            delta = choice.delta
            self.role = self.role or delta.role
            self.content += delta.content or ""
            self.reasoning += (delta.model_extra or {}).get("reasoning_content") or ""
            for call in delta.tool_calls or []:
                if call.index == len(self.calls):
                    assert call.type == "function" and call.id and call.function and call.function.name, call
                    self.calls.append(
                        {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": ""}}
                    )
                self.calls[call.index]["function"]["arguments"] += call.function.arguments
            self.finish = choice.finish_reason

    def reply(self) -> Reply:
        assert self.role == "assistant", self.role
        message: dict[str, Any] = {"role": self.role, "content": self.content or None}
        if self.calls:
            message["tool_calls"] = self.calls
        functions = [call["function"] for call in self.calls]
        return Reply(
            message=message,
            content=self.content,
            reasoning=self.reasoning or None,
            calls=[(function["name"], function["arguments"]) for function in functions],
            call_ids=[call["id"] for call in self.calls],
            finish=self.finish,
            usage=self.usage,
            pieces=self.pieces,
        )


USAGE = {"include_usage": True}
IDS = {"return_token_ids": True}


def with_ids(request: dict[str, Any]) -> dict[str, Any]:
    return {**request, "extra_body": {**request.get("extra_body", {}), **IDS}}


def whole(to: Delivery, request: dict[str, Any]) -> Reply:
    return of_completion(to.sync.chat.completions.create(**with_ids(request)))


def raw(to: Delivery, request: dict[str, Any]) -> Reply:
    reply = to.sync.chat.completions.with_raw_response.create(**with_ids(request))
    assert reply.status_code == 200 and reply.headers["x-tokentap-session"], reply.headers
    assert json.loads(reply.text)["id"] == reply.parse().id
    return of_completion(reply.parse())


def streamed(to: Delivery, request: dict[str, Any]) -> Reply:
    assembler = StreamAssembler()
    with to.sync.chat.completions.create(**request, stream=True, stream_options=USAGE) as chunks:
        for chunk in chunks:
            assembler.add(chunk)
    return assembler.reply()


def helper(to: Delivery, request: dict[str, Any]) -> Reply:
    pieces = 0
    try:
        with to.sync.chat.completions.stream(**request, stream_options=USAGE) as events:
            for event in events:
                pieces += event.type == "chunk"
            completion = events.get_final_completion()
    except LengthFinishReasonError as cut:
        # the helper raises an error for a truncated reply; agents continue with the completion in it
        completion = cut.completion
    reply = of_completion(completion)
    reply.pieces = pieces
    return reply


def async_whole(to: Delivery, request: dict[str, Any]) -> Reply:
    return of_completion(to.loop.run_until_complete(to.asynchronous.chat.completions.create(**with_ids(request))))


def async_streamed(to: Delivery, request: dict[str, Any]) -> Reply:
    async def read() -> Reply:
        assembler = StreamAssembler()
        async with await to.asynchronous.chat.completions.create(**request, stream=True, stream_options=USAGE) as chunks:
            async for chunk in chunks:
                assembler.add(chunk)
        return assembler.reply()

    return to.loop.run_until_complete(read())


def async_helper(to: Delivery, request: dict[str, Any]) -> Reply:
    async def read() -> Reply:
        pieces = 0
        try:
            async with to.asynchronous.chat.completions.stream(**request, stream_options=USAGE) as events:
                async for event in events:
                    pieces += event.type == "chunk"
                completion = await events.get_final_completion()
        except LengthFinishReasonError as cut:
            completion = cut.completion
        reply = of_completion(completion)
        reply.pieces = pieces
        return reply

    return to.loop.run_until_complete(read())


Way = Callable[[Delivery, dict[str, Any]], Reply]
WAYS: dict[str, Way] = {
    "create": whole,
    "with_raw_response": raw,
    "create(stream=True)": streamed,
    "stream()": helper,
    "async create": async_whole,
    "async create(stream=True)": async_streamed,
    "async stream()": async_helper,
}
