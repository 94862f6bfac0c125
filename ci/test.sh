#!/usr/bin/env bash
# Run everything that a commit must pass, in a few minutes: lint, the documentation, one wheel, the C
# core under each compiler, under sanitizers and fuzzed, consumers and producers with cffi and the
# reference, all tests with Cython, then short runs on RocketMQ and Spark if Java is installed.
# Arguments go to the run with Cython.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
# Three at once: most tests wait for a server most of the time.
pytest="$venv/bin/python -m pytest -n 3"

ci/lint.sh
ci/docs.sh
ci/wheel.sh
ci/compilers.sh
ci/sanitize.sh
SECONDS_EACH=${FUZZ_SECONDS:-5} ci/fuzz.sh
# Consumers and producers through each core; ci/engines.sh runs all that uses it.
engines=$(printf 'tests/component/test_%s.py ' orderly_consumer concurrent_consumer key_ordered_consumer \
    hand_off failing_messages parked_keys queue_control lite_pull_consumer ordered_polling producer \
    transaction_producer damaged_answers bad_input_client)
for core in cffi reference; do
    echo "ordermq: messages through the core, on $core"
    ORDERMQ_CORE=$core ORDERMQ_EVENT_LOOP=asyncio $pytest -q tests/unit/model tests/unit/consumer $engines
done
echo "ordermq: consumers without the pull engine, on cython"
ORDERMQ_CORE=cython ORDERMQ_PULL_PATH=python $pytest -q tests/component/test_{orderly,concurrent}_consumer.py \
    tests/component/test_{hand_off,queue_control,damaged_answers,forking,failing_messages}.py
echo "ordermq: all tests, on cython"
ORDERMQ_CORE=cython $pytest --durations=10 "$@"
if ! command -v java >/dev/null || ! command -v javac >/dev/null || ! command -v mvn >/dev/null; then
    echo "ordermq: RocketMQ INTEROP SKIPPED: install a JDK 17 and Maven" \
        "(Debian: apt install openjdk-17-jdk maven), then run ci/interop.sh"
elif ! ci/rocketmq.sh jars 5.3.3 >/dev/null; then
    echo "ordermq: RocketMQ INTEROP SKIPPED: Maven cannot fetch its jars, see above; with a" \
        "network, or a mirror in Maven's settings, run ci/interop.sh"
else
    ci/interop.sh --short
fi
if command -v java >/dev/null; then
    ci/spark.sh --oldest
    ci/spark.sh
else
    echo "ordermq: SPARK SKIPPED: install a Java 17 (Debian: apt install openjdk-17-jre-headless)," \
        "then run ci/spark.sh"
fi
