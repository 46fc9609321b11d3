# SPDX-License-Identifier: Apache-2.0
"""The parts of tokentap.verl that need torch but not verl."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tokentap.verl._batch import attach, padded  # noqa: E402
from tokentap.verl._egpo import EgpoRow, shape_advantages, shape_row, thinking  # noqa: E402
from tokentap.verl._problems import NoEntropies, Unaligned  # noqa: E402

OPEN, CLOSE = 3, 4


@dataclass
class Data:
    """The part of a DataProto that is used."""

    batch: dict[str, Any]
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.batch["response_mask"])


def test_rows_are_padded_on_the_right_as_float32() -> None:
    mask = torch.tensor([[1, 0, 1, 0], [1, 0, 0, 0]])
    data = attach(Data({"response_mask": mask}, {"rollout_entropy": [[0.1, 0.0, 0.3], [0.5]]}))
    entropy = data.batch["rollout_entropy"]
    assert entropy.dtype == torch.float32
    assert entropy.tolist() == torch.tensor([[0.1, 0, 0.3, 0], [0.5, 0, 0, 0]]).tolist()
    assert "rollout_entropy" not in data.non_tensor_batch


def test_rows_of_another_agent_loop_raise() -> None:
    mask = torch.ones(2, 2, dtype=torch.long)
    with pytest.raises(NoEntropies, match="row 1"):
        padded([[0.1, 0.2], None], mask)
    with pytest.raises(NoEntropies, match="row 0"):
        attach(Data({"response_mask": mask}))


@pytest.mark.parametrize("row", [[0.1, 0.2, 0.3], [0.1, 0.2], [float("nan")]], ids=["long", "untrained", "nan"])
def test_entropies_that_do_not_match_the_mask_raise(row: list[float]) -> None:
    with pytest.raises(Unaligned):
        padded([row], torch.tensor([[1, 0]]))


@pytest.mark.parametrize(
    ("ids", "mask", "expected"),
    [
        ([9, OPEN, 8, 7, CLOSE, 6], [0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0]),
        ([9, OPEN, 8, 7], [0, 0, 1, 1], [0, 0, 1, 1]),
        ([9, OPEN, CLOSE, 8], [0, 0, 0, 1], [0, 0, 0, 0]),
        ([9, OPEN, 8, 5, 7], [0, 1, 1, 0, 1], [0, 0, 1, 0, 0]),
        ([9, 8, 5, OPEN, 7, CLOSE, 6], [0, 1, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 0, 0]),
        ([9, 8, 7], [0, 1, 1], [0, 0, 0]),
    ],
    ids=["sampled", "opened by the prompt", "closed by the prompt", "ended by an observation", "second turn", "none"],
)
def test_thinking_tokens_are_found(ids: list[int], mask: list[int], expected: list[int]) -> None:
    assert thinking(torch.tensor(ids), torch.tensor(mask), OPEN, CLOSE).tolist() == [bool(one) for one in expected]


def thoughtful() -> EgpoRow:
    """A row whose thinking has 0.25 and 0.75 nats."""
    response, entropy = torch.tensor([OPEN, 8, 7, CLOSE]), torch.tensor([5.0, 0.25, 0.75, 5.0])
    return EgpoRow(torch.tensor([9, 9]), response, torch.ones(4, dtype=torch.long), entropy)


def rows(advantages: list[list[float]]) -> Data:
    """That row, and one that is shorter and does not think."""
    return Data(
        {
            "prompts": torch.tensor([[9, 9], [0, 9]]),
            "responses": torch.tensor([[OPEN, 8, 7, CLOSE], [8, 7, 0, 0]]),
            "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 0, 0]]),
            "response_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
            "rollout_entropy": torch.tensor([[5.0, 0.25, 0.75, 5.0], [1.0, 1.0, 0.0, 0.0]]),
            "advantages": torch.tensor(advantages),
        }
    )


def test_the_mean_is_over_the_thinking_alone() -> None:
    assert thoughtful().think_entropy(OPEN, CLOSE) == 0.5
    row = EgpoRow(torch.tensor([9]), torch.tensor([8, 7]), torch.ones(2), torch.ones(2))
    assert row.think_entropy(OPEN, CLOSE) is None


@pytest.mark.parametrize(("base", "expected"), [(2.0, 2.2), (0.5, 0.6), (-0.5, -0.4), (0.0, 0.0)])
def test_a_bonus_is_clipped_by_the_advantage(base: float, expected: float) -> None:
    data = rows([[base] * 4, [base, base, 0.0, 0.0]])
    shape_advantages(data, lam=0.4, alpha=2.0, think_start=OPEN, think_end=CLOSE)
    assert data.batch["advantages"][0].tolist() == pytest.approx([expected] * 4)
    assert data.batch["advantages"][1].tolist() == [base, base, 0.0, 0.0]


def test_a_rejected_token_counts_as_thinking_and_is_not_shaped() -> None:
    advantages, trained = torch.tensor([2.0, 0.0, 2.0, 2.0]), torch.tensor([1, 0, 1, 1])
    shaped = shape_row(thoughtful(), advantages, trained, think_start=OPEN, think_end=CLOSE)
    assert shaped.tolist() == pytest.approx([2.2, 0.0, 2.2, 2.2])
    nothing = torch.zeros(4)
    assert shape_row(thoughtful(), nothing, nothing, think_start=OPEN, think_end=CLOSE) is nothing


@pytest.mark.parametrize(
    ("advantages", "message"), [([1.0, 2.0, 1.0, 1.0], "row 0: several advantages"), ([float("nan")] * 4, "not finite")]
)
def test_advantages_that_are_not_grpos_raise(advantages: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shape_advantages(rows([advantages, [0.0] * 4]), think_start=OPEN, think_end=CLOSE)


def test_entropies_of_another_length_raise() -> None:
    with pytest.raises(Unaligned, match="3 entropies"):
        EgpoRow(torch.tensor([9]), torch.tensor([8, 7]), torch.ones(2), torch.ones(3))
