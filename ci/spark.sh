#!/usr/bin/env bash
# Test the Spark bridge with a real Spark: a local session, and a cluster of two workers here.
#   ci/spark.sh                 the short leg (about two minutes)
#   ci/spark.sh --long          all tests, including those that start programs and clusters (15 minutes)
#   ci/spark.sh -k batch        other arguments go to pytest
# tests/spark/legs.py lists the tests of each leg.
# Needs a Java 17 runtime; PySpark comes with the extra spark-test.
set -euo pipefail
case ${1:-} in
-h | --help)
    sed -n '2,${/^#/!q;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
EXTRAS=dev,spark-test
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
command -v java >/dev/null || fail "java not found: install a Java 17 runtime (Debian: apt install openjdk-17-jre-headless)"
marked="not spark_long"
if [ "${1:-}" = --long ]; then
    marked=
    shift
fi
if command -v node >/dev/null; then # else pyright would download it
    "$venv/bin/pyright" --pythonpath "$venv/bin/python" examples/*_on_spark.py
fi
ORDERMQ_SPARK=1 exec "$venv/bin/python" -m pytest tests/spark -q --durations=10 -m "$marked" "$@"
