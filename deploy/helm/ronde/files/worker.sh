#!/bin/sh
# The worker's process: a standing agent. It ends with 0 when the driver is done, and with another
# code when the pod is stopped, so that a Job starts a new pod in its place.
{{- $job := eq (include "ronde.workerKind" .) "Job" }}
{{- $driver := include "ronde.driverName" . }}

folder=/tmp/ronde-worker
{{- if $job }}
if [ "$1" = done ]; then
  # A rank that the driver starts here at the end.
  echo >"$folder/told"
  exit
fi
{{- end }}
rm -rf "$folder"
mkdir "$folder" && mkfifo "$folder/told" || exit 1

ronde agent --listen ":$RONDE_AGENT_PORT" --slots {{ include "ronde.slots" (list . "worker") }} &
agent=$!
trap 'kill -TERM "$agent" 2>/dev/null' TERM INT
{{- if $job }}

# Whether a job runs here: then the agent has children.
busy() {
  [ -n "$(cat /proc/"$agent"/task/*/children 2>/dev/null)" ]
}

leave() {
  : >"$folder/done"
  # Ends the rank that brought the message before the agent.
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    if busy; then sleep 1; fi
  done
  kill -TERM "$agent"
}

# Waits for the driver's message.
(read -r _ <"$folder/told" && leave) &
{{- with int .Values.worker.leaveAfterSeconds }}

# A driver that was killed tells nobody that it is done: ends the worker if the driver has been gone
# for a while and no job runs here. A driver that has not come yet may be waiting for a node.
watch_driver() {
  gone=0
  limit={{ max . (int $.Values.driver.waitSeconds) }}
  while [ "$gone" -lt "$limit" ]; do
    gone=$((gone + 10))
    if busy; then gone=0; fi
    if getent hosts {{ $driver }} >/dev/null; then
      gone=0
      limit={{ . }}
    fi
    sleep 10
  done
  echo "the driver has been gone for $gone seconds; the worker ends" >&2
  leave
}
watch_driver &
{{- end }}
{{- end }}

wait "$agent"
code=$?
# A signal interrupts the wait; the agent then still lets its ranks leave.
while kill -0 "$agent" 2>/dev/null; do
  wait "$agent"
  code=$?
done
if [ -e "$folder/done" ]; then exit 0; fi
if [ "$code" -eq 0 ]; then exit 143; fi
exit "$code"
