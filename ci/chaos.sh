#!/usr/bin/env bash
# Run members of Java and ordermq in one orderly group on RocketMQ under injected faults: members
# join, leave, are killed, are stopped for longer than their locks live; a broker is killed.
# All histories are audited; a summary is printed at the end.
#   ci/chaos.sh                          a million messages, 24 faults
#   ci/chaos.sh --messages 200000 --faults 12 --seed 7
#   ci/chaos.sh --version 4.9.7          another version of RocketMQ (default 5.3.3)
#   ci/chaos.sh --ours-only              without Java's members, as a control
# Or break one thing at a time, on the embedded broker, RocketMQ 5.3.3 and 4.9.7, and print a line of
# figures for each (docs/reliability.md). A problem makes it exit with an error.
#   ci/chaos.sh --table --write          every row on every broker, into docs/reliability.md;
#                                        with --row it leaves the other lines there as they are
#   ci/chaos.sh --table --on embedded    one broker; needs no Java
#   ci/chaos.sh --table --on 5.3.3 --row kill-broker
#   ci/chaos.sh --table --guarded        with TLS, an account, and metrics that are read
#   ci/chaos.sh --table --list           the rows
# Needs a JDK 17 and Maven for RocketMQ, and Debian's package faketime for the row wall-clock.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
version=5.3.3
is_table=
case ${1:-} in
--table)
    is_table=yes
    shift
    ;;
--version)
    version=${2:?a version, for example 5.3.3}
    shift 2
    ;;
esac
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
if [ -n "$is_table" ]; then
    exec "$venv/bin/python" -m tests.fault_table.run "$@"
fi

folder=$root/build/chaos-$$
trap '[ -d "$folder" ] && ci/rocketmq.sh down any --folder "$folder"' EXIT
# As in ci/interop.sh: a third of the default lock time, and quick registration after a restart.
ci/rocketmq.sh up "$version" --folder "$folder" --brokers 2 \
    --java=-Drocketmq.broker.rebalance.lockMaxLiveTime=20000 \
    --set registerNameServerPeriod=10000 >/dev/null
"$venv/bin/python" -m tests.interop.chaos "$folder" "$@"
