# SPDX-License-Identifier: Apache-2.0
"""Pictures of rows, and the inputs that trainers make of them with the processor of a model.

An export has references to pictures, or with `images="embed"` their bytes too. The functions below take a `fetch` for
pictures of which a row has only the reference, such as `client.image`.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import inspect
import io
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ._safetensors import without

if TYPE_CHECKING:
    import PIL.Image
    import torch

    from ._samples import Batch, Samples

__all__ = ["Fetch", "Reference", "RowImages", "areal", "miles", "slime", "verl"]

# The first bytes of formats.
_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF87a": "image/gif", b"GIF89a": "image/gif",
    b"BM": "image/bmp",
}  # fmt: skip

# The names of the same formats, and of WebP, in Pillow.
_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP")

# Members of a processor's output with one value for each token of its text, which is not that of a row.
_OF_TEXT = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")


class SpanMismatch(ValueError):
    """A processor makes another number of tokens from a picture than the engine did, so its pixel values are others."""


class UnknownSettings(UserWarning):
    """Settings of the engine's image processor are not known or not applied: those of the trainer's processor are used
    in their place, so the pixel values may be others. `SpanMismatch` finds other sizes, but no other normalisation."""


@dataclass(frozen=True, repr=False)
class Image:
    """A picture, as the engine received it."""

    data: bytes = field(repr=False)

    def __repr__(self) -> str:
        return f"Image({self.media_type}, {len(self.data):,} bytes)"

    @property
    def sha256(self) -> str:
        """The digest of the bytes: 64 hexadecimal digits."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def media_type(self) -> str:
        """The format by the first bytes; `application/octet-stream` for one that tokentap does not know."""
        if self.data[:4] == b"RIFF" and self.data[8:12] == b"WEBP":
            return "image/webp"
        found = (kind for start, kind in _SIGNATURES.items() if self.data.startswith(start))
        return next(found, "application/octet-stream")

    def pil(self) -> PIL.Image.Image:
        """The decoded picture in RGB; needs Pillow, which raises for content that it cannot decode, and for any format
        that `media_type` does not name: it has decoders that no agent's pictures need."""
        import PIL.Image

        return PIL.Image.open(io.BytesIO(self.data), formats=_FORMATS).convert("RGB")


@dataclass(frozen=True)
class Reference:
    """A picture of a row and the positions of its tokens, from `start` to before `end`."""

    sha256: str
    media_type: str
    # The length of the picture in bytes.
    bytes: int
    start: int
    end: int
    # The turn whose prompt has it.
    turn: int
    # Whether tokentap has its bytes.
    available: bool


Fetch = Callable[[str, str], Image]
"""Returns the picture of a session with this digest."""


@dataclass(frozen=True)
class RowImages:
    """The pictures of a row, in the order of its tokens, and the settings of the engine's processor."""

    session: str
    references: list[Reference]
    # `processor`, the members of the model's preprocessor_config.json; `overrides` and `backend` of the engine; each is
    # None if it is not known. `request`, if the request set more. None if nothing is known, or if turns of the row have
    # different ones.
    settings: Mapping[str, Any] | None
    # The embedded pictures by their digests.
    embedded: Mapping[str, Image] = field(default_factory=dict, repr=False)
    # The last turn of the row, if it is known.
    leaf: int | None = None

    @property
    def name(self) -> str:
        """The row in messages."""
        return f"session {self.session}" if self.leaf is None else f"session {self.session}, leaf {self.leaf}"

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> RowImages:
        """The pictures of a row of `jsonl`, `arrow`, `parquet` or `trajectories`, or of a sample of `slime`."""
        about = row.get("metadata", row)
        texts = (row.get("multimodal_inputs") or {}).get("images") or []
        data = row.get("image_data")
        if data is None:
            data = [text.partition(",")[2] for text in texts]
        images = [Image(base64.b64decode(one, validate=True) if isinstance(one, str) else bytes(one)) for one in data]
        return cls._of(about, _by_digest(images))

    @classmethod
    def _of(cls, about: Mapping[str, Any], images: Mapping[str, Image]) -> RowImages:
        entries, settings = about.get("images"), about.get("image_settings")
        parsed = None if settings is None else json.loads(settings)
        names = Reference.__dataclass_fields__
        # a list of pandas is an array
        listed = () if entries is None else entries
        references = [Reference(**{name: entry[name] for name in names}) for entry in listed]
        return cls(about["session"], references, parsed, images, about.get("leaf"))

    def load(self, fetch: Fetch | None = None) -> list[Image]:
        """The pictures; raises LookupError for one that is neither embedded nor fetched."""
        return [self._image(reference, fetch) for reference in self.references]

    def _image(self, reference: Reference, fetch: Fetch | None) -> Image:
        image = self.embedded.get(reference.sha256)
        if image is None and fetch is not None:
            image = fetch(self.session, reference.sha256)
        if image is None:
            raise LookupError(
                f"{self.name}: picture {reference.sha256} is not embedded; give fetch=client.image, or images='embed'"
            )
        if image.sha256 != reference.sha256:
            raise ValueError(f"{self.name}: picture {reference.sha256} has the digest {image.sha256}")
        return image

    def _pil(self, image: Image) -> PIL.Image.Image:
        try:
            return image.pil()
        except ImportError:
            raise
        except Exception as error:  # each decoder has its own
            raise ValueError(f"{self.name}: picture {image.sha256} cannot be decoded: {error}") from error

    def inputs(
        self, processor: Any, ids: Sequence[int], fetch: Fetch | None = None
    ) -> tuple[list[PIL.Image.Image], dict[str, torch.Tensor]]:
        """The pictures in RGB, and the tensors that `processor` makes of them, such as `pixel_values` and
        `image_grid_thw`; both empty without pictures.

        `ids` are those at whose positions the references are. The image processor gets the settings of the engine.
        Raises SpanMismatch if the number of tokens of a picture differs from that in `ids`. Warns with UnknownSettings
        if the settings are not known.
        """
        if not self.references:
            self._check_placeholders(ids, getattr(processor, "image_token_id", None), 0)
            return [], {}
        pictures = [self._pil(image) for image in self.load(fetch)]
        try:
            processor, overrides = _with_settings(processor, self.settings)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error
        token, pad = processor.image_token, processor.image_token_id
        # a picture without tokens between it and the next could not be told from the next
        text = "\n".join([token] * len(pictures))
        made = processor(text=[text], images=pictures, return_tensors="pt", images_kwargs=overrides)
        found = _runs(made["input_ids"][0].tolist(), pad)
        expected = [reference.end - reference.start for reference in self.references]
        if found != expected:
            raise SpanMismatch(
                f"{self.name}: the processor makes {found} tokens of pictures, the engine made {expected}"
            )
        for reference in self.references:
            if any(one != pad for one in ids[reference.start : reference.end]):
                raise SpanMismatch(
                    f"{self.name}: the tokens from {reference.start} to {reference.end} are not all {pad}"
                )
        self._check_placeholders(ids, pad, sum(expected))
        return pictures, {name: tensor for name, tensor in made.items() if name not in _OF_TEXT}

    def _check_placeholders(self, ids: Sequence[int], pad: int | None, expected: int) -> None:
        """Raises SpanMismatch if `ids` have a token of pictures that is of none: the model has sampled it."""
        found = sum(one == pad for one in ids)
        if found != expected:
            raise SpanMismatch(f"{self.name}: the row has {found} tokens {pad} of pictures, its pictures {expected}")


def _by_digest(images: Iterable[Image]) -> dict[str, Image]:
    """Pictures by their digests."""
    return {image.sha256: image for image in images}


def _runs(ids: Sequence[int], token: int) -> list[int]:
    """The lengths of the runs of a token."""
    lengths, before = [], None
    for one in ids:
        if one == token and before == token:
            lengths[-1] += 1
        elif one == token:
            lengths.append(1)
        before = one
    return lengths


def _with_settings(processor: Any, settings: Mapping[str, Any] | None) -> tuple[Any, dict[str, Any]]:
    """The processor with an image processor of the engine's settings, and what the engine's command line overrides.

    Raises ValueError if the processor is of another class than the engine's. Warns with UnknownSettings if it has
    settings that the engine does not report.
    """
    settings = settings or {}
    unknown = [name for name in ("processor", "overrides") if settings.get(name) is None]
    if unknown:
        _warn(f"{' and '.join(unknown)} of the engine's image processor are not known")
    if "request" in settings:
        _warn(f"{', '.join(settings['request'] or ['settings'])} of the request are not applied")
    overrides = dict(settings.get("overrides") or {})
    members = settings.get("processor")
    if members is None:
        return processor, overrides
    name = members.get("processor_class")
    if name not in (None, type(processor).__name__):
        raise ValueError(f"the engine's processor is a {name}, not a {type(processor).__name__}")
    processor = copy.copy(processor)
    processor.image_processor = type(processor.image_processor).from_dict(dict(members))
    return processor, overrides


def _warn(problem: str) -> None:
    """Warns of a problem with the settings."""
    warnings.warn(f"{problem}: the processor's own are used, so pixel values may differ", UnknownSettings, stacklevel=2)


def _of_batch(batch: Batch[Any]) -> list[RowImages]:
    """The pictures of the rows of a batch of `verl` or `areal`. Positions are columns of `input_ids`."""
    table = batch.non_tensor_batch
    names = [name for name in ("session", "leaf", "images", "image_settings") if name in table]
    rows = zip(*(table[name] for name in names), strict=True)
    images = _by_digest(_embedded(batch))
    return [RowImages._of(dict(zip(names, row, strict=True)), images) for row in rows]


def _embedded(batch: Batch[Any]) -> list[Image]:
    """The pictures of a file of tensors."""
    return [Image(_content(tensor)) for name, tensor in batch.tensors.items() if name.startswith("images.")]


def _content(tensor: Any) -> bytes:
    """The bytes of a tensor of bytes, or of an array."""
    array = tensor.numpy() if hasattr(tensor, "numpy") else tensor
    return bytes(array.tobytes())


def verl(batch: Batch[torch.Tensor], processor: Any, fetch: Fetch | None = None) -> Batch[torch.Tensor]:
    """A batch of `verl` with what a vision model needs.

    `non_tensor_batch` has `multi_modal_data`, `{"images": [PIL]}`, and `multi_modal_inputs`, the tensors of each row
    with `images_seqlens`; both are `{}` without pictures. `tensors` has `position_ids` [B, 4, L]: the position in the
    text, and the three of `processor.get_rope_index`, which verl binds.

    Raises SpanMismatch if the processor makes other tokens than the engine.
    """
    import torch

    ids, mask = batch.tensors["input_ids"], batch.tensors["attention_mask"]
    data: list[dict[str, Any]] = []
    inputs: list[dict[str, torch.Tensor]] = []
    positions: list[torch.Tensor] = []
    for row, of_row, mask_of_row in zip(_of_batch(batch), ids, mask, strict=True):
        pictures, made = row.inputs(processor, of_row.tolist(), fetch)
        positions.append(_positions_of(processor, of_row[None], mask_of_row[None], made.get("image_grid_thw")))
        grid = made.get("image_grid_thw")
        if grid is not None:
            made["images_seqlens"] = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0])
        data.append({"images": pictures} if pictures else {})
        inputs.append(made)
    tensors = {name: tensor for name, tensor in batch.tensors.items() if not name.startswith("images.")}
    tensors["position_ids"] = torch.cat(positions)
    table = {**batch.non_tensor_batch, "multi_modal_data": data, "multi_modal_inputs": inputs}
    return type(batch)(tensors, table, batch.refused, batch.metadata)


def _positions_of(processor: Any, ids: torch.Tensor, mask: torch.Tensor, grid: torch.Tensor | None) -> torch.Tensor:
    """The positions [1, 4, L] of tokens [1, L], as in verl's agent loop: in the text, and in three dimensions."""
    import torch

    rope = processor.get_rope_index
    more: dict[str, Any] = {}
    if "mm_token_type_ids" in inspect.signature(rope).parameters:
        # since version 5 of transformers
        more = {"mm_token_type_ids": (ids == processor.image_token_id).int()}
    vision, _ = rope(input_ids=ids, image_grid_thw=grid, video_grid_thw=None, attention_mask=mask, **more)
    text = torch.ones_like(ids)
    text[mask.bool()] = torch.arange(int(mask.sum()))
    return torch.cat((text[None], vision)).transpose(0, 1)


def slime(sample: Mapping[str, Any], processor: Any, fetch: Fetch | None = None) -> dict[str, Any]:
    """A sample of `slime` with `multimodal_inputs`, `{"images": [PIL]}`, and `multimodal_train_inputs`, the tensors of
    the processor; unchanged without pictures.

    Raises SpanMismatch if the processor makes other tokens than the engine.
    """
    pictures, made = RowImages.of(sample).inputs(processor, sample["tokens"], fetch)
    fields = {"multimodal_inputs": {"images": pictures}, "multimodal_train_inputs": made} if made else {}
    return {**sample, **fields}


def miles(samples: Samples, processor: Any) -> tuple[bytes, list[dict[str, Any]]]:
    """A file of `miles` without its pictures, which miles' own reader accepts, and for each sample the fields to set:
    `multimodal_inputs` and `multimodal_train_inputs` as those of `slime`; empty for a sample without pictures.

    Raises SpanMismatch if the processor makes other tokens than the engine.
    """
    batch = samples.torch()
    images = _by_digest(_embedded(batch))
    fields: list[dict[str, Any]] = []
    for at, sample in enumerate(json.loads(_content(batch.tensors["_samples_meta"]))["samples"]):
        row = RowImages._of(sample["metadata"], images)
        pictures, made = row.inputs(processor, batch.tensors[f"tokens.{at}"].tolist())
        fields.append({"multimodal_inputs": {"images": pictures}, "multimodal_train_inputs": made} if made else {})
    return without(samples.body, "images."), fields


def areal(batch: Batch[torch.Tensor], processor: Any, fetch: Fetch | None = None) -> list[dict[str, torch.Tensor]]:
    """`multi_modal_input` of a batch of `areal`: for each row the tensors of the processor, `{}` without pictures.

    Raises SpanMismatch if the processor makes other tokens than the engine.
    """
    ids = batch.tensors["input_ids"]
    rows = zip(_of_batch(batch), ids, strict=True)
    return [row.inputs(processor, of_row.tolist(), fetch)[1] for row, of_row in rows]
