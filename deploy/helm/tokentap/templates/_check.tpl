{{- /* Fails at values that no schema refuses. services.yaml includes it, because it always renders. */}}
{{- define "tokentap.check" -}}
{{- range $name, $value := dict "TOKENTAP_DRAIN_TIMEOUT" "drainTimeoutSeconds" "TOKENTAP_DATA_BYTES" "data.bytes" }}
{{- if hasKey $.Values.env $name }}
{{- fail (printf "env.%s: set %s instead, on which other settings of the pod depend" $name $value) }}
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
