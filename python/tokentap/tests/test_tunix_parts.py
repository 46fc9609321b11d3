# SPDX-License-Identifier: Apache-2.0
"""The parts of the tunix rollout that do not import tunix."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tokentap.tunix
from tokentap._generation import Generation
from tokentap.tunix._names import beginning, episode_name
from tokentap.tunix._padding import left_padded
from tokentap.tunix._recent import Recent
from tokentap.tunix._sample import EntropyMissing, Sample, SampleUnusable
from tokentap.tunix._sampling import extra, sampling_params, seed_of

PAD = 9


def config(**changes: Any) -> Any:
    fields = {"max_tokens_to_generate": 8, "temperature": 0.9, "top_p": 1.0, "top_k": None, "eos_tokens": None}
    return SimpleNamespace(**(fields | changes))


def ids(*tokens: int) -> Any:
    return np.array(tokens, dtype=np.int32)


def sample(prompt: Any, tokens: Any, start: float = -1.0) -> Sample:
    logprobs = (start - np.arange(len(tokens))).astype(np.float32)
    return Sample(prompt, "", tokens, logprobs, None, None, "s", "stop", None)


def reply(**changed: Any) -> Generation:
    meta = {
        "id": "r",
        "finish_reason": {"type": "stop", "matched": 7},
        "completion_tokens": 2,
        "weight_version": "3",
        "output_token_logprobs": [[-0.1070956140756607, 5, None], [-2.5, 7, None]],
        "output_token_entropy": [0.25, None],
        "entropy_info": {"source": "top_k"},
    }
    return Generation.of({"text": "a", "output_ids": [5, 7], "meta_info": meta | changed}, {"x-tokentap-session": "s"})


def test_the_modules_do_not_import_tunix() -> None:
    assert "tunix" not in sys.modules
    assert "jax" not in sys.modules
    with pytest.raises(AttributeError, match="no attribute 'Rollout'"):
        tokentap.tunix.Rollout  # noqa: B018


def test_sampling_params_have_the_fields_of_the_config() -> None:
    assert sampling_params(config(), 2, None) == {
        "max_new_tokens": 8,
        "temperature": 0.9,
        "top_p": 1.0,
        "stop_token_ids": [2],
    }
    params = sampling_params(config(top_k=np.int64(5), eos_tokens=[3, 4], top_p=None), 2, 11)
    assert params == {
        "max_new_tokens": 8,
        "temperature": 0.9,
        "top_k": 5,
        "stop_token_ids": [3, 4],
        "sampling_seed": 11,
    }
    for none in ([], np.array([], np.int64)):
        assert sampling_params(config(eos_tokens=none), 2, None)["stop_token_ids"] == [2]
    assert sampling_params(config(eos_tokens=np.array([3, 4])), 2, None)["stop_token_ids"] == [3, 4]
    assert type(params["top_k"]) is int, "a type that JSON can hold"


def test_sampling_params_refuse_fields_of_the_config() -> None:
    assert extra({"min_p": 0.1}) == {"min_p": 0.1}
    for name in ("temperature", "max_new_tokens", "n", "top_p"):
        with pytest.raises(ValueError, match=name):
            extra({name: 1})


def test_seeds_are_reproducible_and_differ_between_samples() -> None:
    seeds = [seed_of([0, 7], number) for number in range(1000)]
    assert seeds == [seed_of([0, 7], number) for number in range(1000)]
    assert len(set(seeds)) == 1000
    assert seed_of([0, 8], 0) != seeds[0]
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_reply_becomes_arrays() -> None:
    made = Sample.of(reply(), ids(1, 2), "asked")
    assert made.tokens.tolist() == [5, 7]
    assert made.logprobs.dtype == np.float32
    assert made.logprobs.tolist() == [float(np.float32(-0.1070956140756607)), -2.5]
    assert made.entropy is not None
    assert made.entropy[0] == np.float32(0.25)
    assert np.isnan(made.entropy[1])
    assert (made.session, made.finish_reason, made.weight_version) == ("s", "stop", "3")


def test_tokens_are_the_ids_of_the_logprobs() -> None:
    cut = Generation.of(reply().raw | {"output_ids": [5]}, {})
    assert Sample.of(cut, ids(1), "s").tokens.tolist() == [5, 7], "sglang-jax omits the stop token from output_ids"
    assert Sample.of(cut, ids(1), "asked").session == "asked"


def test_rows_beyond_the_token_count_are_ignored() -> None:
    rows = [[-1.0, 5, None], [-2.0, 7, None], [-3.0, 8, None]]
    assert Sample.of(reply(output_token_logprobs=rows), ids(1), "s").tokens.tolist() == [5, 7]


def test_missing_entropies_are_none_with_a_reason() -> None:
    made = Sample.of(reply(output_token_entropy=[None, None], entropy_info={"reason": "jax"}), ids(1), "s")
    assert made.entropy is None
    assert made.reason == "jax"
    assert Sample.of(reply(output_token_entropy=None, entropy_info=None), ids(1), "s").reason is None


def test_required_entropies_must_all_exist() -> None:
    whole = Sample.of(reply(output_token_entropy=[0.25, 0.5]), ids(1), "s")
    assert whole.with_entropy() is whole
    with pytest.raises(EntropyMissing, match="at 1 of 2 tokens"):
        Sample.of(reply(), ids(1), "s").with_entropy()
    none = reply(output_token_entropy=None, entropy_info={"reason": "jax"})
    with pytest.raises(EntropyMissing, match="no entropy: jax"):
        Sample.of(none, ids(1), "s").with_entropy()


@pytest.mark.parametrize("name", ["", "my run", "a/b", "x" * 109, "x" * 200])
def test_an_invalid_session_prefix_raises_value_error(name: str) -> None:
    with pytest.raises(ValueError, match="session's name"):
        beginning(name)


def test_a_session_prefix_is_unique_by_default() -> None:
    assert beginning("x" * 108) == "x" * 108
    assert beginning(None) != beginning(None)
    assert episode_name("run", "7-1") == "run-7-1"
    with pytest.raises(ValueError, match="session's name"):
        episode_name("run", "a b")


def samples(*texts: str) -> list[Sample]:
    return [dataclasses.replace(sample(ids(1), ids(at)), text=text) for at, text in enumerate(texts)]


def in_a_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_last_returns_the_samples_of_the_thread() -> None:
    recent = Recent(8, PAD)
    mine, others = samples("a", "b"), samples("c", "d")
    recent.add(mine)
    in_a_thread(lambda: recent.add(others))
    assert recent.last(2) == mine
    with pytest.raises(ValueError, match="3 samples requested, 2 kept of this thread"):
        recent.last(3)


def test_samples_are_found_by_their_text() -> None:
    recent = Recent(8, PAD)
    first, second, others = samples("a", "b"), samples("a", "b"), samples("a", "b", "c")
    recent.add(first)
    recent.add(second)
    in_a_thread(lambda: recent.add(others))
    assert recent.of(["a", "b"]) == second, "the latest of this thread"
    assert recent.of(["b", "a"]) == [first[1], second[0]], "micro batches are consecutive"
    assert recent.of(["b", "c"]) == others[1:], "of another thread, if this one has none"
    assert recent.of([]) == []
    for texts in (["a", "c"], ["a "], ["a", "b", "c", "a"]):
        with pytest.raises(LookupError, match="samples with these texts"):
            recent.of(texts)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"finish_reason": {"type": "abort", "message": "Aborted"}}, "ended by .*Aborted"),
        ({"output_token_logprobs": [[-1.0, 5, None]]}, "a logprob for each"),
        ({"output_token_logprobs": None}, "a logprob for each"),
        ({"output_token_logprobs": [[None, 5, None], [-1.0, 7, None]]}, "a logprob for each"),
        ({"output_token_entropy": [0.5]}, "entropy: 1 numbers for 2 ids"),
    ],
)
def test_an_unusable_sample_names_the_reason(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(SampleUnusable, match=why):
        Sample.of(reply(**changed), ids(1), "s")


def test_prompts_are_padded_on_the_left() -> None:
    rows = left_padded([ids(1), ids(1, 2, 3)], 5, PAD)
    assert rows.tolist() == [[9, 9, 9, 9, 1], [9, 9, 1, 2, 3]]
    assert rows.dtype == np.int32


@pytest.mark.parametrize(("longest", "width"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (9, 16)])
def test_a_prompt_that_is_too_long_widens_the_array(longest: int, width: int) -> None:
    for length in (longest - 1, None):
        assert left_padded([ids(*range(longest))], length, PAD).shape == (1, width)


def test_logprobs_are_found_by_padded_rows() -> None:
    recent = Recent(8, PAD)
    recent.add([sample(ids(1, 2), ids(3, 4), -1.0), sample(ids(2), ids(3, 4, 5), -5.0)])
    prompts, completions = ids(9, 9, 2, 9, 1, 2).reshape(2, 3), ids(3, 4, 5, 9, 3, 4, 9, 9).reshape(2, 4)
    assert recent.logprobs(prompts, completions).tolist() == [[-5, -6, -7, 0], [-1, -2, 0, 0]]
    with pytest.raises(LookupError, match="row 1"):
        recent.logprobs(prompts, ids(3, 4, 5, 9, 3, 5, 9, 9).reshape(2, 4))


def test_a_stop_token_that_is_the_pad_keeps_its_logprob() -> None:
    recent = Recent(8, PAD)
    recent.add([sample(ids(1), ids(3, PAD), -1.0)])
    assert recent.logprobs(ids(1).reshape(1, 1), ids(3, 9, 9).reshape(1, 3)).tolist() == [[-1, -2, 0]]


def test_equal_rows_find_the_later_sample_and_the_oldest_are_removed() -> None:
    recent = Recent(2, PAD)
    old, new, other = (sample(ids(1), ids(3), start) for start in (-1.0, -2.0, -3.0))
    recent.add([old])
    recent.add([new])
    ask = ids(1).reshape(1, 1), ids(3).reshape(1, 1)
    assert recent.logprobs(*ask).tolist() == [[-2]]
    assert recent.last(2) == [old, new]
    recent.add([sample(ids(8), ids(8))])
    assert recent.logprobs(*ask).tolist() == [[-2]], "the older of the two was removed, the later remains"
    recent.add([other, sample(ids(8), ids(7))])
    assert recent.logprobs(*ask).tolist() == [[-3]]
    recent.add([sample(ids(8), ids(6))])
    with pytest.raises(LookupError, match="2 samples ago"):
        recent.logprobs(*ask)
    with pytest.raises(ValueError, match="3 samples requested, 2 kept"):
        recent.last(3)
    assert recent.last(0) == []
