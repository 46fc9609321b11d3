#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a wheel as its users do, and reads the first entropy: try.sh WHEEL
#   PYTHONS   interpreters (every python3.10 to python3.14 that runs, else python3)
#   ROOT      0: without the Debian 12 root, which needs debootstrap, the rights of root and a Debian mirror
#   FOREIGN   0: without the other product named tokentap, which needs a package registry
# The root is made once, in target/release-root. Prints the seconds from the start of pip to the first entropy.
set -euo pipefail
cd "$(dirname "$0")/../.."
wheel=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
unset TOKENTAP_BIN PYTHONPATH

pythons=${PYTHONS:-}
if [[ ! $pythons ]]; then
  for minor in 10 11 12 13 14; do
    if python=$("python3.$minor" -c 'import sys; print(sys.executable)' 2>/dev/null); then pythons+=" $python"; fi
  done
fi
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)

# expect TEXT COMMAND...: the command fails, and its output has the text
expect() {
  local text=$1 output; shift
  if output=$("$@" 2>&1); then echo "succeeded, but must not: $*" >&2; exit 1; fi
  if [[ $output != *"$text"* ]]; then printf '%s\ndoes not say %s: %s\n' "$output" "$text" "$*" >&2; exit 1; fi
}

for python in ${pythons:-python3}; do
  rm -rf "$work/venv"
  "$python" -m venv "$work/venv"
  bin=$work/venv/bin
  start=$(date +%s.%N)
  "$bin/pip" install --quiet --no-index "$wheel"
  (cd "$work" && "$bin/python" - <"$OLDPWD/deploy/release/first_entropy.py")
  echo "$("$python" -V): first entropy $(python3 -c "import time; print(f'{time.time() - $start:.1f}')") s after the start of pip"
  for command in tokentap tokentap-sidecar; do
    [[ $("$bin/$command" --version) == "tokentap $version" ]]
  done
  for file in man/man1/tokentap-serve.1 bash-completion/completions/tokentap zsh/site-functions/_tokentap fish/vendor_completions.d/tokentap.fish; do
    if [[ ! -s $work/venv/share/$file ]]; then echo "no share/$file" >&2; exit 1; fi
  done
  # the code of the kernels for the GPU is inside
  grep -q --text '\.visible \.entry' "$bin/tokentap"
  "$bin/python" - <<'CHECK'
import importlib.metadata as metadata

distribution = metadata.distribution("tokentap-sidecar")
names = {point.value for point in distribution.entry_points}
assert names == {"tokentap.pytest_plugin"}, names
files = {str(file).split("/", 1)[1] for file in distribution.files or [] if ".dist-info/" in str(file)}
assert {"licenses/LICENSE", "licenses/THIRD-PARTY.txt", "sboms/tokentap.cyclonedx.json"} <= files, files
extras = set(distribution.metadata.get_all("Provides-Extra"))
assert extras >= {"verl", "tunix", "strands", "torch", "notebook"}, extras
CHECK
done

if [[ ${FOREIGN:-1} != 0 ]]; then
  # the other product before and after this one, and after its removal
  "$bin/pip" install --quiet --no-deps --only-binary :all: --require-hashes -r deploy/release/foreign.txt
  expect 'is another product' "$bin/tokentap-sidecar" --version
  "$bin/pip" install --quiet --no-index --force-reinstall "$wheel"
  expect 'is another product' "$bin/python" -c 'import tokentap'
  expect 'is another product' "$bin/tokentap-sidecar" --version
  "$bin/pip" uninstall --quiet --yes tokentap
  "$bin/pip" install --quiet --no-index --force-reinstall "$wheel"
  (cd "$work" && "$bin/python" - <"$OLDPWD/deploy/release/first_entropy.py")
  echo 'the other product named tokentap is refused, and its removal and a new installation mend the environment'
fi

if [[ ${ROOT:-1} != 0 ]]; then
  root=$PWD/target/release-root
  if [[ ! -e $root/complete ]]; then
    rm -rf "$root"
    debootstrap --variant=minbase --include=python3,python3-venv bookworm "$root" http://deb.debian.org/debian >"$work/debootstrap.log" ||
      { tail -5 "$work/debootstrap.log" >&2; exit 1; }
    touch "$root/complete"
  fi
  mkdir -p "$root/wheel" && rm -rf "$root"/wheel/* "$root/venv"
  cp "$wheel" deploy/release/first_entropy.py "$root/wheel/"
  # separate mounts and processes, which end with the command
  unshare --mount --pid --fork --kill-child bash -euo pipefail -c '
    mount -t proc proc "$1/proc"
    exec chroot "$1" /bin/bash -euo pipefail -c "
      if command -v cargo rustc cc gcc; then echo this root has a compiler >&2; exit 1; fi
      start=\$(date +%s.%N)
      python3 -m venv /venv
      /venv/bin/pip install --quiet --no-index /wheel/*.whl
      /venv/bin/python /wheel/first_entropy.py
      /venv/bin/python -c \"import sys, time; print(f\\\"Debian 12 without Rust, Python {sys.version.split()[0]}: first entropy {time.time() - \$start:.1f} s after the start\\\")\"
    "' - "$root"
fi
