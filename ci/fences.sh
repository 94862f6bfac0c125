#!/usr/bin/env bash
# Change the owners of queues on RocketMQ 1,000 times, by hand-off, kill -9, freeze and restart of
# the broker, with Java's member in between, and check that fence tokens only grow.
#   ci/fences.sh                                  on RocketMQ 5.3.3
#   ci/fences.sh --version 4.9.7 --changes 200    another version, another number
#   ci/fences.sh --database postgresql            writes to a PostgreSQL instead of SQLite
# Needs a JDK 17 and Maven. About ten minutes on an idle machine.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

version=5.3.3
export ORDERMQ_FENCE_CHANGES=1000
while [ $# -gt 0 ]; do
    case $1 in
    --version) version=${2:?a version, for example 5.3.3} ;;
    --changes) ORDERMQ_FENCE_CHANGES=${2:?a number} ;;
    --database) export ORDERMQ_FENCE_DATABASE=${2:?sqlite or postgresql} ;;
    *) fail "$1: see ci/fences.sh --help" ;;
    esac
    shift 2
done
folder=$root/build/fences-$$
trap '[ -d "$folder" ] && ci/rocketmq.sh down "$version" --folder "$folder"' EXIT
# Locks of a killed or frozen member expire after 8 s (tests/interop/fence_member.py).
ci/rocketmq.sh up "$version" --folder "$folder" --heap 256 \
    --java=-Drocketmq.broker.rebalance.lockMaxLiveTime=8000 >/dev/null
ORDERMQ_ROCKETMQ=$folder "$venv/bin/python" -m pytest -q \
    tests/interop/test_fence_tokens.py -k every_change_of_owner
