# SPDX-License-Identifier: Apache-2.0
"""The members of SGLang's /generate request, so that a misspelt one is noticed."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


# SamplingParams of SGLang 0.5.23.
SAMPLING = names(
    """
    max_new_tokens stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty
    presence_penalty repetition_penalty min_new_tokens n beam_width json_schema regex ebnf structural_tag
    ignore_eos skip_special_tokens spaces_between_special_tokens no_stop_trim stream_interval logit_bias
    sampling_seed custom_params watermark
    """
)

# Names of other APIs.
ALIASES = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "stop_sequences": "stop",
    "num_samples": "n",
    "num_return_sequences": "n",
    "logprobs": "return_logprob",
    "top_logprobs": "top_logprobs_num",
    "prompt": "text",
    "prompt_token_ids": "input_ids",
    "images": "image_data",
}

# The named arguments of generate(), generate_batch() and stream().
ARGUMENTS = names("text input_ids sampling_params session tags return_entropy entropy_options rid done")

# GenerateReqInput of SGLang 0.5.23, and the members of tokentap, without those that are arguments of the client.
REQUEST = names(
    """
    session_id input_embeds image_data video_data audio_data mm_hashes mm_content_hashes use_audio_in_video
    video_config return_logprob logprob_start_len top_logprobs_num token_ids_logprob return_sampling_mask
    sampling_logprobs_mode return_text_in_logprobs return_flat_raw_top_logprobs
    return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64 log_metrics return_hidden_states
    return_routed_experts routed_experts_start_len return_indexer_topk modalities session_params lora_path
    lora_id custom_logit_processor positional_embed_overrides bootstrap_host bootstrap_port bootstrap_room
    bootstrap_pair_key decode_tp_size routed_dp_rank data_parallel_rank disagg_prefill_dp_rank routing_key
    conversation_id background require_reasoning max_thinking_tokens priority extra_key no_logs custom_labels
    return_bytes return_prompt_token_ids external_trace_header max_dynamic_patch min_dynamic_patch
    image_max_dynamic_patch video_max_dynamic_patch images_config mm_processor_kwargs
    multi_item_delimiter_indices token_indices_to_pool cache_salt kv_hints metadata user session_tags _proxy_session_id
    """
)


# The share of equal characters from which an unknown name is a misspelling.
LIKENESS = 0.85


def meant(name: str, known: Iterable[str]) -> str | None:
    """The name that a misspelling stands for."""
    found = get_close_matches(name, known, 1, LIKENESS)
    return ALIASES.get(found[0], found[0]) if found else None


def split(params: Any, fields: Mapping[str, object]) -> tuple[Any, dict[str, object]]:
    """Moves sampling parameters among `fields` to those in `params`, and returns both.

    Raises ValueError for a name of another API, for a misspelt sampling parameter or argument of generate(), and for a
    sampling parameter that is given twice.
    Warns of a member that SGLang 0.5.23 does not have. Unknown names in `params` are the engine's to refuse.
    """
    for given in params if isinstance(params, list | tuple) else [params]:
        for name in given if isinstance(given, Mapping) else ():
            if ALIASES.get(name) in SAMPLING:
                raise ValueError(f"{name} is not a sampling parameter of SGLang: use {ALIASES[name]}")
    named = {name: value for name, value in fields.items() if name in SAMPLING}
    rest = {name: value for name, value in fields.items() if name not in SAMPLING}
    for name in sorted(rest.keys() - REQUEST):
        right = meant(name, (*SAMPLING, *ALIASES, *ARGUMENTS))
        if right is not None:
            raise ValueError(f"{name} is neither an argument nor a member of SGLang's request: use {right}")
        similar = meant(name, REQUEST)
        hint = "" if similar is None else f" (did you mean {similar}?)"
        warnings.warn(f"SGLang's request has no member {name}; it is sent unchanged{hint}", stacklevel=4)
    if not named:
        return params, rest
    if not isinstance(params, Mapping | None):
        kind, keywords = type(params).__name__, ", ".join(sorted(named))
        raise ValueError(f"sampling_params is not a mapping but a {kind}, so {keywords} cannot be a keyword")
    twice = named.keys() & (params or {}).keys()
    if twice:
        raise ValueError(f"{', '.join(sorted(twice))} is a keyword and in sampling_params")
    return {**(params or {}), **named}, rest
