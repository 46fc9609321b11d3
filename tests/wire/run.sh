#!/usr/bin/env bash
# The table of tests/integration/wire sent to tokentap, nginx and haproxy, each in front of a recorder; prints who is stricter, case by
# case, and fails where tokentap is laxer and laxer.txt does not say why. Takes Debian's packages where the servers are absent.
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
