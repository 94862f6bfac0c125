#!/usr/bin/env bash
# Run what to run before each commit, in two minutes on two cores: lint, rules of the house, unit
# tests, and the component tests of what most changes touch. ci/test.sh runs everything.
#   ci/quick.sh
#   ci/quick.sh tests/component/test_pop.py    these tests in place of the component tests
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
[ $# -gt 0 ] || set -- tests/component/test_{orderly_consumer,hand_off,producer}.py
ci/lint.sh &
lint=$!
failed=0
"$venv/bin/python" -m pytest -q -n "${WORKERS:-2}" tests/architecture tests/unit "$@" || failed=1
wait $lint || failed=1
[ $failed = 0 ] || fail "something failed, see above"
echo "ordermq: passed; ci/test.sh runs the rest"
