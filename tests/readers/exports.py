# SPDX-License-Identifier: Apache-2.0
"""Run a scripted agent with `tokentap demo`, then write the expected rows and fetch the exports.

    exports.py FOLDER --data URL --control URL [--think-start ID --think-end ID]

Makes a directory for each batch of sessions in FOLDER, with truth.json and the export files for read.py. The truth is
derived only from the requests and replies of the client, not from exports. Then compares
POST /v1/advantages with NumPy and, where verl is installed, with verl's own function. Prints a line per check
(`ok|skip|FAIL`); exits 1 on any FAIL.
"""
import argparse
import base64
import collections
import json
import os
import random
import sys
import urllib.error
import urllib.request

import numpy as np

import egpo_reference
import read

FILES = {"verl": "verl.safetensors", "miles": "miles.safetensors", "areal": "areal.safetensors", "slime": "slime.json",
         "tunix": "tunix.json", "strands": "strands.json", "rllm": "rllm.json", "skyrl": "skyrl.json",
         "nemo-rl": "nemo-rl.json", "prime-rl": "prime-rl.json", "trl": "trl.json", "tinker": "tinker.json", "jsonl": "data.jsonl",
         "arrow": "data.arrow", "parquet": "data.parquet"}
PAD = 1023  # of the demo's vocabulary; no prompt below holds it
bad = []


def say(word, name, detail):
    bad.extend([name] * (word == "FAIL"))
    print("%s %s %s" % (word, name, detail), flush=True)


def call(url, body=None, headers=()):
    data = None if body is None else json.dumps(body).encode()
    head = {"Content-Type": "application/json", **dict(headers)}
    return urllib.request.urlopen(urllib.request.Request(url, data, head), timeout=60)


def fold(events):
    """The reply of a stream of cumulative or incremental events."""
    last = events[-1]
    for get in (lambda e: e, lambda e: e["meta_info"]):
        for key in ("output_ids", "output_token_logprobs", "output_token_entropy"):
            parts = [get(e)[key] for e in events if key in get(e)]
            if len(parts) > 1 and len(parts[-1]) < last["meta_info"]["completion_tokens"]:
                get(last)[key] = [x for part in parts for x in part]
    return last


def experts(text):
    """The routed experts of the demo's model: three layers with two each."""
    return np.frombuffer(base64.b64decode(text), "int32").reshape(-1, 3, 2).tolist()


class Turn:
    """A generation from the view of its client."""

    def __init__(self, number, parent, prompt, reply, version):
        meta = reply["meta_info"]
        self.number, self.parent, self.prompt, self.version = number, parent, prompt, version
        self.output = reply["output_ids"]
        rows = meta["output_token_logprobs"]
        assert [row[1] for row in rows] == self.output, "logprobs of other tokens"
        self.logprobs = [row[0] for row in rows]
        self.entropy = meta.get("output_token_entropy", [None] * len(self.output))
        self.finish = meta["finish_reason"]["type"]
        self.trained = bool(self.output) and self.finish != "abort"
        self.experts = meta.get("routed_experts") and experts(meta["routed_experts"])
        self.reward = self.scores = None

    def line(self):
        """The turns from the root to this one."""
        return (self.parent.line() if self.parent else []) + [self]

    def tokens(self):
        return [x for turn in self.line() for x in turn.prompt + turn.output]


class Session:
    """One conversation, with the state of its client."""

    def __init__(self, agent, name, how="header", temperature=1.0, **ask):
        self.agent, self.name, self.how, self.temperature, self.ask = agent, name, how, temperature, ask
        self.turns, self.rewards = [], {}

    def go(self, after, new, text=None, stream=False, abort=False, n=1, stop=(), length=12, **top):
        """Sends a prompt of the turn `after` and the tokens `new`; returns the turns, one per sample."""
        # a turn that is to be aborted must be long, so that it does not end before the abort
        body = {"sampling_params": {"temperature": self.temperature, "max_new_tokens": length, "stop_token_ids": list(stop), "n": n, "ignore_eos": abort},
                "return_logprob": True, **self.ask, **top}
        if text is None:
            body["input_ids"] = (after.tokens() if after else []) + new
        else:
            body |= {"text": text, "return_prompt_token_ids": True}
        path, headers = "/generate", {}
        if self.how == "header":
            headers["X-Session-ID"] = self.name
        elif self.how == "path":
            path = "/sessions/%s/generate" % self.name
        else:
            body["session_id"] = self.name
        replies = self.agent.stream(path, body, headers, abort) if stream else self.agent.whole(path, body, headers)
        made = []
        for reply in replies:
            prompt = new if text is None else reply["prompt_token_ids"]
            made.append(Turn(len(self.turns), after, prompt, reply, self.agent.version))
            self.turns.append(made[-1])
        return made

    def reward(self, value, leaf=None):
        body = {"reward": value} | ({} if leaf is None else {"leaf": leaf.number})
        call(self.agent.control + "/v1/sessions/%s/reward" % self.name, body).read()
        self.rewards[leaf and leaf.number] = value

    def reward_turn(self, turn, value):
        """Rewards a turn itself, in every row that holds it."""
        call(self.agent.control + "/v1/sessions/%s/reward" % self.name, {"reward": value, "turn": turn.number}).read()
        turn.reward = value

    def score(self, leaf):
        """Scores the path that ends in `leaf`. The truth is the engine's reply to the client."""
        rows = [{"session": self.name, "leaf": leaf.number}]
        reply = call(self.agent.control + "/v1/teacher-scores", {"teacher": "self", "rows": rows})
        counted = json.load(reply)["rows"][0]
        logprobs = self.agent.logprobs(leaf.tokens())
        (row,) = [row for row in self.rows() if row["leaf"] == leaf.number]
        for turn, (_, last, _) in zip(leaf.line(), row["turns"]):
            end = last + 1
            if turn.output and row["loss_mask"][last]:
                turn.scores = logprobs[end - len(turn.output) : end]
        scored = sum(row["loss_mask"])
        say("ok" if counted["scored"] == scored else "FAIL", "teacher-scores %s/%d" % (self.name, leaf.number),
            "%d tokens, %d trained" % (counted["scored"], scored))

    def leaves(self):
        """The trained turns without a trained descendant, and the untrained turns that end a path."""
        continued = {ancestor.number for turn in self.turns if turn.trained for ancestor in turn.line()[:-1]}
        parents = {turn.parent.number for turn in self.turns if turn.parent}
        return ([t for t in self.turns if t.trained and t.number not in continued],
                [t for t in self.turns if not t.trained and t.number not in parents])

    def rows(self):
        """The expected rows of an export of this session."""
        rows, taken = [], set()
        for leaf in self.leaves()[0]:
            lists = ("token_ids", "loss_mask", "logprobs", "entropy", "versions", "segments", "turns", "teacher")
            row = {key: [] for key in lists}

            def add(ids, is_output, trained, logprobs, entropy, version):
                row["token_ids"] += ids
                row["loss_mask"] += [int(trained)] * len(ids)
                row["logprobs"] += logprobs
                row["entropy"] += entropy
                row["versions"] += [version if trained else None] * len(ids)
                row["segments"] += [[is_output, len(ids)]] if ids else []

            for turn in leaf.line():
                none = [None] * len(turn.prompt)
                add(turn.prompt, False, False, none, none, None)
                # a turn shared by several rows is trained in the first one
                add(turn.output, True, turn.trained and turn.number not in taken, turn.logprobs, turn.entropy, turn.version)
                taken.add(turn.number)
                row["turns"].append([turn.number, len(row["token_ids"]) - 1, turn.reward])
                row["teacher"] += none + (turn.scores or [None] * len(turn.output))
            if all(value is None for value in row["teacher"]):
                del row["teacher"]
            if leaf.experts:
                # earlier turns count: the policy may have changed since
                row["experts"] = []
                for turn in leaf.line():
                    row["experts"] += turn.experts[len(row["experts"]) :]
            status = {"stop": "completed", "length": "truncated"}[leaf.finish]
            rows.append({"session": self.name, "leaf": leaf.number, "temperature": self.temperature, "prompt_len": len(leaf.line()[0].prompt), "status": status,
                         "reward": self.rewards.get(leaf.number, self.rewards.get(None)), **row})
        return rows


class Agent:
    def __init__(self, data, control):
        self.data, self.control, self.version = data, control, None

    def whole(self, path, body, headers):
        reply = json.load(call(self.data + path, body, headers))
        return reply if isinstance(reply, list) else [reply]

    def stream(self, path, body, headers, abort):
        body = {**body, "stream": True, "rid": "exports-%d" % random.getrandbits(48)}
        events, done = {}, []
        with call(self.data + path, body, headers) as reply:
            for line in reply:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    events.setdefault(event.get("index", 0), []).append(event)
                    done += [event.get("index", 0)] * bool(event["meta_info"]["finish_reason"])
                    if abort:
                        call(self.data + "/abort_request", {"rid": body["rid"]}).read()
                        abort = False
        # turns are numbered in the order in which they end
        return [fold(events[i]) for i in done]

    def logprobs(self, ids):
        """The engine's logprobs of these tokens; None for the first one."""
        ask = {"max_new_tokens": 0, "temperature": 0}
        body = {"input_ids": ids, "return_logprob": True, "logprob_start_len": 0, "sampling_params": ask}
        found = json.load(call(self.data + "/generate", body))["meta_info"]["input_token_logprobs"]
        assert [row[1] for row in found] == ids, "logprobs of other tokens"
        return [row[0] for row in found]

    def name_policy(self, version):
        call(self.control + "/v1/policy", {"version": version}).read()
        self.version = version


def play(agent, think):
    """The sessions of all batches, by the batches' names."""
    rng = random.Random(7)

    def tool(n):
        return [rng.randrange(300, 900) for _ in range(n)]

    end = (258, 282)  # two frequent tokens of the demo's model, used as stop tokens, so that most turns end with one
    batches = {"whole": [], "unrewarded": [], "unmeasured": [], "mixed": []}
    agent.name_policy(10)
    task = tool(6) + [think]

    # Three samples of one task, with three turns each. The policy changes at a different turn of each sample.
    for i, how in enumerate(("header", "path", "body")):
        s = Session(agent, "solve-%d" % i, how)
        (a,) = s.go(None, task, stop=end, length=40, stream=i == 1)
        if i == 1:
            agent.name_policy(11)
        (b,) = s.go(a, tool(4), length=5, stream=i == 0)
        (c,) = s.go(b, tool(2) + [think], stop=end, length=30)
        s.reward([1.0, 0.25, -0.5][i])
        batches["whole"].append(s)

    # A tree: a branch off the first turn, a sub-agent with its own prompt, two samples at once of which one continues.
    s = Session(agent, "tree", temperature=0.8)
    (a,) = s.go(None, tool(9))
    (b,) = s.go(a, tool(3))
    (branch,) = s.go(a, tool(5), stop=end)
    (sub,) = s.go(None, tool(3), length=4)
    (sub2,) = s.go(sub, tool(1))
    first, second = s.go(b, tool(2), n=2)
    (last,) = s.go(second, tool(3), stream=True)
    s.reward(0.125)
    s.reward(2.0, branch)
    s.reward(-1.5, sub2)
    batches["whole"].append(s)

    # Truncated by length and resumed without a token in between; a prompt as text; two samples in one stream.
    s = Session(agent, "text", "path")
    (a,) = s.go(None, None, text="The lamp", length=6)
    (b,) = s.go(a, [], length=6)
    s.go(b, tool(2), n=2, stream=True, length=7)
    s.reward(0.75)
    batches["whole"].append(s)

    # Aborted: its tokens are context for later turns, or are in no row without later turns.
    s = Session(agent, "abort", "body")
    (a,) = s.go(None, tool(4), length=8)
    (cut,) = s.go(a, tool(2), stream=True, abort=True, length=3000)
    s.go(cut, tool(2), length=5)
    s.go(a, tool(3), stream=True, abort=True, length=3000)
    s.reward(0.5)
    batches["whole"].append(s)

    s = Session(agent, "silent")
    s.go(s.go(None, tool(3))[0], tool(1))
    batches["unrewarded"] = [batches["whole"][0], s, batches["whole"][3]]

    for i, temperature in enumerate((0.75, 0.5)):
        s = Session(agent, "plain-%d" % i, temperature=temperature, return_entropy=False)
        s.go(s.go(None, tool(3))[0], tool(2), stop=end)
        s.reward(1.0)
        batches["unmeasured"].append(s)

    # Turns whose requests add members of different types to meta_info, or none.
    for i, ask in enumerate(({}, {"top_logprobs_num": 2}, {"token_ids_logprob": [5, 6]}, {"top_logprobs_num": 1, "logprob_start_len": 0})):
        s = Session(agent, "mixed-%d" % i, **ask)
        s.go(s.go(None, tool(3))[0], tool(2), stop=end if i % 2 else ())
        if i:
            s.reward([None, 1, 0.5, -2][i])
        batches["mixed"].append(s)

    # The experts of all tokens, which tokentap joins along the path; the client asks for those of the whole prompt each time.
    s = Session(agent, "experts", return_routed_experts=True)
    (a,) = s.go(None, tool(5))
    agent.name_policy(12)
    (b,) = s.go(a, tool(2), stream=True)
    s.go(b, tool(3), n=2)
    s.go(a, tool(4), stop=end)
    s.reward(1.0)
    batches["experts"] = [s]
    batches["steps"] = steps(agent, tool, end)
    # a row without any reward
    s = Session(agent, "steps-silent")
    s.go(s.go(None, tool(3))[0], tool(1))
    batches["steps-partly"] = [batches["steps"][0], s]
    batches["scored"], batches["scored-partly"] = scored(agent, tool, end)
    return batches


def steps(agent, tool, end):
    """Sessions with rewards of turns. Each row has one, of its path or of a turn; their sums are exact in float32."""
    plain = Session(agent, "steps-plain")
    (a,) = plain.go(None, tool(5), stop=end)
    (b,) = plain.go(a, tool(3), length=6)
    (c,) = plain.go(b, tool(2), stream=True)
    plain.reward_turn(a, 0.25)
    plain.reward_turn(b, 4.0)
    plain.reward_turn(b, -0.5)  # replaces the value before
    plain.reward(1.0, c)

    # rows share a rewarded turn; a last turn has a reward in addition to that of its path, or the only one of its row
    tree = Session(agent, "steps-tree", "path", temperature=0.8)
    (a,) = tree.go(None, tool(4))
    (b,) = tree.go(a, tool(3))
    (branch,) = tree.go(a, tool(2), stop=end)
    (alone,) = tree.go(None, tool(3))
    first, second = tree.go(b, tool(2), n=2)
    tree.reward_turn(a, 0.375)
    tree.reward_turn(branch, 1.25)
    tree.reward_turn(alone, -1.0)
    tree.reward_turn(second, 0.0)
    tree.reward(2.0, branch)
    tree.reward(-1.5, first)

    # truncated by length and resumed without a token in between; a reward of a turn that is an object
    text = Session(agent, "steps-text", "body")
    (a,) = text.go(None, None, text="The lamp", length=6)
    (b,) = text.go(a, [], length=6)
    (c,) = text.go(b, tool(2), length=7)
    text.reward_turn(a, 0.5)
    text.reward_turn(b, {"score": -0.125, "judge": "tests"})
    text.reward_turn(c, 3)
    text.reward(0.75)

    # the rewarded turn in the middle is aborted: its tokens are context
    cut = Session(agent, "steps-cut")
    (a,) = cut.go(None, tool(4), length=8)
    (b,) = cut.go(a, tool(2), stream=True, abort=True, length=3000)
    cut.go(b, tool(2), length=5)
    cut.reward_turn(b, -0.25)
    return [plain, tree, text, cut]


def scored(agent, tool, end):
    """Sessions whose turns the engine scored, and sessions of which it scored some turns."""
    line = Session(agent, "scored-line")
    (a,) = line.go(None, tool(5), stop=end, length=30)
    (b,) = line.go(a, tool(3), stream=True)
    (c,) = line.go(b, tool(2))
    line.score(c)
    tree = Session(agent, "scored-tree", "path", temperature=0.5)
    (a,) = tree.go(None, tool(4))
    (b,) = tree.go(a, tool(3))
    (branch,) = tree.go(a, tool(2), stop=end)
    (last,) = tree.go(b, tool(1))
    for leaf in (last, branch):
        tree.score(leaf)
    partly = Session(agent, "scored-partly", "body")
    (a,) = partly.go(None, tool(4))
    partly.score(a)
    partly.go(a, tool(2))
    partly.go(a, tool(3))
    return [line, tree], [line, partly]


def write(folder, control, sessions, names=tuple(FILES), **shape):
    os.makedirs(folder, exist_ok=True)
    formats = []
    refused = [[s.name, turn.number, "aborted"] for s in sessions for turn in s.leaves()[1]]
    for name in names:
        body = {"sessions": [s.name for s in sessions], "format": name, "entropies": name == "miles", **shape}
        if name in ("verl", "areal", "tunix"):
            body["pad_token_id"] = PAD
        try:
            reply = call(control + "/v1/samples", body)
            content = reply.read()
        except urllib.error.HTTPError as error:
            text = error.read().decode()
            # a format that this tokentap does not support is skipped; any other error fails
            known = error.code != 400 or "format:" not in text
            say("FAIL" if known else "skip", "export %s/%s" % (os.path.basename(folder), name), "%d %s" % (error.code, text))
            continue
        if name in ("jsonl", "arrow", "parquet"):
            counted, truth = json.loads(reply.headers["tokentap-refused"]), collections.Counter(reason for *_, reason in refused)
            say("ok" if counted == truth else "FAIL", "tokentap-refused of %s/%s" % (os.path.basename(folder), name), "%s" % counted)
        formats.append(name)
        with open(os.path.join(folder, FILES[name]), "wb") as f:
            f.write(content)
    rows = [row for s in sessions for row in s.rows()]
    with open(os.path.join(folder, "truth.json"), "w") as f:
        json.dump({"rows": rows, "refused": refused, "formats": formats}, f)
    trained = sum(sum(row["loss_mask"]) for row in rows)
    sampled = sum(len(t.output) for s in sessions for t in s.turns if t.trained)
    say("ok" if trained == sampled else "FAIL", "truth %s" % os.path.basename(folder),
        "%d rows, %d trained tokens of %d sampled, %d refused" % (len(rows), trained, sampled, len(refused)))


def paths_of_api(control, path, sessions):
    """Compares the scores of GET /v1/sessions/{id}/trajectories with those of jsonl."""
    with open(path, encoding="utf-8") as f:
        exported = [line["columns"] for line in map(json.loads, f)]
    listed = []
    for s in sessions:
        reply = json.load(call(control + "/v1/sessions/%s/trajectories?scores=self" % s.name))
        listed += [row["columns"] for row in reply["trajectories"]]
    names = [column["name"] for row in exported for column in row]
    fine = listed == exported and names.count("teacher_logprobs") == len(exported)
    say("ok" if fine else "FAIL", "scores of /v1/sessions/{id}/trajectories", "%d rows, as in jsonl" % len(listed))


def thinking(path, sessions, think):
    """Checks the thinking members of each row of jsonl."""
    with open(path, encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    leaves = [leaf for s in sessions for leaf in s.leaves()[0]]
    wrong, tokens = [], 0
    for line, leaf in zip(lines, leaves):
        mean, share, (count, present, closed, _, _) = egpo_reference.think(of_line(leaf), *think)
        tokens += count
        want = {"think_token_count": count, "think_closed": closed if present else None, "think_entropy_mean": mean, "high_entropy_share": share}
        for key, value in want.items():
            close = abs(line[key] - value) < 1e-9 if isinstance(value, float) and line[key] is not None else line[key] == value
            wrong += [] if close else ["%s/%s %s is %r, not %r" % (line["session"], line["leaf"], key, line[key], value)]
    say("FAIL" if wrong else "ok", "thinking in jsonl", "; ".join(wrong) or "%d rows, %d tokens" % (len(leaves), tokens))


def of_line(leaf):
    return [{"prompt": t.prompt, "response": t.output, "entropy": t.entropy} for t in leaf.line()]


def far(got, want):
    """The largest difference, relative where numbers are large."""
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(got, want))


def verl_grpo(groups, samples, normalize_std):
    """Each row's advantages at its tokens, by verl's function."""
    grpo = read.load("torch verl", "verl.trainer.ppo.core_algos", "compute_grpo_outcome_advantage")
    import torch

    width = max(len(row["loss_mask"]) for _, row in samples)
    mask, rewards = torch.zeros(len(samples), width), torch.zeros(len(samples), width)
    for i, (_, row) in enumerate(samples):
        mask[i, : len(row["loss_mask"])] = torch.tensor(row["loss_mask"], dtype=torch.float32)
        rewards[i, len(row["loss_mask"]) - 1] = row["reward"]
    index = np.array([group for group, members in enumerate(groups) for _ in members])
    found, _ = grpo(rewards, mask, index, norm_adv_by_std_in_grpo=normalize_std)
    return [found[i, : len(row["loss_mask"])].tolist() for i, (_, row) in enumerate(samples)]


def advantages(control, sessions, think):
    """Compares POST /v1/advantages with NumPy and verl. Rows with the same first prompt are a group, in the order of the export."""
    grouped = {}
    for s in sessions:
        for leaf, row in zip(s.leaves()[0], s.rows()):
            grouped.setdefault(tuple(row["token_ids"][: row["prompt_len"]]), []).append((leaf, row))
    groups = list(grouped.values())
    samples = [sample for members in groups for sample in members]
    for estimator, normalize_std in (("grpo", True), ("grpo", False), ("egpo", True)):
        name = "advantages %s%s" % (estimator, "" if normalize_std else ", not divided")
        body = {"estimator": estimator, "normalize_std": normalize_std, "think_start": think[0], "think_end": think[1],
                "groups": [{"id": i, "samples": [{"session": row["session"], "leaf": row["leaf"], "reward": row["reward"]}
                                                 for _, row in members]} for i, members in enumerate(groups)]}
        answer = json.load(call(control + "/v1/advantages", body))
        got = [sample for group in answer["groups"] for sample in group["samples"]]
        worst, spans = 0.0, 0
        flat = iter(got)
        for members in groups:
            _, _, base = egpo_reference.grpo([row["reward"] for _, row in members], normalize_std)
            for (leaf, row), grpo in zip(members, base):
                sample = next(flat)
                entropy, _, flags = egpo_reference.think(of_line(leaf), *think)
                spans += flags[0]
                if (sample["H"] is None) != (entropy is None):
                    say("FAIL", name, "H of %s/%d is %r, NumPy has %r" % (row["session"], row["leaf"], sample["H"], entropy))
                    continue
                want = grpo
                if estimator == "egpo" and entropy is not None:
                    bound = abs(grpo) / 2.0
                    want = grpo + 0.4 * np.clip(entropy, -bound, bound)
                if entropy is not None:
                    worst = max(worst, far([sample["H"]], [entropy]))
                worst = max(worst, far(sample["advantages"], [want * m for m in row["loss_mask"]]))
                if len(sample["advantages"]) != len(row["loss_mask"]):
                    say("FAIL", name, "%s/%d: %d advantages" % (row["session"], row["leaf"], len(sample["advantages"])))
        detail = "%d groups, %d samples, %d thinking tokens: NumPy to %.1e" % (len(groups), len(samples), spans, worst)
        if estimator == "grpo":
            try:
                theirs = max(far(a["advantages"], b) for a, b in zip(got, verl_grpo(groups, samples, normalize_std)))
                worst, detail = max(worst, theirs), detail + ", %s to %.1e" % (read.version("verl"), theirs)
            except read.Skip as skip:
                say("skip", name + " by verl", skip)
        say("ok" if worst <= 1e-5 else "FAIL", name, detail)


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("folder")
    ask.add_argument("--data", required=True)
    ask.add_argument("--control", required=True)
    ask.add_argument("--think-start", type=int, default=7)
    ask.add_argument("--think-end", type=int, default=258)
    args = ask.parse_args()
    batches = play(Agent(args.data, args.control), args.think_start)
    for name, sessions in batches.items():
        if name.startswith("scored"):
            folder = os.path.join(args.folder, name)
            write(folder, args.control, sessions, ("slime", "jsonl", "arrow", "parquet"), scores="self")
            paths_of_api(args.control, os.path.join(folder, "data.jsonl"), sessions)
        else:
            write(os.path.join(args.folder, name), args.control, sessions)
    # too small for the longest row: its prompt loses the first tokens, its response the last ones
    write(os.path.join(args.folder, "cut"), args.control, batches["whole"], ("verl",), max_prompt_length=5, max_response_length=30)
    # the last rewarded turns are cut off: their rewards are at the last token that is left
    lines = [s for s in batches["steps"] if s.name != "steps-tree"]  # which has rows without a trained token there
    shape = {"max_prompt_length": 4, "max_response_length": 12}
    write(os.path.join(args.folder, "steps-cut"), args.control, lines, ("verl",), **shape)
    think = (args.think_start, args.think_end)
    thinking(os.path.join(args.folder, "whole", "data.jsonl"), batches["whole"], think)
    advantages(args.control, batches["whole"], think)
    return 1 if bad else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # verl leaves threads running that block a normal exit
    os._exit(code)
