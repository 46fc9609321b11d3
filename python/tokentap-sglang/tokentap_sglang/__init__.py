# SPDX-License-Identifier: Apache-2.0
"""A plugin for SGLang: the exact entropy of every sampled token, in `meta_info.output_token_entropy`.

Importing this package needs neither SGLang nor torch. Only `register`, which SGLang calls in each of its processes,
imports them.
"""

from __future__ import annotations

from tokentap_sglang.hooks import register
from tokentap_sglang.request import FIELD, SWITCH

__all__ = ["FIELD", "SWITCH", "register"]
