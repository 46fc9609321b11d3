{{- /*
The parts of a pod with tokentap. A parent chart includes them in its own workload, with the context .Subcharts.tokentap.
*/}}

{{- define "tokentap.selectorLabels" -}}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "tokentap.labels" -}}
{{ include "tokentap.selectorLabels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "tokentap.control" -}}
tokentap-control-{{ .Release.Name }}
{{- end }}

{{- define "tokentap.podLabels" -}}
{{ include "tokentap.selectorLabels" . }}
tokentap: sidecar
{{- end }}

{{- define "tokentap.podAnnotations" -}}
tokentap-control: {{ include "tokentap.control" . }}
{{- end }}

{{- /* The drain, SGLang's preStop sleep before it, ten seconds until SGLang detects that it is idle, and 40 for tokentap's last writes. */}}
{{- define "tokentap.gracePeriod" -}}
{{ add .Values.drainTimeoutSeconds .Values.engine.preStopSeconds 50 }}
{{- end }}

{{- define "tokentap.volumes" -}}
- name: tokentap
  emptyDir: {sizeLimit: {{ .Values.data.size | quote }}}
{{- if .Values.tls.enabled }}
- name: tokentap-tls
  secret:
    secretName: {{ .Values.tls.secretName | quote }}
    # readable by all: tokentap is not root, no other container mounts the volume, and an fsGroup would change the owner of all volumes
    defaultMode: 0444
{{- end }}
{{- end }}

{{- define "tokentap.resourceClaims" -}}
- name: gpu
  resourceClaimTemplateName: sglang-gpu-{{ .Release.Name }}
{{- end }}

{{- /* deploy/kubernetes/components has the reasons for these settings. */}}
{{- define "tokentap.defaultEnv" -}}
- name: TOKENTAP_UPSTREAM
  value: http://127.0.0.1:30000
- name: TOKENTAP_LISTEN
  value: "[::]:30001"
- name: TOKENTAP_CONTROL_LISTEN
  value: "[::]:30002"
- name: TOKENTAP_CONTROL_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .Values.secretName | quote }}, key: control-token}}
- name: TOKENTAP_AGENT_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .Values.secretName | quote }}, key: agent-token, optional: true}}
- name: POD_IPS
  valueFrom: {fieldRef: {fieldPath: status.podIPs}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: CONTROL
  valueFrom: {fieldRef: {fieldPath: "metadata.annotations['tokentap-control']"}}
- name: CONTROL_NS
  value: $(CONTROL).$(POD_NAMESPACE)
- name: TOKENTAP_CONTROL_HOST
  value: $(POD_IPS),$(CONTROL),$(CONTROL_NS),$(CONTROL_NS).svc,$(CONTROL_NS).svc.cluster.local,.$(CONTROL),.$(CONTROL_NS),.$(CONTROL_NS).svc,.$(CONTROL_NS).svc.cluster.local
    {{- range .Values.controlHosts }},{{ . }}{{ end }}
- name: TOKENTAP_DATA_DIR
  value: /data
- name: TOKENTAP_DATA_BYTES
  value: {{ .Values.data.bytes | quote }}
- name: TOKENTAP_MAX_BYTES_IN_FLIGHT
  value: 1GiB
- name: TOKENTAP_DRAIN_TIMEOUT
  value: {{ int .Values.drainTimeoutSeconds }}s
- name: TOKENTAP_LOG_FORMAT
  value: json
{{- if and .Values.fleet.enabled .Values.fleet.ledger }}
- name: TOKENTAP_LEDGER
  {{- toYaml .Values.fleet.ledger | nindent 2 }}
{{- else if .Values.fleet.enabled }}
# before the next variable: the kubelet expands only earlier ones
- name: VALKEY_PASSWORD
  valueFrom: {secretKeyRef: {name: valkey, key: tokentap}}
- name: TOKENTAP_LEDGER
  value: redis-sentinel://tokentap:$(VALKEY_PASSWORD)@valkey-0.valkey,valkey-1.valkey,valkey-2.valkey/tokentap
{{- end }}
{{- if .Values.tls.enabled }}
- name: TOKENTAP_TLS_CERT
  value: /tls/tls.crt
- name: TOKENTAP_TLS_KEY
  value: /tls/tls.key
{{- end }}
{{- if .Values.gpuDra.enabled }}
- name: TOKENTAP_ENTROPY_BACKEND
  value: auto
{{- end }}
{{- end }}

{{- define "tokentap.envEntry" }}
- name: {{ .name | quote }}
  {{- if kindIs "map" .value }}
  {{- toYaml .value | nindent 2 }}
  {{- else }}
  value: {{ .value | quote }}
  {{- end }}
{{- end }}

{{- define "tokentap.env" -}}
{{- $default := include "tokentap.defaultEnv" . | fromYamlArray }}
{{- $own := .Values.env }}
{{- $names := list }}
{{- range $entry := $default }}
{{- $names = append $names $entry.name }}
{{- if hasKey $own $entry.name }}
{{- include "tokentap.envEntry" (dict "name" $entry.name "value" (get $own $entry.name)) }}
{{- else }}
{{- include "tokentap.envEntry" (dict "name" $entry.name "value" (omit $entry "name")) }}
{{- end }}
{{- end }}
{{- range $name, $value := $own }}
{{- if not (has $name $names) }}
{{- include "tokentap.envEntry" (dict "name" $name "value" $value) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tokentap.probe" -}}
httpGet: {path: {{ .path }}, port: tokentap-ctl{{ if .root.Values.tls.enabled }}, scheme: HTTPS{{ end }}}
{{- end }}

{{- define "tokentap.container" -}}
{{- if and .Values.nativeSidecar (.Capabilities.KubeVersion.Version | semverCompare "<1.29.0-0") }}
{{- fail (printf "native sidecars need Kubernetes 1.29, and this is %s: set nativeSidecar to false" .Capabilities.KubeVersion.Version) }}
{{- end }}
- name: tokentap
  {{- if .Values.nativeSidecar }}
  restartPolicy: Always
  {{- end }}
  image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
  {{- with .Values.image.pullPolicy }}
  imagePullPolicy: {{ . }}
  {{- end }}
  args: [serve]
  env: {{- include "tokentap.env" . | nindent 2 }}
  ports:
  - name: tokentap
    containerPort: 30001
  - name: tokentap-ctl
    containerPort: 30002
  startupProbe:
    {{- include "tokentap.probe" (dict "path" "/livez" "root" .) | nindent 4 }}
    periodSeconds: 2
    timeoutSeconds: 2
    failureThreshold: 150
  livenessProbe:
    {{- include "tokentap.probe" (dict "path" "/livez" "root" .) | nindent 4 }}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  readinessProbe:
    {{- include "tokentap.probe" (dict "path" "/readyz" "root" .) | nindent 4 }}
    periodSeconds: 5
    timeoutSeconds: 2
    failureThreshold: 2
  resources:
    {{- with .Values.resources }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- if .Values.gpuDra.enabled }}
    claims: [{name: gpu}]
    {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    readOnlyRootFilesystem: true
    allowPrivilegeEscalation: false
    capabilities: {drop: [ALL]}
    seccompProfile: {type: RuntimeDefault}
  volumeMounts:
  - name: tokentap
    mountPath: /data
  {{- if .Values.tls.enabled }}
  - name: tokentap-tls
    mountPath: /tls
    readOnly: true
  {{- end }}
  {{- with .Values.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
