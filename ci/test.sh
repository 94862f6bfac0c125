#!/usr/bin/env bash
# Run everything that a commit must pass, in legs: the environment, lint, the documentation, one
# wheel, the C core under each compiler, under sanitizers and fuzzed, consumers and producers on the
# reference core, all tests with Cython, then short runs on RocketMQ and Spark if Java is installed.
# The cffi binding has its property tests here, and sends and consumes with the wheel; the rest of it
# is for ci/engines.sh. All legs run even if one fails; each writes build/legs/NAME.log, and a failed
# one's end is printed. ci/quick.sh is the part to run before each commit.
#   ci/test.sh                     all legs, as many at a time as have two cores each, two at least
#   LEGS=1 ci/test.sh              one after the other
#   ci/test.sh --leg sanitize      one leg, here in the terminal; --legs lists them
#   ci/test.sh -k rebalance        other arguments go to the leg `tests`, all tests with Cython
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The first group makes .venv, and needs none; the second needs it. Long legs first: they end last.
BEFORE="environment compilers sanitize"
AFTER="tests interop spark reference lint fuzz spark-oldest wheel docs"

# Most tests wait for a server most of the time, so more than one at a time in each leg. Few are
# handed out at once: one worker was left with minutes of slow ones while the others had ended.
tests() { # workers, arguments of pytest
    local workers=$1
    shift
    source ci/venv.sh
    exec "$venv/bin/python" -m pytest -q -n "$workers" --maxschedchunk 8 "$@"
}

has_rocketmq() {
    if ! command -v java >/dev/null || ! command -v javac >/dev/null || ! command -v mvn >/dev/null; then
        echo "ordermq: RocketMQ INTEROP SKIPPED: install a JDK 17 and Maven" \
            "(Debian: apt install openjdk-17-jdk maven), then run ci/interop.sh"
        return 1
    fi
    ci/rocketmq.sh jars 5.3.3 >/dev/null || {
        echo "ordermq: RocketMQ INTEROP SKIPPED: Maven cannot fetch its jars, see above; with a" \
            "network, or a mirror in Maven's settings, run ci/interop.sh"
        return 1
    }
}

has_spark() {
    command -v java >/dev/null || {
        echo "ordermq: SPARK SKIPPED: install a Java 17 (Debian: apt install openjdk-17-jre-headless)," \
            "then run ci/spark.sh"
        return 1
    }
}

# Consumers and producers on the core that tells what the others must do.
reference() {
    ORDERMQ_CORE=reference ORDERMQ_EVENT_LOOP=asyncio tests 3 tests/unit/model tests/unit/consumer \
        tests/component/test_{orderly_consumer,concurrent_consumer,key_ordered_consumer,hand_off}.py \
        tests/component/test_{failing_messages,parked_keys,queue_control,lite_pull_consumer}.py \
        tests/component/test_{ordered_polling,producer,transaction_producer,damaged_answers}.py \
        tests/component/test_{bad_input_client,forking}.py
}

leg() {
    local name=$1
    shift
    case $name in
    environment)
        ci/venv.sh
        # Now, while no other leg imports anything from there.
        ! command -v java >/dev/null || EXTRAS=dev,spark-test ci/venv.sh ||
            echo "ordermq: no PySpark, see above; the legs of Spark will fail"
        ;;
    compilers | sanitize | lint | docs | wheel) exec "ci/$name.sh" "$@" ;;
    fuzz) SECONDS_EACH=${FUZZ_SECONDS:-5} exec ci/fuzz.sh "$@" ;;
    tests) ORDERMQ_CORE=cython tests 3 --durations=10 "$@" ;;
    reference) reference ;;
    interop) ! has_rocketmq || exec ci/interop.sh --short ;;
    spark) ! has_spark || exec ci/spark.sh ;;
    spark-oldest) ! has_spark || exec ci/spark.sh --oldest ;;
    *)
        echo "ordermq: no leg $name: there is $BEFORE $AFTER" >&2
        exit 2
        ;;
    esac
}

case ${1:-} in
--legs) printf '%s\n' $BEFORE $AFTER ;;
--leg) leg "${@:2}" ;;
*)
    python=${PYTHON:-python3}
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
        echo "ordermq: $python is no Python 3.11 or later: set PYTHON to one" >&2
        exit 1
    }
    exec "$python" ci/legs.py --at-once "${LEGS:-0}" "$BEFORE" "$AFTER" -- "$@"
    ;;
esac
