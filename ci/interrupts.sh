#!/usr/bin/env bash
# Interrupt every public call at each place where a signal handler may raise an exception, and check
# that nothing hangs. ci/test.sh tries a sample of the places. A few minutes.
# Arguments go to pytest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

for loop in asyncio uvloop; do
    echo "ordermq: interrupted calls, on $loop"
    ORDERMQ_INTERRUPTS_STRIDE=1 ORDERMQ_EVENT_LOOP=$loop "$venv/bin/python" -m pytest -q -n 2 \
        --timeout 600 tests/component/test_interrupts.py \
        tests/component/test_interrupted_blocks.py tests/component/test_interrupted_listeners.py "$@"
done
