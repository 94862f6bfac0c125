#!/usr/bin/env bash
# Run all parts that use the core on each way to it that ci/test.sh does not run whole. Arguments go
# to pytest.
#   ci/engines.sh                      cffi and the Python reference, some four minutes each; then
#                                      ordered consumers by the consume loop in Python, on Cython
#   CORES=reference ci/engines.sh -x   one of them; the loop is that of CORES=cython
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
# Whole programs, which take long and differ in no core.
programs=$(printf -- '--ignore=tests/component/test_%s.py ' cli_run dashboard deploy_examples examples orders_service)
consumers=$(printf 'tests/component/test_%s.py ' orderly_consumer async_consumer async_callables hand_off \
    queue_control failing_messages interrupted_close forking slow_listeners damaged_answers loops_go_on \
    deduplication exactly_once fence_tokens hooks observers traces tracing subscribing lite_pull_consumer \
    key_ordered_consumer parked_keys concurrent_consumer pull_engine brokers_come_and_go name_servers_away)
for core in ${CORES:-cffi reference cython}; do
    if [ "$core" = cython ]; then
        echo "ordermq: consumers by the consume loop in Python, on cython"
        ORDERMQ_CORE=cython ORDERMQ_CONSUME_PATH=python "$venv/bin/python" -m pytest -n 3 -q tests/unit/consumer \
            $consumers "$@"
    else
        echo "ordermq: the parts that use the core, on $core"
        ORDERMQ_CORE=$core ORDERMQ_EVENT_LOOP=asyncio "$venv/bin/python" -m pytest -n 3 -q tests/unit/model \
            tests/unit/consumer tests/component $programs "$@"
    fi
done
