#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Writes the rules as an object of the Prometheus operator. kustomize cannot do it: it reads no file outside of its folder and does not
# convert plain files to objects.
set -euo pipefail
cd "$(dirname "$0")/.."
{
  cat <<'HEAD'
# deploy/prometheus/rules/tokentap.yml as an object, written by deploy/check/prometheusrule.sh. Change it there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: tokentap
  labels:
    release: kube-prometheus-stack
spec:
HEAD
  sed -e '/^#/d' -e 's/^\(.\)/  \1/' prometheus/rules/tokentap.yml
} >kubernetes/components/monitoring/prometheusrule.yaml
