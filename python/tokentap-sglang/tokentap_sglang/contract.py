# SPDX-License-Identifier: Apache-2.0
"""Checks the parts of SGLang that the plugin uses."""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
from dataclasses import dataclass

VERSIONS = re.compile(r"0\.5\.23(\.post\d+)?$")
"""Versions whose sampling and output code was checked. Another version may shift values by a token without an
error."""

_SRT = "sglang.srt."
MODEL_RUNNER_INIT = _SRT + "model_executor.model_runner.ModelRunner.__init__"
FORWARD_BATCH = _SRT + "model_executor.forward_batch_info.ForwardBatch.init_new"
META_INFO = _SRT + "managers.tokenizer_manager.TokenizerManager.update_request_meta_info"

TARGETS: dict[str, tuple[str, ...]] = {
    MODEL_RUNNER_INIT: ("self",),
    FORWARD_BATCH: ("batch",),
    META_INFO: ("self", "meta_info", "state", "customized_info"),
    # not hooked, but SGLang calls the observer with these parameters
    _SRT + "sampling.sampling_observer.SamplingObserver.before_grammar": ("self", "logits", "sampling_info"),
    _SRT + "sampling.sampling_observer.SamplingObserver.after_sample": ("self", "state", "token_ids"),
    _SRT + "sampling.sampling_observer.SamplingObserver.is_active": ("self", "sampling_info"),
    _SRT + "managers.auxiliary_output.HostAuxiliaryOutput.consume": ("self", "batch", "commits"),
    _SRT + "managers.auxiliary_output.DeviceAuxiliaryOutput.copy_to_host": ("self", "copy_tensor"),
    _SRT + "model_executor.model_runner.ModelRunner.supports_sampling_observer": ("self",),
}
"""Functions and the names of their first parameters."""


class Declined(Exception):
    """The plugin does not register; the message is the reason."""


@dataclass(frozen=True)
class Settings:
    """Settings from the environment, the same for every request."""

    top_k: int
    """0: the full vocabulary; k: the k largest logits, renormalised."""
    original: bool
    """`SGLANG_RETURN_ORIGINAL_LOGPROB`: SGLang's logprobs are at temperature 1, and so is the entropy of the same
    distribution."""

    @classmethod
    def read(cls) -> Settings:
        """Reads the environment; raises `Declined` for an invalid value."""
        text = os.environ.get("TOKENTAP_ENTROPY_TOP_K", "0")
        if not text.isascii() or not text.isdigit():
            raise Declined(f"TOKENTAP_ENTROPY_TOP_K={text!r} is not a number of logits (0 is the full vocabulary)")
        original = os.environ.get("SGLANG_RETURN_ORIGINAL_LOGPROB", "false").lower() in ("true", "1")
        return cls(int(text), original)


def check_installation() -> None:
    """Raises `Declined` unless this process runs a supported SGLang."""
    try:
        from sglang.version import __version__ as version
    except Exception as error:
        raise Declined(f"SGLang cannot be imported ({error})") from error
    if not VERSIONS.match(version):
        raise Declined(f"this is SGLang {version}; the plugin supports 0.5.23")
    if os.environ.get("SGLANG_RUST_SERVER", "false").strip().lower() in ("true", "1", "yes", "y"):
        raise Declined("SGLang's Rust front end does not forward such values (SGLANG_RUST_SERVER)")
    for target, expected in TARGETS.items():
        try:
            found = tuple(inspect.signature(pkgutil.resolve_name(target)).parameters)
        except Exception as error:
            raise Declined(f"{target} does not exist ({error})") from error
        if found[: len(expected)] != expected:
            raise Declined(f"{target} takes {found}, not {expected}")
