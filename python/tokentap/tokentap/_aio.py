# SPDX-License-Identifier: Apache-2.0
"""The asyncio client; needs aiohttp."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from . import _routes as routes
from ._address import Address, check_token
from ._aiotransport import AsyncConnections
from ._call import Call
from ._copies import CopyableClient
from ._errors import TokentapError
from ._generation import Generation
from ._options import AdvantageOptions, Estimator, Format, PauseMode, SampleOptions, TeacherOptions
from ._retry import FEW, Retry, of_control
from ._routes import Ids, Json, Tag, Texts
from ._samples import Samples
from ._stream import Decoder, Delta, Deltas
from ._timeouts import Timeouts
from .images import Image
from .trajectories import Trajectories

if sys.version_info >= (3, 11):
    from typing import Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class AsyncClient(CopyableClient):
    """`Client` for an event loop, with the same arguments, methods and errors; `async with`, or `await close()`.

    It belongs to the loop in which it is first used. aiohttp itself repeats a GET or DELETE once if the connection was
    closed without a reply.
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
        self._data = AsyncConnections(Address.of(base_url), timeouts)
        control = None if control_url is None else Address.of(control_url)
        self._control = None if control is None else AsyncConnections(control, timeouts)
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

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections; a later call opens new ones."""
        await self._data.close()
        if self._control is not None:
            await self._control.close()

    async def generate(
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
        """See `Client.generate`."""
        made = await self._send(
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

    async def generate_batch(
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
        """See `Client.generate_batch`."""
        return await self._send(
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
    ) -> AsyncGenerator[Delta, None]:
        """See `Client.stream`; inside `contextlib.aclosing` the generation ends with the block."""
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

    async def sessions(self, *, where: str | None = None, sort: str | None = None) -> AsyncIterator[Json]:
        """See `Client.sessions`."""
        after: str | None = None
        seen: set[str] = set()
        while True:
            page = await self.sessions_page(after, where=where, sort=sort)
            for session in page["sessions"]:
                if session["session"] not in seen:
                    seen.add(session["session"])
                    yield session
            after = page["next"]
            if after is None:
                return

    async def sessions_page(
        self, after: str | None = None, limit: int | None = None, *, where: str | None = None, sort: str | None = None
    ) -> Json:
        """See `Client.sessions_page`."""
        return await self._send(routes.page(after, limit, where, sort))

    async def steps(
        self, by: str = "step", *, where: str | None = None, limit: int | None = None, scores: str | None = None
    ) -> list[Json]:
        """See `Client.steps`."""
        return await self._send(routes.steps(by, where, limit, scores))

    async def groups(
        self, by: str = "step", *, where: str | None = None, sort: str | None = None
    ) -> AsyncIterator[Json]:
        """See `Client.groups`."""
        after: str | None = None
        while True:
            page = await self._send(routes.groups(by, where, sort, after))
            for group in page["groups"]:
                yield group
            after = page["next"]
            if after is None:
                return

    async def high_entropy_tokens(self, *, where: str | None = None, limit: int = 50) -> list[Json]:
        """See `Client.high_entropy_tokens`."""
        found: list[Json] = []
        after: str | None = None
        while True:
            page = await self._send(routes.high_entropy_tokens(where, limit, after))
            found = routes.highest([*found, *page["tokens"]], limit)
            after = page["next"]
            if after is None:
                return found

    async def search(
        self, text: str | Sequence[int], *, where: str | None = None, regex: bool = False, case: bool = False
    ) -> AsyncIterator[Json]:
        """See `Client.search`."""
        after: str | None = None
        while True:
            page = await self._send(routes.search(text, where, regex, case, after))
            for match in page["matches"]:
                yield match
            after = page["next"]
            if after is None:
                return

    async def session(self, name: str, version: int | None = None) -> Json:
        """See `Client.session`."""
        return await self._send(routes.session(name, version))

    async def trajectories(self, session: str, version: int | None = None) -> Trajectories:
        """See `Client.trajectories`."""
        return await self._send(routes.trajectories(session, version))

    async def image(self, session: str, sha256: str) -> Image:
        """See `Client.image`."""
        return await self._send(routes.image(session, sha256))

    async def freeze(self, session: str) -> int:
        """See `Client.freeze`."""
        return await self._send(routes.freeze(session))

    async def reward(
        self,
        session: str,
        reward: float | Mapping[str, object],
        leaf: int | None = None,
        turn: int | None = None,
    ) -> bool:
        """See `Client.reward`."""
        return await self._send(routes.reward(session, reward, leaf, turn))

    async def set_tags(self, session: str, tags: Mapping[str, Tag]) -> dict[str, str]:
        """See `Client.set_tags`."""
        return await self._send(routes.set_tags(session, tags))

    async def delete(self, session: str) -> None:
        """See `Client.delete`."""
        await self._send(routes.delete(session))

    async def finished(self, since: str | None = None, limit: int = 1000) -> AsyncIterator[Json]:
        """See `Client.finished`."""
        while lines := await self._send(routes.finished(since, limit)):
            for line in lines:
                yield line
            if "cursor" not in lines[-1]:
                return  # nothing follows, and the next request would have the same reply
            since = lines[-1]["cursor"]

    async def samples(
        self, sessions: Sequence[str] | None, format: Format = "verl", **options: Unpack[SampleOptions]
    ) -> Samples:
        """See `Client.samples`."""
        if sessions is None:
            sessions = [session["session"] async for session in self.sessions()]
        return await self._send(routes.samples(sessions, format, options))

    async def advantages(
        self, groups: Sequence[Mapping[str, object]], estimator: Estimator = "grpo", **options: Unpack[AdvantageOptions]
    ) -> Json:
        """See `Client.advantages`."""
        return await self._send(routes.advantages(groups, estimator, options))

    async def teacher_scores(
        self, teacher: str, sessions: Sequence[str] = (), **options: Unpack[TeacherOptions]
    ) -> Json:
        """See `Client.teacher_scores`."""
        return await self._send(routes.teacher_scores(teacher, sessions, options))

    async def policy(self) -> Json:
        """See `Client.policy`."""
        return await self._send(routes.policy())

    async def set_policy(self, version: str | int, *, adapter: str | None = None) -> int:
        """See `Client.set_policy`."""
        return await self._send(routes.set_policy(version, adapter))

    async def update_weights_from_disk(
        self, model_path: str | os.PathLike[str], *, weight_version: str | int | None = None, **fields: object
    ) -> Json:
        """See `Client.update_weights_from_disk`."""
        return await self._send(routes.weights_from_disk(model_path, weight_version, fields))

    async def update_weights_from_tensor(
        self,
        serialized_named_tensors: Sequence[str],
        *,
        weight_version: str | int | None = None,
        **fields: object,
    ) -> Json:
        """See `Client.update_weights_from_tensor`."""
        return await self._send(routes.weights_from_tensor(serialized_named_tensors, weight_version, fields))

    async def update_weights_from_distributed(
        self,
        names: Sequence[str],
        dtypes: Sequence[str],
        shapes: Sequence[Sequence[int]],
        *,
        weight_version: str | int | None = None,
        **fields: object,
    ) -> Json:
        """See `Client.update_weights_from_distributed`."""
        return await self._send(routes.weights_from_distributed(names, dtypes, shapes, weight_version, fields))

    async def init_weights_update_group(
        self, master_address: str, master_port: int, rank_offset: int, world_size: int, **fields: object
    ) -> Json:
        """See `Client.init_weights_update_group`."""
        return await self._send(
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

    async def destroy_weights_update_group(self, group_name: str = "weight_update_group") -> Json:
        """See `Client.destroy_weights_update_group`."""
        return await self._send(routes.engine("destroy_weights_update_group", {"group_name": group_name}))

    async def begin_weight_update(self, **fields: object) -> Json:
        """See `Client.begin_weight_update`."""
        return await self._send(routes.engine("begin_weight_update", fields))

    async def end_weight_update(self) -> Json:
        """See `Client.end_weight_update`."""
        return await self._send(routes.engine("end_weight_update", {}))

    async def update_weight_version(self, new_version: str | int, *, abort_all_requests: bool = True) -> Json:
        """See `Client.update_weight_version`."""
        return await self._send(
            routes.engine(
                "update_weight_version", {"new_version": str(new_version), "abort_all_requests": abort_all_requests}
            )
        )

    async def pause_generation(self, mode: PauseMode = "abort") -> Json:
        """See `Client.pause_generation`."""
        return await self._send(routes.engine("pause_generation", {"mode": mode}, of_control))

    async def continue_generation(self, **fields: object) -> Json:
        """See `Client.continue_generation`."""
        return await self._send(routes.engine("continue_generation", fields, of_control))

    async def load_lora_adapter(self, lora_name: str, lora_path: str | os.PathLike[str], **fields: object) -> Json:
        """See `Client.load_lora_adapter`."""
        return await self._send(
            routes.engine("load_lora_adapter", {"lora_name": lora_name, "lora_path": os.fspath(lora_path), **fields})
        )

    async def unload_lora_adapter(self, lora_name: str) -> Json:
        """See `Client.unload_lora_adapter`."""
        return await self._send(routes.engine("unload_lora_adapter", {"lora_name": lora_name}))

    async def entropy(self, rid: str, since: int = 0, index: int = 0) -> Json:
        """See `Client.entropy`."""
        return await self._send(routes.entropy(rid, since, index))

    async def metrics(self) -> str:
        """See `Client.metrics`."""
        return await self._send(routes.metrics())

    def _server(self, call: Call[Any]) -> tuple[AsyncConnections, str | None]:
        if not call.control:
            return self._data, self._token
        if self._control is None:
            raise ValueError("this client was made without a control_url")
        return self._control, self._control_token

    async def _send(self, call: Call[T]) -> T:
        """Makes a call of any route, and retries it as its kind allows. The methods above use it."""
        server, token = self._server(call)
        attempt = 0
        while True:
            try:
                return call.answer(
                    await server.exchange(call.method, call.target, call.head(token, attempt), call.body)
                )
            except TokentapError as error:
                wait = self._retry.wait(attempt, error, call.target, call.again)
                if wait is None:
                    raise
            attempt += 1
            await asyncio.sleep(wait)

    async def _deltas(self, call: Call[Any]) -> AsyncGenerator[Delta, None]:
        server, token = self._server(call)
        attempt, begun = 0, False
        while True:
            try:
                async with server.open(call.method, call.target, call.head(token, attempt), call.body) as exchange:
                    if exchange.status >= 400:
                        (await exchange.reply()).check()
                    decoder, deltas = Decoder(), Deltas()
                    async for piece in exchange.pieces():
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
            await asyncio.sleep(wait)
