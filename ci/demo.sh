#!/usr/bin/env bash
# Run the demo: an embedded broker, producers, a group of consumers that join, leave and crash, and
# the audit of their history; then the same flights on Spark, whose driver is killed in between.
# Arguments go to `ordermq demo`; --help lists them. Spark needs Java 17: ci/java.sh installs it
# where that is allowed.
set -euo pipefail
here=$(pwd)
EXTRAS=${EXTRAS:-demo-spark}
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
cd "$here"
"$venv/bin/ordermq" demo "$@"
case " $* " in *" --help "* | *" -h "*) exit ;; esac
"$root/ci/java.sh"
PYTHONPATH=$root exec "$venv/bin/python" "$root/ci/pipeline/run.py" "$@"
