#!/usr/bin/env bash
# Waits on a worker for AWS to announce that it takes the machine back, then leaves the cluster in order. AWS gives two
# minutes; the ranks here have used the first seconds of them when this sees the notice.
set -euo pipefail

METADATA=${MARIN_METADATA:-http://169.254.169.254/latest}
LOOK_SECONDS=${MARIN_LOOK_SECONDS:-5}

exec 9>"$HOME/.watch-spot.lock"
flock --nonblock 9 || exit 0 # one is enough, however often the cluster is started

metadata() { # PATH: fails where there is no such thing, which is how no notice looks
    local session
    session=$(curl -sf -m 2 -X PUT "$METADATA/api/token" -H 'X-aws-ec2-metadata-token-ttl-seconds: 60') &&
        curl -sf -m 2 -H "X-aws-ec2-metadata-token: $session" "$METADATA/$1"
}

until notice=$(metadata meta-data/spot/instance-action); do sleep "$LOOK_SECONDS"; done
echo "$(date -u +%FT%TZ) notice: $notice"
cd "$(dirname "$0")/../.."
PATH=$PWD/.venv/bin:$PATH exec python infra/node/leave.py --seconds 100
