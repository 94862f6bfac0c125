#!/usr/bin/env bash
# Run the base part of the tests on each supported Python that is on PATH, each in an environment
# and a copy of its own. The other tests run on one Python, in ci/test.sh.
#   ci/pythons.sh                                python3.11 to 3.14
#   PYTHONS="python3.12 python3.13" ci/pythons.sh
#   ci/pythons.sh --free-threaded Python-3.14.7.tar.xz
#                                                without the interpreter lock, built of this source,
#                                                once, into the cache
# Other arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# pyenv's Pythons, too; its shims run only the one that is chosen.
if command -v pyenv >/dev/null; then
    for folder in "$(pyenv root)"/versions/*/bin; do PATH=$folder:$PATH; done
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
extras=test
if [ "${1:-}" = --free-threaded ]; then
    source=${2:?the source of a Python, for example Python-3.14.7.tar.xz}
    shift 2
    home=${XDG_CACHE_HOME:-$HOME/.cache}/ordermq/free-threaded-$(sha256sum "$source" | cut -c1-8)
    if [ ! -x "$home/bin/python3" ]; then
        echo "ordermq: building a Python without the interpreter lock in $home: a quarter of an hour"
        mkdir "$work/source"
        tar -xf "$source" -C "$work/source" --strip-components 1
        (
            cd "$work/source"
            ./configure --quiet --disable-gil --disable-test-modules --prefix="$home"
            make -j "$(nproc)" && make install
        ) >"$work/build.log" 2>&1 || { tail -20 "$work/build.log" >&2; exit 1; }
    fi
    PYTHONS=$home/bin/python3
    # Of the other extras some have no wheels for it, nor compile.
    extras=free-threaded-test
fi
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
        PYTHON=$python EXTRAS=$extras ci/venv.sh
        .venv/bin/python -m pytest -q -n "${WORKERS:-2}" tests/unit/client tests/unit/consumer \
            tests/unit/core tests/unit/model tests/unit/producer tests/unit/remoting \
            tests/unit/broker tests/component/test_orderly_consumer.py \
            tests/component/test_producer.py tests/architecture/test_import_cost.py \
            $(ls tests/unit/test_*.py | grep -Ev '(settings_types|build_steps|docs_site)\.py') "$@"
    )
    ran=$((ran + 1))
done
[ "$ran" -gt 0 ] || { echo "ordermq: no Python from 3.11 to 3.14 on PATH; set PYTHONS" >&2; exit 1; }
