# SPDX-License-Identifier: Apache-2.0
"""Prints a custom logit processor that makes the engine sample given ids: `custom_params: {"say": [ids]}`. Run by SGLang's Python."""
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor


class Saying(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        for row, params in enumerate(custom_param_list or []):
            # counted here, because with the overlapping scheduler the request does not have its last token yet
            at = params["at"] = params.get("at", -1) + 1
            if at < len(params["say"]):
                logits[row, params["say"][at]] = logits[row].max() + 50
        return logits


print(Saying.to_str())
