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
here=$(pwd)
kind=flights
[ "${1:-}" != cdc ] || { kind=cdc && shift; }
if [ "$kind" = cdc ]; then EXTRAS=${EXTRAS:-demo-cdc}; else EXTRAS=${EXTRAS:-demo-spark}; fi
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
if [ "$kind" = cdc ]; then
    cd "$here"
    PYTHONPATH=$root exec "$venv/bin/python" "$root/ci/cdc/cdc_demo.py" "$@"
fi
cd "$here"
"$venv/bin/ordermq" demo "$@"
case " $* " in *" --help "* | *" -h "*) exit ;; esac
"$root/ci/java.sh"
PYTHONPATH=$root exec "$venv/bin/python" "$root/ci/pipeline/run.py" "$@"
