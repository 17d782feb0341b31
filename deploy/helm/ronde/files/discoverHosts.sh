#!/bin/sh
# Prints a line `host:slots` for each worker that answers now, and one for the driver.
{{- if include "ronde.ssh" . }}
# The service lists pods whose sshd accepts connections.
getent ahosts {{ include "ronde.fullname" . }} | while read -r address type rest; do
  if [ "$type" = STREAM ]; then echo "$address:{{ include "ronde.slots" (list . "worker") }}"; fi
done
{{- else }}
ronde hosts dns {{ include "ronde.fullname" . }} --port {{ .Values.agent.port }}
{{- end }}
{{- with include "ronde.slots" (list . "driver") | int }}
echo "{{ include "ronde.driverName" $ }}:{{ . }}"
{{- end }}
