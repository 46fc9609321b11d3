"""langchain-tests' standard integration tests of a chat model, for ChatOpenAI; run by pytest."""

from typing import Any

from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests
from scenario import BASE, KEY, MODEL


class TestChatOpenAI(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": MODEL, "base_url": BASE, "api_key": KEY, "stream_usage": True}
