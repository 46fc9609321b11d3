# SPDX-License-Identifier: Apache-2.0
"""The methods of the control port."""

from __future__ import annotations

import statistics

import pytest
from conftest import Demo, Either

from tokentap import HttpError

SAMPLING = {"max_new_tokens": 4, "ignore_eos": True}


def test_sessions_are_listed_page_by_page(do: Either, demo: Demo, session: str) -> None:
    names = [f"{session}-{at}" for at in range(3)]
    for name in names:
        do(demo, "generate", "a", session=name, sampling_params=SAMPLING)
    found = [one for one in do(demo, "sessions") if one["session"] in names]
    assert [one["session"] for one in found] == names
    assert all(one["turns"] == 1 and one["sampled_tokens"] == 4 for one in found)
    page = do(demo, "sessions_page", limit=1)
    assert len(page["sessions"]) == 1
    assert page["evicted"] == []
    following = do(demo, "sessions_page", page["next"], limit=1)["sessions"][0]
    assert following["session"] != page["sessions"][0]["session"]


def test_sessions_are_selected_and_sorted(do: Either, demo: Demo, session: str) -> None:
    for at in range(3):
        name, tags = f"{session}-{at}", {"step": at, "run": session}
        do(demo, "generate", "a", session=name, tags=tags, sampling_params=SAMPLING)
        do(demo, "reward", name, at / 2)
    found = do(demo, "sessions", where=f"run={session},reward<0.8", sort="-reward")
    assert [one["session"] for one in found] == [f"{session}-1", f"{session}-0"]
    page = do(demo, "sessions_page", limit=1, where=f"run={session}", sort="reward")
    assert (page["matched"], page["sessions"][0]["session"]) == (3, f"{session}-0")
    following = do(demo, "sessions_page", page["next"], 1, where=f"run={session}", sort="reward")["sessions"]
    assert [one["session"] for one in following] == [f"{session}-1"]
    rows = do(demo, "steps", where=f"run={session}")
    assert [(row["step"], row["sessions"], row["reward"]["mean"]) for row in rows] == [
        ("0", 1, 0),
        ("1", 1, 0.5),
        ("2", 1, 1),
    ]
    assert [row["step"] for row in do(demo, "steps", "run", where=f"run={session}")] == [session]
    assert [row["step"] for row in do(demo, "steps", limit=1, where=f"run={session}")] == ["2"]
    with pytest.raises(HttpError, match="where"):
        do(demo, "sessions", where="reward~1")


def test_steps_have_the_mismatch_of_a_teacher(do: Either, demo: Demo, session: str) -> None:
    sampling = {**SAMPLING, "temperature": 1.0}
    do(demo, "generate", "a", session=session, tags={"run": session}, sampling_params=sampling)
    do(demo, "teacher_scores", "self", [session])
    (row,) = do(demo, "steps", "run", where=f"run={session}", scores="self")
    assert (row["rows"], row["mismatch"]["tokens"]) == (1, 4)
    assert (row["thinking_entropy"], row["answer_entropy"]["tokens"]) == (None, 4)
    (row,) = do(demo, "steps", "run", where=f"run={session}")
    assert "mismatch" not in row


def test_groups_of_samples_are_listed_and_sorted(do: Either, demo: Demo, session: str) -> None:
    for prompt in ("a", "b"):
        for at in range(3):
            name, tags = f"{session}-{prompt}{at}", {"step": 1, "run": session}
            do(demo, "generate", prompt, session=name, tags=tags, sampling_params=SAMPLING)
            do(demo, "reward", name, float(at == 0 and prompt == "a"))
    found = do(demo, "groups", where=f"run={session}", sort="-std")
    assert [(one["step"], one["samples"], one["mean"], one["one_reward"]) for one in found] == [
        ("1", 3, pytest.approx(1 / 3), False),
        ("1", 3, 0.0, True),
    ]
    assert found[0]["session"] == f"{session}-a0"
    assert [one["step"] for one in do(demo, "groups", "run", where=f"run={session}")] == [session] * 2


def test_the_tokens_with_the_highest_entropies_are_sorted(do: Either, demo: Demo, session: str) -> None:
    sampling = {**SAMPLING, "temperature": 1.0}
    made = do(demo, "generate", "a", session=session, tags={"run": session}, sampling_params=sampling)
    found = do(demo, "high_entropy_tokens", where=f"run={session}", limit=3)
    assert [one["entropy"] for one in found] == sorted(made.entropy, reverse=True)[:3]
    top = max(range(4), key=lambda at: made.entropy[at])
    assert (found[0]["session"], found[0]["turn"], found[0]["token_id"]) == (session, 0, made.output_ids[top])
    with pytest.raises(ValueError, match="from 1 to 1000, not 1001"):
        do(demo, "high_entropy_tokens", limit=1001)


def test_an_export_selects_sessions_by_conditions(do: Either, demo: Demo, session: str) -> None:
    for at in range(3):
        name, tags = f"{session}-{at}", {"step": at, "run": session}
        do(demo, "generate", "a", session=name, tags=tags, sampling_params=SAMPLING)
    samples = do(demo, "samples", None, "jsonl", where=f"run={session},step>0")
    assert [row["session"] for row in samples.json()] == [f"{session}-1", f"{session}-2"]


def test_texts_are_searched_on_all_pages(do: Either, demo: Demo, session: str) -> None:
    # more matches than a page has, one for each turn
    prompts = ["The lamp"] * 120
    do(demo, "generate_batch", prompts, session=session, tags={"run": session}, sampling_params={"max_new_tokens": 1})
    found = do(demo, "search", "LAMP", where=f"run={session}")
    assert sorted(one["turn"] for one in found) == list(range(120))
    assert {(one["session"], one["match"], one["kind"]) for one in found} == {(session, "lamp", "prompt")}
    assert do(demo, "search", "LAMP", where=f"run={session}", case=True) == []
    assert len(do(demo, "search", "l.mp", where=f"run={session}", regex=True)) == 120
    assert do(demo, "search", "l.mp", where=f"run={session}") == []


def test_a_deleted_session_is_unknown(do: Either, demo: Demo, session: str) -> None:
    do(demo, "generate", "a", session=session, sampling_params=SAMPLING)
    assert do(demo, "delete", session) is None
    for method in ("session", "trajectories", "delete", "freeze"):
        with pytest.raises(HttpError) as raised:
            do(demo, method, session)
        assert (raised.value.status, raised.value.code) == (404, "no_such_session")


def test_a_frozen_version_does_not_change(do: Either, demo: Demo, session: str) -> None:
    do(demo, "generate", "a", session=session, sampling_params=SAMPLING)
    assert do(demo, "reward", session, 0.5) is True
    assert do(demo, "reward", session, {"score": 1.0}, leaf=0) is True
    assert do(demo, "reward", session, 0.25, turn=0) is True
    assert do(demo, "freeze", session) == 1
    do(demo, "generate", "b", session=session, sampling_params=SAMPLING)
    assert do(demo, "freeze", session) == 2
    first, second = do(demo, "trajectories", session, 1), do(demo, "trajectories", session, version=2)
    assert (first["version"], second["version"]) == (1, 2)
    assert [path["reward"] for path in first["trajectories"]] == [{"score": 1.0}]
    assert first["trajectories"][0]["turns"][0]["reward"] == 0.25
    # the next version also holds the earlier turns
    assert [path["turns"][-1]["id"] for path in second["trajectories"]] == [0, 1]
    with pytest.raises(HttpError) as raised:
        do(demo, "session", session, version=9)
    assert raised.value.code == "no_such_version"


def test_tags_are_set_by_calls_and_replaced(do: Either, demo: Demo, session: str) -> None:
    do(demo, "generate", "a", session=session, tags={"step": 17, "lr": 1e-06, "eval": True}, sampling_params=SAMPLING)
    assert do(demo, "session", session)["tags"] == {"step": "17", "lr": "1e-06", "eval": "true"}
    do(demo, "generate_batch", ["a"], session=session, tags={"step": 18}, sampling_params=SAMPLING)
    assert do(demo, "trajectories", session)["trajectories"][0]["tags"]["step"] == "18"
    assert do(demo, "set_tags", session, {"task": "a,b"}) == {"task": "a,b"}
    with pytest.raises(HttpError) as raised:
        do(demo, "set_tags", session, {"a b": 1})
    assert (raised.value.status, "at most 32 tags" in str(raised.value)) == (400, True)
    with pytest.raises(ValueError, match="'step' is None"):
        do(demo, "set_tags", session, {"task": "c", "step": None})
    do(demo, "freeze", session)
    assert do(demo, "set_tags", session, {"task": "a,b"}) == {"task": "a,b"}
    with pytest.raises(HttpError) as raised:
        do(demo, "set_tags", session, {})
    assert (raised.value.status, raised.value.code) == (409, "frozen")


def test_finished_paths_are_returned_once(do: Either, demo: Demo, session: str) -> None:
    before = [line["cursor"] for line in do(demo, "finished")][-1:]
    since = before[0] if before else None
    names = [f"{session}-{at}" for at in range(5)]
    for name in names:
        do(demo, "generate", "a", session=name, sampling_params=SAMPLING, done=True)
    do(demo, "delete", names[2])
    lines = do(demo, "finished", since, limit=2)
    assert [line["session"] for line in lines] == names
    assert lines[2]["gone"] == "deleted"
    assert len(lines[0]["token_ids"]) == len(lines[0]["entropy"])
    assert do(demo, "finished", lines[-1]["cursor"]) == []
    with pytest.raises(HttpError) as raised:
        do(demo, "finished", "0-0")
    assert raised.value.code == "other_store"


def test_set_policy_names_the_policy(do: Either, demo: Demo, session: str) -> None:
    before, version = do(demo, "policy")["epoch"], f"step of {do.kind}"
    assert do(demo, "set_policy", version) == before + 1
    # an equal name is the same policy
    assert do(demo, "set_policy", version) == before + 1
    do(demo, "generate", "a", session=session, sampling_params=SAMPLING)
    known = {"adapters": [], "epoch": before + 1, "version": version, "weight_version": "default", "updating": False}
    assert do(demo, "policy") == known
    (path,) = do(demo, "trajectories", session)["trajectories"]
    assert [(span["epoch"], span["version"]) for span in path["policy"]] == [(before + 1, version)]


def test_own_engine_scores_its_tokens(do: Either, demo: Demo, session: str) -> None:
    sampling = {"max_new_tokens": 4, "temperature": 1.0, "ignore_eos": True}
    do(demo, "generate", "a", session=session, sampling_params=sampling)
    found = do(demo, "teacher_scores", "self", [session])
    assert found["mismatch"]["tokens"] == 4
    assert found["mismatch"]["max"] < 1e-5


def test_advantages_match_the_formulas(do: Either, demo: Demo, session: str) -> None:
    rewards = [1.0, 0.0, 0.25]
    names = [f"{session}-{at}" for at in range(3)]
    for name in names:
        do(demo, "generate", "a", session=name, sampling_params=SAMPLING)
    samples = [{"session": name, "reward": reward} for name, reward in zip(names, rewards, strict=True)]
    answer = do(demo, "advantages", [{"id": "g", "samples": samples}], estimator="grpo", normalize_std=True)
    mean, deviation = statistics.mean(rewards), statistics.stdev(rewards)
    for sample, reward in zip(answer["groups"][0]["samples"], rewards, strict=True):
        # verl adds 1e-6 to the deviation
        assert sample["advantage"] == pytest.approx((reward - mean) / (deviation + 1e-6), rel=1e-9)
        assert sum(one != 0 for one in sample["advantages"]) == 4
    # the answer says which parameters it used
    shaped = do(demo, "advantages", [{"id": "h", "samples": samples}], estimator="egpo", **{"lambda": 0.25, "alpha": 3})
    assert (shaped["estimator"], shaped["lambda"], shaped["alpha"]) == ("egpo", 0.25, 3)
    shaped = do(demo, "advantages", [{"id": "h", "samples": samples}], estimator="egpo", lambda_=0.5)
    assert shaped["lambda"] == 0.5


def test_entropies_can_be_read_by_rid(do: Either, demo: Demo) -> None:
    made = do(demo, "generate_batch", "a", rid="by rid/1", sampling_params={**SAMPLING, "n": 1})
    read = do(demo, "entropy", "by rid/1")
    assert read["entropy"] == made[0].entropy
    assert (read["next"], read["finished"], read["finish_reason"]) == (4, True, "length")
    with pytest.raises(HttpError) as raised:
        do(demo, "entropy", "nobody's")
    assert raised.value.status == 404


def test_control_methods_without_a_control_url_raise_value_error(do: Either, demo: Demo) -> None:
    where = Demo(demo.data, None)  # type: ignore[arg-type]
    assert do(where, "generate", "a", sampling_params=SAMPLING).output_ids
    with pytest.raises(ValueError, match="control_url"):
        do(where, "policy")


def test_metrics_are_returned_as_text(do: Either, demo: Demo, session: str) -> None:
    do(demo, "generate", "a", session=session, sampling_params=SAMPLING)
    assert 'tokentap_turns_total{outcome="trainable"} ' in do(demo, "metrics")
