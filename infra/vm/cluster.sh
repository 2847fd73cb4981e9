#!/usr/bin/env bash
# A Ray cluster on machines that you reach by ssh. README.md beside it has the commands.
#
#   infra/vm/cluster.sh start|status|stop [HOSTS]
#
# HOSTS (default: hosts.txt) names one machine a line, the head first: what ssh takes, then, where the others know it
# by another address, that address. `#` begins a comment.
#
# Every command may be given again: `start` starts what is not there, `stop` ends what is. It ends Ray by the process
# that it started, never by name: other clusters on the machines are left alone.
set -euo pipefail

FOLDER=${MARIN_FOLDER:-marin}          # the checkout on every machine, with its .venv; relative to the home there
PORT=${MARIN_PORT:-6379}               # of the head; two clusters on one machine need two
DASHBOARD_PORT=${MARIN_DASHBOARD_PORT:-8265}
CLIENT_PORT=${MARIN_CLIENT_PORT:-10001}
HEAD_OPTIONS=${MARIN_HEAD_OPTIONS:-}   # more options of `ray start`, such as --num-cpus=0
WORKER_OPTIONS=${MARIN_WORKER_OPTIONS:-}
read -ra SSH <<<"${MARIN_SSH:-ssh -o BatchMode=yes -o ConnectTimeout=10}"

# -- on a machine: these functions travel there as text --------------------------------------------------------------

# shellcheck disable=SC2329  # the functions of this part are called on the machines
enter() { # FOLDER PORT: state is kept per port, so that two clusters on one machine do not meet
    cd "$HOME" && cd "$1" && export PATH=$PWD/.venv/bin:$PATH
    state=$HOME/.marin/vm-$2
    export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$state/token
    unset RAY_AUTH_TOKEN RAY_ADDRESS
}

# shellcheck disable=SC2329
versions() { # one line that must be the same everywhere
    python - <<'PYTHON'
import importlib.metadata
import platform

names = ("marin", "ray", "torch", "pydantic", "pyarrow")
print("python", platform.python_version(), *(f"{name} {importlib.metadata.version(name)}" for name in names))
PYTHON
}

# shellcheck disable=SC2329
running() { # the process of `ray start` here, if it is the one that was started
    local pid
    pid=$(cat "$state/pid" 2>/dev/null) && grep -aqzx start "/proc/$pid/cmdline" 2>/dev/null && echo "$pid"
}

# shellcheck disable=SC2329
address() { # ADDRESS or nothing: where the other machines find this one
    if [ -n "${1:-}" ]; then echo "$1"; else awk '{print $3}' <<<"${SSH_CONNECTION:-}"; fi
}

# shellcheck disable=SC2329
token() { # reads the token from standard input, or makes one where there is none to read; only this user may see it
    (umask 077 && mkdir -p "$state")
    if [ "${1:-}" = make ]; then
        [ -s "$state/token" ] || (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$state/token")
        cat "$state/token"
    else
        (umask 077 && tr -d '\n' >"$state/token")
    fi
}

# shellcheck disable=SC2329
launch() { # OPTION...: starts `ray start`, returns when it says that it runs
    if running >/dev/null; then
        echo "runs already"
        return
    fi
    # 1 GiB: marin passes URLs through Ray, no data. The file limit of a login is too low for a raylet with many workers.
    ulimit -n 65536 2>/dev/null || ulimit -n "$(ulimit -Hn)"
    # An agent port of 0 is a free one: where another cluster has the usual one, Ray starts, and takes no jobs.
    setsid nohup ray start --block --disable-usage-stats --log-color=false --object-store-memory=$((1 << 30)) \
        --dashboard-agent-listen-port=0 "$@" \
        </dev/null >"$state/ray.log" 2>&1 &
    echo $! >"$state/pid"
    local waited=0
    until grep -q 'Ray runtime started' "$state/ray.log"; do
        if ! running >/dev/null || [ "$waited" -ge 120 ]; then
            tail -n 20 "$state/ray.log" >&2
            return 1
        fi
        sleep 0.5
        waited=$((waited + 1))
    done
    echo "started"
}

# shellcheck disable=SC2329
end() { # ends `ray start` with all its processes; ranks get time for a checkpoint if the run was stopped before
    local pid waited=0
    if ! pid=$(running); then
        echo "does not run"
        return
    fi
    kill -TERM "$pid"
    while kill -0 "$pid" 2>/dev/null && [ "$waited" -lt 80 ]; do
        sleep 0.5
        waited=$((waited + 1))
    done
    kill -KILL -- "-$pid" 2>/dev/null || true
    rm -f "$state/pid"
    echo "stopped"
}

# shellcheck disable=SC2329
told() { # ADDRESS: a file that makes `marin` on this machine find the cluster
    cat >"$state/env" <<ENV
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$state/token RAY_ADDRESS=$1
ENV
    echo "$state/env"
}

# shellcheck disable=SC2329
overview() { # what Ray itself says
    # shellcheck disable=SC1091
    . "$state/env" && ray status
}

# -- here ------------------------------------------------------------------------------------------------------------

fail() {
    echo "error: $1" >&2
    echo "hint: $2" >&2
    exit "${3:-3}"
}

on() { # HOST FUNCTION ARGUMENT...: runs a function there; what comes on standard input is its standard input
    local host=$1 call
    shift
    call=$(printf '%q ' "$@")
    "${SSH[@]}" "$host" "bash -c $(printf '%q' "set -euo pipefail; $(declare -f enter versions running address token \
        launch end told overview); enter $(printf '%q ' "$FOLDER" "$PORT"); $call")"
}

read_hosts() { # FILE
    [ -r "$1" ] || fail "there is no list of machines: $1" "write one machine a line, the head first" 2
    hosts=() addresses=()
    local host address
    while read -r host address _; do
        case $host in '' | '#'*) continue ;; esac
        hosts+=("$host")
        addresses+=("${address#\#*}")
    done <"$1"
    [ "${#hosts[@]}" -gt 0 ] || fail "$1 names no machine" "write one machine a line, the head first" 2
}

at_once() { # FUNCTION INDEX...: calls it for every machine at once; shows what each said, in their order
    local work=$1 number failed=0
    shift
    local -A jobs=()
    for number in "$@"; do
        "$work" "$number" >"$scratch/$number" 2>&1 &
        jobs[$number]=$!
    done
    for number in "$@"; do
        wait "${jobs[$number]}" || failed=1
        printf '%-24s %s\n' "${hosts[number]}" "$(cat "$scratch/$number")" >&2
    done
    return "$failed"
}

# shellcheck disable=SC2329  # the functions of one machine are called by at_once
versions_of() { on "${hosts[$1]}" versions </dev/null; }

# shellcheck disable=SC2329
start_head() {
    # shellcheck disable=SC2086  # options are words
    on "${hosts[$1]}" launch --head --node-ip-address="$address" --port="$PORT" --dashboard-host=127.0.0.1 \
        --dashboard-port="$DASHBOARD_PORT" --ray-client-server-port="$CLIENT_PORT" $HEAD_OPTIONS </dev/null
}

# shellcheck disable=SC2329
start_worker() {
    local host=${hosts[$1]} own=${addresses[$1]}
    on "$host" token <<<"$secret" # by standard input: everybody on the machine sees arguments
    # shellcheck disable=SC2086  # options are words
    on "$host" launch --address="$address:$PORT" ${own:+--node-ip-address="$own"} $WORKER_OPTIONS </dev/null
}

# shellcheck disable=SC2329
state_of() { if on "${hosts[$1]}" running >/dev/null </dev/null; then echo "runs"; else echo "does not run" && false; fi; }

# shellcheck disable=SC2329
end_of() { on "${hosts[$1]}" end </dev/null; }

start() {
    local head=${hosts[0]} secret address
    at_once versions_of "${all[@]}" || fail "not every machine has marin in ~/$FOLDER" "README.md says how to install it"
    [ "$(sort -u "$scratch"/[0-9]* | wc -l)" = 1 ] || fail "the machines have different versions" \
        "install the same Python, and the same checkout with constraints.txt, everywhere"
    address=$(on "$head" address "${addresses[0]}" </dev/null)
    [ -n "$address" ] || fail "the address of $head is not known" "write it behind the host in the list" 2
    secret=$(on "$head" token make </dev/null)
    at_once start_head 0 ||
        fail "Ray did not start on $head" "its last words are above; ~/.marin/vm-$PORT/ray.log there has the rest"
    at_once start_worker "${all[@]:1}" || fail "not every machine joined $address:$PORT" \
        "can it reach that address? ~/.marin/vm-$PORT/ray.log there has the rest; then give the command again"
    echo "next, on $head: . $(on "$head" told "$address:$PORT" </dev/null) && marin doctor" >&2
}

status() {
    at_once state_of "${all[@]}" || fail "not every machine has Ray running" "$0 start"
    on "${hosts[0]}" overview </dev/null
}

stop() {
    at_once end_of "${all[@]:1}" || fail "not every machine answered" "give the command again"
    at_once end_of 0 || fail "${hosts[0]} did not answer" "give the command again"
}

case ${1:-} in
start | status | stop)
    read_hosts "${2:-hosts.txt}"
    all=("${!hosts[@]}")
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    "$1"
    ;;
*)
    echo "usage: $0 start|status|stop [HOSTS]" >&2
    exit 2
    ;;
esac
