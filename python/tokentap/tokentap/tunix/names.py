"""Names of the sessions of a rollout: what they begin with, and a number or the name of an episode behind it."""

from __future__ import annotations

from uuid import uuid4

from ..routes import session_name

# What the longest number needs, and the sign before it.
ROOM = 20


def beginning(session: str | None) -> str:
    """A beginning for all names of a rollout, new without one; ValueError where no session could be named so."""
    if session is None:
        return f"tunix-{uuid4().hex[:12]}"
    if len(session_name(session)) > 128 - ROOM:
        raise ValueError(f"a session's name has at most 128 characters: {128 - ROOM} and a number, not {session!r}")
    return session


def episode_name(session: str, episode: str) -> str:
    """The session of an episode; ValueError where none can be named so."""
    return session_name(f"{session}-{episode}")
