# SPDX-License-Identifier: Apache-2.0
"""The types of the reply of `trajectories`. They are those of the schemas of the same names in `/openapi.json`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if sys.version_info >= (3, 11):
    from typing import NotRequired
elif TYPE_CHECKING:
    from typing_extensions import NotRequired

__all__ = [
    "ColumnTokens",
    "EntropyMethod",
    "Labels",
    "LeftOutPath",
    "MissingColumn",
    "PathImage",
    "PolicySpan",
    "Segment",
    "TokenColumn",
    "Trajectories",
    "Trajectory",
    "Turn",
]


class Segment(TypedDict):
    """Tokens of one prompt or response in a path."""

    turn: int
    kind: Literal["prompt", "response"]
    start: int
    end: int
    loss_mask: Literal[0, 1]


class PolicySpan(TypedDict):
    """The policy that sampled a range of tokens."""

    start: int
    end: int
    epoch: int
    until: NotRequired[int]
    weight_version: str | None
    version: str | None
    process: NotRequired[str]
    adapter: NotRequired[str]
    adapter_epoch: NotRequired[int]
    adapter_until: NotRequired[int]
    adapter_version: NotRequired[str | None]


class ColumnTokens(TypedDict):
    """A range of tokens that have values."""

    start: int
    end: int


class TokenColumn(TypedDict):
    """A token column: one value, or several, for each of some tokens of the path."""

    name: str
    type: Literal["u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64"]
    tokens: list[ColumnTokens]
    shape: list[int] | None
    data: str


class PathImage(TypedDict):
    """A picture of a prompt. Its tokens are all equal and are not trained."""

    turn: int
    start: int
    end: int
    sha256: str
    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp", "image/bmp", "application/octet-stream"]
    bytes: int
    available: bool


class EntropyMethod(TypedDict):
    """How entropies were measured."""

    source: Literal["exact", "top_k", "none"]
    estimator: str
    temperature: float | None
    top_k: int | None
    reason: str | None


class Labels(TypedDict):
    """A member is absent if the request has no signal for it."""

    dialect: NotRequired[Literal["generate", "chat", "completions", "messages", "responses"]]
    client: NotRequired[str]
    agent: NotRequired[str]
    agent_type: NotRequired[str]
    parent_agent: NotRequired[str]
    thread: NotRequired[str]
    request_class: NotRequired[str]
    after_compaction: NotRequired[Literal[True]]
    effort: NotRequired[str]
    attribution: NotRequired[str]


class MissingColumn(TypedDict):
    """A token column that a turn lacks, and why."""

    name: str
    reason: Literal[
        "length",
        "encoding",
        "unaligned",
        "not_returned",
        "cut_off",
        "all_zero",
        "reply_budget",
        "open_support",
        "not_requested",
        "refused",
    ]


class Turn(TypedDict):
    """A turn of a path."""

    id: int
    parent: int | None
    rid: str | None
    index: int
    cause: str
    predecessor: int | None
    reply_changes: list[str]
    finish_reason: str | None
    fault: str | None
    trained: bool
    reward: NotRequired[float | dict[str, Any]]
    supersedes: list[int]
    measured: EntropyMethod | None
    sampling: dict[str, Any] | None
    sampling_sources: dict[str, Literal["model", "default", "context"]] | None
    model: str
    lora_path: str | None
    started_ms: int
    first_ms: int | None
    elapsed_ms: int
    cached_tokens: int | None
    labels: Labels | None
    missing_columns: NotRequired[list[MissingColumn]]
    extras: dict[str, Any]


class Trajectory(TypedDict):
    """A path. All positions count tokens of the whole path; the lists have one item for each token."""

    session: str
    version: int
    leaf: int
    segments: list[Segment]
    token_ids: list[int]
    loss_mask: list[Literal[0, 1]]
    logprobs: list[float | None]
    entropy: list[float | None]
    policy: list[PolicySpan]
    columns: NotRequired[list[TokenColumn]]
    images: NotRequired[list[PathImage]]
    image_settings: NotRequired[str | None]
    finish_reason: str | None
    flags: list[str]
    reward: float | dict[str, Any] | None
    tags: NotRequired[dict[str, str]]
    turns: list[Turn]
    think_entropy_mean: float | None
    think_token_count: int | None
    think_closed: bool | None
    high_entropy_share: float | None


class LeftOutPath(TypedDict):
    """A path that an export leaves out, and why."""

    leaf: int
    reason: str


class Trajectories(TypedDict):
    """All paths of a version of a session."""

    session: str
    version: int
    frozen: bool
    incomplete: bool
    refused: list[LeftOutPath]
    trajectories: list[Trajectory]
