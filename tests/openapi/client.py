# SPDX-License-Identifier: Apache-2.0
"""Calls a `tokentap demo` with the client that openapi-python-client generated: `client.py DATA CONTROL TOKEN`."""

import json
import sys

from tokentap_client import AuthenticatedClient, Client
from tokentap_client.api.data_port import generate
from tokentap_client.api.entropy import measure_entropy
from tokentap_client.api.sessions import freeze_session, get_session, list_sessions, set_reward
from tokentap_client.api.training import export_samples
from tokentap_client.api.trajectories import finished_paths, get_trajectories
from tokentap_client.models import (
    ControlError,
    DataErrorDetail,
    ErrorCode,
    Estimator,
    ExportSamplesResponse200,
    Format,
    GenerateError,
    GenerateReply,
    GenerateRequest,
    LogitRows,
    RewardRequest,
    RowNumbers,
    SamplesRequest,
    Session,
    SessionList,
    TrajectoryList,
)
from tokentap_client.types import Unset

# the generator has no operations for which a key is optional; the engine of the demo accepts any
data = AuthenticatedClient(base_url=sys.argv[1], token="key")
control = AuthenticatedClient(base_url=sys.argv[2], token=sys.argv[3])

request = GenerateRequest.from_dict({"text": "The lamp", "sampling_params": {"max_new_tokens": 4}})
reply = generate.sync(client=data, body=request, x_session_id="python")
assert isinstance(reply, GenerateReply), reply
entropies = reply.meta_info.output_token_entropy
assert not isinstance(entropies, Unset), reply
assert len(entropies) == 4
assert all(entropy is not None and entropy > 0 for entropy in entropies), entropies
info = reply.meta_info.entropy_info
assert not isinstance(info, Unset), reply
assert info.estimator == Estimator.ESTIMATE, info

listed = list_sessions.sync(client=control)
assert isinstance(listed, SessionList), listed
assert [session.session for session in listed.sessions] == ["python"], listed
one = get_session.sync("python", client=control)
assert isinstance(one, Session), one
assert one.list_[0].sampled_tokens == 4

set_reward.sync("python", client=control, body=RewardRequest(reward=0.5))
paths = get_trajectories.sync("python", client=control)
assert isinstance(paths, TrajectoryList), paths
path = paths.trajectories[0]
assert path.reward == 0.5, path.reward
assert path.entropy[-4:] == entropies

samples = export_samples.sync(client=control, body=SamplesRequest(format_=Format.STRANDS, sessions=["python"]))
assert isinstance(samples, ExportSamplesResponse200), samples
assert len(samples.samples) == 1
freeze_session.sync("python", client=control)
lines = finished_paths.sync(client=control)
assert isinstance(lines, str), lines
assert [json.loads(line)["session"] for line in lines.splitlines()] == ["python"], lines
rows = measure_entropy.sync(client=control, body=LogitRows(logits=[[1.0, 1.0]]))
assert isinstance(rows, RowNumbers), rows
assert rows.entropy[0] is not None
assert abs(rows.entropy[0] - 0.6931471805599453) < 1e-12

missing = get_session.sync_detailed("none", client=control)
assert missing.status_code == 404, missing
assert isinstance(missing.parsed, ControlError), missing
assert missing.parsed.error.code == ErrorCode.NO_SUCH_SESSION, missing
denied = list_sessions.sync_detailed(client=Client(base_url=sys.argv[2]))
assert denied.status_code == 401, denied
assert isinstance(denied.parsed, ControlError), denied
assert denied.parsed.error.code == ErrorCode.DENIED, denied
refused = generate.sync(client=data, body=GenerateRequest.from_dict({"text": "a", "entropy_options": {"top_k": 0}}))
assert isinstance(refused, GenerateError) and isinstance(refused.error, DataErrorDetail), refused
assert "top_k" in refused.error.message, refused
# the engine's own check of types
refused = generate.sync(client=data, body=GenerateRequest.from_dict({"text": 5}))
assert isinstance(refused, GenerateError) and isinstance(refused.message, str), refused
print("clients: the one in Python generates, lists, rewards, exports, measures and reads errors")
