#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheels, that of the engine's plugin too, the source archive and the stripped binaries in target/packages: wheel.sh [TARGET...]
#   TARGET   a target triple whose standard library rustup has installed (x86_64-unknown-linux-gnu)
# zig links against glibc 2.28, that of Debian 10 and RHEL 8. The tools are installed in target/release-tools,
# which needs a package registry.
set -euo pipefail
# modes are part of the archives
umask 022
cd "$(dirname "$0")/../.."
source tests/common.sh
targets=("$@")
if ((!${#targets[@]})); then targets=(x86_64-unknown-linux-gnu); fi

tools=$PWD/target/release-tools out=target/packages work=target/release-work
python_environment "$tools" deploy/release/requirements.txt
export PATH=$tools/bin:$PATH
zig=$(python -c 'import ziglang; print(ziglang.__path__[0])')
# the time stamps in the archives, so that the same commit gives the same bytes
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
# panics name source files: without the folders of this machine, whose names may have spaces
cargo_home=${CARGO_HOME:-$HOME/.cargo}
printf -v CARGO_ENCODED_RUSTFLAGS '%s\x1f' "--remap-path-prefix=$PWD=tokentap" "--remap-path-prefix=$cargo_home=cargo" \
  "--remap-path-prefix=$(rustc --print sysroot)=rust"
export CARGO_ENCODED_RUSTFLAGS=${CARGO_ENCODED_RUSTFLAGS%$'\x1f'}
# the same for the C code of crates
printf -v CFLAGS '%q' "-ffile-prefix-map=$cargo_home=cargo"
export CFLAGS CC_SHELL_ESCAPED_FLAGS=1

rm -rf "$work" "$out"
mkdir -p "$work" "$out"
for target in "${targets[@]}"; do
  maturin build --profile dist --zig --target "$target" --compatibility manylinux_2_28 --strip false \
    --compression-method stored --out "$work/$target"
  python deploy/release/licences.py "$target" "$zig" >"$work/licences-$target.txt"
done
# man pages and completions are the same on every machine; they come from the binary that runs on this one
host=$(rustc -vV | sed -n 's/^host: //p')
if [[ ! -d $work/$host ]]; then echo "wheel.sh: $host must be among the targets: its binary writes the man pages" >&2; exit 64; fi
python -m zipfile -e "$work/$host"/*.whl "$work/unpacked"
chmod 755 "$work"/unpacked/*.data/scripts/tokentap
sh deploy/release/share.sh "$work"/unpacked/*.data/scripts/tokentap "$work/share"
for target in "${targets[@]}"; do
  python deploy/release/finish.py "$work/$target"/*.whl "$work/licences-$target.txt" "$work/share" "$out"
done
maturin sdist --out "$out"
python deploy/release/executable.py "$out"/tokentap_sidecar-*.tar.gz
tar -tvzf "$out"/tokentap_sidecar-*.tar.gz | grep '^-rwxr-xr-x.*/scripts/tokentap-sidecar$' >/dev/null
# the committed files with the same modes everywhere; a build writes files beside them
git -c tar.umask=022 archive HEAD python/tokentap-sglang | tar -x -C "$work"
python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$out" "$work/python/tokentap-sglang"

for wheel in "$out"/*-manylinux_*.whl; do
  # the oldest glibc whose symbols suffice for the binary
  found=$(auditwheel show --json "$wheel" | python -c 'import json, sys; print(json.load(sys.stdin)["overall_tag"])')
  tag=${wheel##*-} tag=${tag%.whl} tag=${tag%%.*}
  if [[ $found != "$tag" ]]; then
    auditwheel show "$wheel" >&2
    echo "$wheel: auditwheel does not agree with the tag" >&2
    exit 1
  fi
  echo "auditwheel agrees: $tag"
done
ls -l "$out"
