#!/usr/bin/env bash
# Java's members and ours in one orderly group on a real RocketMQ while everything goes wrong:
# members join, leave, are killed, are stopped for longer than their locks live, a broker dies.
# Every history is audited; what is printed at the end says what was found.
#   ci/chaos.sh                          a million messages, 24 faults
#   ci/chaos.sh --messages 200000 --faults 12 --seed 7
#   ci/chaos.sh --version 4.9.7          another RocketMQ (5.3.3)
#   ci/chaos.sh --ours-only              without Java's members: a control
# Needs a JDK 17 and Maven.
set -euo pipefail
version=5.3.3
case ${1:-} in
-h | --help)
    sed -n '2,${/^#/!q;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
--version)
    version=${2:?a version, as 5.3.3}
    shift 2
    ;;
esac
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

folder=$root/build/chaos-$$
trap '[ -d "$folder" ] && ci/rocketmq.sh down any --folder "$folder"' EXIT
# As ci/interop.sh: locks live a third of the usual time, a killed broker is soon known again.
ci/rocketmq.sh up "$version" --folder "$folder" --brokers 2 \
    --java=-Drocketmq.broker.rebalance.lockMaxLiveTime=20000 \
    --set registerNameServerPeriod=10000 >/dev/null
"$venv/bin/python" -m tests.interop.chaos "$folder" "$@"
