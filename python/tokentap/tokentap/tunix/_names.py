# SPDX-License-Identifier: Apache-2.0
"""Names of the sessions of a rollout: a prefix, and a number or the name of an episode."""

from __future__ import annotations

from uuid import uuid4

from .._routes import session_name

# The length of the longest number and the sign before it.
ROOM = 20


def beginning(session: str | None) -> str:
    """The prefix of all names of a rollout, a new one by default; raises ValueError for an invalid name."""
    if session is None:
        return f"tunix-{uuid4().hex[:12]}"
    if len(session_name(session)) > 128 - ROOM:
        raise ValueError(f"a session's name has at most 128 characters: {128 - ROOM} and a number, not {session!r}")
    return session


def episode_name(session: str, episode: str) -> str:
    """The session of an episode; raises ValueError for an invalid name."""
    return session_name(f"{session}-{episode}")
