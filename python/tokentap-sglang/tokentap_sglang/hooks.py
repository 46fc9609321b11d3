# SPDX-License-Identifier: Apache-2.0
"""The three hooks, and the entry point that registers all of them or none."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from tokentap_sglang import contract
from tokentap_sglang.contract import Declined, Settings
from tokentap_sglang.observer import GATE
from tokentap_sglang.request import FIELD, asks_for_entropy, parse_switch

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.tokenizer_manager import ReqState, TokenizerManager
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

log = logging.getLogger(__name__)

_LOGGED = "TOKENTAP_SGLANG_LOGGED"
"""Set after a reason was logged. The processes that SGLang starts inherit it, so a server logs one line."""


def register() -> None:
    """Entry point of the group `sglang.srt.plugins`. Never raises; it logs one line if the plugin does not register."""
    try:
        Settings.read()
        contract.check_installation()
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(contract.MODEL_RUNNER_INIT, install, HookType.AFTER)
        HookRegistry.register(contract.FORWARD_BATCH, mark_step, HookType.AFTER)
        HookRegistry.register(contract.META_INFO, hide_from_others, HookType.BEFORE)
    except Declined as reason:
        _log_once(str(reason))
    except Exception as error:
        _log_once(f"unexpected {type(error).__name__}: {error}")


def _log_once(reason: str) -> None:
    if os.environ.get(_LOGGED) != reason:
        os.environ[_LOGGED] = reason
        log.warning("no token entropy: %s", reason)


def install(_: None, runner: ModelRunner, *args: Any, **kwargs: Any) -> None:
    """After `ModelRunner.__init__`, in each scheduler: gives the runner an observer, on the rank whose results are sent
    on."""
    try:
        if runner.is_draft_worker:
            return
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        if parallel.attn_tp_rank or parallel.attn_cp_rank:
            return
        _check_runner(runner, parallel.pp_size)
        from tokentap_sglang.entropy import reduction
        from tokentap_sglang.observer import EntropyObserver

        settings = Settings.read()
        reduce, name = reduction(settings.top_k, runner.device, runner.model_config.vocab_size)
        runner.sampling_observer = EntropyObserver(reduce, settings)
        over = f"the {settings.top_k} largest logits" if settings.top_k else "the full vocabulary"
        at = "temperature 1" if settings.original else "each request's temperature"
        log.info("token entropy over %s, at %s, by %s", over, at, name)
        if getattr(runner.server_args, "tokenizer_worker_num", 1) > 1:
            log.warning("token entropy: tokenizer workers load no plugins, so other requests of a batch may see nulls")
    except Declined as reason:
        log.warning("no token entropy: %s", reason)
    except Exception as error:
        log.warning("no token entropy: unexpected %s: %s", type(error).__name__, error)


def _check_runner(runner: ModelRunner, pp_size: int) -> None:
    if not runner.supports_sampling_observer():
        raise Declined("this sampling path (speculative decoding, diffusion models) does not support an observer")
    if getattr(runner.server_args, "disaggregation_mode", "null") not in (None, "null"):
        raise Declined("with prefill/decode disaggregation the value of the first token is not sent with the request")
    if pp_size > 1:
        raise Declined("with pipeline parallelism the sampling rank does not report results")
    if getattr(runner.server_args, "rl_on_policy_target", None) is not None:
        raise Declined("with --rl-on-policy-target SGLang rounds logits to bfloat16 after the observer")
    if runner.sampling_observer is not None:
        raise Declined("another plugin already observes sampling")


def mark_step(forward: ForwardBatch, cls: type, batch: ScheduleBatch, *args: Any, **kwargs: Any) -> None:
    """After `ForwardBatch.init_new`: marks whether a request of this step wants entropies; other steps cost nothing."""
    try:
        if forward.sampling_info is not None:
            wanted = any(parse_switch(req.sampling_params.custom_params) is not False for req in batch.reqs)
            setattr(forward.sampling_info, GATE, wanted)
    except Exception:
        # an unmarked step is measured, which is only slower
        log.debug("a step could not be marked", exc_info=True)


def hide_from_others(
    manager: TokenizerManager,
    meta_info: dict[str, Any],
    state: ReqState,
    customized_info: dict[str, list[Any]],
    *args: Any,
    **kwargs: Any,
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Before a request's `meta_info` is filled: SGLang adds each key to every request of the batch. This removes ours
    from requests without the switch."""
    if not isinstance(customized_info, dict) or FIELD not in customized_info:
        return None
    if asks_for_entropy(getattr(state, "obj", None)):
        return None
    rest = {key: values for key, values in customized_info.items() if key != FIELD}
    return (manager, meta_info, state, rest, *args), kwargs
