#!/usr/bin/env bash
# Test the Spark bridge with a real Spark: a local session, and a cluster of two workers here.
#   ci/spark.sh                 the short leg (about two minutes)
#   ci/spark.sh --long          all tests, including those that start programs and clusters (15 minutes)
#   ci/spark.sh --oldest        what differs by version, on the oldest one (a minute)
#   ci/spark.sh --all           the short leg on each version (15 minutes)
#   ci/spark.sh --on 4.1.4      the short leg on one version
#   ci/spark.sh --faults        2,000,000 messages on RocketMQ 5.3.3, while driver, executors, workers,
#                               broker and network are broken (half an hour); --faults --help
#   ci/spark.sh -k batch        other arguments go to pytest
# tests/spark/legs.py lists the tests of each leg.
# Needs a Java 17 runtime; PySpark comes with the extra spark-test, and older versions of it, half a
# gigabyte each, are downloaded into build/spark.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
EXTRAS=dev,spark-test
[ "${1:-}" != --long ] || EXTRAS=dev,spark-long-test
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
command -v java >/dev/null || fail "java not found: install a Java 17 runtime (Debian: apt install openjdk-17-jre-headless)"
OLDER="4.0.5 4.1.4 4.2.1" # the newest one is in .venv

# PySpark of a version, taken out of its archive: installing it would take a minute to pack and unpack
# a wheel of half a gigabyte. It comes before .venv's on the path; what it needs is in .venv.
spark_home() {
    local home=$root/build/spark/$1 folder
    if [ ! -e "$home/pyspark/bin" ]; then
        rm -rf "$home"
        mkdir -p "$home"
        folder=$(mktemp -d)
        "$venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps \
            --no-binary pyspark --dest "$folder" "pyspark==$1" >&2 &&
            tar -xzf "$folder/pyspark-$1.tar.gz" -C "$folder" &&
            mv "$folder/pyspark-$1/pyspark" "$home/pyspark" &&
            mv "$folder/pyspark-$1/deps/jars" "$home/pyspark/jars" &&
            mv "$folder/pyspark-$1/deps/bin" "$home/pyspark/bin" # last: then it is complete
        rm -rf "$folder"
    fi
    [ -e "$home/pyspark/bin" ] && echo "$home"
}

on_version() {
    local version=$1 home
    shift
    home=$(spark_home "$version") || fail "pip cannot fetch pyspark $version"
    echo "ordermq: Spark $version"
    # PySpark before 4.2 leaves sockets of its own to the garbage collector.
    PYTHONPATH=$home ORDERMQ_SPARK=1 "$venv/bin/python" -m pytest tests/spark -q --durations=5 \
        -W ignore::ResourceWarning "$@"
}

case ${1:-} in
--faults)
    exec "$venv/bin/python" -m tests.spark_faults.run "${@:2}"
    ;;
--oldest)
    shift
    oldest=${OLDER%% *}
    if spark_home "$oldest" >/dev/null; then
        on_version "$oldest" -m spark_oldest "$@"
    else
        echo "ordermq: SPARK $oldest SKIPPED: pip cannot fetch it, see above"
    fi
    exit 0
    ;;
--on)
    on_version "$2" -m "not spark_long or spark_oldest" "${@:3}"
    exit 0
    ;;
--all)
    shift
    for version in $OLDER; do
        on_version "$version" -m "not spark_long or spark_oldest" "$@"
    done
    ;;
esac

marked="not spark_long"
if [ "${1:-}" = --long ]; then
    marked=
    shift
fi
if command -v node >/dev/null; then # else pyright would download it
    "$venv/bin/pyright" --pythonpath "$venv/bin/python" examples/*_on_spark.py
fi
ORDERMQ_SPARK=1 exec "$venv/bin/python" -m pytest tests/spark -q --durations=10 -m "$marked" "$@"
