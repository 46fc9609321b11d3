# SPDX-License-Identifier: Apache-2.0
# Runs as a service of the trial's systemd. Prints to its console, and powers off.
exec >/dev/console 2>&1
trap 'cat /run/tokentap.log; systemctl status tokentap --no-pager; systemctl poweroff --force --force' EXIT
set -uo pipefail
control=http://127.0.0.1:30002
fail() { echo "FAIL $1"; exit 1; }
get() { curl -sS --fail-with-body --max-time 10 --retry 30 --retry-delay 1 --retry-all-errors "$@"; }
# shows VALUE PROPERTY: waits until a property of the service has the value, for at most 20 seconds
shows() {
    for _ in $(seq 100); do
    if [[ $(systemctl show --property "$2" --value tokentap | xargs) == "$1" ]]; then return; fi
    sleep 0.2
  done
  return 1
}
authorized() { get --retry 0 -H 'authorization: Bearer trial-token' "$@"; }

get "$control/readyz" >/dev/null || fail "tokentap is not ready"
echo "ok   starts, and reaches the engine by name"
get http://127.0.0.1:30001/generate -H 'content-type: application/json' -d '{"text":"hi","sampling_params":{"max_new_tokens":3},"session_id":"trial"}' \
  >/dev/null || fail "no generation"
[[ $(curl -s -o /dev/null -w '%{http_code}' "$control/v1/sessions") == 401 ]] || fail "the control port needs no token"
[[ $(authorized "$control/v1/sessions") == *'"trial"'* ]] || fail "the token of the credential is refused"
echo "ok   reads its token from a credential"

pid=$(systemctl show --property MainPID --value tokentap)
status=$(<"/proc/$pid/status")
[[ $status == *$'\nCapEff:\t0000000000000000'* && $status == *$'\nNoNewPrivs:\t1'* && $status == *$'\nSeccomp:\t2'* ]] || fail "$status"
[[ $(stat -c %u "/proc/$pid") != 0 ]] || fail "runs as root"
echo "ok   is not root, has no capability, and a filter of system calls"

systemctl restart tokentap || fail "no restart"
get "$control/readyz" >/dev/null || fail "not ready after a restart"
[[ $(authorized "$control/v1/sessions") == *'"trial"'* ]] || fail "the session is lost"
[[ $(stat -c %a /var/lib/private/tokentap) == 700 ]] || fail "others may read the log"
echo "ok   keeps sessions in its state folder, which only it may read"

kill -KILL "$(systemctl show --property MainPID --value tokentap)"
shows 1 NRestarts || fail "systemd did not restart it"
get "$control/readyz" >/dev/null || fail "not ready after a crash"
echo "ok   restarts after a crash"

systemctl stop tokentap || fail "no stop"
[[ $(systemctl show --property Result --value tokentap) == success ]] || fail "its end is no success"
grep -q drained /run/tokentap.log || fail "it did not drain"
echo "ok   drains when it is stopped"

mkdir -p /run/systemd/system/tokentap.service.d
printf '[Service]\nEnvironment=TOKENTAP_TOP_LOGPROBS=many\n' >/run/systemd/system/tokentap.service.d/wrong.conf
systemctl daemon-reload
systemctl start tokentap
shows failed ActiveState || fail "it starts with a wrong setting"
shows 'exit-code 0 64' Result,NRestarts,ExecMainStatus ||
  fail "a wrong setting: $(systemctl show --property Result,NRestarts,ExecMainStatus tokentap | xargs)"
grep -q -- '--top-logprobs cannot be' /run/tokentap.log || fail "no error"
echo "ok   a wrong setting ends the start, and is not tried again"
systemctl reset-failed tokentap
echo passed
