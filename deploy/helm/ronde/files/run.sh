#!/bin/sh
# The driver's process: waits for the workers, runs the command that its arguments are, then tells
# the workers that the work is done. Without arguments it waits for someone to open a shell.
{{- $driver := include "ronde.driverName" . }}

stopped=
child=
# The pod is being stopped: the command ends, the workers stay for the driver that comes next.
stop() {
  stopped=1
  # All processes of its session; dash does not know `kill -TERM -- -N`.
  if [ -n "$child" ]; then kill -s TERM -- "-$child" 2>/dev/null; fi
}
trap stop TERM INT

workers() {
  while read -r host _; do
    if [ "$host" != {{ $driver }} ]; then echo "$host"; fi
  done </horovod/generated/hostfile
}
{{- if include "ronde.ssh" . }}

. /horovod/generated/ssh.sh
serve_ssh &

answers() {
  ssh -n -o BatchMode=yes -o ConnectTimeout=5 "$1" true 2>/dev/null
}
{{- else }}

answers() {
  [ -n "$(ronde hosts dns "$1" --port "$RONDE_AGENT_PORT" 2>/dev/null)" ]
}
{{- end }}

# Waits until enough workers answer, and says for whom.
wait_for_workers() {
  waited=0
  told=
  while [ -z "$stopped" ]; do
    count=0
    missing=
    for host in $(workers); do
      if answers "$host"; then count=$((count + 1)); else missing="$missing $host"; fi
    done
    if [ -z "$missing" ]{{ with .Values.driver.waitForWorkers }} || [ "$count" -ge {{ int . }} ]{{ end }}; then return 0; fi
    if [ "$missing" != "$told" ]; then
      echo "waiting for$missing" >&2
      told=$missing
    fi
    if [ "$waited" -ge {{ int .Values.driver.waitSeconds }} ]; then
      echo "error: no answer within $waited seconds from$missing" >&2
      echo 'hint: `kubectl describe pod` says why a pod does not run' >&2
      return 1
    fi
    sleep 2 &
    wait $!
    waited=$((waited + 2))
  done
}

# Runs the command in a session of its own, so that a signal reaches all its processes.
run() {
  setsid bash -c "$1" &
  child=$!
  wait "$child"
  code=$?
  # A signal interrupts the wait.
  while kill -0 "$child" 2>/dev/null; do
    wait "$child"
    code=$?
  done
}

if [ $# -eq 0 ]; then
  echo 'the driver is ready: open a shell in it and run horovodrun'
  while [ -z "$stopped" ]; do
    sleep 3600 &
    wait $!
  done
  exit 143
fi

left={{ int .Values.driver.retries }}
code=1
{{- if eq (toString .Values.driver.waitForWorkers) "0" }}
while [ -z "$stopped" ]; do
{{- else }}
while wait_for_workers && [ -z "$stopped" ]; do
{{- end }}
  run "$*"
  if [ "$code" -eq 0 ] || [ "$left" -eq 0 ]; then break; fi
  echo "the command ended with exit code $code; running it again ($left left)" >&2
  left=$((left - 1))
done
if [ -n "$stopped" ]; then exit 143; fi
{{- if eq (include "ronde.workerKind" .) "Job" }}

# Those of the hostfile and all that answer: after an upgrade, it takes the kubelet a minute or two to
# bring the new hostfile.
known_workers() {
  workers
  ronde hosts dns {{ include "ronde.fullname" . }} --port "$RONDE_AGENT_PORT" 2>/dev/null | sed 's/:[0-9]*$//'
}

# Tells the workers that the work is done. One that cannot be told ends by itself, after
# `worker.leaveAfterSeconds`.
release() {
  horovodrun -np 1 -H "$1:1" --start-timeout 30 sh /horovod/generated/worker.sh done >/dev/null 2>&1 ||
    echo "warning: cannot tell $1 that the work is done" >&2
}
for host in $(known_workers | sort -u); do release "$host" & done
wait
{{- end }}
exit "$code"
