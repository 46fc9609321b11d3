# SPDX-License-Identifier: Apache-2.0
"""Injects faults into the code of shared sessions, and checks that the simulation finds each of them.

Each fault replaces texts of source files in a copy of the repository. The copy is built once: a fault takes effect only in a run that
names its number. The simulation then runs until a history fails. A fault that no history finds, or a text that no longer exists, is an
error.

    python3 tests/simulation/mutants.py [--histories N] [--only PATTERN]
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARING = "src/session/sharing/"

# name: (file, text, replacement, in which FAULT is true if the fault takes effect), or a list of them
FAULTS = {
    "an append is not compared with the list": (
        "src/session/ledger/memory.rs",
        "(Some(list), Some(after)) if !State::ends_at(list, after)",
        "(Some(list), Some(after)) if !FAULT && !State::ends_at(list, after)",
    ),
    "a deletion leaves no tombstone": (
        "src/session/ledger/memory.rs",
        "        state.deleted.insert(Arc::clone(session), (birth, self.elapsed_ms()));\n",
        "        if !FAULT { state.deleted.insert(Arc::clone(session), (birth, self.elapsed_ms())); }\n",
    ),
    "a session that was begun before a deletion is appended": [
        (
            "src/session/ledger/memory.rs",
            "|| self.before_ms(begun_ago) < *deleted_ms",
            "|| (!FAULT && self.before_ms(begun_ago) < *deleted_ms)",
        ),
        (
            SHARING + "deletions.rs",
            "last.at <= deleted || known.log[0].uid == birth",
            "(!FAULT && last.at <= deleted) || known.log[0].uid == birth",
        ),
    ],
    "missing changes from before a deletion are appended": (
        SHARING + "deletions.rs",
        "known.missing.retain(|missing| missing.at > deleted);",
        "known.missing.retain(|missing| FAULT || missing.at > deleted);",
    ),
    "changes from after a deletion are dropped": (
        SHARING + "deletions.rs",
        "let later = |logged: &&CachedEntry| logged.at > deleted;",
        "let later = |logged: &&CachedEntry| !FAULT && logged.at > deleted;",
    ),
    "deletions are not written again after a loss of all data": (
        SHARING + "deletions.rs",
        "restored != losses && !self.is_partition_down(partition)",
        "!FAULT && restored != losses && !self.is_partition_down(partition)",
    ),
    "a deletion that is written again is later": (
        SHARING + "deletions.rs",
        "now_ms.saturating_sub(ago_ms)",
        "now_ms.saturating_sub(ago_ms) + u64::from(FAULT) * 1000",
    ),
    "lost sessions do not wait for deletions": (
        SHARING + "deletions.rs",
        "if until.is_some_and(|until| Instant::now() < until) {",
        "if !FAULT && until.is_some_and(|until| Instant::now() < until) {",
    ),
    "a path that two processes finish trains nothing": [
        (
            "src/session/state/publication.rs",
            "if let Some(trained_from) = publication.claim(self.forest.turns(), path.leaf) {",
            "if let Some(trained_from) = publication.claim(self.forest.turns(), path.leaf).or(FAULT.then_some(u32::MAX)) {",
        ),
        (SHARING + "merge.rs", "if publication.has(leaf) {", "if !FAULT && publication.has(leaf) {"),
    ],
    "a retry supersedes an equal turn": (
        "src/session/state.rs",
        "(turn.about.rid.is_some() && turn.about.rid == draft.about.rid)",
        "(FAULT || (turn.about.rid.is_some() && turn.about.rid == draft.about.rid))",
    ),
    "turns of the local log are not read back": (
        SHARING + "background.rs",
        "            self.recall().await;\n",
        "            if !FAULT { self.recall().await; }\n",
    ),
    "the local log forgets turns that are nowhere else": (
        SHARING + "spill.rs",
        "self.spilled.lock().contains_key(name)",
        "!FAULT && self.spilled.lock().contains_key(name)",
    ),
    "a turn does not wait for replicas": (
        SHARING + "turns.rs",
        "if !replicated {",
        "if !replicated && !FAULT {",
    ),
    "a disruption during the wait for replicas is ignored": (
        SHARING + "../sharing.rs",
        "if self.suspicion() != before {",
        "if !FAULT && self.suspicion() != before {",
    ),
    "a turn whose answer is lost gets another uid": (
        SHARING + "turns.rs",
        "        let uid = draft.about.uid;\n",
        "        let mut draft = draft;\n        if FAULT { draft.about.uid = Uid::unique(); }\n"
        "        let uid = draft.about.uid;\n",
    ),
    "a detached turn is not appended later": (
        SHARING + "turns.rs",
        "                self.mark_unsettled(line, known);\n                self.store.touch",
        "                if !FAULT { self.mark_unsettled(line, known); }\n                self.store.touch",
    ),
    "a session is not marked as incomplete": (
        SHARING + "turns.rs",
        "if session.state().incomplete.is_some() {",
        "if FAULT || session.state().incomplete.is_some() {",
    ),
    "a merge drops what the list lacks": (
        SHARING + "merge.rs",
        "            missing.extend(own);\n",
        "            if !FAULT { missing.extend(own); }\n",
    ),
    "a lost list is not appended again": (
        SHARING + "merge.rs",
        "if !is_kept {\n            self.discard(line, known);\n        } else if",
        "if FAULT || !is_kept {\n            self.discard(line, known);\n        } else if",
    ),
    "a session with detached changes can be evicted": (
        SHARING + "merge.rs",
        "self.set_detached(session, true);",
        "self.set_detached(session, !FAULT);",
    ),
    "a merge in another order keeps the generation": (
        SHARING + "merge.rs",
        "if own.iter().any(|missing| matches!(missing.change, MissingChange::Turn(_))) {",
        "if !FAULT && own.iter().any(|missing| matches!(missing.change, MissingChange::Turn(_))) {",
    ),
    "scores keep the number of their turn in another order": (
        SHARING + "merge.rs",
        "Scores { turn: id(*uid)?, ..Scores::clone(scores) }",
        "Scores { turn: id(*uid).map(|turn| if FAULT { scores.turn } else { turn })?, ..Scores::clone(scores) }",
    ),
    "a merge loses the tokens of the parent": (
        SHARING + "missing.rs",
        "turn.parent.map(|parent| self.tokens(parent)).unwrap_or_default()",
        "turn.parent.filter(|_| !FAULT).map(|parent| self.tokens(parent)).unwrap_or_default()",
    ),
    "missing changes are never appended": (
        SHARING + "merge.rs",
        "Ok(()) => self.append_missing(line, known).await?,",
        "Ok(()) if FAULT => Ok(()),\nOk(()) => self.append_missing(line, known).await?,",
    ),
    "a restored turn that only the primary has counts as confirmed": (
        SHARING + "list_cache.rs",
        "known.is_unconfirmed |= known.missing",
        "known.is_unconfirmed |= !FAULT && known.missing",
    ),
    "a read does not fetch": (
        SHARING + "../sharing.rs",
        "            self.settle(&line, &mut known).await?;\n            self.load(&line, &mut known).await\n",
        "            self.settle(&line, &mut known).await?;\n            if FAULT { return Ok(()); }\n"
        "            self.load(&line, &mut known).await\n",
    ),
    "a disruption is ignored": (
        SHARING + "../sharing.rs",
        "self.losses.load(Ordering::Relaxed) + *self.disruptions.borrow()",
        "self.losses.load(Ordering::Relaxed) + if FAULT { 0 } else { *self.disruptions.borrow() }",
    ),
    "published paths are published again": (
        SHARING + "annotate.rs",
        "leaves.retain(|leaf| !publication.has(*leaf));",
        "leaves.retain(|leaf| FAULT || !publication.has(*leaf));",
    ),
    "a frozen version counts one turn less": (
        SHARING + "annotate.rs",
        "let records = vec![session.record(Change::Freeze { turns: result.turns })];",
        "let records = vec![session.record(Change::Freeze { turns: result.turns - u32::from(FAULT && result.turns > 0) })];",
    ),
    "a frozen session takes a reward": (
        "src/session/state.rs",
        "        if self.is_frozen() {\n            return Err(SessionError::Frozen);",
        "        if !FAULT && self.is_frozen() {\n            return Err(SessionError::Frozen);",
    ),
    "finished paths are not in the stream": (
        SHARING + "annotate.rs",
        "let finished = leaves.iter().map(|leaf| turns[*leaf as usize].about.uid).collect();",
        "let finished = leaves.iter().filter(|_| !FAULT).map(|leaf| turns[*leaf as usize].about.uid).collect();",
    ),
    "idle sessions are not finished": (
        SHARING + "background.rs",
        "match self.finish(&name).await {",
        "let finished = if FAULT { Ok(()) } else { self.finish(&name).await };\nmatch finished {",
    ),
}

# appended to the copy of sharing.rs
SWITCH = """
/// Whether this injected fault takes effect.
pub(in crate::session) fn is_injected(number: usize) -> bool {
    static NUMBER: std::sync::LazyLock<Option<usize>> =
        std::sync::LazyLock::new(|| std::env::var("FAULT").ok().and_then(|number| number.parse().ok()));
    *NUMBER == Some(number)
}
"""


def copy(target: Path) -> None:
    """Copies what a build of the library needs."""
    for name in ["src", "cuda", "proto", "deploy", "tests", "benches", "docs"]:
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("target", "__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, target / path.name)
    for name in [".cargo"]:
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, target / name)


def inject(checkout: Path) -> None:
    """Puts all faults into the copy."""
    for number, (name, fault) in enumerate(FAULTS.items()):
        for file, text, replacement in fault if isinstance(fault, list) else [fault]:
            path = (checkout / file).resolve()
            source = path.read_text()
            if source.count(text) != 1:
                raise SystemExit(f"{name}: {file} has the text {source.count(text)} times:\n{text}")
            condition = f"crate::session::sharing::is_injected({number})"
            path.write_text(source.replace(text, replacement.replace("FAULT", condition)))
    path = checkout / "src/session/sharing.rs"
    path.write_text(path.read_text() + SWITCH)


def first_failure(checkout: Path, environment: dict[str, str]) -> str | None:
    """The first seed that fails, with the test and the message."""
    command = ["cargo", "test", "--quiet", "--lib", "--", "session::sharing::simulation", "--test-threads", "1"]
    run = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=3600)
    output = run.stdout + run.stderr
    if "error: could not compile" in output:
        raise SystemExit(f"the faults do not compile:\n{output[-3000:]}")
    if run.returncode == 0:
        return None
    found = re.search(r"^seed (\d+): (.*)$", output, re.MULTILINE)
    test = re.search(r"^---- (\S+) stdout", output, re.MULTILINE)
    if not found or not test:
        raise SystemExit(f"the simulation failed without a seed:\n{output[-3000:]}")
    return f"{test[1].rsplit('::', 1)[1]} seed {found[1]}: {found[2][:150]}"


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--histories", type=int, default=300)
    arguments.add_argument("--only", default="")
    options = arguments.parse_args()
    missed = []
    with tempfile.TemporaryDirectory() as directory:
        checkout = Path(directory) / "checkout"
        checkout.mkdir()
        copy(checkout)
        inject(checkout)
        environment = os.environ | {"HISTORIES": str(options.histories)}
        environment.setdefault("CARGO_TARGET_DIR", str(ROOT / "target" / "mutants"))
        if found := first_failure(checkout, environment):
            raise SystemExit(f"the simulation fails without a fault: {found}")
        for number, name in enumerate(FAULTS):
            if not re.search(options.only, name):
                continue
            found = first_failure(checkout, environment | {"FAULT": str(number)})
            if found is None:
                missed.append(name)
            print(f"MISSED  {name}" if found is None else f"found   {name}: {found}", flush=True)
    print(f"{len(missed)} faults were not found" if missed else "all faults were found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
