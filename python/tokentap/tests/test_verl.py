# SPDX-License-Identifier: Apache-2.0
"""The parts of tokentap.verl that do not import verl."""

from __future__ import annotations

import asyncio
import base64
import gc
import importlib
import io
import json
import logging
import sys
import threading
import time
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from scripted import Scripted, generated, reply

from tokentap import AsyncClient
from tokentap.verl._alignment import Sampled, align
from tokentap.verl._budget import Budget, engine_params
from tokentap.verl._endpoints import Addresses, Endpoints, close, shared
from tokentap.verl._pictures import Encoder, collapsed, data_uri
from tokentap.verl._policy import Policy
from tokentap.verl._problems import MissingEntropy, Unaligned
from tokentap.verl._versions import of_reply, steps

PROMPT = [1, 2, 3]


def test_each_picture_has_one_placeholder() -> None:
    assert collapsed([1, 9, 9, 9, 2, 9, 3], 9) == [1, 9, 2, 9, 3]
    assert collapsed([9, 9], 9) == [9]
    assert collapsed([5, 5], 9) == [5, 5]
    assert collapsed([], 9) == []


def test_a_picture_keeps_its_pixels() -> None:
    pil = pytest.importorskip("PIL.Image")
    picture = pil.new("RGB", (3, 2), (1, 2, 3))
    head, _, text = data_uri(picture).partition(",")
    assert head == "data:image/png;base64"
    assert pil.open(io.BytesIO(base64.b64decode(text))).tobytes() == picture.tobytes()


class Picture:
    """Counts how often it is encoded."""

    mode, size, palette = "RGB", (1, 1), None

    def __init__(self, content: bytes) -> None:
        self.content, self.saved = content, 0

    def tobytes(self) -> bytes:
        return self.content

    def save(self, out: io.BytesIO, format: str) -> None:
        self.saved += 1
        out.write(self.content)

    @property
    def uri(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.content).decode()


@pytest.fixture
def engine_class(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The class with a stub for the names of verl that its module imports."""
    for name in ("verl", "verl.utils", "verl.workers", "verl.workers.rollout"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    trace, replica = types.ModuleType("trace"), types.ModuleType("replica")
    trace.rollout_trace_op = lambda function: function  # type: ignore[attr-defined]
    replica.TokenOutput = types.SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "verl.utils.rollout_trace", trace)
    monkeypatch.setitem(sys.modules, "verl.workers.rollout.replica", replica)
    monkeypatch.delitem(sys.modules, "tokentap.verl._engine", raising=False)
    yield importlib.import_module("tokentap.verl._engine").Engine
    sys.modules.pop("tokentap.verl._engine", None)


def answered(prompt_tokens: int) -> Any:
    """A reply with one token to a prompt of this length."""
    measured = {"output_token_entropy": [0.5], "entropy_info": {"source": "exact"}}
    return reply(200, json.dumps(generated([50], prompt_tokens=prompt_tokens, weight_version="3", **measured)))


def test_a_rollout_sends_its_pictures_in_each_turn_and_encodes_them_once(engine_class: Any) -> None:
    first, second = Picture(b"first"), Picture(b"second")
    turns = [([1, 9, 9, 9, 2], [first]), ([1, 9, 9, 9, 2, 50, 3, 9, 9, 4], [first, second])]
    with Scripted([answered(5), answered(10), answered(11)]) as engine_of_turns:

        async def run() -> Any:
            async with AsyncClient(engine_of_turns.data) as client:
                endpoint = types.SimpleNamespace(client=client, policy=None, replies_tell=True)
                engine = engine_class(endpoint, "s", Budget(100, 64, None), resume=False, step=None, placeholder=9)
                for prompt, pictures in turns:
                    await engine.generate("r", prompt_ids=prompt, sampling_params={}, image_data=pictures)
                with pytest.raises(Unaligned, match="prompt of 11 tokens with the pictures, verl's processor 5"):
                    await engine.generate("r", prompt_ids=turns[0][0], sampling_params={}, image_data=[first])
                return engine.sampled

        sampled = asyncio.run(run())
        sent = [request.json() for request in engine_of_turns.asked]
    assert [one["input_ids"] for one in sent[:2]] == [[1, 9, 2], [1, 9, 2, 50, 3, 9, 4]]
    assert [one["image_data"] for one in sent[:2]] == [[first.uri], [first.uri, second.uri]]
    assert (first.saved, second.saved) == (1, 1)

    async def redrawn() -> list[str]:
        encoder, picture = Encoder(), Picture(b"first")
        uris = await encoder.data_uris([picture])
        picture.content = b"drawn into the same object"
        return [*uris, *(await encoder.data_uris([picture])), picture.uri]

    before, after, expected = asyncio.run(redrawn())
    assert before == first.uri
    assert after == expected
    # the tokens of a trainer's row are the expanded ones
    assert [(one.prompt_ids, one.token_ids) for one in sampled] == [(turns[0][0], [50]), (turns[1][0], [50])]


def test_pictures_need_the_placeholder_of_a_processor(engine_class: Any) -> None:
    engine = engine_class(None, "s", Budget(100, 64, None), resume=False, step=None)
    with pytest.raises(ValueError, match="needs image_token_id"):
        asyncio.run(engine.generate("r", prompt_ids=[1], sampling_params={}, image_data=[Picture(b"a")]))


def test_entropies_of_a_single_turn_are_in_order() -> None:
    one = Sampled(PROMPT, [7, 8, 9], [0.1, 0.2, 0.3])
    assert align([one], PROMPT, [7, 8, 9], [1, 1, 1], drop=False).entropy == [0.1, 0.2, 0.3]


def test_observations_have_zero_entropy() -> None:
    first = Sampled(PROMPT, [7, 8], [0.1, 0.2])
    second = Sampled([*PROMPT, 7, 8, 40, 41], [7, 9], [0.3, 0.4])
    aligned = align([first, second], PROMPT, [7, 8, 40, 41, 7, 9], [1, 1, 0, 0, 1, 1], drop=False)
    assert aligned.entropy == [0.1, 0.2, 0.0, 0.0, 0.3, 0.4]
    assert aligned.missing == 0


def test_a_truncated_response_keeps_its_first_entropies() -> None:
    first = Sampled(PROMPT, [7, 8], [0.1, 0.2])
    second = Sampled([*PROMPT, 7, 8, 40, 41], [7, 9], [0.3, 0.4])
    assert align([first, second], PROMPT, [7, 8, 40, 41, 7], [1, 1, 0, 0, 1], drop=False).entropy[4] == 0.3
    # the second turn begins after the end
    assert align([first, second], PROMPT, [7, 8, 40], [1, 1, 0], drop=False).entropy == [0.1, 0.2, 0.0]


def test_a_replaced_stop_token_has_no_entropy() -> None:
    # as verl does with GLM: token 50 was sampled, and is repeated as the role of the observation
    first = Sampled(PROMPT, [7, 50], [0.1, 0.2])
    second = Sampled([*PROMPT, 7, 50, 41], [50, 9], [0.3, 0.4])
    aligned = align([first, second], PROMPT, [7, 50, 41, 50, 9], [1, 0, 0, 1, 1], drop=False)
    assert aligned.entropy == [0.1, 0.0, 0.0, 0.3, 0.4]


def test_tokens_after_an_untrained_one_keep_their_entropies() -> None:
    one = Sampled(PROMPT, [5, 5], [0.1, 0.2])
    assert align([one], PROMPT, [5, 5], [0, 1], drop=False).entropy == [0.0, 0.2]


@pytest.mark.parametrize("turned", [False, True])
def test_of_two_samples_the_longer_match_is_used(turned: bool) -> None:
    kept, other = Sampled(PROMPT, [7, 8, 9], [0.1, 0.2, 0.3]), Sampled(PROMPT, [7, 8, 10], [0.4, 0.5, 0.6])
    sampled = [other, kept] if turned else [kept, other]
    assert align(sampled, PROMPT, [7, 8, 9], [1, 1, 1], drop=False).entropy == [0.1, 0.2, 0.3]


def test_a_resampled_turn_uses_the_new_sample() -> None:
    first, second = Sampled(PROMPT, [7, 8, 9], [0.1, 0.2, 0.3]), Sampled([*PROMPT, 7], [8, 10], [0.5, 0.6])
    assert align([first, second], PROMPT, [7, 8, 10], [1, 1, 1], drop=False).entropy == [0.1, 0.5, 0.6]


def test_sources_are_those_of_trained_tokens() -> None:
    first = Sampled(PROMPT, [7, 8], [0.1, None], sources=frozenset({"exact"}))
    second = Sampled([*PROMPT, 7, 8, 40], [9], [0.2], sources=frozenset({"top_k"}))
    of_all = align([first, second], PROMPT, [7, 8, 40, 9], [1, 1, 0, 1], drop=True)
    assert of_all.sources == {"exact", "top_k"}
    assert align([first, second], PROMPT, [7, 8, 40, 9], [0, 0, 0, 1], drop=True).sources == {"top_k"}
    assert align([first], PROMPT, [7, 8], [0, 1], drop=True).sources == frozenset()


def test_a_prompt_truncated_on_the_left_is_sent_truncated() -> None:
    one = Sampled(PROMPT[1:], [7], [0.1])
    assert align([one], PROMPT[1:], [7], [1], drop=False).entropy == [0.1]


@pytest.mark.parametrize(
    ("sampled", "response", "mask"),
    [
        ([], [7], [1]),
        ([Sampled(PROMPT, [8], [0.1])], [7], [1]),
        ([Sampled([1, 2, 4], [7], [0.1])], [7], [1]),
        ([Sampled(PROMPT, [7], [0.1])], [7, 8], [1, 1]),
        ([Sampled(PROMPT, [7], [0.1])], [7, 8], [1]),
        ([Sampled(PROMPT, [7, 50], [0.1, 0.2])], [7, 41, 50], [1, 0, 1]),
    ],
    ids=["nothing sampled", "another token", "another prompt", "one too many", "a short mask", "behind another token"],
)
def test_a_trained_token_that_was_not_sampled_raises_unaligned(
    sampled: list[Sampled], response: list[int], mask: list[int]
) -> None:
    with pytest.raises(Unaligned):
        align(sampled, PROMPT, response, mask, drop=True)


def test_entropies_and_tokens_must_have_equal_length() -> None:
    with pytest.raises(Unaligned):
        Sampled(PROMPT, [7, 8], [0.1])


def test_a_missing_entropy_raises_with_its_reason() -> None:
    one = Sampled(PROMPT, [7, 8], [0.1, None], "missing_rows")
    with pytest.raises(MissingEntropy, match=r"token 1 .* missing_rows"):
        align([one], PROMPT, [7, 8], [1, 1], drop=False)


def test_with_drop_a_token_without_entropy_is_masked_and_counted() -> None:
    one = Sampled(PROMPT, [7, 8, 9], [0.1, None, 0.3])
    aligned = align([one], PROMPT, [7, 8, 9], [1, 1, 1], drop=True)
    assert (aligned.entropy, aligned.mask, aligned.missing) == ([0.1, 0.0, 0.3], [1, 0, 1], 1)


def test_a_missing_entropy_of_an_untrained_token_is_ignored() -> None:
    one = Sampled(PROMPT, [7, 8], [0.1, None])
    assert align([one], PROMPT, [7, 8], [1, 0], drop=False).entropy == [0.1, 0.0]


@pytest.mark.parametrize(
    ("sampling", "prompt", "expected"),
    [
        ({}, 50, 64),
        ({}, 120, 44),
        ({}, 170, 0),
        ({"max_tokens": 10}, 50, 10),
        ({"max_new_tokens": 11, "max_tokens": 10}, 50, 11),
        ({"max_tokens": 100}, 170, 9),
    ],
    ids=["a whole response", "what is left", "nothing left", "vLLM's word", "SGLang's word first", "the model's end"],
)
def test_the_token_budget_equals_verls(sampling: dict[str, int], prompt: int, expected: int) -> None:
    assert Budget(100, 64, 180).max_new_tokens(sampling, prompt) == expected


def test_a_prompt_longer_than_the_model_raises_value_error() -> None:
    with pytest.raises(ValueError, match="max_model_len"):
        Budget(100, 64, 180).max_new_tokens({}, 180)


def test_sampling_parameters_are_sent_without_verls_own() -> None:
    params = {"temperature": 0.7, "top_k": -1, "logprobs": True, "max_tokens": 9, "stop_token_ids": [3]}
    assert engine_params(params, 5) == {"temperature": 0.7, "top_k": -1, "stop_token_ids": [3], "max_new_tokens": 5}
    with pytest.raises(ValueError, match="prompt_logprobs"):
        engine_params({"prompt_logprobs": 0}, 5)


def test_versions_are_steps_only_if_all_are_numbers() -> None:
    assert of_reply({"weight_versions": [{"version": "4"}, {"version": "5"}]}) == [4, 5]
    assert of_reply({"weight_version": "6"}) == [6]
    assert of_reply({"weight_versions": [{"version": "4"}, {"version": "default"}]}) == []
    assert of_reply({}) == []


def test_steps_are_the_oldest_and_newest_version_or_the_default() -> None:
    assert steps([5, 4, 6], 9) == {"global_steps": 6, "min_global_steps": 4, "max_global_steps": 6}
    assert steps([], 9) == {"global_steps": 9, "min_global_steps": 9, "max_global_steps": 9}
    assert set(steps([], None).values()) == {None}


def test_addresses_come_from_the_config_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Addresses.of(["http://a", "http://b"], None).base == ("http://a", "http://b")
    monkeypatch.setenv("TOKENTAP_BASE_URL", "http://c, http://d")
    monkeypatch.setenv("TOKENTAP_CONTROL_URL", "http://e,http://f")
    assert Addresses.of(None, None) == Addresses(("http://c", "http://d"), ("http://e", "http://f"))
    with pytest.raises(ValueError, match="2 control URLs for 1"):
        Addresses.of("http://a", ["http://b", "http://c"])
    monkeypatch.delenv("TOKENTAP_BASE_URL")
    with pytest.raises(ValueError, match="TOKENTAP_BASE_URL"):
        Addresses.of(None, None)


def test_addresses_never_mix_config_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENTAP_BASE_URL", "http://c")
    monkeypatch.setenv("TOKENTAP_CONTROL_URL", "http://e")
    assert Addresses.of("http://a", None) == Addresses(("http://a",))
    with pytest.raises(ValueError, match="control_url without base_url"):
        Addresses.of(None, "http://b")


def test_rollouts_are_spread_over_endpoints() -> None:
    async def run() -> None:
        endpoints = shared(Addresses(("http://a", "http://b", "http://c")))
        with endpoints.rollout() as one, endpoints.rollout() as two, endpoints.rollout() as three:
            assert len({id(one), id(two), id(three)}) == 3
            with endpoints.rollout() as four:
                assert four.rollouts == 2
        assert [endpoint.rollouts for endpoint in endpoints.all] == [0, 0, 0]
        assert shared(Addresses(("http://a", "http://b", "http://c"))) is endpoints
        await close()
        assert shared(Addresses(("http://a", "http://b", "http://c"))) is not endpoints

    asyncio.run(run())


def test_each_event_loop_has_its_own_endpoints() -> None:
    seen: list[Endpoints] = []

    async def run() -> None:
        seen.append(shared(Addresses(("http://a",))))

    for _ in range(2):
        asyncio.run(run())
    assert seen[0] is not seen[1]


class Kept(ThreadingHTTPServer):
    """Answers each request with a generation and keeps the connection open; `open` is how many there are."""

    daemon_threads = True
    open = 0

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self.open += 1
        super().process_request_thread(request, client_address)
        self.open -= 1


class Keeps(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps(generated([1, 2])).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def kept() -> Iterator[Kept]:
    with Kept(("127.0.0.1", 0), Keeps) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def generate(server: Kept) -> None:
    """Runs one rollout, and leaves its connection open."""
    with shared(Addresses((f"http://127.0.0.1:{server.server_address[1]}",))).rollout() as endpoint:
        await endpoint.client.generate(input_ids=[1])
    assert server.open >= 1


def loops_kept() -> int:
    """Event loops that still exist although none runs."""
    gc.collect()
    return sum(issubclass(type(one), asyncio.AbstractEventLoop) for one in gc.get_objects())


def test_an_ended_event_loop_closes_its_connections(kept: Kept) -> None:
    asyncio.run(generate(kept))
    before = loops_kept()
    for _ in range(30):
        asyncio.run(generate(kept))
    deadline = time.monotonic() + 10
    while kept.open and time.monotonic() < deadline:
        # the server notices closed connections a moment later, without an event
        time.sleep(0.01)
    assert kept.open == 0
    assert loops_kept() <= before


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_event_loop_closed_by_hand_is_released(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    # aiohttp logs that its connections were not closed, and the log record would keep them alive
    caplog.set_level(logging.CRITICAL, "asyncio")
    before = loops_kept()
    for _ in range(5):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(generate(kept))
        loop.close()
    del loop
    asyncio.run(generate(kept))
    assert loops_kept() <= before


def policy_of(scripted: Scripted, steps: int) -> list[str | None]:
    async def run() -> list[str | None]:
        policy = Policy(scripted.control, None)
        try:
            return [await policy.version() for _ in range(steps)]
        finally:
            await policy.close()

    return asyncio.run(run())


def test_an_unreachable_policy_costs_two_requests_and_one_log_line(
    scripted: Scripted, pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    scripted.script(reply(503, "{}"))
    assert policy_of(scripted, 2) == [None, None]
    assert len(scripted.asked) == 4
    said = [record for record in caplog.records if record.name == "tokentap.verl"]
    assert [record.levelname for record in said] == ["WARNING"]
    scripted.script(reply(200, json.dumps({"epoch": 3, "version": "7"})), reply(200, json.dumps({"version": None})))
    assert policy_of(scripted, 2) == ["7", None]


def test_each_port_gets_its_own_key(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENTAP_TOKEN", "engine")
    monkeypatch.setenv("TOKENTAP_CONTROL_TOKEN", "control")
    scripted.script(reply(200, json.dumps(generated([1]))), reply(200, json.dumps({"version": "3"})))

    async def run() -> None:
        endpoint = shared(Addresses((scripted.data,), (scripted.control,))).all[0]
        await endpoint.client.generate(input_ids=[1])
        assert await endpoint.policy.version() == "3"

    asyncio.run(run())
    assert [asked.headers["authorization"] for asked in scripted.asked] == ["Bearer engine", "Bearer control"]


def test_without_a_control_url_the_policy_is_not_requested() -> None:
    assert asyncio.run(Policy(None, None).version()) is None
