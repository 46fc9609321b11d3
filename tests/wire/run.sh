#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sends the table of tests/integration/wire to tokentap, nginx and haproxy, each in front of a recorder. Prints which is stricter, case by
# case, and fails if tokentap is laxer without an explanation in laxer.txt. Installs Debian's packages if the servers are missing.
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH=$PATH:/usr/sbin
for server in nginx haproxy; do
  if command -v "$server" >/dev/null; then continue; fi
  package=$server
  if [[ $server == nginx ]]; then package=nginx-light; fi
  apt-get install -y --no-install-recommends "$package" >/dev/null || { apt-get update >/dev/null && apt-get install -y --no-install-recommends "$package" >/dev/null; }
done
nginx -v 2>&1
haproxy -v | head -1
exec cargo test --quiet --test integration -- --ignored --nocapture wire::peers
