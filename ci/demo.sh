#!/usr/bin/env bash
# The demo: an embedded broker, producers, a group of consumers that come, go and crash, and the
# check of their history; then the same flights on Spark, whose driver is killed in the middle.
# Arguments go to `ordermq demo`; --help lists them. Spark needs a Java 17: ci/java.sh sees to it.
set -euo pipefail
here=$(pwd)
EXTRAS=${EXTRAS:-demo-spark}
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
cd "$here"
"$venv/bin/ordermq" demo "$@"
case " $* " in *" --help "* | *" -h "*) exit ;; esac
"$root/ci/java.sh"
PYTHONPATH=$root exec "$venv/bin/python" "$root/ci/pipeline/run.py" "$@"
