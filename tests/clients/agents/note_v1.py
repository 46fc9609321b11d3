# SPDX-License-Identifier: Apache-2.0
"""A taskset for vf-eval: one task, for the harness with a shell."""

import verifiers.v1 as vf


class NoteTask(vf.Task[vf.TaskData]):
    @vf.reward(weight=1.0)
    async def answered(self, trace: vf.Trace) -> float:
        return 1.0


class NoteTaskset(vf.Taskset[NoteTask, vf.TasksetConfig]):
    def load(self) -> list[NoteTask]:
        return [NoteTask(vf.TaskData(prompt="Write a note."), self.config.task)]


__all__ = ["NoteTaskset"]
