{{/* Names, labels, and values that depend on others. */}}

{{/* Short enough for a pod's name behind it: `-driver-` and five letters, or a number. */}}
{{- define "ronde.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 49 | trimSuffix "-" -}}
{{- end -}}

{{- define "ronde.driverName" -}}
{{ include "ronde.fullname" . }}-driver
{{- end -}}

{{/* What selects the pods of a role; expects a list of the context and the role. */}}
{{- define "ronde.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: {{ default $top.Chart.Name $top.Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
role: {{ index . 1 }}
{{- end -}}

{{/* Labels of an object of a role. */}}
{{- define "ronde.labels" -}}
{{- $top := index . 0 -}}
{{ include "ronde.podLabels" . }}
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name $top.Chart.Version }}
{{- end -}}

{{/* Labels of a role's pods. The chart's version is not one: the pods of a Job cannot change. */}}
{{- define "ronde.podLabels" -}}
{{- $top := index . 0 -}}
{{ include "ronde.selector" . }}
{{- with merge (dict) (index $top.Values (index . 1)).labels $top.Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* `true` with ssh, else nothing. */}}
{{- define "ronde.ssh" -}}
{{- if or .Values.ssh.useSecret .Values.ssh.useSecrets -}}true{{- end -}}
{{- end -}}

{{- define "ronde.workerKind" -}}
{{- $kind := .Values.worker.kind | default (ternary "StatefulSet" "Job" (eq (include "ronde.ssh" .) "true")) -}}
{{- if not (has $kind (list "Job" "StatefulSet")) -}}
{{- fail (printf "`worker.kind` is `%s`\n\nhint: use Job or StatefulSet" $kind) -}}
{{- end -}}
{{- if and (eq $kind "Job") (include "ronde.ssh" .) -}}
{{- fail "workers with sshd cannot be a Job: nothing would tell sshd that the driver is done\n\nhint: leave `worker.kind` unset, or leave out `ssh.useSecret`" -}}
{{- end -}}
{{- $kind -}}
{{- end -}}

{{/* The resources of a role. */}}
{{- define "ronde.resources" -}}
{{- $top := index . 0 -}}
{{- toYaml ((index $top.Values (index . 1)).resources | default $top.Values.resources) -}}
{{- end -}}

{{/* The ranks that a pod of a role takes. */}}
{{- define "ronde.slots" -}}
{{- $top := index . 0 -}}
{{- $own := (index $top.Values (index . 1)).slots -}}
{{- $limits := dig "limits" (dict) (include "ronde.resources" . | fromYaml) | default (dict) -}}
{{- if kindIs "invalid" $own -}}
{{- max 1 (get $limits "nvidia.com/gpu" | default 1 | int) -}}
{{- else -}}
{{- int $own -}}
{{- end -}}
{{- end -}}

{{- define "ronde.image" -}}
{{- $image := (index (index . 0).Values (index . 1)).image -}}
{{ $image.repository }}:{{ $image.tag }}
{{- end -}}
