# SPDX-License-Identifier: Apache-2.0
"""Stands in for a rank of a trainer: samples at its node, then finds the sessions of every rank on all nodes."""

import json
import os
import pathlib
import sys
import time
import urllib.request

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def call(url: str, body: dict | None = None, token: str | None = None) -> dict:
    headers = {"content-type": "application/json"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, data=body and json.dumps(body).encode(), headers=headers)
    with DIRECT.open(request, timeout=10) as reply:
        return json.load(reply)


rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
controls, token = os.environ["CONTROL_URLS"].split(","), os.environ["TOKENTAP_CONTROL_TOKEN"]
assert len(controls) == world, controls
assert os.environ["TOKENTAP_CONTROL"] in controls
assert os.environ["MASTER_ADDR"] in controls[0]
assert os.environ["MASTER_PORT"] == "29500"
assert os.environ["LOCAL_RANK"] == "0"
assert "OMP_NUM_THREADS" not in os.environ
# Slurm gives the job all CPUs of its nodes
assert os.environ.get("SLURM_CPUS_ON_NODE", "2") == "2"
if os.environ.get("FAIL_RANK") == str(rank):
    sys.exit(3)

request = {"text": f"rank {rank}", "sampling_params": {"max_new_tokens": 4}, "session_id": f"rank-{rank}"}
reply = call(f"{os.environ['AGENT_URL']}/generate", request)
assert len(reply["output_ids"]) == 4, reply

wanted = [[f"rank-{of}"] for of in range(world)]
deadline = time.monotonic() + 60
while True:
    lists = [call(f"{url}/v1/sessions", token=token)["sessions"] for url in controls]
    found = sorted([session["session"] for session in listed] for listed in lists)
    if found == wanted:
        break
    # another rank may not have sampled yet
    assert time.monotonic() < deadline, found
    time.sleep(0.2)
pathlib.Path(os.environ["work"], f"found-{rank}").write_text(f"{found}\n")
