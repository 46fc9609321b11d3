# SPDX-License-Identifier: Apache-2.0
"""Exports as tensors, against the session's record in JSON."""

from __future__ import annotations

import importlib.util
import json
import struct
from typing import Any

import numpy as np
import pytest
from conftest import Demo, Either

from tokentap._safetensors import NUMPY, SIZES, TORCH, File

HAS_TORCH = importlib.util.find_spec("torch") is not None


def record(do: Either, demo: Demo, session: str) -> list[dict[str, Any]]:
    """Records a conversation with a tool result and two samples of its first prompt; returns its exported paths."""
    sampling = {"max_new_tokens": 6, "ignore_eos": True}
    call = {"session": session, "return_logprob": True, "sampling_params": sampling}
    first = do(demo, "generate", input_ids=[299, 467], **call)
    do(demo, "generate", input_ids=[299, 467, *first.output_ids, 258, 787], **call)
    do(demo, "generate", input_ids=[299, 467], **call)
    do(demo, "reward", session, 1.5)
    return list(do(demo, "trajectories", session)["trajectories"])


def padded(rows: list[list[float]], width: int, kind: str) -> np.ndarray:
    return np.array([row + [0] * (width - len(row)) for row in rows], dtype=kind)


@pytest.mark.parametrize("way", ["numpy", "torch"])
def test_verl_tensors_equal_the_recorded_paths(do: Either, demo: Demo, session: str, way: str) -> None:
    if way == "torch" and not HAS_TORCH:
        pytest.skip("no torch here")
    paths = record(do, demo, session)
    samples = do(demo, "samples", [session])
    assert (samples.rows, samples.refused, samples.incomplete, samples.format) == (2, {}, {}, "verl")
    batch = getattr(samples, way)()
    tensors = {name: np.asarray(tensor) for name, tensor in batch.tensors.items()}
    prompt = 2
    masked = [[m * (x or 0.0) for m, x in zip(p["loss_mask"], p["entropy"], strict=True)][prompt:] for p in paths]
    logprobs = [[m * (x or 0.0) for m, x in zip(p["loss_mask"], p["logprobs"], strict=True)][prompt:] for p in paths]
    width = max(len(row) for row in masked)
    assert tensors["rollout_entropy"].dtype == np.float32
    assert np.array_equal(tensors["rollout_entropy"], padded(masked, width, "f4"))
    assert np.array_equal(tensors["rollout_log_probs"], padded(logprobs, width, "f4"))
    assert np.array_equal(tensors["responses"], padded([p["token_ids"][prompt:] for p in paths], width, "i8"))
    assert np.array_equal(tensors["response_mask"], padded([p["loss_mask"][prompt:] for p in paths], width, "i8"))
    assert np.array_equal(tensors["prompts"], np.array([[299, 467]] * 2))
    assert tensors["rm_scores"].sum() == 3.0
    assert batch.non_tensor_batch["session"] == [session] * 2
    assert batch.non_tensor_batch["leaf"] == [p["leaf"] for p in paths]
    assert batch.refused == []
    assert batch.metadata["entropy"] == "nats"
    batch.tensors["responses"][0, 0] = 7
    assert int(batch.tensors["responses"][0, 0]) == 7, "a trainer may write to it"


def test_options_of_samples_are_sent(do: Either, demo: Demo, session: str) -> None:
    record(do, demo, session)
    batch = do(demo, "samples", [session], max_prompt_length=5, max_response_length=4, pad_token_id=9).numpy()
    assert batch.tensors["responses"].shape == (2, 4)
    assert batch.tensors["prompts"].tolist() == [[9, 9, 9, 299, 467]] * 2
    assert do(demo, "samples", [session], include_branches=False).rows == 1
    assert "rollout_entropys.0" in do(demo, "samples", [session], "miles", entropies=True).numpy().tensors


def test_samples_can_have_advantages(do: Either, demo: Demo, session: str) -> None:
    paths = record(do, demo, session)
    rewards = {path["leaf"]: float(at) for at, path in enumerate(paths)}
    samples = [{"session": session, "leaf": leaf, "reward": reward} for leaf, reward in rewards.items()]
    groups = [{"id": "g", "samples": samples}]
    batch = do(demo, "samples", [session], advantages={"groups": groups, "lambda": 0.3}).numpy()
    expected = do(demo, "advantages", groups)["groups"][0]["samples"]
    for row, sample in zip(batch.tensors["advantages"].tolist(), expected, strict=True):
        column = sample["advantages"][2:]
        assert row[: len(column)] == pytest.approx(column, rel=1e-6)
        assert not any(row[len(column) :])


@pytest.mark.parametrize("format", ["verl", "miles", "areal"])
def test_tensor_formats_are_parsed(do: Either, demo: Demo, session: str, format: str) -> None:
    paths = record(do, demo, session)
    samples = do(demo, "samples", [session], format)
    tensors = samples.numpy().tensors
    name = "tokens.0" if format == "miles" else "input_ids"
    ids = np.atleast_2d(tensors[name])[0].tolist()
    assert ids[: len(paths[0]["token_ids"])] == paths[0]["token_ids"]
    with pytest.raises(ValueError, match="no JSON"):
        samples.json()


@pytest.mark.parametrize("format", ["slime", "tunix", "strands", "rllm", "jsonl"])
def test_json_formats_are_parsed(do: Either, demo: Demo, session: str, format: str) -> None:
    paths = record(do, demo, session)
    samples = do(demo, "samples", [session], format)
    exported = samples.json()
    rows = exported if format == "jsonl" else exported["samples"]
    assert samples.rows == 2
    # rllm has one trace for each turn
    assert len(rows) == (3 if format == "rllm" else 2)
    if format in ("strands", "jsonl"):
        assert [row["token_ids"] for row in rows] == [path["token_ids"] for path in paths]
        assert [row["entropy"] for row in rows] == [path["entropy"] for path in paths]
    with pytest.raises(ValueError, match="no tensors"):
        samples.numpy()


@pytest.mark.parametrize(("format", "magic"), [("arrow", b"\xff\xff\xff\xff"), ("parquet", b"PAR1")])
def test_binary_formats_return_the_body(do: Either, demo: Demo, session: str, format: str, magic: bytes) -> None:
    record(do, demo, session)
    assert do(demo, "samples", [session], format).body.startswith(magic)


def test_refused_leaves_are_counted(do: Either, demo: Demo, session: str) -> None:
    do(
        demo,
        "generate",
        input_ids=[1],
        session=session,
        return_entropy=False,
        sampling_params={"max_new_tokens": 2, "ignore_eos": True},
    )
    samples = do(demo, "samples", [session])
    assert (samples.rows, samples.refused) == (0, {"missing_logprobs": 1})
    assert samples.numpy().refused == [{"session": session, "leaf": 0, "reason": "missing_logprobs"}]


def file(header: object, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


# the values 1 and 2 of each type, in IEEE 754 and two's complement
ONE_TWO = {
    "BOOL": b"\x01\x00", "F16": bytes.fromhex("003c0040"), "BF16": bytes.fromhex("803f0040"),
    "F32": struct.pack("<2f", 1, 2), "F64": struct.pack("<2d", 1, 2),
    **{
        f"{sign}{8 * size}": b"".join(n.to_bytes(size, "little") for n in (1, 2))
        for sign in "UI" for size in (1, 2, 4, 8)
    },
}  # fmt: skip


@pytest.mark.parametrize("dtype", sorted(SIZES))
def test_every_element_type_is_parsed(dtype: str) -> None:
    assert set(SIZES) == set(NUMPY) == set(TORCH) == set(ONE_TWO)
    data = b"\x00" + ONE_TWO[dtype]
    header = {"x": {"dtype": dtype, "shape": [2, 1], "data_offsets": [1, len(data)]}}
    tensor = File.of(file(header, data)).tensors["x"]
    want = [[True], [False]] if dtype == "BOOL" else [[1], [2]]
    assert tensor.numpy().tolist() == want
    if HAS_TORCH:
        assert tensor.torch().tolist() == want


def test_a_tensor_without_elements() -> None:
    header = {"x": {"dtype": "F32", "shape": [0, 3], "data_offsets": [0, 0]}, "__metadata__": {"a": "b"}}
    read = File.of(file(header, b""))
    assert read.tensors["x"].numpy().shape == (0, 3)
    assert read.metadata == {"a": "b"}
    if HAS_TORCH:
        assert tuple(read.tensors["x"].torch().shape) == (0, 3)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        (100).to_bytes(8, "little") + b"{}",
        file({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"\0" * 8),
        file({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 4),
        file({"x": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, b"\0" * 8),
        file({"x": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}, b"\0"),
    ],
)
def test_an_invalid_file_raises_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="safetensors"):
        File.of(data)
