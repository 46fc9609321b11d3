"""A plugin for SGLang: the exact entropy of every sampled token, in `meta_info.output_token_entropy`.

Importing it needs neither SGLang nor torch; only `register`, which SGLang calls in each of its processes, looks for
them.
"""

from __future__ import annotations

from tokentap_sglang.hooks import register
from tokentap_sglang.request import FIELD, SWITCH

__all__ = ["FIELD", "SWITCH", "register"]
