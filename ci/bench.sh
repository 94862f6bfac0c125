#!/usr/bin/env bash
# Run benchmarks and store each result in bench/results, with the machine it was measured on.
#   ci/bench.sh core          the native core, alternating with its peers, then all its operations
#                             (about 25 minutes; Java's classes need a JDK 17 and Maven)
#   ci/bench.sh end_to_end    compared with other clients on RocketMQ: catch-up, gRPC, sends, latency,
#                             hand-off; on the embedded broker: catch-up, batch shape, hand-off,
#                             take-over; many queues, processes, start (65 minutes)
#   ci/bench.sh targets       those with a row among the targets of docs/benchmarks.md, at sizes that
#                             take 30 minutes in all on a quiet machine: catch-up from RocketMQ 6 (the
#                             Go client needs Go, the Rust client Cargo, and its first build 5 to
#                             10 more), sends 5, latency 6, catch-up from the embedded
#                             broker 1, its sends 1, key lanes 3, queues 2, processes 2, start 1, the
#                             consume loop 1, hand-off 3
#   ci/bench.sh spark         the Spark bridge compared with Spark alone; scaling with queues, keys
#                             and batch sizes; memory of a query over two million messages
#                             (20 minutes; needs a Java 17 runtime, and PySpark from the extra
#                             spark-test)
#   ci/bench.sh spark --long  the same with more rows and rounds, and ten million messages
#   ci/bench.sh all           all of these, then the tables and pictures
#   ci/bench.sh quick         check that the benchmarks of the core run; takes seconds, no figures
# `python -m bench.report` generates docs/benchmarks.md and its pictures from the results.
# `python -m bench.core --only WORK` prints the figures of one structure and its peers, and
# `python -m bench.core.matrix -k WORDS` those of some operations, without storing them.
set -euo pipefail

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

case ${1:-} in
-h | --help)
    usage
    exit
    ;;
core | end_to_end | targets | spark | all | quick) ;;
*)
    usage >&2
    exit 2
    ;;
esac

[ "$1 ${2:-}" != "spark --long" ] || export ORDERMQ_BENCH=long
if [ "$1" = spark ] || [ "$1" = all ]; then
    EXTRAS=dev,spark-test
fi
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
python=$venv/bin/python

peers() {
    "$python" -m pip install --quiet --disable-pip-version-check sortedcontainers BTrees ||
        echo "ordermq: could not install the Python peers; continuing without them" >&2
}

core() {
    peers
    "$python" -m bench.core
    "$python" -m bench.core.matrix
}

end_to_end() {
    for name in rocketmq grpc send latency catch_up shape produce lanes queues processes start \
        hand_off take_over; do
        end_to_end_of "$name"
    done
    end_to_end_of hand_off --rocketmq 5.3.3 --rounds 5
}

end_to_end_of() {
    echo "bench.end_to_end.bench_$*"
    "$python" -m "bench.end_to_end.bench_$1" "${@:2}"
}

# A program that fails leaves its rows as they were; the others run all the same.
targets() {
    local failed=()
    end_to_end_of rocketmq --messages 1000000 --only ordermq --only "Java client" \
        --only "Go client" --only "Rust client" --only "pull loop in C" || failed+=(rocketmq)
    end_to_end_of send || failed+=(send)
    end_to_end_of latency --seconds 4 --warm-seconds 4 || failed+=(latency)
    for name in catch_up produce lanes queues processes start; do
        end_to_end_of "$name" || failed+=("$name")
    done
    "$python" -m bench.core.call_cost || failed+=(call_cost)
    end_to_end_of hand_off --rocketmq 5.3.3 --rounds 4 --alternations 2 || failed+=(hand_off)
    [ ${#failed[@]} -eq 0 ] || {
        echo "ordermq: failed: ${failed[*]}" >&2
        exit 1
    }
}

spark() {
    "$python" -m bench.spark
    "$python" -m bench.spark.driver
    "$python" -m bench.spark.growth
    "$python" -m bench.spark.memory
    "$python" -m bench.spark.state
    "$python" -m bench.spark.link
    "$python" -m bench.spark.kafka
    "$python" -m bench.spark.kafka_latency
}

all() {
    core
    end_to_end
    spark
    "$python" -m bench.report
}

quick() {
    export ORDERMQ_BENCH=quick
    peers
    "$python" -m bench.core
    "$python" -m pytest -q bench/core --benchmark-disable
}

"$1"
