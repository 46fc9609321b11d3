#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deploy/systemd/tokentap.service under a real systemd: it is process 1 of new namespaces, on a copy-on-write view of this machine's files, so
# that nothing of the machine changes. Needs root, unshare, ip, curl, and systemd 250 or newer as programs (it need not run here).
#   TOKENTAP   the binary
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
source "$root/tests/common.sh"
tokentap=$(find_tokentap "$root")
export tokentap here root
work=$(mktemp -d)
export work
trap 'rm -rf "$work"' EXIT
: >"$work/console"

# everything below happens in the namespaces and ends with them
cat >"$work/boot.sh" <<'BOOT'
set -euo pipefail
mount --make-rprivate /
mkdir "$work/tree"
mount -t tmpfs tmpfs "$work/tree"
mkdir "$work/tree/changes" "$work/tree/overlay" "$work/tree/files"
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/tree/changes,workdir=$work/tree/overlay" "$work/tree/files"
cd "$work/tree/files"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount --rbind /dev dev
mount --make-rslave dev
mount --bind "$work/console" dev/console
for folder in run tmp; do mount -t tmpfs -o mode=1777 tmpfs "$folder"; done
chmod 755 run
ip link set lo up

cp "$tokentap" usr/local/bin/tokentap
cp "$root/deploy/systemd/tokentap.service" "$here"/engine.service "$here"/trial.service etc/systemd/system/
cp "$here/trial.sh" etc/systemd/system/
mkdir -p etc/systemd/system/tokentap.service.d etc/tokentap
cp "$here/settings.conf" etc/systemd/system/tokentap.service.d/
(umask 077; echo trial-token >etc/tokentap/control-token)

mkdir -p mnt/machine
pivot_root . mnt/machine
umount --lazy /mnt/machine
# as process 1 of a machine would; a credential reaches a service through it
mount --make-rshared /
exec env -i container=chroot PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=trial.service --log-target=console \
  --show-status=0 </dev/null >/dev/console 2>&1
BOOT
# systemd ends its process with a signal when it powers off
timeout 120 unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup bash "$work/boot.sh" || true
grep -E '^(ok|FAIL)' "$work/console" || true
if ! grep -q '^passed$' "$work/console"; then
  cat "$work/console" >&2
  exit 1
fi
record_passed systemd "$(/lib/systemd/systemd --version | sed -nE '1s/^systemd ([^ ]+).*/\1/p')" "bash tests/systemd/run.sh"
