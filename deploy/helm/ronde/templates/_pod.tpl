{{/* The pod of a role, in three parts. Each expects a list of the context and the role. */}}

{{/* The restricted profile, or with sshd root as in any image; values of the user are added. */}}
{{- define "ronde.podSecurity" -}}
{{- $top := index . 0 -}}
{{- $own := index $top.Values (index . 1) -}}
{{- $default := dict "runAsNonRoot" true "runAsUser" 1000 "runAsGroup" 1000 "fsGroup" 1000 "fsGroupChangePolicy" "OnRootMismatch" "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- if or $own.privileged (include "ronde.ssh" $top) -}}
{{- $default = dict "runAsUser" 0 "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- end -}}
{{- if $own.privileged }}{{ $_ := unset $default "seccompProfile" }}{{ end -}}
{{- toYaml (merge (dict) $own.podSecurityContext $top.Values.podSecurityContext $default) -}}
{{- end -}}

{{- define "ronde.security" -}}
{{- $top := index . 0 -}}
{{- $own := index $top.Values (index . 1) -}}
{{- $default := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) -}}
{{- if $own.privileged -}}
{{- $default = dict "privileged" true -}}
{{- else if include "ronde.ssh" $top -}}
{{- $default = dict "allowPrivilegeEscalation" false -}}
{{- end -}}
{{- toYaml (merge (dict) $own.securityContext $top.Values.securityContext $default) -}}
{{- end -}}

{{/* Names and values, or a list in Kubernetes' form. */}}
{{- define "ronde.env" -}}
{{- range $env := . }}
{{- if kindIs "slice" $env }}
{{- with $env }}{{ toYaml . | nindent 0 }}{{ end }}
{{- else }}
{{- range $name, $value := $env }}
- name: {{ $name }}
  value: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Everything in a pod's spec but its containers. */}}
{{- define "ronde.podSpec" -}}
{{- $top := index . 0 -}}
{{- $role := index . 1 -}}
{{- $values := $top.Values -}}
{{- $own := index $values $role -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "ronde.podSecurity" . | nindent 2 }}
terminationGracePeriodSeconds: {{ $own.terminationGracePeriodSeconds }}
{{- if $values.useHostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- if $values.useHostPID }}
hostPID: true
{{- end }}
{{- with $values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with $values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with $values.schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- with $own.priorityClassName | default $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {{ if kindIs "string" . }}name: {{ . }}{{ else }}{{ toJson . }}{{ end }}
  {{- end }}
{{- end }}
{{- with $own.nodeSelector | default $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.tolerations | default $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.affinity | default $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $selector := dict "labelSelector" (dict "matchLabels" (include "ronde.selector" (list $top $role) | fromYaml)) }}
{{- with $own.topologySpreadConstraints | default $values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  - {{ merge (dict) . $selector | toYaml | nindent 4 | trim }}
  {{- end }}
{{- end }}
volumes:
  - name: generated
    configMap:
      name: {{ include "ronde.fullname" $top }}
      defaultMode: 0555
  - name: tmp
    emptyDir: {}
  {{- if not (include "ronde.ssh" $top) }}
  - name: home
    emptyDir: {}
  {{- end }}
  {{- with $values.shmSize }}
  - name: shm
    emptyDir:
      medium: Memory
      sizeLimit: {{ . }}
  {{- end }}
  {{- if include "ronde.ssh" $top }}
  - name: ssh
    secret:
      secretName: {{ include "ronde.fullname" $top }}
      defaultMode: 0400
  {{- end }}
  {{- if $values.datasetPvc.enabled }}
  - name: dataset
    persistentVolumeClaim:
      claimName: {{ $values.datasetPvc.existing | default (printf "%s-dataset" (include "ronde.fullname" $top)) }}
  {{- end }}
  {{- with concat $values.volumes $own.volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* What the container of a role has besides its command. */}}
{{- define "ronde.container" -}}
{{- $top := index . 0 -}}
{{- $role := index . 1 -}}
{{- $values := $top.Values -}}
{{- $own := index $values $role -}}
image: {{ include "ronde.image" . | quote }}
imagePullPolicy: {{ $own.image.pullPolicy }}
{{- if not (include "ronde.ssh" $top) }}
workingDir: {{ $values.home }}
{{- end }}
securityContext:
  {{- include "ronde.security" . | nindent 2 }}
{{- if ne (include "ronde.resources" .) "{}" }}
resources:
  {{- include "ronde.resources" . | nindent 2 }}
{{- end }}
env:
  {{- if include "ronde.ssh" $top }}
  - name: SSHPORT
    value: {{ $values.ssh.port | quote }}
  - name: USESECRETS
    value: "true"
  - name: RONDE_REACH
    value: ssh
  {{- else }}
  - name: HOME
    value: {{ $values.home }}
  - name: RONDE_REACH
    value: agent
  - name: RONDE_AGENT_PORT
    value: {{ $values.agent.port | quote }}
  - name: RONDE_AGENT_KEY
    valueFrom:
      secretKeyRef:
        name: {{ $values.agent.existingSecret | default (include "ronde.fullname" $top) }}
        key: agent-key
  {{- end }}
  {{- if eq $role "driver" }}
  # Less than the grace period of the workers, so that ranks end before the kubelet ends them.
  - name: RONDE_LEAVE_TIMEOUT_SECONDS
    value: {{ max 5 (sub (int $values.worker.terminationGracePeriodSeconds) 10) | quote }}
  {{- end }}
  {{- $names := list }}
  {{- range (include "ronde.env" (list $own.env) | fromYamlArray) }}{{ $names = append $names .name }}{{ end }}
  {{- if and $names (eq $role "worker") }}
  # Ranks here get these from the worker, not from the driver.
  - name: RONDE_HOST_ENV
    value: {{ join "," $names }}
  {{- end }}
  {{- with include "ronde.env" (list $values.env $own.env) }}
  {{- trim . | nindent 2 }}
  {{- end }}
volumeMounts:
  - name: generated
    mountPath: /horovod/generated
  - name: tmp
    mountPath: /tmp
  {{- if not (include "ronde.ssh" $top) }}
  - name: home
    mountPath: {{ $values.home }}
  {{- end }}
  {{- with $values.shmSize }}
  - name: shm
    mountPath: /dev/shm
  {{- end }}
  {{- if include "ronde.ssh" $top }}
  - name: ssh
    mountPath: /etc/ronde/ssh
    readOnly: true
  {{- end }}
  {{- if $values.datasetPvc.enabled }}
  - name: dataset
    mountPath: {{ $values.datasetPvc.mountPath }}
  {{- end }}
  {{- with concat $values.volumeMounts $own.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
