#!/usr/bin/env bash
# Measures, and keeps the result in bench/results with the machine it was taken on:
#   ci/bench.sh core          the native core and its peers in turn, then every case of ours
#                             (about 25 minutes; Java's classes need a JDK 17 and Maven)
#   ci/bench.sh end_to_end    on a real broker beside other clients: catch-up, sends, latency,
#                             hand-off; on the embedded one: catch-up, batch shape, hand-off,
#                             take-over (three quarters of an hour)
#   ci/bench.sh spark         the Spark bridge beside Spark alone, how it grows with queues, keys
#                             and batches, and two million messages through one query with the
#                             memory it takes (20 minutes; a Java 17 runtime, and PySpark from
#                             the extra spark-test)
#   ci/bench.sh spark --long  the same with more rows and rounds, and ten million messages
#   ci/bench.sh all           these, then the tables and pictures
#   ci/bench.sh quick         that the core's benchmarks run and check what they time: seconds,
#                             no figures
# `python -m bench.report` makes docs/benchmarks.md and its pictures of the results;
# `python -m bench.core --only WORK` prints the figures of one structure beside its peers, and
# `python -m bench.core.matrix -k WORDS` those of some cases of ours, without keeping them.
set -euo pipefail

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

case ${1:-} in
-h | --help)
    usage
    exit
    ;;
core | end_to_end | spark | all | quick) ;;
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
        echo "ordermq: could not install the Python peers; going on without" >&2
}

core() {
    peers
    "$python" -m bench.core
    "$python" -m bench.core.matrix
}

end_to_end() {
    for name in rocketmq send latency catch_up shape hand_off take_over; do
        echo "bench.end_to_end.bench_$name"
        "$python" -m "bench.end_to_end.bench_$name"
    done
    "$python" -m bench.end_to_end.bench_hand_off --rocketmq 5.3.3 --rounds 5
}

spark() {
    "$python" -m bench.spark
    "$python" -m bench.spark.driver
    "$python" -m bench.spark.growth
    "$python" -m bench.spark.memory
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
