#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes the man pages and the completions of a binary into a folder, as below /usr/share: share.sh BINARY FOLDER
set -eu
# the modes are part of the archives
umask 022
binary=$1 to=$2
mkdir -p "$to/man/man1" "$to/bash-completion/completions" "$to/zsh/site-functions" "$to/fish/vendor_completions.d"
"$binary" man "$to/man/man1"
"$binary" completions bash >"$to/bash-completion/completions/tokentap"
"$binary" completions zsh >"$to/zsh/site-functions/_tokentap"
"$binary" completions fish >"$to/fish/vendor_completions.d/tokentap.fish"
