# SPDX-License-Identifier: Apache-2.0
"""Means, intervals, bins and thinking of a path, compared with NumPy in float64 and with what tokentap reports."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from conftest import Demo

from tokentap import Client
from tokentap._entropies import ANSWER, MARK, THINK, Entropies, Histogram, Mean, think_ids
from tokentap._scale import step

START, END = 1020, 1021
PROMPT = "<|im_start|>user\nHow far does the light go?<|im_end|>\n<|im_start|>assistant\n<think>\n"


# of sessions, each of which has one path
NUMBERS = itertools.count()


def path(*turns: tuple[list[int], list[int]], entropy: list[Any] | None = None, **members: Any) -> dict[str, Any]:
    """A path of turns, each the ids of its prompt and of its response."""
    ids: list[int] = []
    segments: list[dict[str, Any]] = []
    for turn, parts in enumerate(turns):
        for kind, own in zip(("prompt", "response"), parts, strict=True):
            if own:
                mask = int(kind == "response")
                end = len(ids) + len(own)
                segments.append({"turn": turn, "kind": kind, "start": len(ids), "end": end, "loss_mask": mask})
            ids += own
    found = {
        "session": f"s-{next(NUMBERS)}",
        "leaf": len(turns) - 1,
        "version": 1,
        "segments": segments,
        "token_ids": ids,
        "loss_mask": [segment["loss_mask"] for segment in segments for _ in range(segment["end"] - segment["start"])],
        "entropy": [0.5] * len(ids) if entropy is None else entropy,
        "turns": [{"id": turn, "fault": None, "extras": {}} for turn in range(len(turns))],
    }
    return {**found, **members}


@pytest.mark.parametrize("absent", [None, math.nan, math.inf, -math.inf, -1.0, "0.5"])
def test_absent_numbers_are_not_counted(absent: object) -> None:
    random = np.random.default_rng(5)
    values: list[Any] = random.exponential(size=2000).tolist()
    known = np.array(values, dtype=np.float64)
    gone = random.random(2000) < 0.3
    for at in np.flatnonzero(gone):
        values[at] = absent
    entropies = Entropies.of(path(([1], list(range(2000))), entropy=[None, *values]))
    known[gone] = np.nan
    total = entropies.total
    assert total.value == pytest.approx(np.nanmean(known), rel=1e-15)
    assert (total.measured, total.tokens) == (int((~gone).sum()), 2000)
    # the same for bins, whatever their number
    for bins in (1, 7, 400, 3000):
        found = entropies.bins(bins)
        assert [one.start for one in found[1:]] == [one.end for one in found[:-1]]
        assert (found[0].start, found[-1].end, len(found)) == (0, 2000, min(bins, 2000))
        for one in found:
            own = known[one.start : one.end]
            if np.isnan(own).all():
                assert (one.mean, one.most) == (None, None)
            else:
                assert (one.mean, one.most) == pytest.approx((np.nanmean(own), np.nanmax(own)), rel=1e-14)
    histogram = Histogram.of([path(([1], list(range(2000))), entropy=[None, *values]) for _ in range(2)])
    assert histogram.counts == [2 * sum(step(x) == at for x in known) for at in range(24)]
    assert histogram.total == Mean(pytest.approx(np.nanmean(known)), 2 * total.measured, 4000)


def test_a_mean_of_nothing_is_absent() -> None:
    entropies = Entropies.of(path(([1], [2, 3]), entropy=[None] * 3))
    assert entropies.total == Mean(None, 0, 2)
    assert Histogram.of([]).total == Mean(None, 0, 0)
    assert Mean.pooled([Mean(None, 0, 3), Mean(2.0, 1, 1)]) == Mean(2.0, 1, 4)
    assert Entropies.of(path(([1], []))).bins(10) == []
    assert Entropies.of(path(([1], [2]), entropy=None) | {"entropy": None}).total.value is None


def test_numbers_of_numpy_are_measured() -> None:
    entropies = Entropies.of(path(([1], [2, 3]), entropy=[np.float32("nan"), np.float32(0.5), np.float64(1.5)]))
    assert entropies.total == Mean(1.0, 2, 2)


def test_entropies_of_a_quarantined_turn_are_absent() -> None:
    of = path(([1], [2, 3]), ([4], [5]))
    for fault, measured in (("ids_mismatch", 1), ("entropies_mismatch", 1), ("aborted", 3), (None, 3)):
        of["turns"][0]["fault"] = fault
        assert Entropies.of(of).total.measured == measured, fault


def test_intervals_are_read_from_columns_and_from_extras() -> None:
    extras = {"output_token_entropy_lower": [0.1, None], "output_token_entropy_upper": [0.9, 0.8]}
    of = path(([1], [2, 3]), ([4], [5]))
    assert not Entropies.of(of).has_interval
    of["turns"][0]["extras"] = extras
    found = Entropies.of(of)
    assert found.has_interval
    assert found.lower == pytest.approx([0.1, math.nan, math.nan], nan_ok=True)
    assert found.upper == pytest.approx([0.9, 0.8, math.nan], nan_ok=True)
    assert [(one.lower, one.upper) for one in found.bins(9)] == [(0.1, 0.9), (None, None), (None, None)]
    columns = Entropies.of({**of, "lower": [None, 0.2, 0.2, None, 0.3], "upper": [None, 0.7, 0.7, None, 0.6]})
    assert (columns.lower, columns.upper) == ([0.2, 0.2, 0.3], [0.7, 0.7, 0.6])
    extras["output_token_entropy_lower"] = [0.1]
    assert not Entropies.of(of).has_interval, "a list of another length is ignored"


@pytest.mark.parametrize(
    ("turns", "parts"),
    [
        ([([1], [START, 7, 8, END, 9])], "MTTMA"),
        ([([START, 4, END, 5, START, 6], [7, END, 9])], "TMA"),
        ([([START, 6, END], [7, 8])], None),
        ([([1], [START, 7]), ([2], [8, END])], "MTAM"),
        ([([1, START], [7]), ([], [8, END, 9])], "TTMA"),
        ([([1], [END, START, 7, START, 8, END, END, 9])], "MMTMTMMA"),
        ([([1], [7, END, 8])], None),
        ([([START], [END, 9])], "MA"),
        ([([START], [])], None),
    ],
)
def test_think_spans_follow_the_rules_of_tokentap(turns: list[tuple[list[int], list[int]]], parts: str | None) -> None:
    found = Entropies.of(path(*turns), (START, END))
    assert found.thinks == (parts is not None)
    if parts is not None:
        assert found.parts == [{"A": ANSWER, "T": THINK, "M": MARK}[part] for part in parts]
    else:
        assert found.split() is None


def test_invalid_paths_raise_value_error() -> None:
    with pytest.raises(ValueError, match="trajectories"):
        Entropies.of({"trajectories": []})
    with pytest.raises(ValueError, match="entropy: 2 numbers for 3 tokens"):
        Entropies.of(path(([1], [2, 3]), entropy=[0.1, 0.2]))


def test_split_equals_the_think_numbers_of_tokentap(demo: Demo, session: str) -> None:
    spans = 0
    with Client(demo.data, demo.control, retries=0) as client:
        for seed in range(12):
            sampling = {"max_new_tokens": 64, "temperature": 1.2, "sampling_seed": seed}
            first = client.generate(PROMPT, session=session, sampling_params=sampling)
            (*_, of) = client.trajectories(session)["trajectories"]
            # a second turn, with or without thinking
            more = [*of["token_ids"], 198, *([START] if seed % 3 == 0 else [])]
            client.generate(input_ids=more, session=session, sampling_params=sampling, return_entropy=seed % 4 != 0)
            assert first.entropy is not None
        for of in client.trajectories(session)["trajectories"]:
            ids = think_ids([of], client)
            assert ids == (START, END)
            split = Entropies.of(of, ids).split()
            assert split is not None
            assert split.think.tokens == of["think_token_count"]
            assert split.think.value == pytest.approx(of["think_entropy_mean"], rel=1e-6)
            spans += 1
            marks = sum(of["token_ids"][at] in ids for at in Entropies.of(of).positions)
            assert split.think.tokens + split.answer.tokens + marks == len(Entropies.of(of).positions)
        client.generate(input_ids=[299, 467], session=session, sampling_params={"max_new_tokens": 4})
        silent = [of for of in client.trajectories(session)["trajectories"] if of["think_closed"] is None]
        assert len(silent) == 1
        assert Entropies.of(silent[0], (START, END)).split() is None
        client.delete(session)
        assert think_ids([of], client) is None, "the session is deleted"
    assert spans == 12


def test_intervals_of_tokentap_contain_the_entropies(demo: Demo, session: str) -> None:
    with Client(demo.data, demo.control, retries=0) as client:
        sampling = {"max_new_tokens": 32, "temperature": 1.3, "sampling_seed": 5}
        made = client.generate(PROMPT, session=session, sampling_params=sampling, entropy_options={"bounds": True})
        found = Entropies.of(client.trajectories(session)["trajectories"][0])
    assert (found.nats, found.lower, found.upper) == (made.entropy, made.lower, made.upper)
    assert found.has_interval
    assert all(low <= x <= high for low, x, high in zip(found.lower, found.nats, found.upper, strict=True))


def test_a_turn_that_several_paths_share_counts_once() -> None:
    branches = [path(([1], [2, 3]), ([4], [5]), entropy=[0, 1, 2, 0, 3]) | {"session": "s"} for _ in range(2)]
    branches[1]["segments"][-1]["turn"] = 2
    branches[1]["turns"][-1]["id"] = 2
    found = Histogram.of(branches)
    assert (sum(found.counts), found.total.measured, found.total.value) == (4, 4, pytest.approx((1 + 2 + 3 + 3) / 4))
    other = path(([1], [2, 3]), entropy=[0, 1, 2])
    assert Histogram.of([*branches, other]).total.measured == 6
