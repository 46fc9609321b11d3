#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes the configuration of the Valkey and the Sentinel of this pod. Variables: DATA, CONFIG (folders), HOSTNAME (valkey-0),
# CLIENT_PASSWORD, OPERATION_PASSWORD.
#
# The role of a Valkey and the primary that a Sentinel knows are kept on the volume. So a restart of all pods continues with the primary that
# was last elected. Only the first start makes valkey-0 the primary.
set -eu
umask 077
name=$HOSTNAME.valkey
hash() { printf '%s' "$1" | sha256sum | cut -d ' ' -f 1; }

mkdir -p "$DATA/sentinel"
# a server knows other commands than a Sentinel, and refuses a file that names an unknown one
for users in users.acl sentinel.acl; do
  sed -e "s/ on TOKENTAP / on #$(hash "$CLIENT_PASSWORD") /" -e "s/ on OPERATION / on #$(hash "$OPERATION_PASSWORD") /" \
    "$CONFIG/$users" >"$DATA/$users"
done

# Sentinels change the role by this line
role=$(grep -hE '^(replicaof|slaveof) ' "$DATA/valkey.conf" 2>/dev/null || true)
if [ ! -e "$DATA/valkey.conf" ] && [ "$HOSTNAME" != valkey-0 ]; then role='replicaof valkey-0.valkey 6379'; fi
{
  cat "$CONFIG/valkey.conf"
  echo "dir $DATA"
  echo "aclfile $DATA/users.acl"
  echo "replica-announce-ip $name"
  echo 'primaryuser operation'
  echo "primaryauth $OPERATION_PASSWORD"
  echo "$role"
} >"$DATA/valkey.conf.new"
mv "$DATA/valkey.conf.new" "$DATA/valkey.conf"

from=$DATA/sentinel/sentinel.conf
if [ ! -e "$from" ]; then from=$CONFIG/sentinel.conf; fi
{
  grep -vE '^(dir|aclfile|sentinel (announce-ip|auth-user|auth-pass|sentinel-user|sentinel-pass)|user) ' "$from"
  echo "dir $DATA/sentinel"
  echo "aclfile $DATA/sentinel.acl"
  echo "sentinel announce-ip $name"
  echo 'sentinel auth-user tokentap operation'
  echo "sentinel auth-pass tokentap $OPERATION_PASSWORD"
  echo 'sentinel sentinel-user operation'
  echo "sentinel sentinel-pass $OPERATION_PASSWORD"
} >"$DATA/sentinel/new"
mv "$DATA/sentinel/new" "$DATA/sentinel/sentinel.conf"
