# SPDX-License-Identifier: Apache-2.0
"""Pictures of rows, and the inputs of trainers, with a processor that makes a token of each pixel."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import json
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from conftest import Demo, Either
from scripted import Scripted, reply

from tokentap import Client, HttpError, Image, Samples, SpanMismatch, Undecodable, UnknownSettings, images
from tokentap._safetensors import File

PAD = 90

HAS_PIL = importlib.util.find_spec("PIL") is not None
HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_pil = pytest.mark.skipif(not HAS_PIL, reason="no Pillow here")
needs_torch = pytest.mark.skipif(not (HAS_PIL and HAS_TORCH), reason="no torch or no Pillow here")


def png(width: int) -> bytes:
    """A picture of one row with this number of grey pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, 1, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0" + bytes(range(width)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def reference(width: int, start: int, turn: int = 0, tokens: int | None = None) -> dict[str, Any]:
    data = png(width)
    end = start + (width if tokens is None else tokens)
    return {"sha256": hashlib.sha256(data).hexdigest(), "media_type": "image/png", "bytes": len(data), "start": start,
            "end": end, "turn": turn, "available": True}  # fmt: skip


class ImageProcessor:
    """Makes `scale` tokens of each pixel."""

    def __init__(self, scale: int = 1) -> None:
        self.scale = scale

    @classmethod
    def from_dict(cls, members: dict[str, Any]) -> ImageProcessor:
        return cls(members["scale"])


class Processor:
    """Has the interface of a processor of transformers."""

    image_token, image_token_id = "<pad>", PAD

    def __init__(self, scale: int = 1) -> None:
        self.image_processor = ImageProcessor(scale)

    def __call__(self, text: list[str], images: list[Any], return_tensors: str, images_kwargs: Any) -> dict[str, Any]:
        kinds: dict[str, Any] = {"array": np.array}
        if HAS_TORCH:
            import torch

            kinds["array"] = torch.tensor
        array = kinds["array"]
        scale = images_kwargs.get("scale", self.image_processor.scale)
        counts = iter([image.size[0] * scale for image in images])
        ids: list[int] = []
        for at, part in enumerate(text[0].split(self.image_token)):
            ids += ([PAD] * next(counts) if at else []) + [7] * len(part)
        pixels = [value for image in images for value in image.convert("L").tobytes()]
        grid = [[1, 1, image.size[0] * scale] for image in images]
        return {"input_ids": array([ids]), "attention_mask": array([[1] * len(ids)]), "pixel_values": array(pixels),
                "image_grid_thw": array(grid)}  # fmt: skip

    def get_rope_index(self, input_ids: Any, image_grid_thw: Any, video_grid_thw: Any, attention_mask: Any) -> Any:
        text = attention_mask.long().cumsum(-1) - 1
        return text.expand(3, *text.shape), None


SETTINGS = json.dumps({"processor": {"processor_class": "Processor", "scale": 1}, "overrides": {}, "backend": "pil"})

# Two pictures, of which the second is in the prompt of the second turn: tokens 2, 3, 4 and 8, 9.
IDS = [1, 2, PAD, PAD, PAD, 3, 40, 41, PAD, PAD, 4, 42]


def row(**more: Any) -> dict[str, Any]:
    pictures = [reference(3, 2), reference(2, 8, turn=1)]
    return {
        "session": "s",
        "token_ids": IDS,
        "images": pictures,
        "image_settings": SETTINGS,
        "image_data": None,
        **more,
    }


def embedded(form: str) -> dict[str, Any]:
    texts = [base64.b64encode(png(width)).decode() for width in (3, 2)]
    if form == "slime":
        data = {"images": [f"data:image/png;base64,{text}" for text in texts]}
        return {"tokens": IDS, "multimodal_inputs": data, "metadata": row()}
    return row(image_data=texts if form == "jsonl" else [png(3), png(2)])


def fetch(session: str, sha256: str) -> Image:
    assert session == "s"
    return next(Image(png(width)) for width in (3, 2) if hashlib.sha256(png(width)).hexdigest() == sha256)


def test_the_format_is_that_of_the_first_bytes() -> None:
    other = "application/octet-stream"
    for data, kind in [
        (png(1), "image/png"), (b"\xff\xd8\xff\xe0", "image/jpeg"), (b"GIF89a", "image/gif"), (b"BM", "image/bmp"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"), (b"<svg/>", other), (b"", other),
    ]:  # fmt: skip
        assert Image(data).media_type == kind


@pytest.mark.parametrize("form", ["jsonl", "parquet", "slime", "fetched"])
def test_pictures_are_embedded_or_fetched(form: str) -> None:
    pictures = images.RowImages.of(row() if form == "fetched" else embedded(form))
    found = pictures.load(fetch if form == "fetched" else None)
    assert [one.data for one in found] == [png(3), png(2)]
    assert [(one.start, one.end, one.turn) for one in pictures.references] == [(2, 5, 0), (8, 10, 1)]


def test_a_picture_that_is_missing_or_another_is_an_error() -> None:
    pictures = images.RowImages.of(row())
    with pytest.raises(LookupError, match="is not embedded"):
        pictures.load()
    with pytest.raises(ValueError, match="has the digest"):
        pictures.load(lambda session, sha256: Image(b"other"))
    assert images.RowImages.of({"session": "s"}).load() == []


@needs_pil
def test_inputs_are_those_of_the_engines_settings() -> None:
    pictures = images.RowImages.of(embedded("jsonl"))
    # the trainer's own processor has another scale
    decoded, made = pictures.inputs(Processor(scale=5), IDS)
    assert [one.size for one in decoded] == [(3, 1), (2, 1)]
    assert sorted(made) == ["image_grid_thw", "pixel_values"]
    assert made["pixel_values"].tolist() == [0, 1, 2, 0, 1]
    assert made["image_grid_thw"].tolist() == [[1, 1, 3], [1, 1, 2]]
    assert images.RowImages.of({"session": "s"}).inputs(Processor(), [1, 2]) == ([], {})


@needs_pil
def test_only_the_formats_of_media_types_are_decoded() -> None:
    import PIL.Image

    for name, kind in {
        "PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "BMP": "image/bmp", "WEBP": "image/webp",
        "TIFF": "application/octet-stream", "PPM": "application/octet-stream",
    }.items():  # fmt: skip
        out = io.BytesIO()
        PIL.Image.new("RGB", (3, 2), (9, 9, 9)).save(out, name)
        image = Image(out.getvalue())
        assert image.media_type == kind
        if kind == "application/octet-stream":
            with pytest.raises(PIL.UnidentifiedImageError):
                image.pil()
        else:
            assert image.pil().size == (3, 2)


@needs_pil
def test_errors_name_the_row() -> None:
    data = b"BM, no more"
    broken = {**reference(3, 2), "sha256": hashlib.sha256(data).hexdigest()}
    pictures = images.RowImages.of(row(leaf=7, images=[broken], image_data=[data]))
    with pytest.raises(ValueError, match=f"^session s, leaf 7: picture {broken['sha256']} cannot be decoded: "):
        pictures.inputs(Processor(), IDS)
    with pytest.raises(LookupError, match=r"^session s, leaf 7: picture .* is not embedded"):
        images.RowImages.of(row(leaf=7)).inputs(Processor(), IDS)
    with pytest.raises(SpanMismatch, match=r"^session s, leaf 7: the tokens from 2 to 5"):
        images.RowImages.of({**embedded("jsonl"), "leaf": 7}).inputs(Processor(), [PAD, *IDS])


@needs_pil
def test_other_tokens_are_refused() -> None:
    def refused(error: str, ids: list[int] = IDS, **change: Any) -> None:
        pictures = images.RowImages.of({**embedded("jsonl"), **change})
        with pytest.raises(ValueError, match=error) as raised:
            pictures.inputs(Processor(), ids)
        assert isinstance(raised.value, SpanMismatch) == (error != "Other")

    refused(
        r"makes \[3, 2\] tokens of pictures, the engine made \[4, 2\]",
        images=[reference(3, 2, tokens=4), reference(2, 8)],
    )
    refused("from 2 to 5 are not all 90", ids=[PAD, *IDS])
    # the model has sampled one
    refused("the row has 6 tokens 90 of pictures, its pictures 5", ids=[*IDS, PAD])
    refused("the row has 1 tokens 90 of pictures, its pictures 0", ids=[1, PAD], images=[], image_data=[])
    scaled = {"processor": {"scale": 1}, "overrides": {"scale": 2}, "backend": None}
    refused(r"makes \[6, 4\] tokens", image_settings=json.dumps(scaled))
    refused("Other", image_settings=json.dumps({"processor": {"processor_class": "Other"}, "overrides": {}}))


@needs_pil
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (None, "processor and overrides of the engine's image processor are not known"),
        ({"processor": None, "overrides": {}, "backend": "pil"}, "processor of the engine's image processor are"),
        ({"processor": {"scale": 1}, "overrides": None, "backend": None}, "overrides of the engine's"),
        ({"processor": {"scale": 1}, "overrides": {}, "request": {"a": 1, "b": 2}}, "a, b of the request are not"),
    ],
)
def test_settings_that_are_not_known_are_warned_of(settings: dict[str, Any] | None, problem: str) -> None:
    text = None if settings is None else json.dumps(settings)
    pictures = images.RowImages.of({**embedded("jsonl"), "image_settings": text})
    with pytest.warns(UnknownSettings, match=f"^{problem}"):
        _, made = pictures.inputs(Processor(), IDS)
    assert made["pixel_values"].tolist() == [0, 1, 2, 0, 1]


def file(tensors: dict[str, tuple[str, tuple[int, ...], bytes]], metadata: dict[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": metadata}
    body = b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def tensors(names: dict[str, list[list[int]]]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    arrays = {name: np.array(rows, dtype="<i8") for name, rows in names.items()}
    found = {name: ("I64", array.shape, array.tobytes()) for name, array in arrays.items()}
    for width in (3, 2):
        data = png(width)
        found[f"images.{hashlib.sha256(data).hexdigest()}"] = ("U8", (len(data),), data)
    return found


def samples(format: str, body: bytes) -> Samples:
    return Samples(format, "application/octet-stream", 2, {}, {}, body)


@needs_torch
@pytest.mark.parametrize("format", ["verl", "areal"])
def test_batches_of_tensors_have_the_inputs_of_each_row(format: str) -> None:
    # a row with pictures after two columns of padding, and one without
    rows = [[0, 0, *IDS], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 6, 7]]
    mask = [[int(one > 0) for one in ids] for ids in rows]
    pictures = [reference(3, 4), reference(2, 10, turn=1)]
    table = {"session": ["s", "t"], "leaf": [4, 5], "images": [pictures, []], "image_settings": [SETTINGS, None]}
    metadata = {"non_tensor_batch": json.dumps(table), "refused": "[]"}
    batch = samples(format, file(tensors({"input_ids": rows, "attention_mask": mask}), metadata)).torch()
    assert [one.name for one in images._of_batch(batch)] == ["session s, leaf 4", "session t, leaf 5"]
    if format == "areal":
        first, second = images.areal(batch, Processor())
        assert first["pixel_values"].tolist() == [0, 1, 2, 0, 1]
        assert second == {}
        return
    filled = images.verl(batch, Processor())
    assert sorted(filled.tensors) == ["attention_mask", "input_ids", "position_ids"]
    assert filled.tensors["position_ids"].shape == (2, 4, 14)
    assert filled.tensors["position_ids"][0, 0].tolist() == [1, 1, *range(12)]
    first, second = filled.non_tensor_batch["multi_modal_inputs"]
    assert first["images_seqlens"].tolist() == [3, 2]
    assert second == {}
    assert [sorted(one) for one in filled.non_tensor_batch["multi_modal_data"]] == [["images"], []]


@needs_pil
def test_a_sample_of_slime_has_tensors_in_place_of_a_count() -> None:
    sample = {**embedded("slime"), "multimodal_train_inputs": {"unprocessed_images": 2}}
    filled = images.slime(sample, Processor())
    assert filled["multimodal_train_inputs"]["pixel_values"].tolist() == [0, 1, 2, 0, 1]
    assert [one.size for one in filled["multimodal_inputs"]["images"]] == [(3, 1), (2, 1)]
    plain = {"tokens": [1], "metadata": {"session": "s"}}
    assert images.slime(plain, Processor()) == plain


@needs_torch
def test_a_file_of_miles_is_read_by_miles_without_its_pictures() -> None:
    pictures = {"images": row()["images"], "image_settings": SETTINGS}
    meta = json.dumps(
        {"samples": [{"metadata": {"session": "s", **pictures}}, {"metadata": {"session": "t"}}]}
    ).encode()
    parts = tensors({"tokens.0": [IDS], "tokens.1": [[5]]})
    parts = {name: (kind, shape[-1:], data) for name, (kind, shape, data) in parts.items()}
    content = file({**parts, "_samples_meta": ("U8", (len(meta),), meta)}, {"format": "miles"})
    body, (first, second) = images.miles(samples("miles", content), Processor())
    assert sorted(File.of(body).tensors) == ["_samples_meta", "tokens.0", "tokens.1"]
    assert File.of(body).tensors["tokens.0"].numpy().tolist() == IDS
    assert File.of(body).metadata == {"format": "miles"}
    assert first["multimodal_train_inputs"]["image_grid_thw"].tolist() == [[1, 1, 3], [1, 1, 2]]
    assert second == {}


def test_the_client_checks_the_digest_of_a_picture(scripted: Scripted) -> None:
    scripted.script(reply(200, b"bytes", "application/octet-stream"))
    sha256 = hashlib.sha256(b"bytes").hexdigest()
    with Client(scripted.data, scripted.control) as client:
        assert client.image("s", sha256).data == b"bytes"
        assert scripted.asked[0].path == f"/v1/sessions/s/images/{sha256}"
        with pytest.raises(Undecodable, match="has the digest"):
            client.image("s", "0" * 64)


def test_an_unknown_picture_is_an_error(do: Either, demo: Demo, session: str) -> None:
    do(demo, "generate", "a", session=session, sampling_params={"max_new_tokens": 1})
    with pytest.raises(HttpError) as raised:
        do(demo, "image", session, "0" * 64)
    assert raised.value.code == "no_such_image"
