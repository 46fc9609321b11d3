# SPDX-License-Identifier: Apache-2.0
"""The blocking client."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from . import _routes as routes
from ._address import Address, check_token
from ._call import Call, Reply
from ._copies import CopyableClient
from ._errors import TokentapError
from ._generation import Generation
from ._options import AdvantageOptions, Estimator, Format, PauseMode, SampleOptions, TeacherOptions
from ._retry import FEW, MANY, Retry, of_control
from ._routes import Ids, Json, Tag, Texts
from ._samples import Samples
from ._stream import Decoder, Delta, Deltas
from ._timeouts import Timeouts
from ._transport import Connections
from .images import Image
from .trajectories import Trajectories

if sys.version_info >= (3, 11):
    from typing import Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class Client(CopyableClient):
    """Sends requests to a tokentap; safe to share between threads. Each call uses a separate kept connection.

    `base_url` is the data port, `control_url` the control port (None if it is not needed). `token` is the engine's
    API key, `control_token` that of the control port. An attempt may take `timeout` seconds, connecting
    `connect_timeout`. A failed call is retried up to `retries` times (3, and 60 by an adapter of a trainer), `pause`
    seconds apart, if that may help. Each method raises `TokentapError` if the last attempt fails.
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:30001",
        control_url: str | None = "http://127.0.0.1:30002",
        *,
        token: str | None = None,
        control_token: str | None = None,
        timeout: float | None = 900.0,
        connect_timeout: float | None = 5.0,
        retries: int | None = None,
        pause: float = 1.0,
    ) -> None:
        timeouts = Timeouts(timeout, connect_timeout)
        self._data = Connections(Address.of(base_url), timeouts)
        control = None if control_url is None else Address.of(control_url)
        self._control = None if control is None else Connections(control, timeouts)
        self._token, self._control_token = check_token(token), check_token(control_token)
        self._retry = Retry(FEW if retries is None else retries, pause)
        self._settings = {
            "base_url": base_url,
            "control_url": control_url,
            "token": token,
            "control_token": control_token,
            "timeout": timeout,
            "connect_timeout": connect_timeout,
            "retries": retries,
            "pause": pause,
        }

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the idle connections; a later call opens new ones."""
        self._data.close()
        if self._control is not None:
            self._control.close()

    def generate(
        self,
        text: str | None = None,
        *,
        input_ids: Sequence[int] | None = None,
        sampling_params: Mapping[str, object] | None = None,
        session: str | None = None,
        tags: Mapping[str, Tag] | None = None,
        return_entropy: bool | None = None,
        entropy_options: Mapping[str, object] | None = None,
        rid: str | None = None,
        done: bool = False,
        **fields: object,
    ) -> Generation:
        """One sample of one prompt, `text` or `input_ids`.

        It is recorded in `session`, which gets the `tags`; with `done` it is the last call of the session. `fields` are
        sampling parameters, such as `max_new_tokens`, and other members of SGLang's request, such as `return_logprob`.
        tokentap recognizes a retry of a call with a session. If it knows that the reply was lost, the retry does not
        sample again.
        """
        made = self._send(
            routes.generate(
                text,
                input_ids,
                sampling_params=sampling_params,
                session=session,
                tags=tags,
                return_entropy=return_entropy,
                entropy_options=entropy_options,
                rid=rid,
                done=done,
                is_one=True,
                stream=False,
                fields=fields,
            )
        )
        return made[0]

    def generate_batch(
        self,
        text: Texts | None = None,
        *,
        input_ids: Ids | None = None,
        sampling_params: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None,
        session: str | None = None,
        tags: Mapping[str, Tag] | None = None,
        return_entropy: bool | None = None,
        entropy_options: Mapping[str, object] | None = None,
        rid: str | Sequence[str] | None = None,
        done: bool = False,
        **fields: object,
    ) -> list[Generation]:
        """Several prompts, or several samples (`n` in `sampling_params`), in the engine's order: prompt by prompt."""
        return self._send(
            routes.generate(
                text,
                input_ids,
                sampling_params=sampling_params,
                session=session,
                tags=tags,
                return_entropy=return_entropy,
                entropy_options=entropy_options,
                rid=rid,
                done=done,
                is_one=False,
                stream=False,
                fields=fields,
            )
        )

    def stream(
        self,
        text: Texts | None = None,
        *,
        input_ids: Ids | None = None,
        sampling_params: Mapping[str, object] | None = None,
        session: str | None = None,
        tags: Mapping[str, Tag] | None = None,
        return_entropy: bool | None = None,
        entropy_options: Mapping[str, object] | None = None,
        rid: str | Sequence[str] | None = None,
        done: bool = False,
        **fields: object,
    ) -> Generator[Delta, None, None]:
        """Yields the new part of each event, whether the stream is incremental or cumulative.

        Closing the iterator ends the generation. It is retried only before its first event; a stream that breaks
        later raises `Interrupted`.
        """
        call = routes.generate(
            text,
            input_ids,
            sampling_params=sampling_params,
            session=session,
            tags=tags,
            return_entropy=return_entropy,
            entropy_options=entropy_options,
            rid=rid,
            done=done,
            is_one=False,
            stream=True,
            fields=fields,
        )
        return self._deltas(call)

    def sessions(self, *, where: str | None = None, sort: str | None = None) -> Iterator[Json]:
        """A summary of each session, in the order of creation; shared sessions are in the order of their last append.

        `where` selects sessions by conditions, such as `reward<0.5,step=17`, and `sort` orders them by a member or a
        tag, such as `-reward`. With one of them the list has the sessions in the memory of this tokentap. Without, a
        session that another tokentap has and this one has not read has the members `session` and `used_ms` only.
        """
        after: str | None = None
        seen: set[str] = set()  # a shared session that is used meanwhile is listed again
        while True:
            page = self.sessions_page(after, where=where, sort=sort)
            for session in page["sessions"]:
                if session["session"] not in seen:
                    seen.add(session["session"])
                    yield session
            after = page["next"]
            if after is None:
                return

    def sessions_page(
        self, after: str | None = None, limit: int | None = None, *, where: str | None = None, sort: str | None = None
    ) -> Json:
        """One page: `sessions`, the `next` page or None, and the names of `evicted` sessions.

        With `where` or `sort`, `matched` is the number of sessions on all pages, in place of `evicted`.
        """
        return self._send(routes.page(after, limit, where, sort))

    def steps(
        self, by: str = "step", *, where: str | None = None, limit: int | None = None, scores: str | None = None
    ) -> list[Json]:
        """The sums of the sessions in memory for each value of the tag `by`, or for each policy with `by="policy"`.

        `scores` is the name of a teacher; each step then has the `mismatch` of its trained tokens.
        """
        return self._send(routes.steps(by, where, limit, scores))

    def groups(self, by: str = "step", *, where: str | None = None, sort: str | None = None) -> Iterator[Json]:
        """Yields the groups of samples of each step and first prompt in memory that have at least two rows.

        A group has `samples`, `pass_rate`, the `mean`, `std`, `min` and `max` of the rewards, and `session` and `turn`
        of its first sample. `sort` orders groups by a member, such as `-std`.
        """
        after: str | None = None
        while True:
            page = self._send(routes.groups(by, where, sort, after))
            yield from page["groups"]
            after = page["next"]
            if after is None:
                return

    def high_entropy_tokens(self, *, where: str | None = None, limit: int = 50) -> list[Json]:
        """The sampled tokens with the highest entropies of the sessions in memory, the highest first; at most 1000.

        A token has its `session`, `turn`, `entropy` in nats, `token_id`, `position` in the path that ends in this turn,
        and the ids `before` and `after` it.
        """
        found: list[Json] = []
        after: str | None = None
        while True:
            page = self._send(routes.high_entropy_tokens(where, limit, after))
            found = routes.highest([*found, *page["tokens"]], limit)
            after = page["next"]
            if after is None:
                return found

    def search(
        self, text: str | Sequence[int], *, where: str | None = None, regex: bool = False, case: bool = False
    ) -> Iterator[Json]:
        """Yields the matches of a text in the sessions in memory, the latest first; token ids without a tokenizer.

        Upper and lower case are the same without `case`. A match has the `session`, the `turn`, the `kind` ("prompt" or
        "response") and the text `before` and `after` it.
        """
        after: str | None = None
        while True:
            page = self._send(routes.search(text, where, regex, case, after))
            yield from page["matches"]
            after = page["next"]
            if after is None:
                return

    def session(self, name: str, version: int | None = None) -> Json:
        """The summary of a session and the `list` of its turns."""
        return self._send(routes.session(name, version))

    def trajectories(self, session: str, version: int | None = None) -> Trajectories:
        """A session's `trajectories`, by default of the last frozen version.

        `token_ids`, `loss_mask`, `logprobs` and `entropy` of a path have one entry for each token of prompt and
        response; the last two are in nats, and None where the mask is 0.
        """
        return self._send(routes.trajectories(session, version))

    def image(self, session: str, sha256: str) -> Image:
        """A picture of a session, by the digest in `images` of its rows; an HttpError with the code `no_such_image` if
        tokentap has only the digest."""
        return self._send(routes.image(session, sha256))

    def freeze(self, session: str) -> int:
        """Freezes the current state as a version that does not change, and returns its number."""
        return self._send(routes.freeze(session))

    def reward(
        self,
        session: str,
        reward: float | Mapping[str, object],
        leaf: int | None = None,
        turn: int | None = None,
    ) -> bool:
        """Sets the reward of a session, of the path that ends in `leaf`, or of one `turn` on every path that holds it.

        Returns whether an exported path ends in that leaf; for a turn, whether it is trainable."""
        return self._send(routes.reward(session, reward, leaf, turn))

    def set_tags(self, session: str, tags: Mapping[str, Tag]) -> dict[str, str]:
        """Replaces all tags of a session, and returns them as text. They are final once a version is frozen."""
        return self._send(routes.set_tags(session, tags))

    def delete(self, session: str) -> None:
        """Deletes a session."""
        self._send(routes.delete(session))

    def finished(self, since: str | None = None, limit: int = 1000) -> Iterator[Json]:
        """Yields each path that finished after the cursor `since` once, until no more are available.

        An entry is a trajectory with its `row_key` and `cursor`, `{"session", "gone", "cursor"}` if it was evicted or
        deleted or is not readable, `{"session", "leaf", "refused", "cursor"}` if it trains compactions or auxiliary
        calls only, or `{"missed": n}` for n paths that are no longer known, None for an unknown number. `limit` is the
        number of entries of one request.
        """
        while lines := self._send(routes.finished(since, limit)):
            yield from lines
            if "cursor" not in lines[-1]:
                return  # nothing follows, and the next request would have the same reply
            since = lines[-1]["cursor"]

    def samples(
        self, sessions: Sequence[str] | None, format: Format = "verl", **options: Unpack[SampleOptions]
    ) -> Samples:
        """Sessions in the format of a trainer; None for all that tokentap lists now.

        `options` are those of an export; `where` leaves out the sessions that do not meet its conditions. `advantages`
        is a mapping with the options of `advantages()`: `groups`, `estimator`, `lambda`, ..."""
        if sessions is None:
            sessions = [session["session"] for session in self.sessions()]
        return self._send(routes.samples(sessions, format, options))

    def advantages(
        self, groups: Sequence[Mapping[str, object]], estimator: Estimator = "grpo", **options: Unpack[AdvantageOptions]
    ) -> Json:
        """Advantages of `groups`, each `{"id", "samples": [{"session", "leaf"?, "reward"?}]}`, by default with the
        stored rewards; `options` are `lambda_`, `alpha`, `entropy_over` ("thinking" or "response"), `normalize_std`,
        `rewards` ("path" or "turns"), `discount`, `teacher`, `think_start`, `think_end`, `version`, `classes`,
        `train_resumed` and `high_entropy_threshold`."""
        return self._send(routes.advantages(groups, estimator, options))

    def teacher_scores(self, teacher: str, sessions: Sequence[str] = (), **options: Unpack[TeacherOptions]) -> Json:
        """Has a teacher score sessions, and returns the `mismatch` of both policies in all and in each of `rows`.

        `teacher` is a name of `--teacher`, "self" for the upstream, or the URL of an engine on a host of
        `--teacher-host`; `options` are `key` (of that URL), `rows`, `version`, `classes`, `train_resumed`, `again`,
        `top_logprobs`, `logprobs_of_top_ids`, `cap`, `limit` and `weights`."""
        return self._send(routes.teacher_scores(teacher, sessions, options))

    def policy(self) -> Json:
        """The `epoch`, the engine's `weight_version`, the trainer's `version`, and whether weights are `updating`."""
        return self._send(routes.policy())

    def set_policy(self, version: str | int, *, adapter: str | None = None) -> int:
        """Names the policy from now on, or that of a LoRA adapter; returns the new epoch."""
        return self._send(routes.set_policy(version, adapter))

    def update_weights_from_disk(
        self, model_path: str | os.PathLike[str], *, weight_version: str | int | None = None, **fields: object
    ) -> Json:
        """Loads the checkpoint in a directory that the engine can read.

        `fields` are other members of SGLang's request, such as `flush_cache` and `abort_all_requests`. As every call
        that changes weights, it returns the engine's reply, begins a policy epoch unless an update has begun, and is
        not retried if the engine may have got it.
        """
        return self._send(routes.weights_from_disk(model_path, weight_version, fields))

    def update_weights_from_tensor(
        self,
        serialized_named_tensors: Sequence[str],
        *,
        weight_version: str | int | None = None,
        **fields: object,
    ) -> Json:
        """Loads tensors: for each rank the text of SGLang's `MultiprocessingSerializer.serialize`.

        SGLang 0.5.23 accepts it only between `begin_weight_update` and `end_weight_update`.
        """
        return self._send(routes.weights_from_tensor(serialized_named_tensors, weight_version, fields))

    def update_weights_from_distributed(
        self,
        names: Sequence[str],
        dtypes: Sequence[str],
        shapes: Sequence[Sequence[int]],
        *,
        weight_version: str | int | None = None,
        **fields: object,
    ) -> Json:
        """Receives tensors from the group of `init_weights_update_group`; the trainer broadcasts them during the call.

        SGLang 0.5.23 accepts it only between `begin_weight_update` and `end_weight_update`.
        """
        return self._send(routes.weights_from_distributed(names, dtypes, shapes, weight_version, fields))

    def init_weights_update_group(
        self, master_address: str, master_port: int, rank_offset: int, world_size: int, **fields: object
    ) -> Json:
        """Joins the process group of the trainer; `fields` are `group_name` and `backend`."""
        return self._send(
            routes.engine(
                "init_weights_update_group",
                {
                    "master_address": master_address,
                    "master_port": master_port,
                    "rank_offset": rank_offset,
                    "world_size": world_size,
                    **fields,
                },
            )
        )

    def destroy_weights_update_group(self, group_name: str = "weight_update_group") -> Json:
        """Leaves the process group."""
        return self._send(routes.engine("destroy_weights_update_group", {"group_name": group_name}))

    def begin_weight_update(self, **fields: object) -> Json:
        """Begins an update of several calls, which is one policy epoch.

        Tokens that are sampled before `end_weight_update` may belong to either epoch; `pause_generation` first leaves
        none.
        """
        return self._send(routes.engine("begin_weight_update", fields))

    def end_weight_update(self) -> Json:
        """Ends the update and begins its policy epoch."""
        return self._send(routes.engine("end_weight_update", {}))

    def update_weight_version(self, new_version: str | int, *, abort_all_requests: bool = True) -> Json:
        """Changes the engine's name of its weights; aborts all requests first unless that is turned off."""
        return self._send(
            routes.engine(
                "update_weight_version", {"new_version": str(new_version), "abort_all_requests": abort_all_requests}
            )
        )

    def pause_generation(self, mode: PauseMode = "abort") -> Json:
        """Pauses the engine; `abort` ends running requests, `retract` queues them again, `in_place` holds them."""
        return self._send(routes.engine("pause_generation", {"mode": mode}, of_control))

    def continue_generation(self, **fields: object) -> Json:
        """Continues after a pause."""
        return self._send(routes.engine("continue_generation", fields, of_control))

    def load_lora_adapter(self, lora_name: str, lora_path: str | os.PathLike[str], **fields: object) -> Json:
        """Loads an adapter; requests name it in `lora_path`."""
        return self._send(
            routes.engine("load_lora_adapter", {"lora_name": lora_name, "lora_path": os.fspath(lora_path), **fields})
        )

    def unload_lora_adapter(self, lora_name: str) -> Json:
        """Unloads an adapter."""
        return self._send(routes.engine("unload_lora_adapter", {"lora_name": lora_name}))

    def entropy(self, rid: str, since: int = 0, index: int = 0) -> Json:
        """The entropies in nats of a request from token `since` on, while it runs and for 300 s after its end."""
        return self._send(routes.entropy(rid, since, index))

    def metrics(self) -> str:
        """The metrics of tokentap in Prometheus' text format."""
        return self._send(routes.metrics())

    def _for_trainers(self) -> Client:
        """This client, for an adapter: it retries `MANY` times if the caller chose no number. The connections are the
        same, so the caller's `close` closes them."""
        if self._settings["retries"] is not None:
            return self
        patient = object.__new__(type(self))
        settings = {**self._settings, "retries": MANY}
        patient.__dict__.update({**self.__dict__, "_retry": Retry(MANY, self._retry.pause), "_settings": settings})
        return patient

    def _server(self, call: Call[Any]) -> tuple[Connections, str | None]:
        if not call.control:
            return self._data, self._token
        if self._control is None:
            raise ValueError("this client was made without a control_url")
        return self._control, self._control_token

    def _send(self, call: Call[T], retry: Retry | None = None) -> T:
        """Makes a call of any route, and retries it as its kind allows. The methods above use it.

        `retry` is used instead of the client's own retries.
        """
        server, token = self._server(call)
        retry = retry or self._retry
        attempt = 0
        while True:
            try:
                return call.answer(server.exchange(call.method, call.target, call.head(token, attempt), call.body))
            except TokentapError as error:
                wait = retry.wait(attempt, error, call.target, call.again)
                if wait is None:
                    raise
            attempt += 1
            time.sleep(wait)

    def _deltas(self, call: Call[Any]) -> Generator[Delta, None, None]:
        server, token = self._server(call)
        attempt, begun = 0, False
        while True:
            try:
                with server.open(call.method, call.target, call.head(token, attempt), call.body) as exchange:
                    if exchange.status >= 400:
                        Reply(exchange.status, exchange.headers, b"".join(exchange)).check()
                    decoder, deltas = Decoder(), Deltas()
                    for piece in exchange:
                        for event in decoder.feed(piece):
                            begun = True
                            yield deltas.of(event)
                    decoder.end(exchange.status)
                return
            except TokentapError as error:
                wait = None if begun else self._retry.wait(attempt, error, call.target, call.again)
                if wait is None:
                    raise
            attempt += 1
            time.sleep(wait)
