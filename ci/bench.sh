#!/usr/bin/env bash
# Measures: ci/bench.sh core|end_to_end|all. Results go to bench/results, with the machine they
# were taken on; `python -m bench.report` makes tables and pictures of them.
#   core          the native core and its peers in turn (Java's need a JDK 17 and Maven)
#   end_to_end    catch-up, hand-off and take-over on the embedded broker
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
python=$venv/bin/python

core() {
    "$python" -m pip install --quiet --disable-pip-version-check sortedcontainers BTrees ||
        echo "ordermq: could not install the Python peers; going on without" >&2
    "$python" -m bench.core
}

end_to_end() {
    for script in bench_catch_up bench_hand_off bench_take_over; do
        "$python" -m "bench.end_to_end.$script"
    done
}

case ${1:-} in
core | end_to_end) "$1" ;;
all)
    core
    end_to_end
    ;;
*) fail "usage: ci/bench.sh core|end_to_end|all" ;;
esac
