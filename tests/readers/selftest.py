# SPDX-License-Identifier: Apache-2.0
"""Check that read.py and columnar.py accept correct files and reject wrong ones.

    selftest.py [FOLDER]     keeps the correct files in FOLDER if one is given

Run it with the Python of the environment that setup.sh made. Prints one line for
each case and ends with `N passed, N failed, N skipped`; exits 1 on any failure.
"""
import base64
import contextlib
import copy
import io
import json
import os
import shutil
import sys
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file, save_file

import columnar
import read

PAD = 99


def truth():
    """A conversation of two turns, a branch off its first turn, and an aborted stub."""
    p, a = [11, 12, 13], [21, 22]

    def row(leaf, segments, reward, status, rewards):
        ids, mask, logprobs, entropy, spans, turns = [], [], [], [], [], []
        for is_output, part, *elsewhere in segments:
            for t in part:
                ids.append(t)
                mask.append(int(is_output and not elsewhere))
                logprobs.append(-t / 64 if is_output else None)
                entropy.append(t / 32 if is_output else None)
            spans.append([is_output, len(part)])
            if is_output:
                turns.append([*rewards.pop(0), len(ids) - 1])
        turns = [[number, last, value] for number, value, last in turns]
        return {"turns": turns, "teacher": [None if x is None else x - 0.125 for x in logprobs],
                "session": "s", "leaf": leaf, "token_ids": ids, "loss_mask": mask, "logprobs": logprobs,
                "entropy": entropy, "prompt_len": len(segments[0][1]), "segments": spans, "reward": reward,
                "status": status, "temperature": 0.5,
                "versions": [len(leaf) + int(t > 22) if m else None for t, m in zip(ids, mask)]}

    return [
        row("l0", [(False, p), (True, a), (False, [31, 32]), (True, [23, 24, 25])], 1.0, "completed",
            [(0, 0.25), (1, None)]),
        row("l1", [(False, p), (True, a, "trained in l0"), (False, [41]), (True, [26])], 0.5, "truncated",
            [(0, 0.25), (2, {"score": -2.0})]),
        row("l2", [(False, [11]), (True, [27])], 0.0, "aborted", [(3, None)]),
    ]


REFUSED = [["s", "l3", "aborted"]]


def write(folder, rows):
    """Every export of `rows`, as a correct exporter would write it."""
    B = len(rows)
    refused = [dict(zip(("session", "leaf", "reason"), x)) for x in REFUSED]

    def at(name):
        return os.path.join(folder, name)

    def dump(name, value):
        with open(at(name), "w") as f:
            json.dump(value, f)

    dump("truth.json", {"rows": rows, "refused": REFUSED})

    P = max(r["prompt_len"] for r in rows) + 1
    R = max(len(r["token_ids"]) - r["prompt_len"] for r in rows) + 1
    t = {k: np.zeros((B, R), np.float32) for k in ("rollout_log_probs", "rollout_entropys", "rm_scores")}
    t["prompts"], t["responses"] = np.full((B, P), PAD, np.int64), np.full((B, R), PAD, np.int64)
    t["response_mask"], t["attention_mask"] = np.zeros((B, R), np.int64), np.zeros((B, P + R), np.int64)
    for i, r in enumerate(rows):
        n, (ids, mask, logprobs) = r["prompt_len"], read.response(r)
        m = len(ids)
        t["prompts"][i, P - n :] = r["token_ids"][:n]
        t["responses"][i, :m] = ids
        t["response_mask"][i, :m] = mask
        t["attention_mask"][i, P - n : P + m] = 1
        t["rollout_log_probs"][i, :m] = logprobs
        t["rollout_entropys"][i, :m] = read.zeroed(r["entropy"][n:], mask)
        t["rm_scores"][i] = read.token_scores(r, R)
    if any(r["reward"] is None for r in rows):
        del t["rm_scores"]  # verl writes them for a whole batch or not at all
    t["rollout_entropy"] = t["rollout_entropys"].copy()
    measured = any(e is not None for r in rows for e in r["entropy"])
    if not measured:
        del t["rollout_entropys"], t["rollout_entropy"]
    t["input_ids"] = np.concatenate([t["prompts"], t["responses"]], axis=1)
    t["position_ids"] = np.clip(np.cumsum(t["attention_mask"], axis=1) - 1, 0, None)
    # Lists of one length in every row are the case that numpy would flatten.
    other = {"uid": [r["session"] for r in rows], "flags": [["a", "b"]] * B, "__num_turns__": [4, 4, 2],
             "group": [0, 0, 1], "min_global_steps": [read.steps(r)[0] for r in rows], "max_global_steps": [read.steps(r)[1] for r in rows]}
    rewards = [read.turn_rewards(r) for r in rows]
    if any(rewards):
        other["turn_scores"] = rewards
    of_turns = [{"turn_rewards": x} if x else {} for x in rewards]
    save_file(t, at("verl.safetensors"), {"non_tensor_batch": json.dumps(other), "refused": json.dumps(refused)})

    miles, metas, slime = {}, [], []
    for i, r in enumerate(rows):
        ids, mask, logprobs = read.response(r)
        miles["tokens.%d" % i] = np.array(r["token_ids"], np.int64)
        miles["loss_mask.%d" % i] = np.array(mask, np.uint8)
        miles["rollout_log_probs.%d" % i] = np.array(logprobs, np.float64)
        metas.append({"response": "x", "response_length": len(ids), "status": r["status"], "weight_versions": ["1"],
                      "prefix_cache_info": {}, "metadata": of_turns[i], "reward": r["reward"], "nulls": []})
        slime.append({"tokens": r["token_ids"], "response_length": len(ids), "loss_mask": mask, "rollout_log_probs": logprobs,
                      "status": r["status"], "reward": r["reward"], "rollout_id": 0, "session_id": r["session"],
                      "metadata": of_turns[i]})
        if "teacher" in r:
            slime[i]["teacher_log_probs"] = read.zeroed(r["teacher"][r["prompt_len"] :], mask)
    text = json.dumps({"samples": metas, "session_metadata": {"refused": refused}, "empty_reason": None}).encode()
    miles["_samples_meta"] = np.frombuffer(text, np.uint8)
    save_file(miles, at("miles.safetensors"))
    dump("slime.json", {"samples": slime, "refused": refused})

    L = max(len(r["token_ids"]) for r in rows)

    def padded(values, pad, kind):
        return np.array([v + [pad] * (L - len(v)) for v in values], kind)

    areal = {"input_ids": padded([r["token_ids"] for r in rows], PAD, np.int64),
             "loss_mask": padded([r["loss_mask"] for r in rows], 0, np.int64),
             "logprobs": padded([read.zeroed(r["logprobs"], r["loss_mask"]) for r in rows], 0.0, np.float32),
             "versions": padded([[-1 if v is None else v for v in r["versions"]] for r in rows], -1, np.int64),
             "attention_mask": padded([[True] * len(r["token_ids"]) for r in rows], False, bool)}
    if measured:
        areal["entropy"] = padded([read.zeroed(r["entropy"], r["loss_mask"]) for r in rows], 0.0, np.float32)
    if all(r["reward"] is not None for r in rows):
        areal["rewards"] = np.array([r["reward"] for r in rows], np.float32)
    save_file(areal, at("areal.safetensors"), {"non_tensor_batch": json.dumps(other)})

    strands = [{**x, "token_ids": r["token_ids"], "loss_mask": r["loss_mask"], "segment_info": r["segments"],
                "logprobs": [x if m else None for x, m in zip(r["logprobs"], r["loss_mask"])]}
               for r, x in zip(rows, of_turns)]
    dump("strands.json", {"samples": strands, "refused": refused})
    status = {"completed": "SUCCEEDED", "truncated": "MAX_CONTEXT_LIMIT_REACHED", "aborted": "FAILED"}
    tokens = [{"prompt_tokens": r["token_ids"][: r["prompt_len"]], "conversation_tokens": read.response(r)[0],
               "conversation_masks": read.response(r)[1], "old_logprobs": read.response(r)[2], "status": status[r["status"]],
               "trajectory_reward": r["reward"], "policy_version": read.steps(r)[0], "metadata": x}
              for r, x in zip(rows, of_turns)]
    dump("tunix.json", {"samples": tokens, "refused": refused, "rollout_output": {
        "text": ["x"] * B, "logits": None, "tokens": [read.response(r)[0] for r in rows],
        "left_padded_prompt_tokens": t["prompts"].tolist(), "logprobs": [read.response(r)[2] for r in rows]}})
    traces = [{"session_id": r["session"], "prompt_token_ids": r["token_ids"][:a], "weight_version": r["versions"][a],
               "completion_token_ids": r["token_ids"][a:b], "logprobs": r["logprobs"][a:b]} for r in rows for a, b in read.trained(r)]
    values = [{last + 1: x for _, last, x in r["turns"]}[b] for r in rows for _, b in read.trained(r)]
    for i, (trace, value) in enumerate(zip(traces, values)):
        trace["trace_id"] = "t%d" % i
        trace["metadata"] = {} if value is None else {"turn_reward": value}
    dump("rllm.json", {"samples": traces, "refused": refused})

    names = [{"session": r["session"], "leaf": r["leaf"], "reward": r["reward"], **x} for r, x in zip(rows, of_turns)]
    prompts = [r["token_ids"][: r["prompt_len"]] for r in rows]
    rewards = [r["reward"] for r in rows]
    skyrl = [read.token_scores(r) for r in rows] if any(of_turns) else None if None in rewards else rewards
    stops = {"completed": "stop", "truncated": "length", "aborted": "abort"}
    unknown = ["rollout_metrics", "trajectory_generation_times", "rollout_expert_indices", "is_last_step", "env_metrics", "pixel_values",
               "image_grid_thw"]
    dump("skyrl.json", {"samples": names, "refused": refused, "generator_output": {
        "prompt_token_ids": prompts, "response_ids": [read.response(r)[0] for r in rows], "loss_masks": [read.response(r)[1] for r in rows],
        "rollout_logprobs": [read.response(r)[2] for r in rows], "rewards": skyrl,
        "stop_reasons": [stops[r["status"]] for r in rows], **dict.fromkeys(unknown),
        "trajectory_ids": [{"instance_id": str(p), "repetition_id": prompts[:i].count(p)} for i, p in enumerate(prompts)]}})
    dump("trl.json", {"samples": names, "refused": refused, "rollout": {
        "prompt_ids": prompts, "completion_ids": [read.response(r)[0] for r in rows], "env_mask": [read.response(r)[1] for r in rows],
        "logprobs": [read.response(r)[2] for r in rows], "reward": rewards}})
    logs, data, training = [], [], []
    for r, name in zip(rows, names):
        log, start = [], 0
        for _, length in r["segments"]:
            one = {"role": "user", "content": "", "token_ids": r["token_ids"][start : start + length]}
            if r["loss_mask"][start]:
                one |= {"role": "assistant", "generation_logprobs": r["logprobs"][start : start + length]}
            log.append(one)
            start += length
        logs.append({**name, "message_log": log, "length": start, "loss_multiplier": 1.0, "total_reward": r["reward"], "idx": 0,
                     "truncated": r["status"] == "truncated"})
        logprobs = read.zeroed(r["logprobs"], r["loss_mask"])
        training.append({**name, "training_sample": {
            "token_ids": r["token_ids"], "mask": [bool(m) for m in r["loss_mask"]], "logprobs": logprobs,
            "temperatures": [r["temperature"] if m else 1.0 for m in r["loss_mask"]], "env_name": "tokentap"}})
        lists = {"target_tokens": (r["token_ids"], "int64"), "logprobs": (logprobs, "float32"), "mask": (r["loss_mask"], "float32")}
        data.append({**name, "datum": {
            "model_input": {"chunks": [{"type": "encoded_text", "tokens": r["token_ids"][:-1]}]},
            "loss_fn_inputs": {key: {"data": values[1:], "dtype": dtype, "shape": [len(values) - 1]} for key, (values, dtype) in lists.items()}}})
    dump("nemo-rl.json", {"samples": logs, "refused": refused})
    dump("prime-rl.json", {"samples": training, "refused": refused})
    dump("tinker.json", {"samples": data, "refused": refused})

    keys = ("session", "leaf", "token_ids", "loss_mask", "logprobs", "entropy", "prompt_len", "reward", "status")
    items = [{key: r[key] for key in keys} for r in rows]
    for item, r in zip(items, rows):
        item |= {"columns": scores_of(r), "segments": segments_of(r), "turns": turns_of(r)}
    with open(at("data.jsonl"), "w") as f:
        f.writelines(json.dumps(x) + "\n" for x in items)
    kinds = {"session": pa.string(), "leaf": pa.string(), "token_ids": pa.list_(pa.int32()), "loss_mask": pa.list_(pa.int8()),
             "logprobs": pa.list_(pa.float32()), "entropy": pa.list_(pa.float32()), "prompt_len": pa.uint32(),
             "reward": pa.float64(), "status": pa.string(), "columns": COLUMNS, "segments": SEGMENTS, "turns": TURNS}
    for item in items:
        item["columns"] = [{**column, "data": base64.b64decode(column["data"])} for column in item["columns"]]
    table(folder, pa.Table.from_pylist(items, pa.schema(list(kinds.items()), {"refused": json.dumps(refused)})))


RANGES = pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64())]))
COLUMNS = pa.list_(pa.struct([("name", pa.string()), ("type", pa.string()), ("tokens", RANGES),
                              ("shape", pa.list_(pa.int64())), ("data", pa.binary())]))
SEGMENTS = pa.list_(pa.struct([("turn", pa.int64()), ("start", pa.int64()), ("end", pa.int64())]))
TURNS = pa.list_(pa.struct([("id", pa.int64()), ("reward", pa.float64()), ("reward_json", pa.string())]))


def scores_of(row):
    """The token column of the teacher, with one range for each token."""
    at = [i for i, x in enumerate(row.get("teacher", [])) if x is not None]
    data = np.array([row["teacher"][i] for i in at], "<f4").tobytes()
    tokens = [{"start": i, "end": i + 1} for i in at]
    column = {"name": "teacher_logprobs", "type": "f32", "shape": [], "tokens": tokens}
    column["data"] = base64.b64encode(data).decode()
    return [column] * bool(at)


def segments_of(row):
    """The segments of the outputs."""
    ends = np.cumsum([length for _, length in row["segments"]]).tolist()
    outputs = [(end - length, end) for (is_output, length), end in zip(row["segments"], ends) if is_output]
    return [{"turn": number, "start": start, "end": end} for (number, _, _), (start, end) in zip(row["turns"], outputs)]


def turns_of(row):
    return [{"id": number, "reward": read.number(value), "reward_json": None if value is None else json.dumps(value)}
            for number, _, value in row["turns"]]


def table(folder, t):
    with pa.ipc.new_stream(os.path.join(folder, "data.arrow"), t.schema) as out:
        out.write_table(t)
    pq.write_table(t, os.path.join(folder, "data.parquet"))


# ---- wrong files: (reader, what is wrong, change, words the verdict must hold) -----


def tensors(name, change):
    def f(folder):
        path = os.path.join(folder, name)
        t = load_file(path)
        with read_meta(path) as meta:
            change(t)
        save_file({k: np.ascontiguousarray(v) for k, v in t.items()}, path, meta)

    return f


@contextlib.contextmanager
def read_meta(path):
    from safetensors import safe_open

    with safe_open(path, framework="np") as f:
        yield f.metadata()


def document(name, change):
    def f(folder):
        path = os.path.join(folder, name)
        value = read.json_file(path)
        change(value)
        with open(path, "w") as out:
            json.dump(value, out)

    return f


def sample_of(name, at, change):
    """Changes one sample of a JSON format."""
    return document(name + ".json", lambda v: change(v["samples"][at]))


def meta_of(change):
    def f(folder):
        path = os.path.join(folder, "verl.safetensors")
        t = load_file(path)
        meta = next(iter_meta(path))
        other = json.loads(meta["non_tensor_batch"])
        change(other)
        save_file(t, path, {**meta, "non_tensor_batch": json.dumps(other)})

    return f


def iter_meta(path):
    with read_meta(path) as meta:
        yield meta


def columns(change):
    def f(folder):
        table(folder, change(pq.read_table(os.path.join(folder, "data.parquet"))))

    return f


def cast(key, kind):
    def f(t):
        return t.set_column(t.column_names.index(key), key, t[key].cast(kind))

    return f


def put(t, key, value):
    t[key] = value


def shift(x):
    return np.roll(x, 1, axis=-1)


def samples(change):
    def f(t):
        meta = json.loads(t["_samples_meta"].tobytes())
        change(meta["samples"])
        t["_samples_meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)

    return f


V, M, A = "verl.safetensors", "miles.safetensors", "areal.safetensors"
WRONG = [
    ("verl", "mask shifted by one", tensors(V, lambda t: put(t, "response_mask", shift(t["response_mask"]))), "response_mask"),
    ("verl", "prompts int32", tensors(V, lambda t: put(t, "prompts", t["prompts"].astype(np.int32))), "prompts is"),
    ("verl", "prompts padded on the right", tensors(V, lambda t: put(t, "prompts", shift(t["prompts"]))), "input_ids is not"),
    ("verl", "logprobs float64", tensors(V, lambda t: put(t, "rollout_log_probs", t["rollout_log_probs"].astype(np.float64))), "float64"),
    ("verl", "logprob at a tool token", tensors(V, lambda t: t["rollout_log_probs"].__setitem__((0, 2), -1)), "rollout_log_probs[2]"),
    ("verl", "entropies shifted", tensors(V, lambda t: [put(t, k, shift(t[k])) for k in ("rollout_entropys", "rollout_entropy")]), "rollout_entropys"),
    ("verl", "the actor's key", tensors(V, lambda t: put(t, "entropys", t["rollout_entropys"].copy())), "belongs to the actor"),
    ("verl", "no entropies", tensors(V, lambda t: t.pop("rollout_entropys")), "no tensor"),
    ("verl", "one row less in one tensor", tensors(V, lambda t: put(t, "rm_scores", t["rm_scores"][:2])), "same batch size"),
    ("verl", "non-tensor list too short", meta_of(lambda o: o["uid"].pop()), "not equal to batch size"),
    ("verl", "positions from 1", tensors(V, lambda t: put(t, "position_ids", t["position_ids"] + 1)), "position_ids"),
    ("verl", "reward at the last column", tensors(V, lambda t: put(t, "rm_scores", shift(t["rm_scores"]))), "rm_scores"),
    ("verl", "groups of sessions", meta_of(lambda o: put(o, "group", [0, 0, 0])), "group[2]"),
    ("verl", "other steps", meta_of(lambda o: o["min_global_steps"].reverse()), "global_steps"),
    ("verl", "no metadata", lambda d: save_file(load_file(os.path.join(d, V)), os.path.join(d, V)), "no non_tensor_batch"),
    ("miles", "mask shifted by one", tensors(M, lambda t: put(t, "loss_mask.0", shift(t["loss_mask.0"]))), "loss_mask"),
    ("miles", "mask of the whole sequence", tensors(M, lambda t: put(t, "loss_mask.2", np.array([0, 1], np.uint8))), "validate"),
    ("miles", "tokens int32", tensors(M, lambda t: put(t, "tokens.1", t["tokens.1"].astype(np.int32))), "int32"),
    ("miles", "logprobs float32", tensors(M, lambda t: put(t, "rollout_log_probs.0", t["rollout_log_probs.0"].astype(np.float32))), "float32"),
    ("miles", "unknown status", tensors(M, samples(lambda s: put(s[0], "status", "done"))), "done"),
    ("miles", "a sample too many", tensors(M, lambda t: put(t, "tokens.3", t["tokens.0"])), "no sample names"),
    ("areal", "mask int32", tensors(A, lambda t: put(t, "loss_mask", t["loss_mask"].astype(np.int32))), "int32"),
    ("areal", "version at the prompt", tensors(A, lambda t: put(t, "versions", t["versions"] * 0)), "at mask 0"),
    ("areal", "logprobs shifted", tensors(A, lambda t: put(t, "logprobs", shift(t["logprobs"]))), "logprobs"),
    ("areal", "another policy's version", tensors(A, lambda t: t["versions"].__setitem__((0, 3), 9)), "versions[3] is 9"),
    ("areal", "no entropies", tensors(A, lambda t: t.pop("entropy")), "`entropy` must exist"),
    ("slime", "mask shifted by one", document("slime.json", lambda v: put(v["samples"][0], "loss_mask", v["samples"][0]["loss_mask"][-1:] + v["samples"][0]["loss_mask"][:-1])), "loss_mask"),
    ("slime", "null logprobs", document("slime.json", lambda v: v["samples"][0]["rollout_log_probs"].__setitem__(2, None)), "None"),
    ("slime", "no status", document("slime.json", lambda v: v["samples"][1].pop("status")), "status"),
    ("slime", "response_length of the whole", document("slime.json", lambda v: put(v["samples"][2], "response_length", 2)), "validate"),
    ("strands", "mask shifted by one", document("strands.json", lambda v: put(v["samples"][0], "loss_mask", [1] + v["samples"][0]["loss_mask"][:-1])), "loss_mask"),
    ("strands", "0.0 for a prompt's logprob", document("strands.json", lambda v: v["samples"][0]["logprobs"].__setitem__(0, 0.0)), "logprobs[0]"),
    ("strands", "two segments joined", document("strands.json", lambda v: put(v["samples"][0], "segment_info", [[False, 3], [True, 7]])), "segment_info"),
    ("strands", "a token id as text", document("strands.json", lambda v: v["samples"][0]["token_ids"].__setitem__(0, "11")), "token_ids"),
    ("tunix", "tool tokens left out", document("tunix.json", lambda v: put(v["rollout_output"]["tokens"], 0, [21, 22, 23, 24, 25])), "tokens"),
    ("tunix", "a token of 1.5", document("tunix.json", lambda v: v["rollout_output"]["tokens"][0].__setitem__(0, 21.5)), "integers"),
    ("tunix", "prompts of two lengths", document("tunix.json", lambda v: v["rollout_output"]["left_padded_prompt_tokens"][1].pop(0)), "lengths"),
    ("tunix", "no text", document("tunix.json", lambda v: v["rollout_output"].pop("text")), "text"),
    ("skyrl", "masks shifted", document("skyrl.json", lambda v: v["generator_output"]["loss_masks"][0].reverse()), "loss_masks"),
    ("skyrl", "a logprob too few", document("skyrl.json", lambda v: v["generator_output"]["rollout_logprobs"][0].pop()), "validate_generator_output"),
    ("skyrl", "a member too few", document("skyrl.json", lambda v: v["generator_output"].pop("is_last_step")), "members of generator_output"),
    ("skyrl", "one name for all prompts", document("skyrl.json", lambda v: put(v["generator_output"]["trajectory_ids"][2], "instance_id", str([11, 12, 13]))), "one name of two prompts"),
    ("nemo-rl", "context of the assistant with logprobs", document("nemo-rl.json", lambda v: v["samples"][1]["message_log"][1].update(role="assistant", generation_logprobs=[-1.0, -1.0])), "token_loss_mask"),
    ("nemo-rl", "logprobs of the user", document("nemo-rl.json", lambda v: put(v["samples"][0]["message_log"][1], "role", "user")), "token_loss_mask"),
    ("nemo-rl", "a message left out", document("nemo-rl.json", lambda v: v["samples"][0]["message_log"].pop(2)), "length of the flat message"),
    ("prime-rl", "mask of integers", document("prime-rl.json", lambda v: put(v["samples"][0]["training_sample"], "mask", [0] * 10)), "bool"),
    ("prime-rl", "the temperature of another turn", document("prime-rl.json", lambda v: v["samples"][0]["training_sample"]["temperatures"].__setitem__(3, 1.0)), "temperatures"),
    ("prime-rl", "logprobs of the response alone", document("prime-rl.json", lambda v: put(v["samples"][2]["training_sample"], "logprobs", [-0.5])), "inference_logprobs"),
    ("trl", "no logprobs", document("trl.json", lambda v: v["rollout"].pop("logprobs")), "logprobs"),
    ("trl", "mask shifted by one", document("trl.json", lambda v: put(v["rollout"]["env_mask"], 0, v["rollout"]["env_mask"][0][-1:] + v["rollout"]["env_mask"][0][:-1])), "tool_mask"),
    ("trl", "rewards of other rows", document("trl.json", lambda v: v["rollout"]["reward"].reverse()), "reward"),
    ("tinker", "targets that are not shifted", document("tinker.json", lambda v: put(v["samples"][0]["datum"]["loss_fn_inputs"]["target_tokens"], "data", v["samples"][0]["datum"]["model_input"]["chunks"][0]["tokens"])), "target_tokens[0]"),
    ("tinker", "another dtype", document("tinker.json", lambda v: put(v["samples"][0]["datum"]["loss_fn_inputs"]["mask"], "dtype", "int64")), "mask is int64"),
    ("tinker", "a chunk of another type", document("tinker.json", lambda v: put(v["samples"][0]["datum"]["model_input"]["chunks"][0], "type", "text")), "type"),
    ("tunix", "an untrained token in the masks", document("tunix.json", lambda v: v["samples"][1]["conversation_masks"].__setitem__(0, 1)), "conversation_masks[0]"),
    ("tunix", "no policy", document("tunix.json", lambda v: put(v["samples"][0], "policy_version", None)), "policy_version"),
    ("rllm", "another policy", document("rllm.json", lambda v: put(v["samples"][0], "weight_version", 1)), "weight_version"),
    ("rllm", "a generation left out", document("rllm.json", lambda v: v["samples"].pop()), "have a record"),
    ("rllm", "null among the logprobs", document("rllm.json", lambda v: v["samples"][0]["logprobs"].__setitem__(0, None)), "TraceRecord"),
    ("rllm", "prompt without the tool tokens", document("rllm.json", lambda v: v["samples"][1]["prompt_token_ids"].pop()), "no row"),
    ("jsonl", "entropies shifted", lambda d: rewrite_lines(d, lambda v: put(v[0], "entropy", v[0]["entropy"][-1:] + v[0]["entropy"][:-1])), "entropy"),
    ("jsonl", "rows swapped", lambda d: rewrite_lines(d, lambda v: v.insert(0, v.pop(1))), "leaf"),
    ("jsonl", "a row left out", lambda d: rewrite_lines(d, lambda v: v.pop()), "lines"),
    ("arrow", "a leaf left out unsaid", columns(lambda t: t.replace_schema_metadata({"refused": "[]"})), "refused"),
    ("slime", "another reason", document("slime.json", lambda v: put(v["refused"][0], "reason", "broken")), "refused[0]"),
    ("arrow", "ids int64", columns(cast("token_ids", pa.list_(pa.int64()))), "token_ids is"),
    ("arrow", "entropy float64", columns(cast("entropy", pa.list_(pa.float64()))), "entropy is"),
    ("arrow", "no entropy", columns(lambda t: t.drop_columns(["entropy"])), "no column"),
    ("parquet", "a row less", columns(lambda t: t.slice(0, 2)), "rows"),
    ("parquet", "cut short", lambda d: os.truncate(os.path.join(d, "data.parquet"), 100), ""),
    ("verl", "a turn's reward at the first token of the next turn",
     tensors(V, lambda t: t["rm_scores"][0].__setitem__(slice(0, 4), [0, 0, 0, 0.25])), "rm_scores[1]"),
    ("verl", "no rewards of turns", meta_of(lambda o: o.pop("turn_scores")), "turn_scores"),
    ("verl", "rewards of turns reversed", meta_of(lambda o: o["turn_scores"][1].reverse()), "turn_scores[1]"),
    ("areal", "no rewards of turns", lambda d: save_file(load_file(os.path.join(d, A)), os.path.join(d, A)),
     "turn_scores"),
    ("slime", "the reward of another turn", sample_of("slime", 0, lambda s: s["metadata"]["turn_rewards"].reverse()),
     "rewards of turns"),
    ("miles", "no rewards of turns", tensors(M, samples(lambda s: s[1]["metadata"].pop("turn_rewards"))),
     "rewards of turns"),
    ("tunix", "no rewards of turns", sample_of("tunix", 0, lambda s: s.pop("metadata")), "rewards of turns"),
    ("strands", "the number of an object", sample_of("strands", 1, lambda s: put(s["turn_rewards"], 1, -2.0)),
     "rewards of turns"),
    ("rllm", "a turn's reward at another turn",
     sample_of("rllm", 1, lambda s: put(s["metadata"], "turn_reward", 0.25)), "turn_reward is 0.25"),
    ("skyrl", "a turn's reward at the last token of the row",
     document("skyrl.json", lambda v: put(v["generator_output"]["rewards"], 0, [0.0] * 6 + [1.25])), "rewards["),
    ("skyrl", "rewards of the rows alone",
     document("skyrl.json", lambda v: put(v["generator_output"], "rewards", [1.0, 0.5, 0.0])), "rewards["),
    *[(name, "no rewards of turns", sample_of(name, 0, lambda s: s.pop("turn_rewards")), "rewards of turns")
      for name in ("nemo-rl", "prime-rl", "trl", "tinker")],
    ("jsonl", "a turn's reward at another turn",
     lambda d: rewrite_lines(d, lambda v: put(v[0]["turns"][1], "reward", 0.25)), "turn 1 reward"),
    ("jsonl", "a turn that ends a token early",
     lambda d: rewrite_lines(d, lambda v: put(v[0]["segments"][0], "end", 4)), "turn 0 ends at 3"),
    ("slime", "scores of other tokens", sample_of("slime", 0, lambda s: s["teacher_log_probs"].reverse()),
     "teacher_log_probs[0]"),
    ("slime", "no scores", sample_of("slime", 2, lambda s: s.pop("teacher_log_probs")), "teacher_log_probs must exist"),
    ("jsonl", "scores of another token",
     lambda d: rewrite_lines(d, lambda v: v[2]["columns"][0]["tokens"][0].update(start=0, end=1)),
     "teacher_logprobs[0]"),
    ("arrow", "file missing", lambda d: os.unlink(os.path.join(d, "data.arrow")), "No such file"),
]


def rewrite_lines(folder, change):
    path = os.path.join(folder, "data.jsonl")
    with open(path) as f:
        items = [json.loads(x) for x in f]
    change(items)
    with open(path, "w") as f:
        f.writelines(json.dumps(x) + "\n" for x in items)


def run(folder, names):
    """read.py's lines for these readers, by name, and its exit code."""
    out, argv = io.StringIO(), sys.argv
    sys.argv = ["read.py", folder, "--only", ",".join(names)]
    try:
        with contextlib.redirect_stdout(out):
            code = read.main()
    finally:
        sys.argv = argv
    lines = {}
    for line in out.getvalue().splitlines():
        word, name, detail = line.split(" ", 2)
        lines[name] = (word, detail)
    return lines, code


def columns_of(folder, extras=('{"input_top_logprobs": []}', None), refused=REFUSED):
    """An export of one row with the columns that columnar.py looks at by name."""
    os.makedirs(folder)
    turns = [{"extras": value, "sampling": None} for value in extras]
    row = {"schema_version": 2, "row_key": "k", "token_ids": [1, 2], "loss_mask": [0, 1], "entropy": [None, 0.5],
           "columns": [], "turns": turns}
    turn = pa.struct([("extras", pa.string()), ("sampling", pa.string())])
    kinds = {"schema_version": pa.int64(), "row_key": pa.string(), "token_ids": pa.list_(pa.int32()),
             "loss_mask": pa.list_(pa.int8()), "entropy": pa.list_(pa.float32()), "columns": COLUMNS,
             "turns": pa.list_(turn)}
    leaves = [dict(zip(("session", "leaf", "reason"), x)) for x in refused]
    metadata = {"tokentap_schema_version": "2", "tokentap_version": "0", "entropy_unit": "nats", "refused": json.dumps(leaves)}
    table(folder, pa.Table.from_pylist([row], pa.schema(list(kinds.items()), metadata)))
    with open(os.path.join(folder, "data.jsonl"), "w") as f:
        f.write(json.dumps(row) + "\n")
    with open(os.path.join(folder, "truth.json"), "w") as f:
        json.dump({"rows": [], "refused": REFUSED}, f)
    return folder


def run_columnar(folder):
    """columnar.py's words and details, by reader, of those that need only the base packages."""
    lines = {}
    for name in ("pyarrow", "extras", "refused"):
        try:
            lines[name] = ("ok", columnar.READERS[name](folder))
        except read.Wrong as wrong:
            lines[name] = ("FAIL", str(wrong))
    return lines


def check_columnar(top, say):
    lines = run_columnar(columns_of(os.path.join(top, "columns", "mixed")))
    for name, (word, detail) in lines.items():
        say(word == "ok", "columnar %s, right files: %s" % (name, detail))
    none = (None, None)
    say(run_columnar(columns_of(os.path.join(top, "none", "whole"), none))["extras"][0] == "ok", "columnar extras, a batch without extras")
    wrong = [("extras", "mixed without extras", {"extras": none}, "no turn"),
             ("extras", "extras of a list", {"extras": ("[1]", None)}, "no object"),
             ("refused", "a leaf left out unsaid", {"refused": []}, "refused"),
             ("refused", "another reason", {"refused": [["s", "l3", "broken"]]}, "refused[0]")]
    for i, (name, what, change, words) in enumerate(wrong):
        word, detail = run_columnar(columns_of(os.path.join(top, "columns%d" % i, "mixed"), **change))[name]
        say(word == "FAIL" and words in detail, "columnar %s, %s: %s %s" % (name, what, word, detail[:150]))


def main():
    keep = sys.argv[1] if len(sys.argv) > 1 else None
    passed = failed = skipped = 0

    def say(fine, text):
        nonlocal passed, failed
        passed, failed = passed + bool(fine), failed + (not fine)
        print("%s %s" % ("ok  " if fine else "FAIL", text), flush=True)

    with tempfile.TemporaryDirectory() as top:
        right = os.path.join(top, "right")
        os.mkdir(right)
        write(right, truth())
        if keep:
            shutil.copytree(right, keep, dirs_exist_ok=True)
        lines, code = run(right, read.READERS)
        absent = {name for name, (word, _) in lines.items() if word == "skip"}
        for name, (word, detail) in lines.items():
            if word == "skip":
                skipped += 1
                print("skip %s: %s" % (name, detail))
            else:
                say(word == "ok", "%s, right files: %s" % (name, detail))
        say(code == 0, "right files: exit %d" % code)

        # Nothing recorded but the tokens and logprobs, and a reward in only some rows.
        bare = os.path.join(top, "bare")
        os.mkdir(bare)
        rows = copy.deepcopy(truth())
        for r in rows:
            r["entropy"] = [None] * len(r["entropy"])
            r["turns"] = [[number, last, None] for number, last, _ in r["turns"]]
            del r["teacher"]
        rows[1]["reward"] = None
        write(bare, rows)
        lines, code = run(bare, read.READERS)
        failures = [detail for word, detail in lines.values() if word == "FAIL"]
        say(code == 0, "no entropies, no rewards of turns, one reward unknown: exit %d %s" % (code, failures))

        for i, (name, what, change, words) in enumerate(WRONG):
            if name in absent:
                skipped += 1
                print("skip %s, %s" % (name, what))
                continue
            folder = os.path.join(top, "wrong%d" % i)
            shutil.copytree(right, folder)
            change(folder)
            lines, code = run(folder, [name])
            word, detail = lines[name]
            say(word == "FAIL" and code == 1 and words in detail, "%s, %s: %s %s" % (name, what, word, detail[:150]))

        check_columnar(top, say)

        lying = os.path.join(top, "lying")
        shutil.copytree(right, lying)
        rows = truth()
        rows[0]["segments"][0][1] += 1
        with open(os.path.join(lying, "truth.json"), "w") as f:
            json.dump({"rows": rows}, f)
        lines, code = run(lying, ["jsonl"])
        say(code == 1 and lines["truth"][0] == "FAIL", "a truth that contradicts itself: %s" % lines["truth"][1])
    print("%d passed, %d failed, %d skipped" % (passed, failed, skipped))
    return 1 if failed else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
