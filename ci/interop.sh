#!/usr/bin/env bash
# Our client on RocketMQ's broker, RocketMQ's client on ours, and both in one group.
#   ci/interop.sh                        on RocketMQ 5.3.3
#   ci/interop.sh --version 4.9.7 -k tag  another version; other arguments go to pytest
#   ci/interop.sh --all                  on every version we promise
#   ci/interop.sh --short                what ci/test.sh runs: our client, and Java's beside it
#   ci/interop.sh --short --binary       the same, all headers of both clients in the binary form
# Needs a JDK 17 and Maven. Each version gets a name server and two brokers of its own, which
# end with the tests, also when those fail.
set -euo pipefail
case ${1:-} in
-h | --help)
    sed -n '2,${/^#/!q;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

versions=(5.3.3)
marked=
files=(tests/interop)
while [ $# -gt 0 ]; do
    case $1 in
    --version)
        versions=("${2:?a version, as 5.3.3}")
        shift 2
        ;;
    --all)
        versions=(4.9.7 5.3.3 5.4.0)
        shift
        ;;
    --short)
        marked="not restarts"
        files=(tests/interop/test_client_on_rocketmq.py tests/interop/test_mixed_groups.py)
        shift
        ;;
    --binary)
        export ROCKETMQ_SERIALIZE_TYPE=ROCKETMQ # read by our client as by Java's
        shift
        ;;
    *) break ;;
    esac
done
for tool in java javac mvn; do
    command -v "$tool" >/dev/null ||
        fail "$tool not found: install a JDK 17 and Maven (Debian: apt install openjdk-17-jdk maven)"
done

folder=$root/build/interop-$$
trap '[ -d "$folder" ] && ci/rocketmq.sh down any --folder "$folder"; rm -rf "$folder.log"' EXIT
results=()
failed=0
for version in "${versions[@]}"; do
    echo "ordermq: interop on RocketMQ $version"
    # broker-b answers with binary headers; a name server that was away hears of brokers soon;
    # the locks of killed members run out in a third of the usual time (tests/interop/cluster.py);
    # producers are asked soon how their transactions stand, and timed messages may be recalled.
    ci/rocketmq.sh up "$version" --folder "$folder" --brokers 2 \
        --java=broker-b:-Drocketmq.serialize.type=ROCKETMQ \
        --java=-Drocketmq.broker.rebalance.lockMaxLiveTime=20000 \
        --set registerNameServerPeriod=10000 \
        --set transactionTimeOut=1000 --set transactionCheckInterval=1000 \
        --set recallMessageEnable=true >/dev/null
    ORDERMQ_ROCKETMQ=$folder "$venv/bin/python" -m pytest "${files[@]}" -q --durations=5 \
        -m "$marked" "$@" | tee "$folder.log" || failed=1
    results+=("$version: $(tail -n 1 "$folder.log")")
    ci/rocketmq.sh down "$version" --folder "$folder"
done
printf 'ordermq: interop on RocketMQ %s\n' "${results[@]}"
exit $failed
