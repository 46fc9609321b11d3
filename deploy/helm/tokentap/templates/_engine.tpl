{{- /*
Pods of the engine. Arguments of each template: root, and node: "only", or "leader" and "worker" of an engine on several nodes. A worker
serves no HTTP, so it has no tokentap.
*/}}

{{- define "tokentap.engineArgs" -}}
{{- $engine := .root.Values.engine }}
- {{ printf "--model-path=/models/%s" $engine.model.folder | quote }}
{{- if ne .node "worker" }}
# loopback, so that clients cannot bypass tokentap
- --host=127.0.0.1
- --port=30000
- --enable-metrics
# without it each event of a stream repeats all earlier tokens, and long streams get no top-k entropy
- --incremental-streaming-output
{{- end }}
{{- with $engine.args }}
{{ toYaml . }}
{{- end }}
{{- if ne .node "only" }}
- --nnodes=$(LWS_GROUP_SIZE)
- --node-rank={{ if eq .node "leader" }}0{{ else }}$(LWS_WORKER_INDEX){{ end }}
- --dist-init-addr=$(LWS_LEADER_ADDRESS):20000
{{- end }}
{{- end }}

{{- define "tokentap.engineContainer" -}}
{{- $engine := .root.Values.engine }}
- name: sglang
  image: {{ $engine.image | quote }}
  command: [python3, -m, sglang.launch_server]
  args: {{- include "tokentap.engineArgs" . | nindent 2 }}
  {{- with $engine.env }}
  env: {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- if ne .node "worker" }}
  lifecycle:
    preStop: {exec: {command: [sleep, {{ $engine.preStopSeconds | int | quote }}]}}
  {{- end }}
  resources:
    {{- if .root.Values.gpuDra.enabled }}
    {{- /* with these the pod would also request GPUs from the device plugin */}}
    {{- range $kind, $amounts := $engine.resources }}
    {{ $kind }}: {{- omit $amounts "nvidia.com/gpu" | toYaml | nindent 6 }}
    {{- end }}
    claims: [{name: gpu}]
    {{- else }}
    {{- toYaml $engine.resources | nindent 4 }}
    {{- end }}
  volumeMounts:
  - name: models
    mountPath: /models
    readOnly: true
  - name: shm
    mountPath: /dev/shm
  {{- with $engine.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "tokentap.enginePod" -}}
{{- $root := .root }}
{{- $engine := $root.Values.engine }}
{{- $serves := ne .node "worker" }}
metadata:
  labels:
    app.kubernetes.io/name: {{ if $serves }}sglang{{ else }}sglang-worker{{ end }}
    {{- if $serves }}
    {{- include "tokentap.podLabels" $root | nindent 4 }}
    {{- else }}
    {{- include "tokentap.selectorLabels" $root | nindent 4 }}
    {{- end }}
    {{- with $engine.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if or $serves $engine.podAnnotations }}
  annotations:
    {{- if $serves }}
    {{- include "tokentap.podAnnotations" $root | nindent 4 }}
    {{- end }}
    {{- with $engine.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  # SGLang reads SGLANG_PORT, a variable of a Service named sglang, as the number of a port
  enableServiceLinks: false
  {{- with $engine.serviceAccountName }}
  serviceAccountName: {{ . | quote }}
  {{- end }}
  {{- with $engine.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with $engine.runtimeClassName }}
  runtimeClassName: {{ . | quote }}
  {{- end }}
  {{- if $serves }}
  terminationGracePeriodSeconds: {{ include "tokentap.gracePeriod" $root }}
  {{- end }}
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- if eq $engine.kind "StatefulSet" }}
  # a new volume claim is owned by root; an emptyDir is writable by all
  securityContext: {fsGroup: 65532, fsGroupChangePolicy: OnRootMismatch}
  {{- end }}
  {{- with $engine.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $engine.tolerations }}
  tolerations: {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with $engine.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if $root.Values.gpuDra.enabled }}
  resourceClaims: {{- include "tokentap.resourceClaims" $root | nindent 2 }}
  {{- end }}
  {{- if and $serves $root.Values.nativeSidecar }}
  initContainers: {{- include "tokentap.container" $root | nindent 2 }}
  {{- end }}
  containers: {{- include "tokentap.engineContainer" . | nindent 2 }}
  {{- if and $serves (not $root.Values.nativeSidecar) }}
  {{- include "tokentap.container" $root | nindent 2 }}
  {{- end }}
  volumes:
  - name: models
    persistentVolumeClaim: {claimName: {{ $engine.model.claim | quote }}, readOnly: true}
  - name: shm
    emptyDir: {medium: Memory, sizeLimit: {{ $engine.shm | quote }}}
  {{- if $serves }}
  {{- include "tokentap.volumes" $root | nindent 2 }}
  {{- end }}
  {{- with $engine.volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
