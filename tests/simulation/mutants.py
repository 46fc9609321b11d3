"""Injects faults into the code of shared sessions, and checks that the simulation finds each of them.

Each fault replaces a text of one source file in a copy of the repository. The simulation then runs with growing seeds until a history
fails. A fault that no history finds, or a text that no longer exists, is an error.

    python3 tests/simulation/mutants.py [--histories N] [--only NAME]
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

# name: (file, text, replacement)
FAULTS = {
    "append without the compare": (
        "src/session/ledger/memory.rs",
        "(Some(list), Some(after)) if !State::ends_at(list, after) => return ready(Appended::Behind),",
        "(Some(_), Some(_)) if false => return ready(Appended::Behind),",
    ),
    "no wait for replicas after a turn": (
        SHARING + "turns.rs",
        "if !replicated {",
        "if false && !replicated {",
    ),
    "the uid of a lost answer is forgotten": (
        SHARING + "turns.rs",
        "uid.is_some_and(|uid| known.log.iter().rev().any(|logged| logged.uid == uid))",
        "uid.is_none()",
    ),
    "a merge drops what the list lacks": (
        SHARING + "merge.rs",
        "            missing.extend(own);\n",
        "            drop(own);\n",
    ),
    "a lost list is not appended again": (
        SHARING + "merge.rs",
        "if self.may_have_lost(known).await? && !self.ledger.is_deleted(&line.name, position.birth).await? {\n            self.counts.healed",
        "if false && self.may_have_lost(known).await? {\n            self.counts.healed",
    ),
    "a detached turn is not scheduled": (
        SHARING + "turns.rs",
        "                known.pin();\n                self.unsettled().insert(Arc::clone(&line.name));\n                store.touch",
        "                known.pin();\n                store.touch",
    ),
    "an appended change stays missing": (
        SHARING + "list_cache.rs",
        "        known.missing.retain(|missing| missing.uid != uid);\n",
        "",
    ),
    "published paths are published again": (
        SHARING + "annotate.rs",
        "        leaves.retain(|leaf| !publication.has(*leaf));\n",
        "        drop(publication);\n",
    ),
    "a merge loses the tokens of the parent": (
        SHARING + "merge.rs",
        "turn.parent.map(|parent| self.tokens(parent)).unwrap_or_default()",
        "turn.parent.map(|_| Vec::new()).unwrap_or_default()",
    ),
    "missing changes are never appended": (
        SHARING + "merge.rs",
        "Ok(()) => self.append_missing(store, line, known).await?,",
        "Ok(()) => Ok(()),",
    ),
    "a read does not fetch": (
        SHARING + "../sharing.rs",
        "            self.settle(store, &line, &mut known).await?;\n            self.load(store, &line, &mut known).await\n",
        "            self.settle(store, &line, &mut known).await\n",
    ),
    "a disruption is ignored": (
        SHARING + "../sharing.rs",
        "self.losses.load(Ordering::Relaxed) + *self.disruptions.borrow()",
        "self.losses.load(Ordering::Relaxed)",
    ),
    "a frozen version counts one turn less": (
        SHARING + "annotate.rs",
        "let records = vec![Record::Freeze { session: session.key(), turns }];",
        "let records = vec![Record::Freeze { session: session.key(), turns: turns.saturating_sub(1) }];",
    ),
    "idle sessions are not finished": (
        SHARING + "background.rs",
        "            let _ = self.finish(store, &name).await;\n",
        "",
    ),
    "a deletion leaves no trace": (
        "src/session/ledger/memory.rs",
        "        state.deleted.insert((Arc::clone(session), birth));\n",
        "",
    ),
    "an entry is applied twice": (
        SHARING + "turns.rs",
        "                    self.apply(store, line, known, uid, record)?;\n                    known.position = Position::after(known.position, &entries);\n                    store.touch",
        "                    self.apply(store, line, known, uid, record)?;\n                    store.touch",
    ),
    "a stream lacks the finished paths": (
        SHARING + "annotate.rs",
        "let finished = leaves.iter().filter_map(|leaf| turns[*leaf as usize].about.uid).collect();",
        "let finished = leaves.iter().filter_map(|leaf| turns[*leaf as usize].about.uid.filter(|_| false)).collect();",
    ),
}


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


def first_failure(checkout: Path, environment: dict[str, str]) -> tuple[str, str] | None:
    """The first seed that fails, as `loss seed`, and its message."""
    command = ["cargo", "test", "--lib", "--", "session::sharing::simulation", "--test-threads", "1"]
    run = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=3600)
    output = run.stdout + run.stderr
    if "error: could not compile" in output:
        raise SystemExit(f"the fault does not compile:\n{output[-3000:]}")
    if run.returncode == 0:
        return None
    found = re.search(r"^seed (\d+): (.*)$", output, re.MULTILINE)
    test = re.search(r"^---- (\S+) stdout", output, re.MULTILINE)
    if not found or not test:
        raise SystemExit(f"the simulation failed without a seed:\n{output[-3000:]}")
    return f"{test[1].rsplit('::', 1)[1]} seed {found[1]}", found[2]


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
        environment = os.environ | {"TOKENTAP_HISTORIES": str(options.histories)}
        environment.setdefault("CARGO_TARGET_DIR", str(ROOT / "target" / "mutants"))
        for name, (file, text, replacement) in FAULTS.items():
            if options.only not in name:
                continue
            path = (checkout / file).resolve()
            source = path.read_text()
            if source.count(text) != 1:
                raise SystemExit(f"{name}: {file} has the text {source.count(text)} times:\n{text}")
            path.write_text(source.replace(text, replacement))
            found = first_failure(checkout, environment)
            path.write_text(source)
            if found:
                print(f"found   {name}: {found[0]}: {found[1][:150]}", flush=True)
            else:
                print(f"MISSED  {name}", flush=True)
                missed.append(name)
    print(f"{len(missed)} faults were not found" if missed else "all faults were found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
