"""Prove that read.py passes right files and fails wrong ones.

    selftest.py [FOLDER]     keeps the right files in FOLDER if one is given

Run it with the Python of the environment that setup.sh made. Prints one line for
each case and closes with `N passed, N failed, N skipped`; exits 1 on any failure.
"""
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

import read

PAD = 99


def truth():
    """A conversation of two turns, a branch off its first turn, and an aborted stub."""
    p, a = [11, 12, 13], [21, 22]

    def row(leaf, segments, reward, status):
        ids, mask, logprobs, entropy, spans = [], [], [], [], []
        for is_output, part in segments:
            for t in part:
                ids.append(t)
                mask.append(int(is_output))
                logprobs.append(-t / 64 if is_output else None)
                entropy.append(t / 32 if is_output else None)
            spans.append([is_output, len(part)])
        return {"session": "s", "leaf": leaf, "token_ids": ids, "loss_mask": mask, "logprobs": logprobs, "entropy": entropy,
                "prompt_len": len(segments[0][1]), "segments": spans, "reward": reward, "status": status}

    return [
        row("l0", [(False, p), (True, a), (False, [31, 32]), (True, [23, 24, 25])], 1.0, "completed"),
        row("l1", [(False, p), (True, a), (False, [41]), (True, [26])], 0.5, "truncated"),
        row("l2", [(False, [11]), (True, [27])], 0.0, "aborted"),
    ]


def write(folder, rows):
    """Every export of `rows`, as a correct exporter would write it."""
    B = len(rows)

    def at(name):
        return os.path.join(folder, name)

    def dump(name, value):
        with open(at(name), "w") as f:
            json.dump(value, f)

    dump("truth.json", {"rows": rows})

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
        t["rm_scores"][i, m - 1] = r["reward"] or 0.0
    if any(r["reward"] is None for r in rows):
        del t["rm_scores"]  # verl writes them for a whole batch or not at all
    t["rollout_entropy"] = t["rollout_entropys"].copy()
    t["input_ids"] = np.concatenate([t["prompts"], t["responses"]], axis=1)
    t["position_ids"] = np.clip(np.cumsum(t["attention_mask"], axis=1) - 1, 0, None)
    # Lists of one length in every row are the case that numpy would flatten.
    other = {"uid": [r["session"] for r in rows], "turn_scores": [[0.0, 1.0]] * B, "__num_turns__": [4, 4, 2]}
    save_file(t, at("verl.safetensors"), {"non_tensor_batch": json.dumps(other)})

    miles, metas, slime = {}, [], []
    for i, r in enumerate(rows):
        ids, mask, logprobs = read.response(r)
        miles["tokens.%d" % i] = np.array(r["token_ids"], np.int64)
        miles["loss_mask.%d" % i] = np.array(mask, np.uint8)
        miles["rollout_log_probs.%d" % i] = np.array(logprobs, np.float64)
        metas.append({"response": "x", "response_length": len(ids), "status": r["status"], "weight_versions": ["1"],
                      "prefix_cache_info": {}, "metadata": {}, "reward": r["reward"], "nulls": []})
        slime.append({"tokens": r["token_ids"], "response_length": len(ids), "loss_mask": mask, "rollout_log_probs": logprobs,
                      "status": r["status"], "reward": r["reward"], "rollout_id": 0, "session_id": r["session"]})
    text = json.dumps({"samples": metas, "session_metadata": {}, "empty_reason": None}).encode()
    miles["_samples_meta"] = np.frombuffer(text, np.uint8)
    save_file(miles, at("miles.safetensors"))
    dump("slime.json", slime)

    areal = {}
    for i, r in enumerate(rows):
        areal["input_ids.%d" % i] = np.array([r["token_ids"]], np.int64)
        areal["loss_mask.%d" % i] = np.array([r["loss_mask"]], np.int64)
        areal["logprobs.%d" % i] = np.array([read.zeroed(r["logprobs"], r["loss_mask"])], np.float32)
        areal["versions.%d" % i] = np.array([[0 if m else -1 for m in r["loss_mask"]]], np.int64)
        areal["attention_mask.%d" % i] = np.ones((1, len(r["token_ids"])), bool)
        areal["rewards.%d" % i] = np.array([r["reward"] or 0.0], np.float32)
    save_file(areal, at("areal.safetensors"))

    dump("strands.json", [{"token_ids": r["token_ids"], "loss_mask": r["loss_mask"], "logprobs": r["logprobs"], "routed_experts": [],
                           "image_data": [], "segment_info": r["segments"]} for r in rows])
    dump("tunix.json", {"text": ["x"] * B, "logits": None, "tokens": [read.response(r)[0] for r in rows],
                        "left_padded_prompt_tokens": t["prompts"].tolist(), "logprobs": [read.response(r)[2] for r in rows]})
    traces, seen = [], set()
    for r in rows:
        k = 0
        for is_output, n in r["segments"]:
            key = tuple(r["token_ids"][: k + n])
            if is_output and key not in seen:
                seen.add(key)
                traces.append({"trace_id": "t%d" % len(traces), "session_id": r["session"], "prompt_token_ids": r["token_ids"][:k],
                               "completion_token_ids": r["token_ids"][k : k + n], "logprobs": r["logprobs"][k : k + n], "weight_version": 1})
            k += n
    dump("rllm.json", traces)

    items = [{k: v for k, v in r.items() if k != "segments"} for r in rows]
    with open(at("data.jsonl"), "w") as f:
        f.writelines(json.dumps(x) + "\n" for x in items)
    kinds = {"session": pa.string(), "leaf": pa.string(), "token_ids": pa.list_(pa.uint32()), "loss_mask": pa.list_(pa.uint8()),
             "logprobs": pa.list_(pa.float32()), "entropy": pa.list_(pa.float32()), "prompt_len": pa.uint32(),
             "reward": pa.float64(), "status": pa.string()}
    table(folder, pa.Table.from_pylist(items, pa.schema(list(kinds.items()))))


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


def meta_of(change):
    def f(folder):
        path = os.path.join(folder, "verl.safetensors")
        t = load_file(path)
        other = json.loads(next(iter_meta(path))["non_tensor_batch"])
        change(other)
        save_file(t, path, {"non_tensor_batch": json.dumps(other)})

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
    ("verl", "no metadata", lambda d: save_file(load_file(os.path.join(d, V)), os.path.join(d, V)), "no non_tensor_batch"),
    ("miles", "mask shifted by one", tensors(M, lambda t: put(t, "loss_mask.0", shift(t["loss_mask.0"]))), "loss_mask"),
    ("miles", "mask of the whole sequence", tensors(M, lambda t: put(t, "loss_mask.2", np.array([0, 1], np.uint8))), "validate"),
    ("miles", "tokens int32", tensors(M, lambda t: put(t, "tokens.1", t["tokens.1"].astype(np.int32))), "int32"),
    ("miles", "logprobs float32", tensors(M, lambda t: put(t, "rollout_log_probs.0", t["rollout_log_probs.0"].astype(np.float32))), "float32"),
    ("miles", "unknown status", tensors(M, samples(lambda s: put(s[0], "status", "done"))), "done"),
    ("miles", "a sample too many", tensors(M, lambda t: put(t, "tokens.3", t["tokens.0"])), "no sample names"),
    ("areal", "mask int32", tensors(A, lambda t: put(t, "loss_mask.0", t["loss_mask.0"].astype(np.int32))), "int32"),
    ("areal", "version at the prompt", tensors(A, lambda t: put(t, "versions.0", t["versions.0"] * 0)), "at mask 0"),
    ("areal", "logprobs shifted", tensors(A, lambda t: put(t, "logprobs.1", shift(t["logprobs.1"]))), "logprobs"),
    ("slime", "mask shifted by one", document("slime.json", lambda v: put(v[0], "loss_mask", v[0]["loss_mask"][-1:] + v[0]["loss_mask"][:-1])), "loss_mask"),
    ("slime", "null logprobs", document("slime.json", lambda v: v[0]["rollout_log_probs"].__setitem__(2, None)), "None"),
    ("slime", "no status", document("slime.json", lambda v: v[1].pop("status")), "status"),
    ("slime", "response_length of the whole", document("slime.json", lambda v: put(v[2], "response_length", 2)), "validate"),
    ("strands", "mask shifted by one", document("strands.json", lambda v: put(v[0], "loss_mask", [1] + v[0]["loss_mask"][:-1])), "loss_mask"),
    ("strands", "0.0 for a prompt's logprob", document("strands.json", lambda v: v[0]["logprobs"].__setitem__(0, 0.0)), "logprobs[0]"),
    ("strands", "two segments joined", document("strands.json", lambda v: put(v[0], "segment_info", [[False, 3], [True, 7]])), "segment_info"),
    ("strands", "a token id as text", document("strands.json", lambda v: v[0]["token_ids"].__setitem__(0, "11")), "token_ids"),
    ("tunix", "tool tokens left out", document("tunix.json", lambda v: put(v["tokens"], 0, [21, 22, 23, 24, 25])), "tokens"),
    ("tunix", "a token of 1.5", document("tunix.json", lambda v: v["tokens"][0].__setitem__(0, 21.5)), "integers"),
    ("tunix", "prompts of two lengths", document("tunix.json", lambda v: v["left_padded_prompt_tokens"][1].pop(0)), "lengths"),
    ("tunix", "no text", document("tunix.json", lambda v: v.pop("text")), "text"),
    ("rllm", "a generation left out", document("rllm.json", lambda v: v.pop()), "have a record"),
    ("rllm", "null among the logprobs", document("rllm.json", lambda v: v[0]["logprobs"].__setitem__(0, None)), "TraceRecord"),
    ("rllm", "prompt without the tool tokens", document("rllm.json", lambda v: v[1]["prompt_token_ids"].pop()), "no row"),
    ("jsonl", "entropies shifted", lambda d: rewrite_lines(d, lambda v: put(v[0], "entropy", v[0]["entropy"][-1:] + v[0]["entropy"][:-1])), "entropy"),
    ("jsonl", "rows swapped", lambda d: rewrite_lines(d, lambda v: v.reverse()), "leaf"),
    ("arrow", "ids int64", columns(cast("token_ids", pa.list_(pa.int64()))), "token_ids is"),
    ("arrow", "entropy float64", columns(cast("entropy", pa.list_(pa.float64()))), "entropy is"),
    ("arrow", "no entropy", columns(lambda t: t.drop_columns(["entropy"])), "no column"),
    ("parquet", "a row less", columns(lambda t: t.slice(0, 2)), "rows"),
    ("parquet", "cut short", lambda d: os.truncate(os.path.join(d, "data.parquet"), 100), ""),
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
        rows[1]["reward"] = None
        write(bare, rows)
        lines, code = run(bare, read.READERS)
        say(code == 0, "no entropies, one reward unknown: exit %d %s" % (code, [d for w, d in lines.values() if w == "FAIL"]))

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
