# SPDX-License-Identifier: Apache-2.0
"""Samples one prompt several times, sets rewards, and prints the batch of a trainer with entropies. Needs numpy.

tokentap demo
python rollouts.py  # or with other addresses: DATA CONTROL
"""

from __future__ import annotations

import asyncio
import sys
from uuid import uuid4

from tokentap import AsyncClient, Generation

QUESTION = "<|im_start|>user\nWhat is two and three?<|im_end|>\n<|im_start|>assistant\n"


async def main(data: str = "http://127.0.0.1:30001", control: str = "http://127.0.0.1:30002") -> None:
    """Samples a group, rewards it, and prints advantages and the shape of the batch."""
    async with AsyncClient(data, control) as client:

        async def roll(session: str) -> Generation:
            sampling = {"max_new_tokens": 64, "stop": ["<|im_end|>"]}
            return await client.generate(
                QUESTION, session=session, sampling_params=sampling, return_logprob=True, done=True
            )

        run = uuid4().hex[:6]
        sessions = [f"{run}-{at}" for at in range(4)]
        made = await asyncio.gather(*map(roll, sessions))
        samples = []
        for session, one in zip(sessions, made, strict=True):
            reward = float("5" in one.text)
            await client.reward(session, reward)
            await client.freeze(session)
            samples.append({"session": session, "reward": reward})
        answer = await client.advantages([{"id": run, "samples": samples}], estimator="egpo")
        for one, sample in zip(made, answer["groups"][0]["samples"], strict=True):
            known = [nats for nats in one.entropy or [] if nats is not None]
            mean = f"{sum(known) / len(known):.3f} nats a token" if known else "no entropy"
            print(f"{sample['advantage']:+.3f}  {mean}  {one.text!r}")
        batch = (await client.samples(sessions)).numpy()
        print({name: tensor.shape for name, tensor in batch.tensors.items()})


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
