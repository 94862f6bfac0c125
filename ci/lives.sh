#!/usr/bin/env bash
# Restart members of groups that never committed while messages come, delete a topic and make it
# anew under live members 100 times, and under `ordermq run` and a Spark query 25 times; on the
# embedded broker and on RocketMQ. No message may be missing. Prints a table.
#   ci/lives.sh                          embedded, 4.9.7, 5.3.3 and 5.5.0
#   ci/lives.sh --version 5.3.3          only there; `embedded` for that broker
#   ci/lives.sh --lives 10 lives         fewer lives; one of the parts restarts, lives, programs
# Needs a JDK 17, and Maven except for the embedded broker. About a quarter of an hour each.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
# One of the programs is a Spark query.
EXTRAS=dev,spark-test
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

versions=(embedded 4.9.7 5.3.3 5.5.0)
if [ "${1:-}" = --version ]; then
    versions=("${2:?a version, for example 5.3.3}")
    shift 2
fi
folder=$root/build/lives-$$
trap '[ -d "$folder" ] && ci/rocketmq.sh down any --folder "$folder"' EXIT
failed=0
for version in "${versions[@]}"; do
    echo "ordermq: restarts and second lives on $version"
    if [ "$version" = embedded ]; then
        "$venv/bin/python" -m tests.interop.lives --expired-s 60 "$@" || failed=1
        continue
    fi
    # The smallest commit log, deleted at once: so the first messages of a topic expire.
    ci/rocketmq.sh up "$version" --folder "$folder" --brokers 1 \
        --set mappedFileSizeCommitLog=1048576 --set fileReservedTime=0 \
        --set "deleteWhen=$(seq -s';' -w 0 23)" --set cleanResourceInterval=2000 \
        --set deleteCommitLogFilesInterval=100 --set autoCreateTopicEnable=false >/dev/null
    servers=$(sed -n "s/^ROCKETMQ_NAME_SERVERS='\?\([^']*\)'\?$/\1/p" "$folder/env")
    "$venv/bin/python" -m tests.interop.lives --name-servers "$servers" --expired-s 180 "$@" || failed=1
    ci/rocketmq.sh down "$version" --folder "$folder"
done
exit $failed
