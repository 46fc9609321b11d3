#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the device tests and the device bench as stripped programs, for a GPU machine without Rust and without registries.
#
#   bash tests/cuda/bundle.sh           here: fills target/gpu-bundle
#   bash target/gpu-bundle/run test     there, in the root of a copy of the repository: what `make test-gpu` runs
#   bash target/gpu-bundle/run bench    there: what `make bench-gpu` runs
set -euo pipefail
cd "$(dirname "$0")/../.."
bundle=target/gpu-bundle
most=$((64 * 1024 * 1024))

# The program that cargo built for a target of this kind and name. The library and the main program have the same name.
built() {
    python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    target = message.get("target", {})
    if sys.argv[1] in target.get("kind", ()) and target["name"] == sys.argv[2] and message.get("executable"):
        print(message["executable"])
' "$1" "$2" | tail -1
}

rm -rf "$bundle"
mkdir -p "$bundle"
cargo test --release --no-run --lib --test integration --message-format json >"$bundle/messages"
cargo bench --no-run --bench device --message-format json >>"$bundle/messages"
for target in "lib tokentap lib" "test integration integration" "bench device device"; do
    read -r kind name to <<<"$target"
    program=$(built "$kind" "$name" <"$bundle/messages")
    [ -n "$program" ] || { echo "cargo built no program for the $kind $name" >&2; exit 1; }
    strip -s -o "$bundle/$to" "$program"
    xz --threads 0 "$bundle/$to"
done
rm "$bundle/messages"

cat >"$bundle/run" <<'RUN'
#!/usr/bin/env bash
# The device tests or the device bench. Run it in the root of a copy of the repository, whose recordings the tests read.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
for packed in "$here"/*.xz; do
    [ ! -e "$packed" ] || python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"))' \
        "$packed" "${packed%.xz}"
    rm -f "$packed"
done
chmod +x "$here"/{lib,integration,device}
export CARGO_MANIFEST_DIR=$PWD
case ${1:-} in
test)
    "$here/integration" --ignored device:: --test-threads 1
    "$here/lib" --ignored --exact logits::cuda::tests::submitted_jobs_are_answered_before_the_device_is_dropped
    ;;
bench) shift && "$here/device" "$@" ;;
*) echo "usage: $0 test | bench [ROWS...]" >&2 && exit 2 ;;
esac
RUN
chmod +x "$bundle/run"

size=$(du -sb "$bundle" | cut -f1)
du -h "$bundle"/*
[ "$size" -le "$most" ] || { echo "$bundle has $size bytes, more than $most" >&2; exit 1; }
echo "$bundle: $size bytes"
