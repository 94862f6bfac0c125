#!/usr/bin/env bash
# Run all parts that use the core on each way to it that ci/test.sh does not run whole. Arguments go
# to pytest.
#   ci/engines.sh                      cffi and the Python reference, some four minutes each
#   CORES=reference ci/engines.sh -x   one of them
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
# Whole programs, which take long and differ in no core.
programs=$(printf -- '--ignore=tests/component/test_%s.py ' cli_run dashboard deploy_examples examples orders_service)
for core in ${CORES:-cffi reference}; do
    echo "ordermq: the parts that use the core, on $core"
    ORDERMQ_CORE=$core ORDERMQ_EVENT_LOOP=asyncio "$venv/bin/python" -m pytest -n 3 -q tests/unit/model \
        tests/unit/consumer tests/component $programs "$@"
done
