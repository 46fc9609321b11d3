# SPDX-License-Identifier: Apache-2.0
"""The options of exports, advantages and teachers, for type checkers; their names are those of `/openapi.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

Format = Literal[
    "verl",
    "miles",
    "areal",
    "slime",
    "tunix",
    "strands",
    "rllm",
    "skyrl",
    "nemo-rl",
    "prime-rl",
    "trl",
    "tinker",
    "jsonl",
    "arrow",
    "parquet",
    "images",
]

Estimator = Literal["grpo", "egpo", "distill"]

Class = Literal["main", "subagent", "compaction", "auxiliary", "unlabelled", "all"]

PauseMode = Literal["abort", "retract", "in_place"]


# The flags of rows, and what a row can lack.
Exclusion = Literal[
    "incomplete",
    "crosses_versions",
    "policy_uncertain",
    "mixed_adapters",
    "extends_length",
    "context_retokenised",
    "foreign_assistant_text",
    "inserted_end_of_turn",
    "column_missing",
    "column_uncertain",
    "repeats_sample",
    "advantage_lacks_entropy",
    "mixed_image_settings",
    "aborted",
    "disconnected",
    "broken",
    "prompt_unknown",
    "prompt_mismatch",
    "completion_mismatch",
    "ids_mismatch",
    "ids_unverified",
    "ids_outside",
    "logprobs_mismatch",
    "entropies_mismatch",
    "unreadable",
    "lost",
    "forwarded",
    "images_unverified",
    "image_remote",
    "image_processed",
    "media_unrecorded",
    "images_too_large",
    "missing_routed_experts",
    "partial_routed_experts",
    "unshaped_routed_experts",
    "missing_scores",
    "missing_reward",
    "missing_path_reward",
    "image_unavailable",
]

# A name that is a keyword of Python needs this form.
SampleAdvantages = TypedDict(
    "SampleAdvantages",
    {
        "groups": Sequence[Mapping[str, object]],
        "estimator": Estimator,
        "lambda": float,
        "alpha": float,
        "entropy_over": Literal["thinking", "response"],
        "normalize_std": bool,
        "rewards": Literal["path", "turns"],
        "discount": float,
        "teacher": str | None,
        "think_start": int | None,
        "think_end": int | None,
    },
    total=False,
)


class SampleOptions(TypedDict, total=False):
    """The options of an export. One that the format would ignore is refused."""

    where: str | None
    pad_token_id: int | None
    max_prompt_length: int | None
    max_response_length: int | None
    version: int | None
    include_branches: bool | None
    entropies: bool | None
    text: bool | None
    images: Literal["refs", "embed"] | None
    classes: Sequence[Class] | None
    exclude: Sequence[Exclusion] | None
    train_resumed: bool | None
    scores: str | None
    advantages: SampleAdvantages | None


class AdvantageOptions(TypedDict, total=False):
    """The options of advantages; `lambda_` is `lambda`, which cannot be an argument in Python."""

    lambda_: float | None
    alpha: float | None
    entropy_over: Literal["thinking", "response"] | None
    normalize_std: bool | None
    rewards: Literal["path", "turns"] | None
    discount: float | None
    teacher: str | None
    think_start: int | None
    think_end: int | None
    version: int | None
    classes: Sequence[Class] | None
    train_resumed: bool | None
    high_entropy_threshold: float | None


class TeacherOptions(TypedDict, total=False):
    """The options of scores of a teacher."""

    key: str | None
    rows: Sequence[Mapping[str, Any]] | None
    version: int | None
    classes: Sequence[Class] | None
    train_resumed: bool | None
    again: bool | None
    top_logprobs: int | None
    logprobs_of_top_ids: bool | None
    cap: float | None
    limit: float | None
    weights: bool | None
