#!/usr/bin/env bash
# Run the published samples and test suites of other Python clients on ordermq; only imports change.
#   ci/dropin.sh                          on the embedded broker
#   ci/dropin.sh --rocketmq 5.3.3         also on RocketMQ, together with the C++ client of 0.4.4,
#                                         and the examples of the gRPC client; needs a JDK 17 and
#                                         Maven
#   ci/dropin.sh -k sample                other arguments go to pytest
# Fetches rocketmq-client-python 2.0.0 and rocketmq 0.4.4 with pip, and their repositories (for the
# test suites and examples) with git; ORDERMQ_APACHE_CLIENT, ORDERMQ_MESSENSE_CLIENT and
# ORDERMQ_APACHE_CLIENTS (the gRPC clients) name other sources.
# Everything is fetched into build/dropin. What cannot be fetched is left out and reported.
# The programs expect a name server on 127.0.0.1:9876.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

version=
if [ "${1:-}" = --rocketmq ]; then
    version=${2:?a version, for example 5.3.3}
    shift 2
fi
apache=${ORDERMQ_APACHE_CLIENT:-https://github.com/apache/rocketmq-client-python}
clients=${ORDERMQ_APACHE_CLIENTS:-https://github.com/apache/rocketmq-clients}
messense=${ORDERMQ_MESSENSE_CLIENT:-https://github.com/messense/rocketmq-python}
folder=$root/build/dropin
mkdir -p "$folder"
missing=()

left_out() {
    missing+=("$1")
    echo "ordermq: DROP-IN: $1 LEFT OUT: $2" >&2
}

# The two packages as PyPI has them: names, defaults, samples, READMEs.
for package in rocketmq-client-python==2.0.0 rocketmq==0.4.4; do
    target=$folder/${package//==/-}
    [ ! -d "$target" ] || continue
    rm -rf "$folder/download"
    if "$venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps \
        --dest "$folder/download" "$package"; then
        mkdir "$target"
        "$venv/bin/python" - "$target" "$folder"/download/* <<'PYTHON'
import shutil, sys
target, archive = sys.argv[1:]
shutil.unpack_archive(archive, target, "zip" if archive.endswith(".whl") else None)
PYTHON
    else
        left_out "$package" "pip cannot fetch it"
    fi
done

# Their repositories, for the suites.
for place in "apache-2.0.0 v2.0.0 $apache" "apache-main main $apache" \
    "messense-0.4.4 v0.4.4 $messense" "apache-clients main $clients"; do
    read -r name branch url <<<"$place"
    [ ! -d "$folder/$name" ] || continue
    if [ "$branch" = main ]; then choice=(); else choice=(--branch "$branch"); fi
    if ! GIT_TERMINAL_PROMPT=0 timeout 120 git -c advice.detachedHead=false clone --quiet \
        --depth 1 ${choice[@]+"${choice[@]}"} "$url" "$folder/$name"; then
        rm -rf "${folder:?}/$name"
        left_out "the suite of $name" "git cannot clone $url"
    fi
done

failed=0
echo "ordermq: old programs on the embedded broker"
ORDERMQ_DROPIN=$folder "$venv/bin/python" -m pytest tests/dropin -q --durations=5 "$@" || failed=1
if [ -n "$version" ]; then
    echo "ordermq: old programs on RocketMQ $version"
    instance=$root/build/dropin-rocketmq-$$
    trap 'ci/rocketmq.sh down any --folder "$instance" || true' EXIT
    ci/rocketmq.sh up "$version" --folder "$instance" --brokers 2 --proxy \
        --set autoCreateTopicEnable=true --set enableMixedMessageType=true \
        --set transactionTimeOut=1000 --set transactionCheckInterval=2000 >/dev/null
    ORDERMQ_DROPIN=$folder ORDERMQ_ROCKETMQ=$instance \
        "$venv/bin/python" -m pytest tests/dropin -q --durations=5 "$@" || failed=1
fi
if [ ${#missing[@]} -gt 0 ]; then
    printf 'ordermq: DROP-IN: LEFT OUT, NOT TESTED: %s\n' "${missing[@]}" >&2
fi
exit $failed
