# One action of `ronde up` or `ronde down` on a host, in plain POSIX shell: $1 is the action, data comes
# on standard input. It prints `name=value` lines after a first line that separates them from anything
# a login shell prints. It never needs root and replaces nothing that it has not made: what it makes is
# recorded in `up.state`, and `down` removes exactly that.
set -u
umask 077
base=$HOME/.local/share/ronde
key=$HOME/.config/ronde/agent.key
unit=$HOME/.config/systemd/user/ronde-agent.service
container=ronde-agent
state=$base/up.state
pidfile=$base/agent.pid
log=$base/agent.log
preamble='ronde-host 1'

fail() {
    printf '%s\nerror=%s\n' "$preamble" "$(printf '%s' "$*" | tr '\n' ' ')"
    exit 3
}

# The last recorded value of a name.
recorded() {
    sed -n "s/^$1=//p" "$state" 2>/dev/null | tail -n 1
}

record() {
    folder "$base"
    printf '%s\n' "$1" >>"$state" || fail "cannot write \`$state\`"
}

# Makes a folder, and those above it, and records the ones that were missing.
folder() {
    [ -d "$1" ] && return 0
    folder "$(dirname "$1")"
    mkdir "$1" || fail "cannot create the folder \`$1\`"
    # The folder of the state file is recorded in it as soon as it exists.
    [ -d "$base" ] && printf 'folder=%s\n' "$waiting$1" >>"$state" && waiting= && return 0
    waiting="$waiting$1
folder="
}
waiting=

# A process is ours if its number, its start time and the boot are those that we wrote down. One that
# has ended may still be listed, as a zombie.
identity() {
    about=$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null)
    case $about in '' | Z* | X*) return 1 ;; esac
    echo "$1 $(echo "$about" | cut -d ' ' -f 20) $(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"
}

agent_pid() {
    [ -s "$pidfile" ] || return 1
    read -r pid rest <"$pidfile"
    [ "$(identity "$pid")" = "$pid $rest" ] && echo "$pid"
}

has_service() {
    [ -n "$(recorded unit)" ] && systemctl --user is-active --quiet ronde-agent 2>/dev/null
}

has_container() {
    [ -n "$(recorded container)" ] &&
        [ "$(docker inspect -f '{{.State.Running}}' "$container" 2>/dev/null)" = true ]
}

agent_kind() {
    if agent_pid >/dev/null; then echo process
    elif has_service; then echo service
    elif has_container; then echo container
    fi
}

listens() {
    cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
        grep -qE "^ *[0-9]+: [0-9A-F]+:$(printf '%04X' "$1") [0-9A-F]+:[0-9A-F]+ 0A "
}

pause() {
    sleep 0.1 2>/dev/null || sleep 1
}

find_uv() {
    for each in uv "$HOME/.local/bin/uv" "$HOME/.cargo/bin/uv" "$base/uv"; do
        command -v "$each" 2>/dev/null && return
    done
}

report_key() {
    if [ ! -e "$key" ]; then echo key=missing
    elif [ -r "$key" ] && [ -O "$key" ] && [ -z "$(find -L "$key" -perm /077 2>/dev/null)" ]; then
        echo "key=$(tr -d ' \n' <"$key" | sha256sum | cut -c 1-64)"
    else echo key=unusable
    fi
}

report_docker() {
    command -v docker >/dev/null 2>&1 || { echo docker=missing; return; }
    if runtimes=$(docker info --format '{{json .Runtimes}}' 2>&1); then
        echo docker=works
        case $runtimes in *nvidia*) echo docker_gpus=yes ;; esac
    else
        case $runtimes in
            *ermission\ denied*) echo docker=denied ;;
            *) echo "docker=$(printf '%s' "$runtimes" | tail -n 1)" ;;
        esac
    fi
    has_container || return 0
    there=$(docker image inspect -f '{{.Id}}' "$1" 2>/dev/null)
    runs=$(docker inspect -f '{{.Image}}' "$container" 2>/dev/null)
    [ -z "$there" ] || [ "$there" = "$runs" ] || echo image_changed=yes
}

# probe PORT [IMAGE]
probe() {
    echo "$preamble"
    echo "home=$HOME"
    echo "user=$(id -un 2>/dev/null || id -u)"
    [ -w "$HOME" ] && echo writable=yes
    echo "machine=$(uname -m)"
    echo "time=$(date +%s)"
    echo "free_kib=$(df -Pk "$HOME" 2>/dev/null | awk 'NR == 2 { print $4 }')"
    if python=$(command -v python3 2>/dev/null); then
        echo "python=$python"
        echo "python_version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)"
    fi
    echo "uv=$(find_uv)"
    report_key
    for each in "$base"/env-*/.complete; do
        [ -e "$each" ] && each=${each%/.complete} && echo "environment=${each##*/env-}"
    done
    echo "agent=$(agent_kind)"
    echo "agent_spec=$(recorded agent_spec)"
    if ! listens "$1"; then echo port=free
    elif [ -n "$(agent_kind)" ] && [ "$(recorded port)" = "$1" ]; then echo port=ours
    else
        echo port=taken
        echo "port_owner=$(ss -Hltnp "sport = :$1" 2>/dev/null |
            sed -n 's/.*users:(("\([^"]*\)",pid=\([0-9]*\).*/`\1` (pid \2)/p' | head -n 1)"
    fi
    echo "gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')"
    [ $# -lt 2 ] || report_docker "$2"
    return 0
}

# key: writes the key from standard input, unless there is one.
receive_key() {
    folder "$(dirname "$key")"
    (set -C && cat >"$key") 2>/dev/null || fail "\`$key\` exists already, or cannot be written"
    record "key=$key"
}

# put NAME: writes standard input to a file below our folder.
receive_file() {
    folder "$(dirname "$base/$1")"
    record "file=$base/$1"
    cat >"$base/$1.part" && mv "$base/$1.part" "$base/$1" || fail "cannot write \`$base/$1\`"
    case $1 in uv) chmod 700 "$base/uv" ;; esac
}

# install DIGEST: makes an environment from the files that were sent.
install() {
    environment=$base/env-$1 files=$base/files-$1 uv=$(find_uv)
    [ -n "$uv" ] || fail 'there is no `uv`'
    "$uv" --version >/dev/null 2>&1 || fail "\`$uv\` does not run here: $("$uv" --version 2>&1)"
    record "environment=$environment"
    rm -rf "$environment"
    UV_CACHE_DIR=$files/cache
    export UV_CACHE_DIR
    said=$({
        "$uv" venv -q --no-python-downloads --python "$(command -v python3)" "$environment" &&
            { [ ! -s "$files/requirements.txt" ] || "$uv" pip install -q \
                --python "$environment/bin/python" --require-hashes -r "$files/requirements.txt"; } &&
            "$uv" pip install -q --python "$environment/bin/python" --no-index --no-deps \
                "$files"/*.whl
    } 2>&1) || { rm -rf "$environment"; fail "$said"; }
    : >"$environment/.complete"
    rm -rf "$files"
}

can_serve() {
    command -v loginctl >/dev/null 2>&1 && systemctl --user show-environment >/dev/null 2>&1 &&
        [ "$(loginctl show-user "$(id -un)" -p Linger --value 2>/dev/null)" = yes ]
}

start_service() {
    [ ! -e "$unit" ] || [ -n "$(recorded unit)" ] || fail "\`$unit\` exists already, and is not ours"
    folder "$(dirname "$unit")"
    [ -n "$(recorded unit)" ] || record "unit=$unit"
    cat >"$unit" <<END
[Unit]
Description=Standing agent of Ronde
[Service]
Environment="PATH=$environment/bin:$PATH"
ExecStart="$environment/bin/ronde" agent --listen :$1 --key-file "$key"
KillMode=mixed
Restart=on-failure
[Install]
WantedBy=default.target
END
    said=$(systemctl --user daemon-reload 2>&1 && systemctl --user enable --now ronde-agent 2>&1) ||
        fail "$said"
}

start_process() {
    cd "$HOME" || fail "cannot enter \`$HOME\`"
    : >"$log"
    PATH=$environment/bin:$PATH setsid "$environment/bin/ronde" agent --listen ":$1" \
        --key-file "$key" </dev/null >>"$log" 2>&1 &
    identity $! >"$pidfile"
}

# start PORT SPEC DIGEST: starts the agent of an environment.
start() {
    environment=$base/env-$3
    [ -e "$environment/.complete" ] || fail "\`$environment\` is not complete"
    rm -f "$base/env" && ln -s "env-$3" "$base/env" || fail "cannot write to \`$base\`"
    if can_serve; then start_service "$1"; else start_process "$1"; fi
    await "$1" "$2"
    for each in "$base"/env-* "$base"/files-*; do
        case $each in "$environment") ;; *) rm -rf "$each" ;; esac
    done
}

# start_container PORT SPEC IMAGE [OPTION...]: the options are mounts.
start_container() {
    port=$1 spec=$2 image=$3
    shift 3
    docker inspect "$container" >/dev/null 2>&1 && [ -z "$(recorded container)" ] &&
        fail "there is a container \`$container\` that is not ours"
    docker image inspect "$image" >/dev/null 2>&1 || said=$(docker pull -q "$image" 2>&1) ||
        fail "$said"
    [ -n "$(recorded container)" ] || record "container=$container"
    docker rm -f "$container" >/dev/null 2>&1
    case $(docker info --format '{{json .Runtimes}}' 2>/dev/null) in
        # GPUs and network cards read memory that is locked.
        *nvidia*) set -- --gpus all --ulimit memlock=-1 "$@" ;;
    esac
    said=$(docker run -d --name "$container" --restart unless-stopped --network=host --ipc=host \
        --user "$(id -u):$(id -g)" -e HOME=/tmp -e "USER=$(id -un)" \
        -v "$key:/run/ronde/agent.key:ro" "$@" "$image" \
        ronde agent --listen ":$port" --key-file /run/ronde/agent.key 2>&1 >/dev/null) || {
        docker rm -f "$container" >/dev/null 2>&1
        fail "$said"
    }
    await "$port" "$spec"
}

# Waits until the agent listens, or says why it does not.
await() {
    tries=0
    until listens "$1"; do
        tries=$((tries + 1))
        [ $tries -lt 200 ] && [ -n "$(agent_kind)" ] || fail "the agent does not start: $(last_words)"
        pause
    done
    record "port=$1"
    record "agent_spec=$2"
}

last_words() {
    if [ -n "$(recorded container)" ]; then docker logs --tail 5 "$container" 2>&1
    elif [ -n "$(recorded unit)" ]; then journalctl --user -u ronde-agent -n 5 -o cat 2>&1
    else tail -n 5 "$log"
    fi
}

# stop: an agent that is told to stop lets the ranks of elastic jobs leave in order first.
stop() {
    if pid=$(agent_pid); then
        kill -TERM "$pid" 2>/dev/null
        tries=0
        while agent_pid >/dev/null; do
            tries=$((tries + 1))
            [ $tries -lt 300 ] || { kill -KILL "$pid" 2>/dev/null; break; }
            pause
        done
    fi
    [ -z "$(recorded unit)" ] || systemctl --user disable -q --now ronde-agent 2>/dev/null
    [ -z "$(recorded container)" ] || {
        docker stop -t 30 "$container"
        docker rm -f "$container"
    } >/dev/null 2>&1
    rm -f "$pidfile"
}

# down: stops the agent and removes what is recorded.
down() {
    [ -e "$state" ] || { printf '%s\nnothing=yes\n' "$preamble"; return; }
    echo "$preamble"
    kind=$(agent_kind)
    stop
    [ -z "$kind" ] || echo "removed=the agent ($kind)"
    name=$(recorded unit) && [ -n "$name" ] && rm -f "$name" && systemctl --user daemon-reload 2>/dev/null
    sed -n 's/^environment=//p' "$state" | sort -u | while read -r each; do
        [ -d "$each" ] && rm -rf "$each" && echo "removed=$each"
    done
    name=$(recorded key) && [ -n "$name" ] && rm -f "$name" && echo "removed=$name"
    sed -n 's/^file=//p' "$state" | while read -r each; do rm -f "$each" "$each.part"; done
    rm -rf "$base"/files-*
    rm -f "$base/env" "$log"
    folders=$(sed -n 's/^folder=//p' "$state" | sort -ru)
    rm -f "$state"
    printf '%s\n' "$folders" | while read -r each; do rmdir "$each" 2>/dev/null; done
}

action=$1
shift
case $action in
    probe) probe "$@" ;;
    key) receive_key; echo "$preamble" ;;
    put) receive_file "$@"; echo "$preamble" ;;
    install) install "$@"; echo "$preamble" ;;
    start) start "$@"; echo "$preamble" ;;
    start_container) start_container "$@"; echo "$preamble" ;;
    stop) stop; echo "$preamble" ;;
    down) down ;;
esac
