#!/bin/sh
# The driver's process: runs the command that its arguments are, then tells the workers that the
# work is done. Without arguments it waits for someone to open a shell.

stopped=
child=
# The pod is being stopped: the command ends, the workers stay for the driver that comes next.
stop() {
  stopped=1
  if [ -n "$child" ]; then kill -TERM -- "-$child" 2>/dev/null; fi
}
trap stop TERM INT

# Waits for a process, also when a signal interrupts the wait; its exit code is in `code`.
await() {
  wait "$1"
  code=$?
  while kill -0 "$1" 2>/dev/null; do
    wait "$1"
    code=$?
  done
}
{{ if include "ronde.ssh" . }}
. /horovod/generated/ssh.sh
serve_ssh &
{{- end }}

if [ $# -eq 0 ]; then
  echo 'the driver is ready: open a shell in it and run horovodrun'
  while [ -z "$stopped" ]; do
    sleep 3600 &
    child=
    wait $!
  done
  exit 0
fi
{{ if include "ronde.ssh" . }}
wait_for_workers || exit 1
{{- end }}

left={{ int .Values.driver.retries }}
while :; do
  # In a session of its own, so that a signal reaches every process of the command.
  setsid bash -c "$*" &
  child=$!
  await "$child"
  if [ -n "$stopped" ]; then exit 143; fi
  if [ "$code" -eq 0 ] || [ "$left" -eq 0 ]; then break; fi
  echo "the command ended with exit code $code; running it again ($left left)" >&2
  left=$((left - 1))
done
{{- if eq (include "ronde.workerKind" .) "Job" }}

# Tells the workers in the hostfile that the work is done. One that cannot be told ends by itself,
# after `worker.leaveAfterSeconds`.
release() {
  horovodrun -np 1 -H "$1:1" --start-timeout 30 \
    sh /horovod/generated/worker.sh done >/dev/null 2>&1 ||
    echo "warning: cannot tell $1 that the work is done" >&2
}
while read -r host _; do
  if [ "$host" != "{{ include "ronde.driverName" . }}" ]; then release "$host" & fi
done </horovod/generated/hostfile
wait
{{- end }}
exit "$code"
