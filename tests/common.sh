# SPDX-License-Identifier: Apache-2.0
# Functions of the scripts tests/*/run.sh, which source this file before anything else.

# The revision that is tested: make sets it before it builds.
if [[ ${RECORD_PASSED:-} == 1 && ! ${TESTED_REVISION+set} ]]; then
  TESTED_REVISION=$(python3 "$(dirname "${BASH_SOURCE[0]}")/compatibility.py" --revision)
  export TESTED_REVISION
fi

# Prints the path of the binary: TOKENTAP, else target/release/tokentap, else target/debug/tokentap. Fails without a binary.
find_tokentap() {
  local root=$1 tokentap=${TOKENTAP:-} build
  for build in release debug; do
    if [[ ! $tokentap && -x $root/target/$build/tokentap ]]; then tokentap=$root/target/$build/tokentap; fi
  done
  if [[ ! -x $tokentap ]]; then echo "no tokentap: run cargo build, or set TOKENTAP" >&2; return 2; fi
  echo "$tokentap"
}

# Makes the virtual environment VENV with the packages of LIST, unless it has them already.
python_environment() {
  local venv=$1 list=$2 stamp
  stamp="$("${PYTHON:-python3}" -V) $(cksum <"$list")"
  if [[ "$(cat "$venv/stamp" 2>/dev/null)" == "$stamp" ]]; then return; fi
  rm -rf "$venv"
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: -r "$list"
  echo "$stamp" >"$venv/stamp"
}

# The version of a package that is installed for this Python.
package_version() { # package_version PYTHON PACKAGE
  "$1" -c 'import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))' "$2"
}

# Records nothing in this run if it differs from the command on the page: DIFFERENCE is not empty, for example arguments, or a variable is set.
record_default() { # record_default DIFFERENCE [VARIABLE...]
  local difference=$1 name
  for name in "${@:2}"; do difference+=${!name:+ $name=${!name}}; done
  if [[ ! $difference || ${RECORD_PASSED:-} != 1 ]]; then return; fi
  echo "not recorded in docs/compatibility.md: ${difference# }" >&2
  export RECORD_PASSED=
}

# Records for docs/compatibility.md that COMMAND has passed with the version that COMPONENT reported. Does nothing without RECORD_PASSED=1.
record_passed() { # record_passed COMPONENT VERSION COMMAND
  python3 "$(dirname "${BASH_SOURCE[0]}")/compatibility.py" --passed "$@"
}
