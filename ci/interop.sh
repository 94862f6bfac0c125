#!/usr/bin/env bash
# Test ordermq's client on RocketMQ, RocketMQ's client on the embedded broker, and mixed groups.
#   ci/interop.sh                         on RocketMQ 5.3.3
#   ci/interop.sh --version 4.9.7 -k tag  another version; other arguments go to pytest
#   ci/interop.sh tests/interop/test_tls.py  only these files
#   ci/interop.sh --all                   on every supported version, and the short run with binary
#                                         headers; a table of all cases and skips at the end
#   ci/interop.sh --short                 the part that ci/test.sh runs
#   ci/interop.sh --short --binary        the same with binary headers, for both clients
# Needs a JDK 17 and Maven. Each version gets its own name server and two brokers, which are
# stopped after the tests, also when those fail.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
# All runs but the short one include Spark programs.
[[ " $* " == *" --short "* ]] || EXTRAS=dev,spark-test
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

short_files=(tests/interop/test_client_on_rocketmq.py tests/interop/test_mixed_groups.py)
versions=(5.3.3)
files=(tests/interop)
marked=
binary=
all=
while [ $# -gt 0 ]; do
    case $1 in
    --version)
        versions=("${2:?a version, for example 5.3.3}")
        shift 2
        ;;
    --all)
        versions=(4.9.7 5.3.3 5.4.0 5.5.0)
        all=yes
        shift
        ;;
    --short)
        marked="not restarts"
        files=("${short_files[@]}")
        shift
        ;;
    --binary)
        binary=ROCKETMQ
        shift
        ;;
    *) break ;;
    esac
done
for argument in "$@"; do # named files replace the default
    [ ! -e "${argument%%::*}" ] || files=()
done
for tool in java javac mvn; do
    command -v "$tool" >/dev/null ||
        fail "$tool not found: install a JDK 17 and Maven (Debian: apt install openjdk-17-jdk maven)"
done

folder=$root/build/interop-$$
trap '[ -d "$folder" ] && ci/rocketmq.sh down any --folder "$folder"; rm -rf "$folder".*.xml' EXIT
reports=()
failed=0

# leg VERSION SERIALIZE_TYPE MARKS FILES_AND_PYTEST_ARGUMENTS...
leg() {
    local version=$1 serialize=$2 marks=$3 report
    shift 3
    echo "ordermq: interop on RocketMQ $version${serialize:+, binary headers}"
    # broker-b answers with binary headers; brokers register again soon with a restarted name
    # server; locks of killed members expire after a third of the default time
    # (tests/interop/cluster.py); transactions are checked soon; timed messages may be recalled.
    ci/rocketmq.sh up "$version" --folder "$folder" --brokers 2 \
        --java=broker-b:-Drocketmq.serialize.type=ROCKETMQ \
        --java=-Drocketmq.broker.rebalance.lockMaxLiveTime=20000 \
        --set registerNameServerPeriod=10000 \
        --set transactionTimeOut=1000 --set transactionCheckInterval=1000 \
        --set recallMessageEnable=true >/dev/null
    report=$folder.$version$serialize.xml
    # Both clients read the variable.
    ROCKETMQ_SERIALIZE_TYPE=$serialize ORDERMQ_ROCKETMQ=$folder "$venv/bin/python" -m pytest -q \
        --durations=5 -m "$marks" --junitxml="$report" "$@" || failed=1
    reports+=("$version${serialize:+, binary headers}=$report")
    ci/rocketmq.sh down "$version" --folder "$folder"
}

for version in "${versions[@]}"; do
    leg "$version" "$binary" "$marked" ${files[@]+"${files[@]}"} "$@"
done
if [ -n "$all" ]; then
    leg 5.3.3 ROCKETMQ "not restarts" "${short_files[@]}"
fi
"$venv/bin/python" ci/interop_summary.py "${reports[@]}"
exit $failed
