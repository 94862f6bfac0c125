#!/usr/bin/env bash
# Run a demo.
#   ci/demo.sh          an embedded broker, producers, a group of consumers that join, leave and
#                       crash, and the audit of their history; then the same flights on Spark, whose
#                       driver is killed in between. Arguments go to `ordermq demo`. Spark needs Java
#                       17: ci/java.sh installs it where that is allowed.
#   ci/demo.sh cdc      a shop's tables copied from PostgreSQL's log through a broker, while reader,
#                       appliers and servers are killed; --full for a million changes, --rocketmq
#                       for RocketMQ in place of the embedded broker. PostgreSQL is installed if it
#                       is missing and that is allowed.
# Either lists its options with --help.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
here=$(pwd)
kind=flights
[ "${1:-}" != cdc ] || { kind=cdc && shift; }
if [ "$kind" = cdc ]; then EXTRAS=${EXTRAS:-demo-cdc}; else EXTRAS=${EXTRAS:-demo}; fi
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
if [ "$kind" = cdc ]; then
    cd "$here"
    PYTHONPATH=$root exec "$venv/bin/python" "$root/ci/cdc/cdc_demo.py" "$@"
fi
cd "$here"
case " $* " in *" --help "* | *" -h "*) exec "$venv/bin/ordermq" demo "$@" ;; esac
# Half a gigabyte, which is there by the time that the first demo has drawn its pictures.
log=$root/build/demo-spark.log
mkdir -p "$root/build"
(exec >"$log" 2>&1 && "$root/ci/java.sh" && EXTRAS=demo-spark exec "$root/ci/venv.sh") &
spark=$!
trap 'kill "$spark" 2>/dev/null || true' EXIT
"$venv/bin/ordermq" demo "$@"
echo "ordermq: waiting for Java and PySpark, installed meanwhile; the log is $log"
wait "$spark" || {
    cat "$log" >&2
    fail "the flights on Spark cannot be shown, see above"
}
trap - EXIT
PYTHONPATH=$root exec "$venv/bin/python" "$root/ci/pipeline/run.py" "$@"
