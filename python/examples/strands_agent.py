# SPDX-License-Identifier: Apache-2.0
"""An agent of strands-agents on strands-sglang, recorded by tokentap. Needs strands-sglang.

tokentap demo
python strands_agent.py http://127.0.0.1:30001 http://127.0.0.1:30002 src/demo/assets

The last argument is the folder of the model's tokenizer. This one is the demo's, relative to the root of the
repository. With `tokentap serve` use the tokenizer of the model that SGLang serves.
"""

from __future__ import annotations

import asyncio
import sys
from uuid import uuid4

from strands import Agent, tool
from strands_sglang import SGLangModel
from transformers import AutoTokenizer

from tokentap import Client
from tokentap.strands import SessionClient, rollout


@tool
def multiply(a: int, b: int) -> int:
    """Multiplies.

    Args:
        a: One factor.
        b: The other.
    """
    return a * b


async def main(data: str, control: str, tokenizer: str) -> None:
    """Runs one episode and prints what a trainer needs."""
    session = uuid4().hex
    async with SessionClient(data, session=session) as client:
        model = SGLangModel(
            client=client,
            tokenizer=AutoTokenizer.from_pretrained(tokenizer),
            sampling_params={"temperature": 1.0, "max_new_tokens": 1024},
        )
        await Agent(model=model, tools=[multiply]).invoke_async("What is 17 times 23?")
    with Client(data, control) as trainer:
        episode = rollout(trainer, session)
    assert episode.rollout.token_ids == model.rollout.token_ids
    for token, mask, logprob, nats in zip(
        episode.rollout.token_ids, episode.rollout.loss_mask, episode.rollout.logprobs, episode.entropy, strict=True
    ):
        print(token, mask, logprob, nats, sep="\t")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
