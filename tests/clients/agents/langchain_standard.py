# SPDX-License-Identifier: Apache-2.0
"""langchain-tests' standard integration tests of a chat model, for the API CLIENT_API; run by pytest."""

import os
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests
from scenario import BASE, KEY, MODEL, ROOT

CHAT = {"model": MODEL, "base_url": BASE, "api_key": KEY, "stream_usage": True}
MODELS: dict[str, tuple[type[ChatOpenAI | ChatAnthropic], dict[str, Any]]] = {
    "chat": (ChatOpenAI, CHAT),
    "messages": (ChatAnthropic, {"model": MODEL, "base_url": ROOT, "api_key": KEY, "max_tokens": 4096}),
    "responses": (ChatOpenAI, {**CHAT, "use_responses_api": True, "store": False}),
}


class TestChatModel(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[ChatOpenAI | ChatAnthropic]:
        return MODELS[os.environ["CLIENT_API"]][0]

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return MODELS[os.environ["CLIENT_API"]][1]
