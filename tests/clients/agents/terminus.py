# SPDX-License-Identifier: Apache-2.0
"""Harbor's Terminus 2, which calls the model through litellm and types commands into tmux, does a task."""

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any

from harbor.agents.terminus_2.terminus_2 import Terminus2
from harbor.environments.base import ExecResult
from harbor.models.agent.context import AgentContext
from scenario import BASE, KEY, MODEL

WORK = Path.home() / "work"


class Host:
    """What the agent uses of an environment, without a container."""

    default_user = None
    session_id = "one"

    async def exec(self, command: str, **_: Any) -> ExecResult:
        done = await asyncio.to_thread(
            subprocess.run, ["bash", "-c", command], cwd=WORK, capture_output=True, text=True
        )
        return ExecResult(stdout=done.stdout, stderr=done.stderr, return_code=done.returncode)

    async def is_dir(self, path: str) -> bool:
        return Path(path).is_dir()


async def main() -> None:
    info = {"max_input_tokens": 200000, "max_output_tokens": 8000}
    # an endpoint of litellm reads its key from the environment
    os.environ["OPENAI_API_KEY"] = KEY
    agent = Terminus2(
        Path.home(), f"openai/{MODEL}", api_base=BASE, model_info=info, record_terminal_session=False, max_turns=9
    )
    await agent.setup(Host())
    await agent.run("Write a note.", Host(), AgentContext())


# a tmux server for this run only
os.environ["TMUX_TMPDIR"] = str(Path.home())
try:
    asyncio.run(main())
finally:
    subprocess.run(["tmux", "kill-server"])
assert (WORK / "note.txt").read_text() == "Bergen: 🌧\n"
