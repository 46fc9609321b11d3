{{- /*
A file of the chart. Arguments: root, and name. The files are symbolic links, which some tools drop, and others replace by the path.
*/}}
{{- define "tokentap.file" -}}
{{- $text := .root.Files.Get .name }}
{{- if or (not $text) (hasPrefix "../" $text) }}
{{- fail (printf "%s is missing: the chart was copied without its symbolic links, which `helm package` replaces by files" .name) }}
{{- end }}
{{- $text }}
{{- end }}
