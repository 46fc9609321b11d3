# SPDX-License-Identifier: Apache-2.0
"""What the scripts of this folder share: a line for each check, exported rows, and the comparison of their numbers with the weights."""
import base64
import hashlib
import json
import struct

from pictures import media_type
from weights import entropy
from wire import call

PATIENCE = 600  # seconds: the first picture of a new server takes up to a minute
SLACK = 2e-4  # float32 of the engine against float64, and the float32 logprobs on the wire
failed = []


def check(name, differences, *notes):
    failed.extend([name] * bool(differences))
    print(f"{'FAIL' if differences else 'ok':5} images   {name}", *notes, *differences[:5], sep="\n        ", flush=True)


def differ(what, got, want):
    """Nothing if they are equal; of lists only the first place where they differ."""
    if got == want:
        return []
    if isinstance(got, list) and isinstance(want, list) and len(got) == len(want):
        at = next(at for at, (a, b) in enumerate(zip(got, want, strict=True)) if a != b)
        return [f"{what}: {str(got[at])[:400]} instead of {str(want[at])[:400]} at {at} of {len(got)}"]
    return [f"{what}: {str(got)[:400]} instead of {str(want)[:400]}"]


def single(values):
    """Numbers rounded to float32, as tokentap stores them."""
    return [v if v is None else struct.unpack("f", struct.pack("f", v))[0] for v in values]


def data_uri(picture):
    return f"data:{media_type(picture)};base64,{base64.b64encode(picture).decode()}"


def digest(picture):
    return hashlib.sha256(picture).hexdigest()


def answer(reply, status=200):
    if reply.status != status:
        raise SystemExit(f"status {reply.status}: {reply.body[:500]}")
    return reply.json()


def exported(control, session):
    """The rows of a session as `POST /v1/samples` exports them, with their pictures, and the numbers of refused rows by reason."""
    request = {"sessions": [session], "format": "jsonl", "images": "embed"}
    reply = call(control, "POST", "/v1/samples", request, PATIENCE)
    if reply.status != 200:
        raise SystemExit(f"status {reply.status}: {reply.body[:500]}")
    rows = [json.loads(line) for line in reply.body.splitlines()]
    for turn in (turn for row in rows for turn in row["turns"]):
        for member in ("sampling", "extras"):
            turn[member] = json.loads(turn[member] or "{}")
    return rows, json.loads(reply.headers.get("tokentap-refused", "{}"))


class Truth:
    """Compares recorded numbers with the weights."""

    def __init__(self, weights):
        self.weights, self.outside = weights, []
        self.tokens, self.intervals, self.entropy, self.logprob, self.width = 0, 0, 0.0, 0.0, 0.0

    def add(self, row, pictures):
        """The trained tokens of a row, given the pictures of its path."""
        turns = {turn["id"]: turn for turn in row["turns"]}
        trained = [segment for segment in row["segments"] if segment["loss_mask"]]
        positions = [range(segment["start"], segment["end"]) for segment in trained]
        logits = self.weights.logits(row["token_ids"], pictures, [at for each in positions for at in each])
        for segment, where in zip(trained, positions, strict=True):
            turn, logits_of_turn, logits = turns[segment["turn"]], logits[:len(where)], logits[len(where):]
            temperature, extras = turn["temperature"], turn["extras"]
            true, logp = entropy(logits_of_turn, temperature).tolist(), (logits_of_turn / temperature).log_softmax(-1)
            # the text of a float32 is the shortest one, as a double another number
            bounds = [single(extras.get(f"output_token_entropy_{side}", [])) for side in ("lower", "upper")]
            # chats have no intervals
            intervals = zip(*bounds, strict=True) if all(bounds) else [None] * len(where)
            for at, h, logp_of_token, interval in zip(where, true, logp, intervals, strict=True):
                [value] = single([row["entropy"][at]])
                self.tokens += 1
                self.entropy = max(self.entropy, abs(value - h))
                self.logprob = max(self.logprob, abs(row["logprobs"][at] - logp_of_token[row["token_ids"][at]].item()))
                if interval:
                    lower, upper = interval
                    self.intervals, self.width = self.intervals + 1, max(self.width, upper - lower)
                    if not lower - SLACK <= h <= upper + SLACK or not lower <= value <= upper:
                        self.outside.append(
                            f"turn {turn['id']}, position {at}: true {h:.6f} and recorded {value:.6f} in [{lower:.6f}, {upper:.6f}]")

    def check(self, name):
        check(f"{name}: truth", self.outside + [f"a logprob differs by {self.logprob}"] * (self.logprob > SLACK), self.figures())

    def figures(self):
        return (f"{self.tokens} tokens; {len(self.outside)} of {self.intervals} outside their interval, the widest has {self.width:.2e} "
                f"nats; largest difference: entropy {self.entropy:.2e}, logprob {self.logprob:.2e} nats")
