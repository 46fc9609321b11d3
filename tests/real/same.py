# SPDX-License-Identifier: Apache-2.0
"""Defines equal replies: equal except for members that differ between two runs of a request.

Every function returns a list of differences, each a line of text. An empty list means equal."""
import base64
import struct

ENTROPY = ["output_token_entropy", "output_token_entropy_lower", "output_token_entropy_upper", "entropy_info"]
STABLE = ["finish_reason", "prompt_tokens", "completion_tokens", "weight_version", "weight_versions",
          "reasoning_tokens", "num_retractions", "total_retractions", "output_token_logprobs_length"]
ROWS = ["input_token_logprobs", "output_token_logprobs", "input_token_ids_logprobs", "output_token_ids_logprobs"]
TOP = ["input_top_logprobs", "output_top_logprobs"]
NOISE = 1e-4  # float32 sums depend on the batch


def near(a, b):
    return a == b or None not in (a, b) and abs(a - b) <= NOISE + NOISE * abs(a)


def shape(x):
    return [shape(i) for i in x] if isinstance(x, list) else x is None


def rows(a, b):
    """Nested lists of [logprob, id, text]."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(rows(x, y) for x, y in zip(a, b))
    return near(a, b) if isinstance(a, float) or isinstance(b, float) else a == b


def top_row(a, b):
    """Equal values in the same order; ids may be swapped only if their values differ by less than NOISE."""
    if not a or not b:
        return a == b
    last, other = b[-1][0], {i: v for v, i, _ in b}
    return len(a) == len(b) and all(
        near(x[0], y[0]) and (x[1] == y[1] or near(x[0], other.get(x[1], last))) for x, y in zip(a, b))


def flat(name, value):
    kind = "f" if "_val_" in name else "i"
    if name.endswith("_b64") and isinstance(value, str):
        raw = base64.b64decode(value)
        return [x if kind == "i" else float(x) for x in struct.unpack(f"<{len(raw) // 4}{kind}", raw)]
    return value


def meta(direct, via, sampled, named):
    """Compares the keys of meta_info and their order; also the values, unless the tokens were sampled at random."""
    out = []
    kept = [k for k in via if k not in ENTROPY]
    if kept != list(direct):
        out.append(f"meta_info keys {kept} instead of {list(direct)}")
    if list(via)[:len(kept)] != kept:
        out.append("entropy members are not last")
    for key in set(direct) & set(via):
        a, b = direct[key], via[key]
        if key in TOP:
            ok = shape(a) == shape(b) and (sampled or all(top_row(x, y) for x, y in zip(a, b)))
        elif key in ROWS:
            ok = shape(a) == shape(b) and (sampled or rows(a, b))
        elif "_flat" in key or key.endswith(("_shape", "_null_prefix")):
            a, b = flat(key, a), flat(key, b)
            ok = shape(a) == shape(b) and (sampled or rows(a, b))
        elif key in STABLE:
            ok = a == b or sampled and key in ("reasoning_tokens",)
        else:
            ok = key != "id" or not named or a == b
        if not ok:
            out.append(f"meta_info.{key}: {str(a)[:150]} != {str(b)[:150]}")
    return out


def item(direct, via, sampled, named):
    """One generation object."""
    out = []
    if list(direct) != list(via):
        out.append(f"keys {list(via)} instead of {list(direct)}")
    if "meta_info" not in direct or "meta_info" not in via:
        return out + ([] if direct == via else [f"{str(direct)[:300]} != {str(via)[:300]}"])
    for key in set(direct) & set(via) - {"meta_info"}:
        a, b = direct[key], via[key]
        if not (sampled and (key == "text" or shape(a) == shape(b)) or a == b):
            out.append(f"{key}: {str(a)[:150]} != {str(b)[:150]}")
    return out + meta(direct["meta_info"], via["meta_info"], sampled, named)


def head(direct, via):
    """Status and headers; a proxy may change hop-by-hop headers and add its own."""
    own = {"content-length", "date", "connection", "transfer-encoding", "keep-alive"}
    out = [] if direct.status == via.status else [f"status {via.status} instead of {direct.status}: {via.body[:200]}"]
    for name, value in direct.headers.items():
        if name not in own and via.headers.get(name) != value:
            out.append(f"header {name}: {via.headers.get(name)!r} instead of {value!r}")
    return out + [f"header {n} appeared" for n in via.headers
                  if n not in direct.headers and n not in own and not n.startswith("x-tokentap-")]
