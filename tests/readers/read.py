# SPDX-License-Identifier: Apache-2.0
"""Load the exports with the libraries of their trainers and compare with the truth.

    read.py FOLDER [--only NAME,NAME]

FOLDER holds the export files and truth.json (see README.md). Prints one line for each
reader, `ok|skip|FAIL name detail`, and exits 1 if any line has FAIL. A reader is
skipped only when its package could not be installed or imported; a file that is
absent or wrong fails.
"""
import argparse
import base64
import contextlib
import importlib
import importlib.util
import json
import math
import os
import sys
import traceback
import types
import warnings

warnings.filterwarnings("ignore")
# jax and torch would otherwise look for accelerators; ray would send usage statistics.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Plug-ins of verl that are installed on this machine are disabled.
os.environ.setdefault("VERL_USE_EXTERNAL_PLUGINS", "none")


class Wrong(Exception):
    """The reader rejects the file, or its contents differ from the expected rows."""


class Skip(Exception):
    """The reader is not installed."""


def need(fine, message, *values):
    if not fine:
        raise Wrong(message % values if values else message)


def same(got, want, what):
    """Checks that lists are equal; reports the first difference."""
    got, want = list(got), list(want)
    need(len(got) == len(want), "%s: %d values, expected %d", what, len(got), len(want))
    for i, (a, b) in enumerate(zip(got, want)):
        need(a == b, "%s[%d] is %r, expected %r", what, i, a, b)


def near(got, want, what):
    """Checks that lists of numbers and None are equal after rounding to float32."""
    import numpy as np

    got, want = list(got), list(want)
    need(len(got) == len(want), "%s: %d values, expected %d", what, len(got), len(want))
    for i, (a, b) in enumerate(zip(got, want)):
        if a is None or b is None:
            need(a is None and b is None, "%s[%d] is %r, expected %r", what, i, a, b)
        else:
            need(np.float32(a) == np.float32(b), "%s[%d] is %r, expected %r", what, i, a, b)


def load(part, module, name, bare=None):
    """The class `name` of `module`, or the module itself.

    `bare` names a package whose __init__ imports the whole trainer (agents, servers,
    learners). An empty package replaces it, so that the unmodified module with the
    class can be imported alone.
    """
    for p in part.split():
        note = os.path.join(sys.prefix, "skip", p)
        if os.path.exists(note):
            raise Skip("%s was not installed: %s" % (p, open(note).read().strip()))
    try:
        if bare and bare not in sys.modules:
            spec = importlib.util.find_spec(bare)
            if spec is None:
                raise ImportError("no package " + bare)
            package = types.ModuleType(bare)
            package.__path__ = list(spec.submodule_search_locations)
            sys.modules[bare] = package
        found = importlib.import_module(module)
        return getattr(found, name) if name else found
    except Exception as e:  # a broken install raises far more than ImportError
        raise Skip("%s cannot be imported: %s: %s" % (module, type(e).__name__, e))


def bare_packages(*names):
    """Empty packages in place of these, whose __init__ imports the whole trainer; outer packages first."""
    for name in names:
        if name not in sys.modules:
            try:
                spec = importlib.util.find_spec(name)
            except ImportError:
                spec = None
            package = types.ModuleType(name)
            package.__path__ = list(spec.submodule_search_locations) if spec else []
            sys.modules[name] = package


def source(name):
    """Makes the pinned source of a project without a package importable."""
    note = os.path.join(sys.prefix, "skip", name)
    if os.path.exists(note):
        raise Skip("%s was not fetched: %s" % (name, open(note).read().strip()))
    folder = os.path.join(sys.prefix, "source", name)
    for path in (os.path.join(folder, "src"), folder):
        if os.path.isdir(path):
            sys.path.insert(0, path)
            return
    raise Skip("%s was not fetched" % name)


def own_functions(package, file, names, around):
    """Unchanged functions of a file of a trainer that cannot be imported without its whole engine; `around` are the globals they use."""
    import ast

    path = os.path.join(sys.modules[package].__path__[0], file)
    with open(path, encoding="utf-8") as f:
        tree = ast.parse(f.read())
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names}
    need(set(found) == set(names), "%s has no %s", path, ", ".join(set(names) - set(found)))
    # annotations may name types of modules that are not imported
    code = compile(ast.Module([found[name] for name in names], []), path, "exec", flags=__import__("__future__").annotations.compiler_flag)
    space = dict(around)
    exec(code, space)
    return [space[name] for name in names]


def version(package):
    from importlib.metadata import version as v

    return "%s %s" % (package, v(package))


def json_file(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def samples_of(value, count, refused):
    """The list under `samples`; excluded rows are under `refused`."""
    need(isinstance(value, dict) and isinstance(value.get("samples"), list), "no object with a list `samples`")
    need("refused" in value, "no list `refused`")
    check_refused(value["refused"], refused)
    need(count is None or len(value["samples"]) == count, "%d samples, expected %d", len(value["samples"]), count or 0)
    return value["samples"]


def response(row):
    """Ids, mask and logprobs after the first prompt; 0.0 wherever the mask is 0."""
    n = row["prompt_len"]
    mask = row["loss_mask"][n:]
    return row["token_ids"][n:], mask, zeroed(row["logprobs"][n:], mask)


def trained(row):
    """Start and end of each output that this row trains."""
    at = 0
    for is_output, length in row["segments"]:
        if is_output and row["loss_mask"][at]:
            yield at, at + length
        at += length


def steps(row):
    """The first and the last version that the client named for tokens of this row, or None."""
    named = [v for v, m in zip(row.get("versions") or [], row["loss_mask"]) if m and v is not None]
    return (min(named), max(named)) if named else None


def check_refused(found, refused):
    """The excluded rows in any order: [session, leaf, reason]."""
    got = sorted([x["session"], x["leaf"], x["reason"]] for x in found)
    same(got, sorted(refused), "refused")


def zeroed(values, mask):
    # Trainers have no "unknown": a masked or unrecorded value is 0.0 there.
    return [0.0 if m == 0 or v is None else v for v, m in zip(values, mask)]


def number(reward):
    """A reward as a number: itself, or `reward` or `score` of an object."""
    return reward.get("reward", reward.get("score")) if isinstance(reward, dict) else reward


def turn_rewards(row):
    """The posted reward of each turn of a row, None for a turn without one; None if no turn has one."""
    rewards = [reward for _, _, reward in row.get("turns", [])]
    return rewards if any(reward is not None for reward in rewards) else None


def is_scored(row):
    """Whether the row has a reward, of its path or of a turn."""
    return row["reward"] is not None or turn_rewards(row) is not None


def token_scores(row, width=None):
    """The rewards of the tokens after the first prompt: a turn's at its last token, the path's at the last token."""
    n = len(row["token_ids"]) - row["prompt_len"]
    kept = n if width is None else min(n, width)
    scores = [0.0] * (width or n)
    scores[kept - 1] += row["reward"] or 0.0
    for _, last, reward in row.get("turns", []):
        scores[min(kept - 1, last - row["prompt_len"])] += number(reward) or 0.0
    return scores


def check_turn_rewards(got, row, name):
    """The list of a format that has a place for rewards of turns; without one it has no such member."""
    want = turn_rewards(row)
    need(got == want, "%srewards of turns are %r, expected %r", name, got, want)


def check_all_turn_rewards(lists, rows):
    """`turn_scores` of `non_tensor_batch`, which exists if a row has a reward of a turn."""
    want = [turn_rewards(row) for row in rows]
    got = lists.get("turn_scores", [None] * len(rows))
    need(("turn_scores" in lists) == any(want), "`turn_scores` must exist exactly if a turn has a reward")
    for i, (a, b) in enumerate(zip(got, want)):
        need(a == b, "turn_scores[%d] is %r, expected %r", i, a, b)


def experts(row, filler=0):
    """The routed experts of each token, with `filler` for those of the last one; None where the truth has none."""
    found = row.get("experts")
    return found and found + [[[filler] * len(layer) for layer in found[0]]]


def check_truth(rows):
    """Checks that the expected rows are consistent."""
    need(rows, "truth has no rows")
    for i, r in enumerate(rows):
        n = len(r["token_ids"])
        for key in ("loss_mask", "logprobs", "entropy"):
            need(len(r[key]) == n, "truth row %d: %s has another length than token_ids", i, key)
        flat = [int(is_out) for is_out, length in r["segments"] for _ in range(length)]
        need(len(flat) == n, "truth row %d: segments of %d tokens", i, len(flat))
        # tokens that another row trains, or that no row trains, are outputs with mask 0
        need(all(m in (0, 1) and m <= f for m, f in zip(r["loss_mask"], flat)), "truth row %d: loss_mask against segments", i)
        need(0 < r["prompt_len"] <= n, "truth row %d: prompt_len", i)
        need(not any(flat[: r["prompt_len"]]), "truth row %d: an output inside the prompt", i)
        need(r["status"] in ("completed", "truncated", "aborted"), "truth row %d: status %r", i, r["status"])
        need(len(r.get("teacher", flat)) == n, "truth row %d: teacher has another length than token_ids", i)
        lasts = [last for _, last, _ in r.get("turns", [])]
        need(lasts == sorted(lasts) and (not lasts or lasts[-1] == n - 1), "truth row %d: last tokens of turns", i)


# ---- verl -----------------------------------------------------------------------


def read_verl(path, rows, refused):
    DataProto = load("torch verl", "verl.protocol", "DataProto")
    masked_mean = load("torch verl", "verl.utils.torch_functional", "masked_mean")
    extract_reward = load("torch verl", "verl.trainer.ppo.reward", "extract_reward")
    returns_of = load("torch verl", "verl.trainer.ppo.core_algos", "compute_reinforce_plus_plus_outcome_advantage")
    import numpy as np
    import torch
    from safetensors import safe_open

    with safe_open(path, framework="pt") as f:
        tensors = {k: f.get_tensor(k) for k in f.keys()}
        meta = f.metadata() or {}
    need("non_tensor_batch" in meta, "no non_tensor_batch in __metadata__")
    lists = json.loads(meta["non_tensor_batch"])
    check_refused(json.loads(meta.get("refused", "null")) or [], refused)
    non_tensors = {}
    for key, values in lists.items():
        need(isinstance(values, list), "non_tensor_batch %r is no list", key)
        # As in verl's agent loop. from_dict would turn lists of equal length in the
        # rows into a two-dimensional array instead of one object per row.
        non_tensors[key] = np.empty(len(values), dtype=object)
        non_tensors[key][:] = values
    try:
        data = DataProto.from_dict(tensors=tensors, non_tensors=non_tensors)
    except AssertionError as e:
        raise Wrong("DataProto.from_dict refuses it: %s" % e)

    B = len(rows)
    need(len(data) == B, "batch of %d, expected %d", len(data), B)
    ints = ["prompts", "responses", "response_mask", "input_ids", "attention_mask", "position_ids"]
    floats = ["rollout_log_probs"]
    # Zeros for unmeasured tokens would look like a deterministic policy.
    measured = any(e is not None for r in rows for e, m in zip(r["entropy"], r["loss_mask"]) if m)
    floats += ["rollout_entropys", "rollout_entropy"] * measured
    for key in ["rollout_entropys", "rollout_entropy"] * (not measured):
        need(key not in data.batch.keys(), "%s exists although no entropies were measured", key)
    for key in ints + floats:
        need(key in data.batch.keys(), "no tensor %r", key)
        want = torch.int64 if key in ints else torch.float32
        need(data.batch[key].dtype == want, "%s is %s, expected %s", key, data.batch[key].dtype, want)
    # The actor adds its own `entropys`; DataProto.union asserts when two differ.
    need("entropys" not in data.batch.keys(), "the key entropys belongs to the actor")
    t = {k: data.batch[k] for k in ints + floats}
    P, R = t["prompts"].shape[1], t["responses"].shape[1]
    for key in ["response_mask"] + floats:
        need(tuple(t[key].shape) == (B, R), "%s has shape %s", key, tuple(t[key].shape))
    for key in ["input_ids", "attention_mask", "position_ids"]:
        need(tuple(t[key].shape) == (B, P + R), "%s has shape %s", key, tuple(t[key].shape))
    need(torch.equal(t["input_ids"], torch.cat([t["prompts"], t["responses"]], dim=1)), "input_ids is not prompts + responses")
    positions = torch.clip(torch.cumsum(t["attention_mask"], dim=-1) - 1, min=0)
    need(torch.equal(t["position_ids"], positions), "position_ids is not the clipped running sum of attention_mask")
    if measured:
        need(torch.equal(t["rollout_entropy"], t["rollout_entropys"]), "rollout_entropy and rollout_entropys differ")

    routed = all(experts(r) for r in rows)
    if routed:
        layers, k = len(experts(rows[0])[0]), len(experts(rows[0])[0][0])
        need("routed_experts" in data.batch.keys(), "no tensor 'routed_experts'")
        t["routed_experts"] = data.batch["routed_experts"]
        need(t["routed_experts"].dtype == torch.int32 and tuple(t["routed_experts"].shape) == (B, P + R, layers, k), "routed_experts: %s %s",
             t["routed_experts"].dtype, tuple(t["routed_experts"].shape))
    pads = set()
    cut = 0
    for i, row in enumerate(rows):
        n = row["prompt_len"]
        # A prompt that is too long loses its head, a response its tail.
        prompt = row["token_ids"][:n][-P:]
        ids, mask, logprobs = (x[:R] for x in response(row))
        entropy = zeroed(row["entropy"][n:], row["loss_mask"][n:])[:R]
        cut += (n > P) + (len(row["token_ids"]) - n > R)
        p, r = len(prompt), len(ids)
        name = "row %d " % i
        same(t["prompts"][i, P - p :].tolist(), prompt, name + "prompts")
        same(t["responses"][i, :r].tolist(), ids, name + "responses")
        same(t["response_mask"][i].tolist(), mask + [0] * (R - r), name + "response_mask")
        same(t["attention_mask"][i].tolist(), [0] * (P - p) + [1] * (p + r) + [0] * (R - r), name + "attention_mask")
        near(t["rollout_log_probs"][i].tolist(), logprobs + [0.0] * (R - r), name + "rollout_log_probs")
        if measured:
            near(t["rollout_entropys"][i].tolist(), entropy + [0.0] * (R - r), name + "rollout_entropys")
        if routed:
            none = [[[0] * k] * layers]
            of_tokens = experts(row)[max(0, n - P) :][: p + r]
            same(t["routed_experts"][i].tolist(), none * (P - p) + of_tokens + none * (R - r), name + "routed_experts")
        if steps(row):
            need("min_global_steps" in lists, "no min_global_steps")
            same([lists[key][i] for key in ("min_global_steps", "max_global_steps")], steps(row), name + "min and max_global_steps")
        pads |= set(t["prompts"][i, : P - p].tolist()) | set(t["responses"][i, r:].tolist())
    need(len(pads) <= 1, "more than one padding id: %s", sorted(pads))

    if "group" in lists:  # rows with the same first prompt, numbered in order
        prompts = [r["token_ids"][: r["prompt_len"]] for r in rows]
        same(lists["group"], [sorted({prompts.index(p) for p in prompts}).index(prompts.index(p)) for p in prompts], "group")
    check_all_turn_rewards(lists, rows)
    # verl writes the scores only when every row of the batch has a reward.
    scored = all(is_scored(r) for r in rows)
    need(("rm_scores" in data.batch.keys()) == scored, "rm_scores must exist exactly if every row has a reward")
    rewarded = 0
    if scored:
        # as its trainer: the scores are the rewards of tokens, and returns are sums of those at trained tokens
        scores, _ = extract_reward(data)
        need(scores.dtype == torch.float32 and tuple(scores.shape) == (B, R), "rm_scores: %s %s", scores.dtype, tuple(scores.shape))
        _, returns = returns_of(scores, t["response_mask"], config=types.SimpleNamespace(gamma=1.0))
        for i, row in enumerate(rows):
            want = token_scores(row, R)
            near(scores[i].tolist(), want, "row %d rm_scores" % i)
            mask = t["response_mask"][i].tolist()
            sums = [m * sum(x for x, k in zip(want[j:], mask[j:]) if k) for j, m in enumerate(mask)]
            near(returns[i].tolist(), sums, "row %d returns" % i)
            rewarded += len([x for x in turn_rewards(row) or [] if x is not None])

    # A working batch: split it, join it, select from it, and add the columns of the actor.
    again = DataProto.concat(data.chunk(B))
    need(all(torch.equal(again.batch[k], t[k]) for k in t), "chunk and concat changed the batch")
    for key in non_tensors:
        same(again.non_tensor_batch[key], non_tensors[key], "chunk and concat: " + key)
    narrow = data.select(batch_keys=["responses", "response_mask"])
    need(sorted(narrow.batch.keys()) == ["response_mask", "responses"], "select")
    actor = DataProto.from_dict(tensors={"old_log_probs": t["rollout_log_probs"].clone(), "entropys": torch.ones(B, R)})
    joined = data.union(actor)
    if not measured:
        return "%s DataProto [%d, %d+%d], no entropies" % (version("verl"), B, P, R)
    need(torch.equal(joined.batch["rollout_entropys"], t["rollout_entropys"]), "union changed rollout_entropys")

    mean = masked_mean(t["rollout_entropys"], t["response_mask"]).item()
    known = [e or 0.0 for r in rows for e, m in list(zip(r["entropy"], r["loss_mask"]))[r["prompt_len"] : r["prompt_len"] + R] if m]
    want = sum(known) / len(known) if known else 0.0
    need(math.isclose(mean, want, rel_tol=1e-5, abs_tol=1e-6), "verl's masked mean is %r, expected %r", mean, want)
    return "%s DataProto [%d, %d+%d], entropy mean %.6f, %d cut, %d rewards of turns in its returns, non-tensors %s" % (
        version("verl"), B, P, R, mean, cut, rewarded, ",".join(sorted(non_tensors)) or "none")


# ---- slime and miles: one Sample class -------------------------------------------


def check_sample(sample, row, name):
    """The fields of a real Sample against a row; `validate` is the trainer's own."""
    ids, mask, logprobs = response(row)
    try:
        sample.validate()
    except AssertionError as e:
        raise Wrong("%s Sample.validate: %s" % (name, e))
    same(sample.tokens, row["token_ids"], name + "tokens")
    need(sample.response_length == len(ids), "%s response_length is %r, expected %d", name, sample.response_length, len(ids))
    same(sample.loss_mask, mask, name + "loss_mask")
    near(sample.rollout_log_probs, logprobs, name + "rollout_log_probs")
    need(sample.effective_response_length == sum(mask), "%s effective_response_length", name)
    check_turn_rewards(sample.metadata.get("turn_rewards"), row, name)
    need(sample.status.value == row["status"], "%s status is %s, expected %s", name, sample.status.value, row["status"])
    if experts(row):
        need(str(sample.rollout_routed_experts.dtype) == "int32", "%s rollout_routed_experts is %s", name, sample.rollout_routed_experts.dtype)
        same(sample.rollout_routed_experts.tolist(), row["experts"], name + "rollout_routed_experts")


def check_reward(got, row, name):
    near([got], [row["reward"]], name + "reward")


def read_slime(path, rows, refused):
    # slime has no package; miles is its fork and kept the class, field by field.
    Sample = load("torch miles", "miles.utils.types", "Sample")
    import numpy as np

    complete, scored = [], 0
    for i, (item, row) in enumerate(zip(samples_of(json_file(path), len(rows), refused), rows)):
        name = "row %d " % i
        need("status" in item, "%sno status: Sample.from_dict needs one", name)
        try:
            sample = Sample.from_dict(item)
        except (TypeError, ValueError) as e:
            raise Wrong("%sSample.from_dict: %s" % (name, e))
        if experts(row):
            # as slime's own rollout makes it
            sample.rollout_routed_experts = np.array(item["rollout_routed_experts"], "int32")
        check_sample(sample, row, name)
        check_reward(sample.reward, row, name)
        need(sample.to_dict()["tokens"] == item["tokens"], "%sto_dict", name)
        scores = check_teacher(sample, row, name)
        scored += len(scores)
        if scores and None not in scores:
            complete.append((i, sample))
    distill(complete, rows)
    return "Sample of %s (slime itself has no package), %d samples%s" % (
        version("miles-rl"), len(rows), ", %d scores, %d rows distilled" % (scored, len(complete)) if scored else "")


def check_teacher(sample, row, name):
    """The teacher's logprobs after the first prompt: 0.0 where the mask is 0, None without a score."""
    # a row without any score has no such member
    exists = "teacher_log_probs" in vars(sample)
    need(exists == ("teacher" in row), "%steacher_log_probs must exist exactly if there are scores", name)
    if "teacher" not in row:
        return []
    n = row["prompt_len"]
    want = [x if m else 0.0 for x, m in zip(row["teacher"][n:], row["loss_mask"][n:])]
    near(sample.teacher_log_probs, want, name + "teacher_log_probs")
    return [x for x, m in zip(want, row["loss_mask"][n:]) if m]


def distill(complete, rows):
    """The advantages that the trainer makes of the scores: teacher - student."""
    if not complete:
        return
    import torch

    advantages_of = own_functions("miles", "backends/training_utils/loss.py", ["compute_advantages_and_returns"], {
        "torch": torch, "get_parallel_state": lambda: None})[0]
    batch = {"teacher_log_probs": [torch.tensor(sample.teacher_log_probs) for _, sample in complete],
             "rollout_log_probs": [torch.tensor(sample.rollout_log_probs) for _, sample in complete],
             "response_lengths": [sample.response_length for _, sample in complete]}
    advantages_of(types.SimpleNamespace(use_rollout_logprobs=True, kl_coef=0, normalize_advantages=False,
                                        advantage_estimator="on_policy_distillation"), batch)
    import numpy as np

    for got, (i, _) in zip(batch["advantages"], complete):
        row, n = rows[i], rows[i]["prompt_len"]
        pairs = zip(row["teacher"][n:], row["logprobs"][n:], row["loss_mask"][n:])
        want = [np.float32(a) - np.float32(b) if m else 0.0 for a, b, m in pairs]
        near(got.tolist(), want, "row %d advantages of the distillation" % i)


def read_miles(path, rows, refused):
    Sample = load("torch miles", "miles.utils.types", "Sample")
    import numpy as np
    from safetensors.numpy import load_file

    tensors = load_file(path)
    need("_samples_meta" in tensors, "no tensor _samples_meta")
    need(tensors["_samples_meta"].dtype == np.uint8, "_samples_meta is %s, expected uint8", tensors["_samples_meta"].dtype)
    meta = json.loads(tensors.pop("_samples_meta").tobytes().decode("utf-8"))
    metas = samples_of({**meta, **meta["session_metadata"]}, len(rows), refused)
    need(meta.get("empty_reason") is None, "empty_reason is %r though there are rows", meta.get("empty_reason"))
    entropies = 0
    for i, (m, row) in enumerate(zip(metas, rows)):
        name = "row %d " % i
        take = {}
        for key, dtype in (("tokens", "int64"), ("loss_mask", "uint8"), ("rollout_log_probs", "float64")):
            x = tensors.pop("%s.%d" % (key, i), None)
            need(x is not None, "no tensor %s.%d", key, i)
            need(x.ndim == 1 and x.dtype == np.dtype(dtype), "%s.%d is %s %s, expected one dimension of %s", key, i, x.dtype, x.shape, dtype)
            take[key] = x.tolist()
        routed = tensors.pop("rollout_routed_experts.%d" % i, None)
        if routed is not None:
            take["rollout_routed_experts"] = routed
        sample = Sample.from_dict({**take, **{k: m[k] for k in ("response", "response_length", "status", "metadata") if k in m}})
        check_sample(sample, row, name)
        if "reward" in m:
            check_reward(m["reward"], row, name)
        x = tensors.pop("rollout_entropys.%d" % i, None)
        if x is not None:
            need(x.dtype == np.float32, "rollout_entropys.%d is %s, expected float32", i, x.dtype)
            near(x.tolist(), zeroed(row["entropy"][row["prompt_len"] :], row["loss_mask"][row["prompt_len"] :]), name + "rollout_entropys")
            entropies += 1
    need(not tensors, "tensors that no sample names: %s", sorted(tensors))
    return "Sample of %s, %d samples, %d with entropies" % (version("miles-rl"), len(rows), entropies)


# ---- AReaL -----------------------------------------------------------------------


def read_areal(path, rows, refused):
    # Importing AReaL's reader of such a dict needs its whole trainer (hydra, numba, its
    # launchers), so this checks dtypes and values with torch alone.
    load("torch", "torch", "Tensor")
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file

    t = load_file(path)
    with safe_open(path, framework="pt") as f:
        lists = json.loads((f.metadata() or {}).get("non_tensor_batch", "{}"))
    check_all_turn_rewards(lists, rows)
    keys = {"input_ids": torch.int64, "loss_mask": torch.int64, "logprobs": torch.float32, "versions": torch.int64,
            "attention_mask": torch.bool, "rewards": torch.float32}
    # AReaL itself writes 0.0 for a missing reward; a batch may also omit them, which its actor reports as an error.
    if any(r["reward"] is None for r in rows) and "rewards" not in t:
        del keys["rewards"]
    measured = any(e is not None for r in rows for e, m in zip(r["entropy"], r["loss_mask"]) if m)
    need(("entropy" in t) == measured, "`entropy` must exist exactly if entropies were measured")
    if measured:
        keys["entropy"] = torch.float32
    for i, row in enumerate(rows):
        n = len(row["token_ids"])
        name = "row %d " % i
        got = {}
        for key, dtype in keys.items():
            need(key in t, "no tensor %r", key)
            x = t[key]
            need(x.dtype == dtype, "%s is %s, expected %s", key, x.dtype, dtype)
            need(x.ndim == (1 if key == "rewards" else 2), "%s has shape %s", key, tuple(x.shape))
            need(x.shape[0] == len(rows), "%s has batch %d", key, x.shape[0])
            got[key] = x[i].tolist()
        pad = len(got["input_ids"]) - n
        need(pad >= 0, "%sinput_ids has %d columns for %d tokens", name, n + pad, n)
        same(got["input_ids"][:n], row["token_ids"], name + "input_ids")
        same(got["attention_mask"], [True] * n + [False] * pad, name + "attention_mask")
        same(got["loss_mask"], row["loss_mask"] + [0] * pad, name + "loss_mask")
        near(got["logprobs"], zeroed(row["logprobs"], row["loss_mask"]) + [0.0] * pad, name + "logprobs")
        if measured:
            near(got["entropy"], zeroed(row["entropy"], row["loss_mask"]) + [0.0] * pad, name + "entropy")
        versions = got["versions"]
        need(len(versions) == n + pad, "%sversions has %d columns", name, len(versions))
        for j, m in enumerate(row["loss_mask"]):
            need(m or versions[j] == -1, "%sversions[%d] is %d at mask 0, expected -1", name, j, versions[j])
            need(not m or versions[j] >= -1, "%sversions[%d] is %d", name, j, versions[j])
            named = (row.get("versions") or [None] * n)[j]
            need(not m or named in (None, versions[j]), "%sversions[%d] is %d, expected %r", name, j, versions[j], named)
        same(versions[n:], [-1] * pad, name + "versions of padding")
        if "rewards" in got:
            near([got["rewards"]], [row["reward"] or 0.0], name + "rewards")
    return "torch %s only, %d rows of %d" % (torch.__version__, len(rows), t["input_ids"].shape[1])


# ---- strands-sglang --------------------------------------------------------------


def read_strands(path, rows, refused):
    Rollout = load("pydantic strands", "strands_sglang.rollout", "Rollout", bare="strands_sglang")
    for i, (item, row) in enumerate(zip(samples_of(json_file(path), len(rows), refused), rows)):
        name = "row %d " % i
        try:
            # The class accepts 1 for True and "3" for 3; a trainer that reads the lists may not.
            exported = Rollout.model_validate(item, strict=False)
            Rollout.model_validate_json(json.dumps(item), strict=True)
        except ValueError as e:
            raise Wrong("%sRollout: %s" % (name, " ".join(str(e).split())))
        replay, at = Rollout(), 0
        for is_output, length in row["segments"]:
            part = slice(at, at + length)
            add = replay.add_response if is_output else replay.add_prompt
            logprobs = [x if m else None for x, m in zip(row["logprobs"][part], row["loss_mask"][part])]
            add(row["token_ids"][part], None if all(x is None for x in logprobs) else logprobs)
            at += length
        same(exported.token_ids, replay.token_ids, name + "token_ids")
        # The class has one rollout: tokens that another row trains are 1 in its mask and 0 in the mask of the export.
        same(exported.loss_mask, [m and t for m, t in zip(replay.loss_mask, row["loss_mask"])], name + "loss_mask")
        near(exported.logprobs, replay.logprobs, name + "logprobs")
        same(exported.segment_info, replay.segment_info, name + "segment_info")
        if experts(row):
            shape = (len(row["experts"][0]), len(row["experts"][0][0]))
            same(exported.decode_routed_experts(*shape).tolist(), row["experts"], name + "routed_experts")
        need(exported.initial_prompt_length == replay.initial_prompt_length, "%sinitial_prompt_length", name)
        need(len(exported) == len(row["token_ids"]), "%slen", name)
        check_turn_rewards(item.get("turn_rewards"), row, name)
    return "%s Rollout, %d rollouts" % (version("strands-sglang"), len(rows))


# ---- rllm ------------------------------------------------------------------------


def read_rllm(path, rows, refused):
    TraceRecord = load("pydantic rllm", "rllm_model_gateway.models", "TraceRecord", bare="rllm_model_gateway")
    items = samples_of(json_file(path), None, refused)
    # One record for each trained generation; rows that share a prefix share its records.
    want, named, rewards = {}, {}, {}
    for row in rows:
        of_turn = {last + 1: reward for _, last, reward in row.get("turns", [])}
        for a, b in trained(row):
            key = (row["session"], tuple(row["token_ids"][:a]), tuple(row["token_ids"][a:b]))
            want[key] = row["logprobs"][a:b]
            named[key] = (row.get("versions") or [None] * b)[a]
            rewards[key] = of_turn.get(b)
    seen, ids, extra = set(), set(), set()
    for i, item in enumerate(items):
        try:
            record = TraceRecord.model_validate(item)
        except ValueError as e:
            raise Wrong("record %d: %s" % (i, " ".join(str(e).split())))
        key = (record.session_id, tuple(record.prompt_token_ids), tuple(record.completion_token_ids))
        need(key in want, "record %d: no row of session %r has this prompt and completion", i, record.session_id)
        if record.logprobs is None:
            need(any(x is None for x in want[key]), "record %d: no logprobs", i)
        else:
            near(record.logprobs, want[key], "record %d logprobs" % i)
        need(record.trace_id not in ids, "record %d: trace_id %r twice", i, record.trace_id)
        ids.add(record.trace_id)
        if named[key] is not None:
            need(item.get("weight_version") == named[key], "record %d: weight_version %r, expected %r", i, item.get("weight_version"), named[key])
        reward = record.metadata.get("turn_reward")
        need(reward == rewards[key], "record %d: turn_reward is %r, expected %r", i, reward, rewards[key])
        seen.add(key)
        extra |= set(item) - set(TraceRecord.model_fields)
    need(len(seen) == len(want), "%d of %d generations have a record", len(seen), len(want))
    return "%s TraceRecord, %d records%s" % (version("rllm-model-gateway"), len(items), ", ignores " + ",".join(sorted(extra)) if extra else "")


# ---- tunix -----------------------------------------------------------------------


def read_tunix(path, rows, refused):
    RolloutOutput = load("tunix", "tunix.rl.rollout.base_rollout", "RolloutOutput", bare="tunix")
    import dataclasses

    import numpy as np

    value = json_file(path)
    need(isinstance(value, dict), "tunix.json is no object")
    check_trajectories(samples_of(value, len(rows), refused), rows)
    value = value["rollout_output"]
    fields = [f.name for f in dataclasses.fields(RolloutOutput)]
    for key in fields:
        need(key in value, "no field %r", key)
    need(value["logits"] is None, "logits must be null: none are recorded")

    def whole(x, what):
        # numpy would silently truncate 1.5 to 1.
        need(all(type(v) is int for v in x), "%s holds something else than integers", what)
        return np.asarray(x, dtype=np.int32)

    widths = {len(p) for p in value["left_padded_prompt_tokens"]}
    need(len(widths) == 1, "left_padded_prompt_tokens: rows of lengths %s", sorted(widths))
    # The class checks nothing; the learner needs exactly these types.
    output = RolloutOutput(
        text=value["text"],
        logits=None,
        tokens=[whole(x, "tokens[%d]" % i) for i, x in enumerate(value["tokens"])],
        left_padded_prompt_tokens=np.stack([whole(p, "left_padded_prompt_tokens") for p in value["left_padded_prompt_tokens"]]),
        logprobs=None if value["logprobs"] is None else [np.asarray(x, dtype=np.float32) for x in value["logprobs"]],
    )
    B = len(rows)
    want = [(r["token_ids"][: r["prompt_len"]], *response(r)) for r in rows]
    need(len(output.tokens) == B, "tokens has %d entries for %d rows", len(output.tokens), B)
    need(len(output.text) == B and all(isinstance(s, str) for s in output.text), "text: %d entries, expected %d strings", len(output.text), B)
    prompts = output.left_padded_prompt_tokens
    need(prompts.dtype == np.int32 and prompts.ndim == 2 and prompts.shape[0] == B, "left_padded_prompt_tokens: %s %s", prompts.dtype, prompts.shape)
    P = prompts.shape[1]
    pads = set()
    for i, (prompt, ids, mask, logprobs) in enumerate(want):
        name = "entry %d " % i
        prompt = prompt[-P:]
        same(prompts[i, P - len(prompt) :].tolist(), prompt, name + "left_padded_prompt_tokens")
        pads |= set(prompts[i, : P - len(prompt)].tolist())
        same(output.tokens[i].tolist(), ids, name + "tokens")
        if output.logprobs is not None:
            need(len(output.logprobs) == B, "logprobs has %d entries", len(output.logprobs))
            near(output.logprobs[i].tolist(), logprobs, name + "logprobs")
    need(len(pads) <= 1, "more than one padding id: %s", sorted(pads))
    # The learner uses `prompt != pad` as the mask of the prompt, so such a token is lost.
    clash = [pad for pad in pads if any(pad in w[0] for w in want)]
    return "%s RolloutOutput, %d rows, prompts %s%s" % (
        version("google-tunix"), B, prompts.shape, "; padding id %d is also inside a prompt" % clash[0] if clash else "")


def check_trajectories(samples, rows):
    """The dictionaries of token mode. Its learner only reads members of them; they have no class."""
    for i, (item, row) in enumerate(zip(samples, rows)):
        name = "sample %d " % i
        ids, mask, logprobs = response(row)
        same(item["prompt_tokens"], row["token_ids"][: row["prompt_len"]], name + "prompt_tokens")
        same(item["conversation_tokens"], ids, name + "conversation_tokens")
        same(item["conversation_masks"], mask, name + "conversation_masks")
        near(item["old_logprobs"], logprobs, name + "old_logprobs")
        status = {"completed": "SUCCEEDED", "truncated": "MAX_CONTEXT_LIMIT_REACHED", "aborted": "FAILED"}[row["status"]]
        need(item["status"] == status, "%sstatus is %r, expected %r", name, item["status"], status)
        check_reward(item["trajectory_reward"], row, name)
        check_turn_rewards(item.get("metadata", {}).get("turn_rewards"), row, name)
        # Without one the learner fails.
        need(isinstance(item["policy_version"], int), "%spolicy_version is %r", name, item["policy_version"])
        if steps(row):
            need(item["policy_version"] == steps(row)[0], "%spolicy_version is %r, expected %d", name, item["policy_version"], steps(row)[0])


# ---- SkyRL -----------------------------------------------------------------------


def read_skyrl(path, rows, refused):
    bare_packages("skyrl", "skyrl.train", "skyrl.train.dataset", "skyrl.train.generators")
    # its inference servers need Python 3.12; the output only shares their type of a conversation
    servers = "skyrl.backends.skyrl_train.inference_servers"
    bare_packages("skyrl.backends", "skyrl.backends.skyrl_train", servers)
    sys.modules[servers + ".base"] = types.SimpleNamespace(ConversationType=list)
    TrajectoryID = load("torch skyrl", "skyrl.train.generators.base", "TrajectoryID")
    GeneratorOutput = load("torch skyrl", "skyrl.train.generators.base", "GeneratorOutput")
    convert = load("torch skyrl", "skyrl.train.dataset.preprocess", "convert_prompts_responses_to_batch_tensors")
    import logging
    import typing

    import numpy as np

    validate = own_functions("skyrl", "train/utils/trainer_utils.py", ["validate_generator_output", "_validate_step_wise_fields"],
                             {"np": np, "logger": logging.getLogger("skyrl"), "GeneratorOutput": GeneratorOutput})[0]
    value = json_file(path)
    samples = samples_of(value, len(rows), refused)
    output = value["generator_output"]
    same(sorted(output), sorted(typing.get_type_hints(GeneratorOutput)), "members of generator_output")
    output = GeneratorOutput(**output)
    output["trajectory_ids"] = [TrajectoryID(**name) for name in output["trajectory_ids"]]
    rewarded = all(is_scored(r) for r in rows)
    of_turns = any(turn_rewards(r) for r in rows)
    need((output["rewards"] is not None) == rewarded, "rewards must exist if every row has a reward, and only then")
    if not rewarded:  # as a trainer that scores the rows itself
        output["rewards"] = [0.0] * len(rows)
    try:
        validate(len(rows), output)
    except (AssertionError, RuntimeError) as e:
        raise Wrong("validate_generator_output: %s" % e)
    prompts = [r["token_ids"][: r["prompt_len"]] for r in rows]
    first = {}
    for i, (sample, row, name) in enumerate(zip(samples, rows, output["trajectory_ids"])):
        same((sample["session"], sample["leaf"]), (row["session"], row["leaf"]), "sample %d" % i)
        check_turn_rewards(sample.get("turn_rewards"), row, "row %d " % i)
        if rewarded and not of_turns:
            check_reward(output["rewards"][i], row, "row %d " % i)
        need(output["stop_reasons"][i] == {"completed": "stop", "truncated": "length", "aborted": "abort"}[row["status"]], "row %d stop_reasons", i)
        known = first.setdefault(tuple(prompts[i]), (name.instance_id, []))
        need(known[0] == name.instance_id, "row %d: two names of one prompt", i)
        same([name.repetition_id], [len(known[1])], "row %d repetition_id" % i)
        known[1].append(i)
    need(len({name for name, _ in first.values()}) == len(first), "one name of two prompts")
    # as its trainer: lists are rewards of tokens, and a number belongs to the last token
    token_rewards = [reward if isinstance(reward, list) else [0.0] * (len(ids) - 1) + [reward]
                     for ids, reward in zip(output["response_ids"], output["rewards"])]
    sequences, attention, _, rewards, masks, logprobs, routed = convert(
        types.SimpleNamespace(pad_token_id=99), output["prompt_token_ids"], output["response_ids"], token_rewards,
        output["loss_masks"], output["rollout_logprobs"], output["rollout_expert_indices"])
    for i, row in enumerate(rows):
        ids, mask, want = response(row)
        name = "row %d " % i
        same(sequences[i][attention[i] == 1].tolist(), row["token_ids"], name + "sequences")
        at = masks.shape[1] - len(ids)  # aligned on the right
        same(masks[i].tolist(), [0] * at + mask, name + "loss_masks")
        near(logprobs[i].tolist(), [0.0] * at + want, name + "logprobs")
        scores = token_scores(row) if rewarded else [0.0] * len(ids)
        near(rewards[i].tolist(), [0.0] * at + scores, name + "rewards")
        if all(experts(r) for r in rows):
            same(routed[i][attention[i] == 1].tolist(), experts(row), name + "rollout_expert_indices")
    return "%s GeneratorOutput, validated, batch %s%s" % (
        version("skyrl"), tuple(sequences.shape), ", rewards of tokens" if rewarded and of_turns else "")


# ---- NeMo-RL ---------------------------------------------------------------------


def read_nemo_rl(path, rows, refused):
    source("nemo-rl")
    bare_packages("nemo_rl", "nemo_rl.data", "nemo_rl.distributed")
    flatten = load("torch verl nemo-rl", "nemo_rl.data.llm_message_utils", "batched_message_log_to_flat_message")
    import typing

    import torch

    add_masks = own_functions("nemo_rl", "algorithms/grpo.py", ["add_grpo_token_loss_masks_and_generation_logprobs"], {
        "torch": torch, "cast": typing.cast, "LLMMessageLogType": list, "VLMMessageLogType": list,
        "backfill_missing_routed_experts": lambda logs: None})[0]
    samples = samples_of(json_file(path), len(rows), refused)
    logs = []
    for i, (sample, row) in enumerate(zip(samples, rows)):
        name = "row %d " % i
        need(sample["length"] == len(row["token_ids"]), "%slength", name)
        check_reward(sample["total_reward"], row, name)
        check_turn_rewards(sample.get("turn_rewards"), row, name)
        need(sample["truncated"] == (row["status"] == "truncated"), "%struncated", name)
        # as its adapter for NeMo-Gym makes tensors of what the environment returns
        tensors = ("token_ids", "generation_logprobs", "routed_experts")
        logs.append([{**message, **{key: torch.tensor(message[key]) for key in tensors if key in message}} for message in sample["message_log"]])
    add_masks(logs)
    flat, lengths = flatten(logs, pad_value_dict={"token_ids": 99})
    for i, row in enumerate(rows):
        n, name = len(row["token_ids"]), "row %d " % i
        need(int(lengths[i]) == n, "%slength of the flat message is %d, expected %d", name, int(lengths[i]), n)
        same(flat["token_ids"][i, :n].tolist(), row["token_ids"], name + "token_ids")
        same(flat["token_loss_mask"][i, :n].tolist(), row["loss_mask"], name + "token_loss_mask")
        near(flat["generation_logprobs"][i, :n].tolist(), zeroed(row["logprobs"], row["loss_mask"]), name + "generation_logprobs")
        if experts(row):
            same(flat["routed_experts"][i, :n].tolist(), experts(row, -1), name + "routed_experts")
    return "NeMo-RL's flat messages %s" % (tuple(flat["token_ids"].shape),)


# ---- prime-rl --------------------------------------------------------------------


def read_prime_rl(path, rows, refused):
    source("prime-rl")
    bare_packages("prime_rl", "prime_rl.transports", "prime_rl.transports.rollouts", "prime_rl.trainer")
    TrainingSample = load("base prime-rl", "prime_rl.transports.rollouts.types", "TrainingSample")
    RoutedExperts = load("base prime-rl", "prime_rl.transports.rollouts.types", "RoutedExperts")
    prepare_sample = load("base prime-rl", "prime_rl.trainer.batch", "prepare_sample")
    prepare_batch = load("base prime-rl", "prime_rl.trainer.batch", "prepare_batch")
    build_bin_cost = load("base prime-rl", "prime_rl.trainer.batch", "build_bin_cost")
    import msgspec
    import numpy as np

    found = samples_of(json_file(path), len(rows), refused)
    samples = []
    for i, (item, row) in enumerate(zip(found, rows)):
        name = "row %d " % i
        same((item["session"], item["leaf"]), (row["session"], row["leaf"]), name)
        check_reward(item["reward"], row, name)
        check_turn_rewards(item.get("turn_rewards"), row, name)
        sample = TrainingSample(**item["training_sample"])
        if sample.routed_experts is not None:
            # bytes are base64 in JSON
            sample.routed_experts = msgspec.json.decode(json.dumps(sample.routed_experts), type=RoutedExperts)
        # the wire format checks the types; a member without a value is absent on it
        sample = msgspec.msgpack.decode(msgspec.msgpack.encode(sample), type=TrainingSample)
        # its orchestrator gives each token the advantage of the rollout
        sample.advantages = [float(m) for m in sample.mask]
        samples.append(sample)
        batch = prepare_sample(sample, seq_len=len(row["token_ids"]))
        same(batch.input_ids, row["token_ids"], name + "input_ids")
        same([int(m) for m in batch.loss_mask], row["loss_mask"], name + "loss_mask")
        near(batch.inference_logprobs, zeroed(row["logprobs"], row["loss_mask"]), name + "inference_logprobs")
        same({t for t, m in zip(batch.temperatures, batch.loss_mask) if m}, {row["temperature"]}, name + "temperatures")
        if experts(row):
            found = np.frombuffer(batch.routed_experts.data, batch.routed_experts.dtype).reshape(batch.routed_experts.shape)
            same(found.tolist(), experts(row), name + "routed_experts")
    grid = prepare_batch(samples, seq_len=4096, num_train_workers=1, bin_cost=build_bin_cost(None))
    tokens = sum(sum(batch.loss_mask) for batch in grid[0])
    need(tokens == sum(sum(r["loss_mask"]) for r in rows), "the packed batches train %d tokens", tokens)
    return "prime-rl's TrainingSample, %d samples in %d packed batches" % (len(samples), len(grid[0]))


# ---- TRL -------------------------------------------------------------------------


def read_trl(path, rows, refused):
    GRPOTrainer = load("torch verl columnar trl", "trl", "GRPOTrainer")
    GRPOConfig = load("torch verl columnar trl", "trl", "GRPOConfig")
    import tempfile

    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    value = json_file(path)
    samples = samples_of(value, len(rows), refused)
    rollout = value["rollout"]
    for i, (sample, row) in enumerate(zip(samples, rows)):
        same((sample["session"], sample["leaf"]), (row["session"], row["leaf"]), "sample %d" % i)
        check_reward(rollout["reward"][i], row, "row %d " % i)
        check_turn_rewards(sample.get("turn_rewards"), row, "row %d " % i)
    # a step of its GRPO trainer with a tiny model: an even number of rows, because a group has at least two
    B = len(rows) // 2 * 2
    need(B, "a step needs two rows")
    vocab = 1 + max(t for r in rows for t in r["token_ids"])
    words = Tokenizer(models.WordLevel({"t%d" % i: i for i in range(vocab)}, unk_token="t0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="t1", pad_token="t0")
    model = GPT2LMHeadModel(GPT2Config(vocab_size=vocab, n_positions=4096, n_embd=8, n_layer=1, n_head=1, bos_token_id=1, eos_token_id=1))
    seen = {}

    class Trainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            batch = super()._generate_and_score_completions(inputs)
            seen.update(batch)
            return batch

    def rollouts(prompts, trainer):
        return {key: values[:B] for key, values in rollout.items()}

    def rewards(completions, reward, **_):
        seen["reward"] = reward
        return [0.0 if x is None else x for x in reward]

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(output_dir=folder, per_device_train_batch_size=B, num_generations=2, max_steps=1, report_to=[], use_cpu=True,
                            save_strategy="no", logging_strategy="no", disable_tqdm=True, shuffle_dataset=False, bf16=False)
        trainer = Trainer(model=model, reward_funcs=rewards, args=config, processing_class=tokenizer, rollout_func=rollouts,
                          train_dataset=Dataset.from_dict({"prompt": ["t%d" % i for i in range(B)]}))
        with contextlib.redirect_stdout(sys.stderr):  # it prints its metrics
            trainer.train()
    near(seen["reward"], [r["reward"] for r in rows[:B]], "the rewards of the reward function")
    for i, row in enumerate(rows[:B]):
        ids, mask, logprobs = response(row)
        name, n = "row %d " % i, len(ids)
        prompt = seen["prompt_ids"][i][seen["prompt_mask"][i] == 1].tolist()
        same(prompt, row["token_ids"][: row["prompt_len"]], name + "prompt_ids")
        same(seen["completion_ids"][i, :n].tolist(), ids, name + "completion_ids")
        same(seen["completion_mask"][i].tolist(), [1] * n + [0] * (seen["completion_mask"].shape[1] - n), name + "completion_mask")
        same(seen["tool_mask"][i, :n].tolist(), mask, name + "tool_mask")
        near(seen["sampling_per_token_logps"][i, :n].tolist(), logprobs, name + "sampling_per_token_logps")
    return "%s, one step of its GRPO trainer, %d rows" % (version("trl"), B)


# ---- Tinker ----------------------------------------------------------------------


def read_tinker(path, rows, refused):
    bare_packages("tinker_cookbook", "tinker_cookbook.rl", "tinker_cookbook.supervised", "tinker_cookbook.renderers", "tinker_cookbook.utils")
    # types that only annotations of its completers name
    sys.modules["tinker_cookbook.renderers"].Message = sys.modules["tinker_cookbook.renderers"].Renderer = dict
    tinker = load("torch pydantic tinker", "tinker", None)
    trajectory_to_data = load("torch pydantic tinker", "tinker_cookbook.rl.data_processing", "trajectory_to_data")
    Trajectory = load("torch pydantic tinker", "tinker_cookbook.rl.types", "Trajectory")
    TrajectoryGroup = load("torch pydantic tinker", "tinker_cookbook.rl.types", "TrajectoryGroup")
    Transition = load("torch pydantic tinker", "tinker_cookbook.rl.types", "Transition")
    TokensWithLogprobs = load("torch pydantic tinker", "tinker_cookbook.completers", "TokensWithLogprobs")

    for i, (item, row) in enumerate(zip(samples_of(json_file(path), len(rows), refused), rows)):
        name = "row %d " % i
        check_reward(item["reward"], row, name)
        given = item["datum"]
        datum = tinker.Datum(model_input=tinker.ModelInput(**given["model_input"]),
                             loss_fn_inputs={key: tinker.TensorData(**tensor) for key, tensor in given["loss_fn_inputs"].items()})
        check_turn_rewards(item.get("turn_rewards"), row, name)
        # what the cookbook makes of the same calls
        calls, turns = [], row.get("turns", [])
        found = item.get("turn_rewards") or [None] * len(turns)
        of_turn = {last + 1: reward for (_, last, _), reward in zip(turns, found)}
        for start, end in trained(row):
            prompt = tinker.ModelInput.from_ints(row["token_ids"][:start])
            sampled = TokensWithLogprobs(tokens=row["token_ids"][start:end], maybe_logprobs=row["logprobs"][start:end])
            calls.append(Transition(ob=prompt, ac=sampled, reward=number(of_turn.get(end)) or 0.0, episode_done=False))
        trajectory = Trajectory(transitions=calls, final_ob=tinker.ModelInput.empty())
        # its reward of a trajectory is that of its calls and a final one
        trained_ends = {end for _, end in trained(row)}
        want = [number(reward) or 0.0 for _, last, reward in turns if last + 1 in trained_ends] + [row["reward"] or 0.0]
        group = TrajectoryGroup([trajectory], [item["reward"] or 0.0], [{}])
        near(group.get_total_rewards(), [sum(want)], name + "total reward")
        (want,) = trajectory_to_data(trajectory, 1.0)
        end = want.model_input.length  # tokens after the last trained one are in no call
        same(datum.model_input.to_ints()[:end], want.model_input.to_ints(), name + "model_input")
        same(datum.model_input.to_ints(), row["token_ids"][:-1], name + "model_input")
        for key in ("target_tokens", "logprobs", "mask"):
            mine, theirs = datum.loss_fn_inputs[key], want.loss_fn_inputs[key]
            need(mine.dtype == theirs.dtype, "%s%s is %s, the cookbook's is %s", name, key, mine.dtype, theirs.dtype)
            near(mine.to_torch().tolist()[:end], theirs.to_torch().tolist(), name + key)
            need(mine.shape == [len(row["token_ids"]) - 1], "%s%s has the shape %s", name, key, mine.shape)
        same(datum.loss_fn_inputs["mask"].to_torch().tolist(), [float(m) for m in row["loss_mask"][1:]], name + "mask")
    return "%s Datum, as %s makes it, %d rows" % (version("tinker"), version("tinker-cookbook"), len(rows))


# ---- plain files -----------------------------------------------------------------


def check_record(item, row, name):
    """One record of the plain formats, by column."""
    for key in ("session", "leaf", "token_ids", "loss_mask", "logprobs", "entropy"):
        need(key in item, "%sno %r", name, key)
    n = len(row["token_ids"])
    need(str(item["session"]) == str(row["session"]), "%ssession is %r, expected %r", name, item["session"], row["session"])
    need(str(item["leaf"]) == str(row["leaf"]), "%sleaf is %r, expected %r", name, item["leaf"], row["leaf"])
    same(item["token_ids"], row["token_ids"], name + "token_ids")
    same([int(x) for x in item["loss_mask"]], row["loss_mask"], name + "loss_mask")
    for key in ("logprobs", "entropy"):
        # A null list means that nothing was recorded.
        near([None] * n if item[key] is None else item[key], row[key], name + key)
    for key in ("prompt_len", "status"):
        if item.get(key) is not None:
            need(item[key] == row[key], "%s%s is %r, expected %r", name, key, item[key], row[key])
    if "reward" in item:
        check_reward(item["reward"], row, name)
    if "turns" in row:
        check_turns(item, row, name)
    if experts(row):
        check_experts(item["columns"], row, name)
    if "columns" in item:
        check_scores(item["columns"], row, name)


def check_turns(item, row, name):
    """The turns of a record: their numbers, last tokens and rewards."""
    turns = item["turns"]
    same([turn["id"] for turn in turns], [number for number, _, _ in row["turns"]], name + "ids of turns")
    last = {}
    for segment in item["segments"]:
        last[segment["turn"]] = segment["end"] - 1
    for turn, (of, end, reward) in zip(turns, row["turns"]):
        # a turn without tokens has no segment
        need(last.get(of, end) == end, "%sturn %d ends at %r, expected %d", name, of, last.get(of), end)
        near([turn["reward"]], [number(reward)], "%sturn %d reward" % (name, of))
        given = None if turn["reward_json"] is None else json.loads(turn["reward_json"])
        need(given == reward, "%sturn %d reward_json is %r, expected %r", name, of, given, reward)


def check_scores(columns, row, name):
    """The token column of the teacher's logprobs: at the tokens that have a score, and nowhere else."""
    import numpy as np

    found = [column for column in columns or [] if column["name"] == "teacher_logprobs"]
    if "teacher" not in row:
        need(not found, "%steacher_logprobs exists without scores", name)
        return
    need(len(found) == 1, "%s%d columns teacher_logprobs", name, len(found))
    (column,) = found
    data = base64.b64decode(column["data"]) if isinstance(column["data"], str) else column["data"]
    kind = (column["type"], column["shape"])
    need(kind == ("f32", []), "%steacher_logprobs: %s %s", name, *kind)
    scores = [None] * len(row["token_ids"])
    tokens = [token for part in column["tokens"] for token in range(part["start"], part["end"])]
    values = np.frombuffer(data, "<f4").tolist()
    need(len(values) == len(tokens), "%steacher_logprobs: %d values for %d tokens", name, len(values), len(tokens))
    for token, value in zip(tokens, values):
        scores[token] = value
    near(scores, row["teacher"], name + "teacher_logprobs")


def check_experts(columns, row, name):
    """The token column of the experts: which tokens have them, and their values."""
    import numpy as np

    need([column["name"] for column in columns] == ["routed_experts"], "%scolumns: %s", name, columns)
    (column,) = columns
    data = base64.b64decode(column["data"]) if isinstance(column["data"], str) else column["data"]
    need(column["type"] == "u8", "%stype of the column is %s", name, column["type"])
    tokens = [token for part in column["tokens"] for token in range(part["start"], part["end"])]
    same(tokens, range(len(row["experts"])), name + "tokens of the column")
    same(np.frombuffer(data, "uint8").reshape([-1, *column["shape"]]).tolist(), row["experts"], name + "values of the column")


def read_jsonl(path, rows, refused):
    with open(path, encoding="utf-8") as f:
        items = [json.loads(line) for line in f]
    need(len(items) == len(rows), "%d lines, expected %d", len(items), len(rows))
    for i, (item, row) in enumerate(zip(items, rows)):
        check_record(item, row, "row %d " % i)
    return "json, %d lines" % len(items)


def check_table(table, rows, refused):
    import pyarrow as pa

    wants = {"token_ids": ("int32",), "loss_mask": ("int8",), "logprobs": ("float",), "entropy": ("float",)}
    for key, inner in wants.items():
        need(key in table.column_names, "no column %r", key)
        kind = table.schema.field(key).type
        fine = (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and str(kind.value_type) in inner
        need(fine, "column %s is %s, expected a list of %s", key, kind, " or ".join(inner))
    table.validate(full=True)
    check_refused(json.loads((table.schema.metadata or {}).get(b"refused", "null")) or [], refused)
    need(table.num_rows == len(rows), "%d rows, expected %d", table.num_rows, len(rows))
    for i, (item, row) in enumerate(zip(table.to_pylist(), rows)):
        check_record(item, row, "row %d " % i)


def read_arrow(path, rows, refused):
    ipc = load("base", "pyarrow", "ipc")
    import pyarrow as pa

    with ipc.open_stream(path) as stream:
        table = stream.read_all()
    check_table(table, rows, refused)
    return "pyarrow %s stream, %d rows, %d columns" % (pa.__version__, table.num_rows, table.num_columns)


def read_parquet(path, rows, refused):
    ParquetFile = load("base", "pyarrow.parquet", "ParquetFile")
    import pyarrow as pa

    f = ParquetFile(path)
    table = f.read()
    check_table(table, rows, refused)
    return "pyarrow %s, %d rows, %d row groups" % (pa.__version__, table.num_rows, f.num_row_groups)


READERS = {
    "verl": ("verl.safetensors", read_verl),
    "miles": ("miles.safetensors", read_miles),
    "areal": ("areal.safetensors", read_areal),
    "slime": ("slime.json", read_slime),
    "tunix": ("tunix.json", read_tunix),
    "strands": ("strands.json", read_strands),
    "rllm": ("rllm.json", read_rllm),
    "skyrl": ("skyrl.json", read_skyrl),
    "nemo-rl": ("nemo-rl.json", read_nemo_rl),
    "prime-rl": ("prime-rl.json", read_prime_rl),
    "trl": ("trl.json", read_trl),
    "tinker": ("tinker.json", read_tinker),
    "jsonl": ("data.jsonl", read_jsonl),
    "arrow": ("data.arrow", read_arrow),
    "parquet": ("data.parquet", read_parquet),
}


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("folder")
    ask.add_argument("--only", help="readers to run, by name; else the `formats` of truth.json, else all")
    ask.add_argument("--no-skip", action="store_true", help="a reader that is not installed fails")
    ask.add_argument("--trace", action="store_true", help="show where an unexpected error came from")
    args = ask.parse_args()
    try:
        truth = json_file(os.path.join(args.folder, "truth.json"))
        rows, refused = truth["rows"], truth.get("refused", [])
        check_truth(rows)
    except (OSError, KeyError, ValueError, Wrong) as e:
        print("FAIL truth %s" % e)
        return 1
    names = args.only.split(",") if args.only else truth.get("formats", list(READERS))
    for name in names:
        if name not in READERS:
            ask.error("no reader %r; there are %s" % (name, ", ".join(READERS)))
    bad = False
    for name in names:
        file, reader = READERS[name]
        try:
            word, detail = "ok", reader(os.path.join(args.folder, file), rows, refused)
        except Skip as e:
            word, detail = ("FAIL" if args.no_skip else "skip"), str(e)
        except Wrong as e:
            word, detail = "FAIL", str(e)
        except Exception as e:  # an error of the reader is a result of this check
            if args.trace:
                traceback.print_exc()
            word, detail = "FAIL", "%s: %s" % (type(e).__name__, e)
        bad |= word == "FAIL"
        print("%s %s %s" % (word, name, " ".join(detail.split())), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    # Some of these libraries have threads that block a normal exit.
    code = main()
    sys.stdout.flush()
    os._exit(code)
