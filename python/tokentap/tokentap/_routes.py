# SPDX-License-Identifier: Apache-2.0
"""Every route of tokentap as a call."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from typing import Any, cast
from uuid import uuid4

from ._call import Call, Reply, encoded, target
from ._errors import of_status
from ._generation import Generation
from ._members import split
from ._retry import Rule, of_change, of_generation
from ._samples import Samples
from .images import Image
from .trajectories import Trajectories

Json = dict[str, Any]
Texts = str | Sequence[str]
Ids = Sequence[int] | Sequence[Sequence[int]]
# The value of a tag; tokentap keeps the text of a number.
Tag = str | int | float | bool
Fields = Mapping[str, object]

# The tokens that a reply of `GET /v1/high-entropy-tokens` has at most.
MOST_TOKENS = 1000

SESSION = re.compile(r"[A-Za-z0-9._~-]{1,128}")


def session_name(session: str) -> str:
    """Returns the name; raises ValueError for an invalid one."""
    if not SESSION.fullmatch(session):
        raise ValueError(f"a session's name has 1 to 128 characters of A-Z a-z 0-9 . _ ~ -, not {session!r}")
    return session


def _check_tags(tags: object) -> None:
    """Raises ValueError for tags that are not a mapping, such as the text of the header `x-tokentap-tags`."""
    if not isinstance(tags, Mapping | None):
        raise ValueError(f'tags is a mapping of names to values, such as {{"step": 3}}, not {tags!r}')


def read_all(reply: Reply) -> list[Generation]:
    """The generations of a reply, as a list."""
    raw = reply.json()
    if raw == []:
        raise ValueError("the reply has no generation")
    return [Generation.of(item, reply.headers) for item in (raw if isinstance(raw, list) else [raw])]


def read_lines(reply: Reply) -> list[Json]:
    """The objects of JSON Lines."""
    return [json.loads(line) for line in reply.body.splitlines()]


def is_single(text: Texts | None, input_ids: Ids | None, sampling_params: Any) -> bool:
    """Whether the reply is one sequence instead of a list."""
    if (text is None) == (input_ids is None):
        raise ValueError("give either text or input_ids")
    if text is not None and not isinstance(text, str) and len(text) == 0:
        raise ValueError("a batch has at least one prompt")
    several = sampling_params if isinstance(sampling_params, Mapping) else {}
    batch = not isinstance(text, str) if text is not None else is_nested(input_ids)
    return not batch and (several.get("n") or 1) == 1


def is_nested(input_ids: Ids | None) -> bool:
    """Whether these are the ids of several prompts, as sequences or arrays."""
    if input_ids is None or len(input_ids) == 0:
        return False
    return isinstance(input_ids[0], Sequence) or getattr(input_ids[0], "ndim", 0) > 0


def generate(
    text: Texts | None,
    input_ids: Ids | None,
    *,
    sampling_params: Any,
    session: str | None,
    tags: Mapping[str, Tag] | None,
    return_entropy: bool | None,
    entropy_options: Mapping[str, object] | None,
    rid: str | Sequence[str] | None,
    done: bool,
    is_one: bool,
    stream: bool,
    fields: Mapping[str, object],
) -> Call[list[Generation]]:
    """`POST /generate`; its reply may be one generation or a list, which `is_one` excludes."""
    if bool(fields.get("stream", stream)) != stream:
        raise ValueError("use stream() for a stream, and generate() or generate_batch() for a whole reply")
    _check_tags(tags)
    if tags and "session_tags" in fields:
        raise ValueError("give either tags or session_tags")
    given = {name: value for name, value in fields.items() if name != "stream"}
    sampling_params, fields = split(sampling_params, given)
    single = is_single(text, input_ids, sampling_params)
    if is_one and not single:
        raise ValueError("the reply has several sequences: use generate_batch")
    if rid is None and single:
        # equal in all attempts, so that the engine and tokentap recognize a retry
        rid = uuid4().hex
    body = encoded(
        {
            "text": text,
            "input_ids": input_ids,
            "sampling_params": sampling_params,
            "return_entropy": return_entropy,
            "entropy_options": entropy_options,
            "rid": rid,
            **({"session_tags": dict(tags)} if tags else {}),
            **({"stream": True} if stream else {}),
            **fields,
        }
    )
    path = target("generate") if session is None else target("sessions", session_name(session), "generate")
    headers = {"x-session-done": "true"} if done else {}
    return Call("POST", path, read_all, body, headers, control=False, again=of_generation)


def page(after: str | None, limit: int | None, where: str | None, sort: str | None) -> Call[Json]:
    """`GET /v1/sessions`."""
    return Call("GET", target("v1", "sessions", after=after, limit=limit, where=where, sort=sort), Reply.json)


def steps(by: str, where: str | None, limit: int | None, scores: str | None) -> Call[list[Json]]:
    """`GET /v1/steps`."""
    query = {"by": by, "where": where, "limit": limit, "scores": scores}
    return Call("GET", target("v1", "steps", **query), lambda reply: list(reply.json()["steps"]))


def groups(by: str, where: str | None, sort: str | None, after: str | None) -> Call[Json]:
    """`GET /v1/groups`: a page of groups."""
    return Call("GET", target("v1", "groups", by=by, where=where, sort=sort, after=after), Reply.json)


def high_entropy_tokens(where: str | None, limit: int, after: str | None) -> Call[Json]:
    """`GET /v1/high-entropy-tokens`: the highest entropies of a part of the sessions."""
    if not 1 <= limit <= MOST_TOKENS:
        # the server would reduce it, and the lowest ones of several replies would be missing
        raise ValueError(f"limit is a number from 1 to {MOST_TOKENS}, not {limit}")
    return Call("GET", target("v1", "high-entropy-tokens", where=where, limit=limit, after=after), Reply.json)


def search(text: str | Sequence[int], where: str | None, regex: bool, case: bool, after: str | None) -> Call[Json]:
    """`GET /v1/search`: a page of matches."""
    q = text if isinstance(text, str) else ",".join(str(token) for token in text)
    query = {"q": q, "where": where, "regex": regex or None, "case": case or None, "after": after}
    return Call("GET", target("v1", "search", **query), Reply.json)


def highest(tokens: Iterable[Json], limit: int) -> list[Json]:
    """The tokens with the highest entropies of several replies, the highest first."""
    return nlargest(limit, tokens, key=lambda token: float(token["entropy"]))


def session(name: str, version: int | None) -> Call[Json]:
    """`GET /v1/sessions/{id}`."""
    return Call("GET", target("v1", "sessions", name, version=version), Reply.json)


def trajectories(name: str, version: int | None) -> Call[Trajectories]:
    """`GET /v1/sessions/{id}/trajectories`."""

    def read(reply: Reply) -> Trajectories:
        return cast("Trajectories", reply.json())

    return Call("GET", target("v1", "sessions", name, "trajectories", version=version), read)


def image(name: str, sha256: str) -> Call[Image]:
    """`GET /v1/sessions/{id}/images/{sha256}`."""

    def read(reply: Reply) -> Image:
        found = Image(reply.body)
        if found.sha256 != sha256:
            raise ValueError(f"the picture has the digest {found.sha256}")
        return found

    return Call("GET", target("v1", "sessions", name, "images", sha256), read)


def path(name: str, leaf: int, version: int | None) -> Call[Json]:
    """`GET /v1/sessions/{id}/paths/{leaf}`: everything of a path but its tokens, and the ids of the think tokens."""
    return Call("GET", target("v1", "sessions", name, "paths", str(leaf), version=version), Reply.json)


def detokenize(tokens: Sequence[Sequence[int]]) -> Call[list[str]]:
    """`POST /detokenize` of the control port; each item is decoded separately."""

    def read(reply: Reply) -> list[str]:
        texts = reply.json()["text"]
        if not isinstance(texts, list) or len(texts) != len(tokens):
            raise ValueError("not one text for each item")
        return [str(text) for text in texts]

    body = encoded({"tokens": [list(ids) for ids in tokens], "skip_special_tokens": False})
    return Call("POST", target("detokenize"), read, body)


def freeze(name: str) -> Call[int]:
    """`POST /v1/sessions/{id}/freeze`; returns the version."""
    return Call(
        "POST",
        target("v1", "sessions", name, "freeze"),
        lambda reply: int(reply.json()["version"]),
        b"",
        again=of_change,
    )


def reward(name: str, value: float | Mapping[str, object], leaf: int | None, turn: int | None) -> Call[bool]:
    """`POST /v1/sessions/{id}/reward`; returns whether an exported path ends in that leaf, or the turn is trainable."""
    try:
        body = encoded({"reward": value, "leaf": leaf, "turn": turn})
    except ValueError as error:
        raise ValueError(f"session {name!r}: {error}") from error
    return Call("POST", target("v1", "sessions", name, "reward"), lambda reply: bool(reply.json()["applies"]), body)


def set_tags(name: str, tags: Mapping[str, Tag]) -> Call[dict[str, str]]:
    """`PUT /v1/sessions/{id}/tags`; returns the tags as text."""
    _check_tags(tags)
    for tag, value in tags.items():
        if value is None:
            raise ValueError(f"the tag {tag!r} is None: leave it out to remove it")
    where = target("v1", "sessions", name, "tags")
    return Call("PUT", where, lambda reply: dict(reply.json()["tags"]), encoded(tags))


def delete(name: str) -> Call[None]:
    """`DELETE /v1/sessions/{id}`."""
    return Call("DELETE", target("v1", "sessions", name), lambda _: None, again=of_change)


def finished(since: str | None, limit: int) -> Call[list[Json]]:
    """`GET /v1/trajectories`."""
    return Call("GET", target("v1", "trajectories", since=since, limit=limit), read_lines)


def samples(sessions: Sequence[str], format: str, options: Mapping[str, object]) -> Call[Samples]:
    """`POST /v1/samples`."""
    if isinstance(sessions, str):
        raise ValueError(f"a list of sessions, not the name {sessions!r}")

    def read(reply: Reply) -> Samples:
        rows, refused, incomplete = (reply.headers[f"tokentap-{name}"] for name in ("rows", "refused", "incomplete"))
        content_type = reply.headers["content-type"]
        return Samples(format, content_type, int(rows), json.loads(refused), json.loads(incomplete), reply.body)

    body = encoded({"sessions": list(sessions), "format": format, **options})
    return Call("POST", target("v1", "samples"), read, body)


def advantages(groups: Sequence[Mapping[str, object]], estimator: str, options: Mapping[str, object]) -> Call[Json]:
    """`POST /v1/advantages`."""
    # `lambda` cannot be an argument name in Python
    fields = {"lambda" if name == "lambda_" else name: value for name, value in options.items()}
    body = encoded({"groups": list(groups), "estimator": estimator, **fields})
    return Call("POST", target("v1", "advantages"), Reply.json, body)


def teacher_scores(teacher: str, sessions: Sequence[str], options: Mapping[str, object]) -> Call[Json]:
    """`POST /v1/teacher-scores`."""
    body = encoded({"teacher": teacher, "sessions": list(sessions), **options})
    return Call("POST", target("v1", "teacher-scores"), Reply.json, body)


def policy() -> Call[Json]:
    """`GET /v1/policy`."""
    return Call("GET", target("v1", "policy"), Reply.json)


def set_policy(version: str | int, adapter: str | None) -> Call[int]:
    """`POST /v1/policy`; returns the epoch."""
    body = encoded({"version": version} if adapter is None else {"version": version, "adapter": adapter})
    return Call("POST", target("v1", "policy"), lambda reply: int(reply.json()["epoch"]), body)


def weights_from_disk(model_path: str | os.PathLike[str], version: str | int | None, fields: Fields) -> Call[Json]:
    """`POST /update_weights_from_disk`."""
    return _weights("update_weights_from_disk", version, {"model_path": os.fspath(model_path), **fields})


def weights_from_tensor(tensors: Sequence[str], version: str | int | None, fields: Fields) -> Call[Json]:
    """`POST /update_weights_from_tensor`."""
    if isinstance(tensors, str):
        raise ValueError("a list with the serialized tensors of each rank, not one string")
    return _weights("update_weights_from_tensor", version, {"serialized_named_tensors": list(tensors), **fields})


def weights_from_distributed(
    names: Sequence[str],
    dtypes: Sequence[str],
    shapes: Sequence[Sequence[int]],
    version: str | int | None,
    fields: Fields,
) -> Call[Json]:
    """`POST /update_weights_from_distributed`."""
    body = {"names": list(names), "dtypes": list(dtypes), "shapes": [list(shape) for shape in shapes], **fields}
    return _weights("update_weights_from_distributed", version, body)


def _weights(route: str, version: str | int | None, fields: Fields) -> Call[Json]:
    return engine(route, {**fields, "weight_version": None if version is None else str(version)})


def engine(route: str, fields: Fields, again: Rule = of_change) -> Call[Json]:
    """`POST` of one of SGLang's control routes; returns the engine's reply."""
    return Call("POST", target(route), read_outcome, encoded(fields), again=again)


def read_outcome(reply: Reply) -> Json:
    """The engine's reply to a control call; raises HttpError if it reports a failure, also with a status of 200."""
    outcome = reply.json()
    if not isinstance(outcome, dict):
        raise ValueError("not an object")
    if outcome.get("success") is False:
        raise of_status(reply.status, reply.body.decode("utf-8", "replace"))
    return outcome


def entropy(rid: str, since: int, index: int) -> Call[Json]:
    """`GET /v1/requests/{rid}/entropy`."""
    return Call("GET", target("v1", "requests", rid, "entropy", since=since, index=index), Reply.json)


def metrics() -> Call[str]:
    """`GET /metrics`."""
    return Call("GET", target("metrics"), lambda reply: reply.body.decode())
