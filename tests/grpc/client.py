# SPDX-License-Identifier: Apache-2.0
"""An ordinary gRPC client of tokentap, and checks of the results.

Prints a line per check; exit status 1 if one fails.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from tokentap.v1 import tokentap_pb2 as pb
from tokentap.v1 import tokentap_pb2_grpc as rpc

# a sample, or a reply, may be larger than the 4 MiB that clients accept by default
OPTIONS = [("grpc.max_receive_message_length", 256 << 20)]
PATIENCE = 30.0


@dataclass
class Tokentap:
    """Both ports, over gRPC and over HTTP."""

    data: str
    control: str
    token: str

    def __post_init__(self) -> None:
        self.signed = [("authorization", f"Bearer {self.token}")]
        self.at_data = grpc.insecure_channel(self.data, OPTIONS)
        self.at_control = grpc.insecure_channel(self.control, OPTIONS)
        self.generate = rpc.GenerateStub(self.at_data).Generate
        self.trajectories = rpc.TrajectoriesStub(self.at_control)

    def ask(self, body: dict[str, Any], session: str = "", **call: Any) -> list[Any]:
        """The objects of a reply."""
        request = pb.GenerateRequest(json=json.dumps(body).encode(), session=session)
        return [json.loads(reply.json) for reply in self.generate(request, timeout=PATIENCE, **call)]

    def http(self, path: str, body: Any = None, method: str | None = None, port: str | None = None) -> bytes:
        """The body of an answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", "authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(f"http://{port or self.control}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            return reply.read()

    def metric(self, name: str) -> float:
        lines = self.http("/metrics").decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.split(" ")[0].split("{")[0] == name)

    def freeze(self, session: str) -> None:
        self.http(f"/v1/sessions/{session}/freeze", method="POST")


@contextmanager
def refused(code: grpc.StatusCode, words: str = "") -> Iterator[None]:
    """Calls in this context must fail with this status."""
    status = None
    try:
        yield
    except grpc.RpcError as error:
        status = error
    assert status is not None, f"expected the status {code}"
    assert status.code() == code, f"{status.code()}: {status.details()}"
    assert words in status.details(), status.details()


def soon(holds: Callable[[], bool], what: str) -> None:
    """Polls until the condition holds."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"never happened: {what}"


def body(text: str, tokens: int, **more: Any) -> dict[str, Any]:
    params = {"max_new_tokens": tokens, "ignore_eos": True, **more.pop("params", {})}
    return {"text": text, "sampling_params": params, **more}


def none_for_nan(numbers: list[float]) -> list[float | None]:
    return [None if math.isnan(number) else number for number in numbers]


def same_numbers(ours: list[float | None], theirs: list[float | None]) -> bool:
    """Equal as float32: JSON has the shortest text that parses to the same value."""

    def close(a: float | None, b: float | None) -> bool:
        return a is b if a is None or b is None else math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12)

    return len(ours) == len(theirs) and all(map(close, ours, theirs))


def health(tap: Tokentap) -> None:
    for channel in (tap.at_data, tap.at_control):
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "tokentap.v1.Generate"):
            reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING, service
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
        with refused(grpc.StatusCode.NOT_FOUND):
            stub.Check(health_pb2.HealthCheckRequest(service="some.Other"), timeout=PATIENCE)


def reflection(tap: Tokentap) -> None:
    """The messages of v1 are those of v1alpha, the version in the library."""
    ask = tap.at_data.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    questions = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="tokentap.v1.Trajectories"),
    ]
    listed, files = list(ask(iter(questions), timeout=PATIENCE))
    names = {service.name for service in listed.list_services_response.service}
    assert {"tokentap.v1.Entropy", "tokentap.v1.Generate", "grpc.health.v1.Health"} <= names, names
    assert "tokentap.v1.Trajectories" not in names, "it is only on the control port"
    pool = DescriptorPool()
    for file in files.file_descriptor_response.file_descriptor_proto:
        pool.AddSerializedFile(file)
    described = pool.FindMessageTypeByName("tokentap.v1.Sample").fields
    ours = pb.Sample.DESCRIPTOR.fields
    assert [(field.name, field.number) for field in described] == [(field.name, field.number) for field in ours]


def generate(tap: Tokentap) -> None:
    # greedy, so that two calls have the same result
    asked = body("The lamp", 12, params={"temperature": 0})
    (ours,) = tap.ask(asked, session="py-a")
    theirs = json.loads(tap.http("/generate", asked, port=tap.data))
    assert ours["output_ids"] == theirs["output_ids"]
    assert ours["text"] == theirs["text"]
    entropy = ours["meta_info"]["output_token_entropy"]
    assert entropy == theirs["meta_info"]["output_token_entropy"]
    assert len(entropy) == 12
    events = tap.ask({**asked, "stream": True}, session="py-a")
    assert len(events) > 2
    assert [i for event in events for i in event["output_ids"]] == ours["output_ids"]
    assert [h for event in events for h in event["meta_info"]["output_token_entropy"]] == entropy
    batch = tap.ask({**asked, "text": ["The lamp", "A door"]})
    assert len(batch) == 1 and len(batch[0]) == 2, "a batch is an array, as over HTTP"
    call = tap.generate(pb.GenerateRequest(json=json.dumps(asked).encode()), metadata=[("x-session-id", "py-b")])
    assert dict(call.initial_metadata())["x-tokentap-session"] == "py-b"
    assert len(list(call)) == 1
    on_control = rpc.GenerateStub(tap.at_control).Generate
    request = pb.GenerateRequest(json=json.dumps(asked).encode())
    assert len(list(on_control(request, metadata=tap.signed, timeout=PATIENCE))) == 1
    with refused(grpc.StatusCode.UNAUTHENTICATED, "--control-token"):
        list(on_control(request, timeout=PATIENCE))
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "top_p"):
        tap.ask(body("The", 2, params={"top_p": 2}))
    with refused(grpc.StatusCode.INVALID_ARGUMENT):
        tap.ask(asked, session="no name")


def many(tap: Tokentap) -> None:
    """Concurrent calls on one connection, each with its own reply."""
    asked = [f"{number} lamps" for number in range(200)]
    with ThreadPoolExecutor(32) as pool:
        replies = list(pool.map(lambda text: tap.ask(body(text, 4, rid=f"py {text}"))[0], asked))
    assert [reply["meta_info"]["id"] for reply in replies] == [f"py {text}" for text in asked]


def read(tap: Tokentap) -> None:
    listed, after = {}, 0
    while True:
        page = tap.trajectories.List(pb.ListRequest(after=after, limit=7), metadata=tap.signed, timeout=PATIENCE)
        listed |= {summary.session: summary for summary in page.sessions}
        if not page.HasField("next"):
            break
        after = page.next
    assert {"py-a", "py-b"} <= listed.keys()
    session = tap.trajectories.Get(pb.GetRequest(session="py-a"), metadata=tap.signed, timeout=PATIENCE)
    theirs = json.loads(tap.http("/v1/sessions/py-a"))
    assert [turn.sampled_tokens for turn in session.turns] == [12, 12]
    assert [turn["sampled_tokens"] for turn in theirs["list"]] == [12, 12]
    assert (session.version, session.frozen) == (theirs["version"], theirs["frozen"])
    with refused(grpc.StatusCode.NOT_FOUND, "nobody"):
        tap.trajectories.Get(pb.GetRequest(session="nobody"), metadata=tap.signed, timeout=PATIENCE)
    with refused(grpc.StatusCode.UNAUTHENTICATED):
        tap.trajectories.Get(pb.GetRequest(session="py-a"), timeout=PATIENCE)
    with refused(grpc.StatusCode.UNIMPLEMENTED, "control port"):
        rpc.TrajectoriesStub(tap.at_data).List(pb.ListRequest(), timeout=PATIENCE)


def samples(tap: Tokentap) -> None:
    sessions = ["py-a", "py-b"]
    request = pb.SamplesRequest(sessions=sessions)
    replies = tap.trajectories.Samples(request, metadata=tap.signed, timeout=PATIENCE)
    ours = [reply.sample for reply in replies if reply.HasField("sample")]
    lines = tap.http("/v1/samples", {"sessions": sessions, "format": "jsonl"}).splitlines()
    theirs = [entry for entry in map(json.loads, lines) if "refused" not in entry]
    assert len(ours) == len(theirs) > 1
    for sample, entry in zip(ours, theirs, strict=True):
        assert list(sample.token_ids) == entry["token_ids"]
        assert [int(trained) for trained in sample.loss_mask] == entry["loss_mask"]
        assert same_numbers(none_for_nan(sample.logprobs), entry["logprobs"])
        assert same_numbers(none_for_nan(sample.entropy), entry["entropy"])
        assert [turn.rid for turn in sample.turns] == [turn["rid"] for turn in entry["turns"]]


def export(tap: Tokentap) -> None:
    sessions = ["py-b", "py-a"]
    openapi = json.loads(tap.http("/openapi.json"))
    for name in openapi["components"]["schemas"]["Format"]["enum"]:
        request = pb.ExportRequest(sessions=sessions, format=name)
        head, *pieces = tap.trajectories.Export(request, metadata=tap.signed, timeout=PATIENCE)
        ours = b"".join(piece.data for piece in pieces)
        assert ours == tap.http("/v1/samples", {"sessions": sessions, "format": name}), name
        # a row of `images` is a picture, and these sessions have none
        assert head.head.rows == (0 if name == "images" else 3), f"{name}: {head.head.rows} rows"
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "verl"):
        list(tap.trajectories.Export(pb.ExportRequest(format="none"), metadata=tap.signed, timeout=PATIENCE))


def watch(tap: Tokentap) -> None:
    """Paths and turns are streamed while another thread creates them."""
    paths: list[Any] = []
    turns: list[Any] = []
    of_paths = tap.trajectories.Watch(pb.WatchRequest(), metadata=tap.signed)
    of_turns = tap.trajectories.Watch(pb.WatchRequest(turns=pb.WatchRequest.Turns(session="py-w")), metadata=tap.signed)
    # the watch of turns is active once its response head has been received
    of_turns.initial_metadata()

    ends: list[grpc.StatusCode] = []

    def collect(replies: Any, into: list[Any]) -> None:
        try:
            for reply in replies:
                into.append(reply)
        except grpc.RpcError as error:
            ends.append(error.code())

    threads = [threading.Thread(target=collect, args=pair) for pair in ((of_paths, paths), (of_turns, turns))]
    for thread in threads:
        thread.start()
    (reply,) = tap.ask(body("The sea", 6), session="py-w")
    tap.freeze("py-w")
    tap.freeze("py-a")
    soon(lambda: {"py-w", "py-a"} <= {seen.path.session for seen in paths}, "the paths of both sessions are sent")
    soon(lambda: len(turns) == 1, "the turn is sent")
    assert list(turns[0].turn.response) == reply["output_ids"]
    assert same_numbers(none_for_nan(turns[0].turn.entropy), reply["meta_info"]["output_token_entropy"])
    of_paths.cancel()
    of_turns.cancel()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a cancelled watch ends"
    assert ends == [grpc.StatusCode.CANCELLED] * 2, ends
    again = tap.trajectories.Watch(
        pb.WatchRequest(finished=pb.WatchRequest.Finished(since=paths[0].cursor)), metadata=tap.signed
    )
    assert next(again).cursor == paths[1].cursor, "a watch continues after a cursor"
    again.cancel()
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "since"):
        next(
            tap.trajectories.Watch(
                pb.WatchRequest(finished=pb.WatchRequest.Finished(since="nonsense")), metadata=tap.signed
            )
        )


def live(tap: Tokentap) -> None:
    """The entropies of a request, read over another connection."""
    asked = body("The road", 64, rid="py-live", stream=True)
    call = tap.generate(pb.GenerateRequest(json=json.dumps(asked).encode()), timeout=PATIENCE)
    first = json.loads(next(call).json)
    watching = tap.trajectories.Watch(
        pb.WatchRequest(entropies=pb.WatchRequest.Entropies(rid="py-live")), metadata=tap.signed, timeout=PATIENCE
    )
    rest = [json.loads(reply.json) for reply in call]
    seen = list(watching)
    ours = [number for reply in seen for number in reply.progress.entropy]
    theirs = [h for event in [first, *rest] for h in event["meta_info"]["output_token_entropy"]]
    assert same_numbers(none_for_nan(ours), theirs)
    assert len(ours) == 64
    assert seen[-1].progress.finished
    assert seen[-1].progress.finish_reason == "length"


def slices(tap: Tokentap) -> None:
    """Streamed slices of logits get the reference numbers, an invalid slice gets an error, and a call can be cancelled."""
    rows = [[math.sin(row * 37.0 + at) * 6 for at in range(100)] for row in range(4)]
    logits = struct.pack("<400f", *(value for row in rows for value in row))
    stored = struct.unpack("<400f", logits)

    def truth(row: int) -> float:
        values = [value / 0.5 for value in stored[row * 100 : row * 100 + 100]]
        top = max(values)
        total = math.fsum(math.exp(value - top) for value in values)
        return math.log(total) - math.fsum((value - top) * math.exp(value - top) for value in values) / total

    def asked(count: int) -> Iterator[Any]:
        for at in range(count):
            vocab = 7 if at == 5 else 100
            yield pb.Slice(id=at, dtype=pb.DTYPE_F32, vocab=vocab, logits=logits, temperature=[0.5])

    for address, metadata in ((tap.data, None), (tap.control, tap.signed)):
        stub = rpc.EntropyStub(grpc.insecure_channel(address, OPTIONS))
        answers = list(stub.Compute(asked(500), metadata=metadata, timeout=PATIENCE))
        assert [answer.id for answer in answers] == list(range(500))
        for answer in answers:
            if answer.id == 5:
                assert answer.error.code == 3 and "no whole rows of 7 values" in answer.error.message, answer.error
                continue
            assert all(abs(nats - truth(row)) < 5e-6 for row, nats in enumerate(answer.entropy)), answer
            assert len(answer.entropy) == 4
        call = stub.Compute(asked(1_000_000), metadata=metadata, timeout=PATIENCE)
        next(call)
        call.cancel()
        assert len(list(stub.Compute(asked(3), metadata=metadata, timeout=PATIENCE))) == 3, "the next call is served"


def cancel(tap: Tokentap) -> None:
    """A cancelled call aborts its generation, and its tokens are recorded as partial."""
    before = tap.metric("tokentap_client_disconnects_total")
    asked = {**body("", 1500, stream=True), "text": [f"Road {number}" for number in range(16)]}
    call = tap.generate(pb.GenerateRequest(json=json.dumps(asked).encode(), session="py-cancel"))
    for _ in range(3):
        next(call)
    call.cancel()
    soon(lambda: tap.metric("tokentap_client_disconnects_total") == before + 1, "the disconnect is counted")
    soon(lambda: tap.metric("tokentap_aborts_sent_total") >= 1, "the generation is aborted")
    session = tap.trajectories.Get(pb.GetRequest(session="py-cancel"), metadata=tap.signed, timeout=PATIENCE)
    assert any(turn.fault == "disconnected" for turn in session.turns), [turn.fault for turn in session.turns]


def slow(tap: Tokentap) -> None:
    """A caller that pauses until tokentap has stopped sending receives everything in order."""
    texts = [f"Hill {number}" for number in range(8)]
    rids = [f"py-slow-{number}" for number in range(8)]
    more = {"stream": True, "rid": rids, "return_logprob": True, "top_logprobs_num": 100}
    asked = {**body("", 1500, **more), "text": texts}
    call = tap.generate(pb.GenerateRequest(json=json.dumps(asked).encode()))
    events = [json.loads(next(call).json)]

    def known() -> int:
        return json.loads(tap.http(f"/v1/requests/{rids[0]}/entropy"))["next"]

    # a request is stalled if it has not progressed while tokentap answered two hundred others
    before, idle = known(), 0
    while idle < 200:
        now = known()
        before, idle = now, (idle + 1 if now == before else 0)
    assert 0 < before < 1500, f"{before} tokens were generated for a caller that reads none"
    events += [json.loads(reply.json) for reply in call]
    for index in range(8):
        mine = [event for event in events if event["index"] == index]
        ids = [i for event in mine for i in event["output_ids"]]
        assert len(ids) == 1500 == mine[-1]["meta_info"]["completion_tokens"], f"{len(ids)} of {index}"
        counts = [event["meta_info"]["completion_tokens"] for event in mine]
        assert counts == sorted(counts)


def broken(tap: Tokentap) -> None:
    """A connection that closes with running calls affects no other call."""
    channel = grpc.insecure_channel(tap.control, [*OPTIONS, ("grpc.use_local_subchannel_pool", 1)])
    stub = rpc.TrajectoriesStub(channel)
    calls = [stub.Watch(pb.WatchRequest(), metadata=tap.signed) for _ in range(20)]
    assert all(next(call).cursor for call in calls)
    logits = struct.pack("<400f", *range(400))

    def endless() -> Iterator[Any]:
        while True:
            yield pb.Slice(dtype=pb.DTYPE_F32, vocab=100, logits=logits)

    computing = rpc.EntropyStub(channel).Compute(endless(), metadata=tap.signed)
    assert len(next(computing).entropy) == 4
    channel.close()
    for call in (calls[0], computing):
        with refused(grpc.StatusCode.CANCELLED):
            for _ in call:
                pass
    health(tap)
    stub = rpc.EntropyStub(tap.at_control)
    slice = pb.Slice(id=1, dtype=pb.DTYPE_F32, vocab=100, logits=logits)
    (answer,) = stub.Compute(iter([slice]), metadata=tap.signed, timeout=PATIENCE)
    assert len(answer.entropy) == 4, "slices of others are measured"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("data", "control", "token"):
        parser.add_argument(f"--{name}", required=True)
    tap = Tokentap(**vars(parser.parse_args()))
    failed = 0
    for check in (health, reflection, generate, many, read, samples, export, watch, live, slices, cancel, slow, broken):
        try:
            check(tap)
        except Exception as error:
            failed += 1
            print(f"FAIL {check.__name__}: {type(error).__name__}: {error}")
        else:
            print(f"ok   {check.__name__}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
