#!/usr/bin/env bash
# Run the base part of the tests on each supported Python that is on PATH, each in an environment
# and a copy of its own. The other tests run on one Python, in ci/test.sh.
#   ci/pythons.sh                                python3.11 to 3.14
#   PYTHONS="python3.12 python3.13" ci/pythons.sh
# Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# pyenv's Pythons, too; its shims run only the one that is chosen.
if command -v pyenv >/dev/null; then
    for folder in "$(pyenv root)"/versions/*/bin; do PATH=$folder:$PATH; done
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ran=0
for python in ${PYTHONS:-python3.11 python3.12 python3.13 python3.14}; do
    # A version manager may leave a shim without its Python.
    if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        [ -z "${PYTHONS:-}" ] || { echo "ordermq: $python does not run, or has no venv module" >&2; exit 1; }
        echo "ordermq: NOT TESTED: $python not found"
        continue
    fi
    echo "ordermq: tests on $("$python" --version)"
    copy=$work/$(basename "$python")
    mkdir "$copy"
    git ls-files -z | xargs -0 cp --parents -t "$copy"
    (
        cd "$copy"
        PYTHON=$python EXTRAS=test ci/venv.sh
        .venv/bin/python -m pytest -q -n "${WORKERS:-2}" tests/unit/client tests/unit/consumer \
            tests/unit/core tests/unit/model tests/unit/producer tests/unit/remoting \
            tests/unit/broker tests/unit/test_*.py tests/component/test_orderly_consumer.py \
            tests/component/test_producer.py tests/architecture/test_import_cost.py \
            --deselect tests/unit/test_settings_types.py "$@"
    )
    ran=$((ran + 1))
done
[ "$ran" -gt 0 ] || { echo "ordermq: no Python from 3.11 to 3.14 on PATH; set PYTHONS" >&2; exit 1; }
