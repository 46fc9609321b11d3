# SPDX-License-Identifier: Apache-2.0
"""A job of Ray on one node or several: an engine and tokentap on each, and a rank of a trainer on each.

    MODEL=/models/Qwen3-8B python deploy/cluster/ray_job.py --nodes 4 --engine-gpus 4 --rank-gpus 4 -- python train.py

Ray assigns the GPUs. A node has one such job at a time, because its ports are fixed: reserve all GPUs of a node.
serve.sh has the variables of the engine; each rank has RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT (29500,
unless it is set), AGENT_URL (data port of its node), TOKENTAP_CONTROL (control port of its node), CONTROL_URLS (those
of all nodes, separated by commas) and TOKENTAP_CONTROL_TOKEN. The job ends when all ranks have ended, or at the first
failure.
"""

import argparse
import http.client
import os
import pathlib
import secrets
import subprocess
import sys
import time
import urllib.request

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

SERVE = (pathlib.Path(__file__).parent / "serve.sh").read_text()
# what serve.sh and the processes read
PASSED = ("MODEL", "SGLANG_ARGS", "ENGINE", "DATA", "OMP_NUM_THREADS")


class Command:
    """An actor on a node, with a process of that node."""

    def __init__(self, command: list[str], env: dict[str, str]):
        self.address = ray.util.get_node_ip_address()
        self.command = command
        self.env = env
        self.process = None

    def node(self) -> str:
        return self.address

    def run(self, env: dict[str, str]) -> int:
        """Runs the command to its end. Returns its exit code."""
        # Ray limits each process to the CPU of its actor, one
        inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        self.process = subprocess.Popen(self.command, env={**inherited, **self.env, **env}, stdin=subprocess.PIPE)
        return self.process.wait()

    def finish(self) -> None:
        """Ends the input, at which serve.sh stops: tokentap finishes the running generations."""
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()

    def terminate(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def ready(url: str, token: str) -> bool:
    """Whether the engine of a node answers, through a tokentap with the token of this job, not of another one."""
    # nodes are not behind http_proxy
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        for path in ("/readyz", "/v1/sessions?limit=1"):
            request = urllib.request.Request(f"{url}{path}", headers={"authorization": f"Bearer {token}"})
            direct.open(request, timeout=10).close()
    except (OSError, http.client.HTTPException):
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--engine-gpus", type=int, default=1, help="GPUs of the engine of a node")
    parser.add_argument("--rank-gpus", type=int, default=0, help="GPUs of the rank of a node")
    parser.add_argument(
        "--start-seconds", type=int, default=3600, help="how long nodes and engines may take to be ready"
    )
    parser.add_argument("command", nargs="+", help="the command of a rank")
    args = parser.parse_args()
    ray.init()

    bundle = {"CPU": 2, "GPU": args.engine_gpus + args.rank_gpus}
    group = placement_group([bundle] * args.nodes, strategy="STRICT_SPREAD")
    try:
        ray.get(group.ready(), timeout=args.start_seconds)
    except ray.exceptions.GetTimeoutError:
        print(f"ray_job.py: no {args.nodes} nodes with {bundle} in {args.start_seconds} s", file=sys.stderr)
        remove_placement_group(group)
        return 1
    shared = {name: os.environ[name] for name in os.environ if name in PASSED or name.startswith("TOKENTAP_")}
    shared["TOKENTAP_CONTROL_TOKEN"] = secrets.token_hex(32)

    def actors(command: list[str], gpus: int) -> list:
        """One on each node. `finish` must run while `run` does."""
        remote = ray.remote(num_cpus=1, num_gpus=gpus, max_concurrency=2)(Command)
        placed = [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=at) for at in range(args.nodes)]
        return [remote.options(scheduling_strategy=where).remote(command, shared) for where in placed]

    servers = actors(["bash", "-c", SERVE], args.engine_gpus)
    nodes = ray.get([server.node.remote() for server in servers])
    serving = [server.run.remote({"NODE": node}) for server, node in zip(servers, nodes, strict=True)]
    controls = [f"http://{node}:30002" for node in nodes]
    try:
        deadline = time.monotonic() + args.start_seconds
        while not all(ready(url, shared["TOKENTAP_CONTROL_TOKEN"]) for url in controls):
            ended, _ = ray.wait(serving, timeout=2)
            if ended or time.monotonic() > deadline:
                print("ray_job.py:", "a server has ended" if ended else "a node is not ready", file=sys.stderr)
                return 1
        ranks = actors(args.command, args.rank_gpus)
        running = []
        for rank, (actor, node) in enumerate(zip(ranks, nodes, strict=True)):
            env = {
                "RANK": str(rank),
                "WORLD_SIZE": str(args.nodes),
                "LOCAL_RANK": "0",
                "MASTER_ADDR": nodes[0],
                "MASTER_PORT": os.environ.get("MASTER_PORT", "29500"),
                "AGENT_URL": f"http://{node}:30001",
                "TOKENTAP_CONTROL": f"http://{node}:30002",
                "CONTROL_URLS": ",".join(controls),
            }
            running.append(actor.run.remote(env))
        while running:
            [ended], _ = ray.wait(running + serving)
            if ended in serving:
                print("ray_job.py: a server has ended", file=sys.stderr)
                ray.get([rank.terminate.remote() for rank in ranks])
                return 1
            running.remove(ended)
            if code := ray.get(ended):
                print(f"ray_job.py: a rank has ended with {code}", file=sys.stderr)
                ray.get([rank.terminate.remote() for rank in ranks])
                return 1
        return 0
    finally:
        ray.get([server.finish.remote() for server in servers])
        remove_placement_group(group)


if __name__ == "__main__":
    sys.exit(main())
