{{- /* Fails at values that no schema refuses. services.yaml includes it, because it always renders. */}}
{{- define "tokentap.check" -}}
{{- if contains "." .Release.Name }}
{{- fail (printf "the release name %s must not contain a dot: the names of Services end with it" .Release.Name) }}
{{- end }}
{{- /* 63 of tokentap-control-NAME, or of sglang-NAME and what controllers append to it for a label: a hash, and a number before it */}}
{{- $kind := .Values.engine.kind }}
{{- $most := dict "Deployment" 46 "StatefulSet" 45 "LeaderWorkerSet" 42 | dig $kind 0 }}
{{- if gt (len .Release.Name) $most }}
{{- fail (printf "the release name %s must not be longer than %d characters: the names of a %s contain it" .Release.Name $most $kind) }}
{{- end }}
{{- range $name, $value := dict "TOKENTAP_DRAIN_TIMEOUT" "drainTimeoutSeconds" "TOKENTAP_DATA_BYTES" "data.bytes" }}
{{- if hasKey $.Values.env $name }}
{{- fail (printf "env.%s: set %s instead, on which other settings of the pod depend" $name $value) }}
{{- end }}
{{- end }}
{{- range $name := list "TOKENTAP_LISTEN" "TOKENTAP_CONTROL_LISTEN" "TOKENTAP_DATA_DIR" }}
{{- if hasKey $.Values.env $name }}
{{- fail (printf "env.%s must not be set: Services, policies, probes and mounts of the chart depend on it" $name) }}
{{- end }}
{{- end }}
{{- $data := .Values.data }}
{{- if ge (include "tokentap.bytes" $data.bytes | float64) (include "tokentap.bytes" $data.size | float64) }}
{{- fail (printf "data.bytes (%s) must be less than data.size (%s), the limit of the volume" $data.bytes $data.size) }}
{{- end }}
{{- end }}

{{- /* Bytes of a size as of tokentap (1GiB) or of Kubernetes (1Gi). */}}
{{- define "tokentap.bytes" -}}
{{- $number := regexFind "^[0-9.]+" . }}
{{- $decimal := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 }}
{{- $binary := dict "Ki" 0x1p10 "Mi" 0x1p20 "Gi" 0x1p30 "Ti" 0x1p40 "Pi" 0x1p50 "Ei" 0x1p60 }}
{{- mulf (float64 $number) (. | trimPrefix $number | trimSuffix "B" | get (merge $decimal $binary)) }}
{{- end }}
