# SPDX-License-Identifier: Apache-2.0
# Sourced: functions that start, wait for and stop one server and one tokentap in front of it. Expects the path of the binary in
# `tokentap` and a folder in `work`; sets `server` (a process group) and `proxy` (a process).
server='' proxy='' pid_file=''

stop() {
  # serve was interrupted
  if [[ ! $server && -s $pid_file ]]; then server=$(cat "$pid_file"); fi
  if [[ $proxy ]]; then kill "$proxy" 2>/dev/null; wait "$proxy" 2>/dev/null; fi
  if [[ $server ]]; then
    kill -- "-$server" 2>/dev/null
    for _ in $(seq 20); do kill -0 -- "-$server" 2>/dev/null || break; sleep 0.5; done
    kill -9 -- "-$server" 2>/dev/null
  fi
  if [[ $pid_file ]]; then rm -f "$pid_file"; fi
  server='' proxy='' pid_file=''
}

serve() { # serve VERSION PORT [argument...]: starts SGLang with serve.sh
  pid_file=$REAL_SGLANG_HOME/$2.pid
  rm -f "$pid_file"
  bash "$(dirname "${BASH_SOURCE[0]}")/serve.sh" "$@"; local code=$?
  server=$(cat "$pid_file")
  return "$code"
}

sglang_version() { # sglang_version URL: as the server reports it
  curl -sf -m 10 "$1/get_server_info" | python3 -c 'import json, sys; print(json.load(sys.stdin)["version"])'
}

free_ports() { # all at once, so that they differ
  python3 -c 'import socket
s = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*[x.getsockname()[1] for x in s])'
}

front() { # front UPSTREAM DATA CONTROL [FLAG...]: starts tokentap on these ports and waits until it is ready
  "$tokentap" serve --upstream "$1" --listen "127.0.0.1:$2" --control-listen "127.0.0.1:$3" "${@:4}" >"$work/tokentap.log" 2>&1 &
  proxy=$!
  for _ in $(seq 60); do
    curl -sf -m 2 -o /dev/null "http://127.0.0.1:$3/readyz" && return
    kill -0 "$proxy" 2>/dev/null || break
    sleep 0.5
  done
  tail -20 "$work/tokentap.log"
  echo "not ready"
  return 1
}
