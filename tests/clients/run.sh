#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh [NAME...]   runs released agents and SDKs through tokentap with a scripted engine. NAMEs are those of clients.py and
#                    harnesses.py, or the groups "libraries" and "agents"; default: all.
#   TOKENTAP   the binary (target/release/tokentap, else target/debug/tokentap)
#   PYTHON     the interpreter (python3), 3.11 or newer; lists that name a newer Python use one that is installed beside it
#   LATEST     1 installs the newest versions into target/clients-latest instead of the pinned ones into target/clients
# Builds nothing. The clients are installed once, in the versions of the requirements and package-lock.json. Only the installation needs
# PyPI and npm. Node 20 or newer and tmux are needed as well. Exit status 1 if a client failed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
source "$root/tests/common.sh"
tokentap=$(find_tokentap "$root")
python=${PYTHON:-python3}
tools=$root/target/clients${LATEST:+-latest}
export PYTHONDONTWRITEBYTECODE=1

# Prints the path of PYTHON if it is 3.MINOR or newer, else of another installed Python that is. pyenv finds one by PYENV_VERSION.
interpreter() {
  local minor=$1 newer print="import sys; sys.version_info < (3, $1) and sys.exit(1); print(sys.executable)"
  "$python" -c "$print" && return
  for newer in 3.{12,13,14}; do PYENV_VERSION=$newer "python$newer" -c "$print" 2>/dev/null && return; done
  echo "clients: no Python 3.$minor or newer: set PYTHON" >&2
  return 2
}

# Installs an environment: the requirements of its list, or the newest versions of the packages that the first line of the list names.
install_python() {
  local list=$here/requirements-$1.txt venv=$tools/$1 stamp minor found
  local pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --only-binary :all:)
  minor=$(sed -n 's/^# python: 3\.//p' "$list")
  found=$(interpreter "${minor:-11}")
  stamp="$("$found" -V) $(cksum <"$list")${LATEST:+ $(date +%F)}"
  if [[ "$(cat "$venv/stamp" 2>/dev/null)" == "$stamp" ]]; then return; fi
  echo "clients: installing $venv" >&2
  rm -rf "$venv"
  "$found" -m venv "$venv"
  if [[ ${LATEST:-} ]]; then
    local newest
    read -ra newest < <(sed -n 's/^# newest: //p' "$list")
    "${pip[@]}" "${newest[@]}"
  else
    "${pip[@]}" --no-deps -r "$list"
  fi
  echo "$stamp" >"$venv/stamp"
}

install_npm() {
  local stamp options=(--loglevel error --no-audit --no-fund --ignore-scripts)
  stamp="$(node --version) $(cat "$here/package.json" "$here/package-lock.json" | cksum)${LATEST:+ $(date +%F)}"
  if [[ "$(cat "$tools/npm/stamp" 2>/dev/null)" != "$stamp" ]]; then
    echo "clients: installing $tools/npm" >&2
    rm -rf "$tools/npm"
    mkdir -p "$tools/npm"
    cp "$here/package.json" "$here/package-lock.json" "$tools/npm"
    # npm ci rejects a lock file without the binaries of all other platforms; the packages that need binaries pin those of this platform.
    if [[ ${LATEST:-} ]]; then
      node -p 'Object.keys(require(process.argv[1]).dependencies).map((name) => name + "@latest").join("\n")' "$here/package.json" |
        (cd "$tools/npm" && rm package-lock.json && xargs npm install "${options[@]}")
    else
      (cd "$tools/npm" && npm install --no-save "${options[@]}")
    fi
    echo "$stamp" >"$tools/npm/stamp"
  fi
  # Node looks for packages in the parent folders of the importing file.
  rm -rf "$tools/npm/agents"
  mkdir "$tools/npm/agents"
  cp "$here"/agents/*.mjs "$tools/npm/agents"
}

# The requirements of the clients contradict each other, so there are several environments.
for environment in $("$python" "$here/check.py" --environments "$@"); do
  case $environment in
    npm) install_npm ;;
    templates) "$python" "$root/tests/templates/fetch.py" --into "$tools/templates" qwen3-vl >&2 ;;
    *) install_python "$environment" ;;
  esac
done

exec timeout 2400 "$python" "$here/check.py" --tokentap "$tokentap" --tools "$tools" "$@"
