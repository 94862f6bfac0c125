#!/usr/bin/env bash
# Everything a commit must pass, in a few minutes: lint, the C core under each compiler and
# under sanitizers, what touches the core on cffi and the reference, then all tests on Cython.
# Arguments go to the last pytest run.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
pytest="$venv/bin/python -m pytest"

ci/lint.sh
ci/compilers.sh
ci/sanitize.sh
for core in cffi reference; do
    echo "ordermq: the parts that use the core, on $core"
    ORDERMQ_CORE=$core ORDERMQ_EVENT_LOOP=asyncio $pytest -q tests/unit/model tests/unit/consumer tests/component
done
echo "ordermq: all tests, on cython"
ORDERMQ_CORE=cython $pytest --durations=10 "$@"
