# SPDX-License-Identifier: Apache-2.0
# Sourced: `openai_python ROOT` returns the Python with the SDK. It is installed once in ROOT/target/openai, which needs a package registry.
openai_python() {
  local venv=$1/target/openai list=$1/tests/openai/requirements.txt stamp
  stamp="$("${PYTHON:-python3}" -V) $(cksum <"$list")"
  if [[ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]]; then
    rm -rf "$venv"
    "${PYTHON:-python3}" -m venv "$venv" || return
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: -r "$list" >&2 || return
    echo "$stamp" >"$venv/stamp"
  fi
  echo "$venv/bin/python"
}
