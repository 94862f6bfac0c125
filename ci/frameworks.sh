#!/usr/bin/env bash
# Run FastStream's own test patterns for brokers on ordermq's broker for it.
#   ci/frameworks.sh                 all of them, most through an embedded broker
#   ci/frameworks.sh -k Consume      arguments go to pytest
# Its packages on PyPI have no tests, so they are cloned from its repository, at the tag of the
# installed version, into build/frameworks; ORDERMQ_FASTSTREAM names another source, or a checkout.
# What its tests need besides FastStream is installed there, too, and in no environment.
set -euo pipefail
case ${1:-} in
-h | --help)
    sed -n '2,${/^#/!q;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

folder=$root/build/frameworks
source=${ORDERMQ_FASTSTREAM:-https://github.com/ag2ai/faststream}
version=$("$venv/bin/python" -c 'from importlib.metadata import version; print(version("faststream"))')
checkout=$folder/faststream-$version
mkdir -p "$folder"

if [ -d "$source/tests" ]; then
    checkout=$source
elif [ ! -d "$checkout" ]; then
    if ! GIT_TERMINAL_PROMPT=0 timeout 120 git -c advice.detachedHead=false clone --quiet --depth 1 \
        --branch "$version" "$source" "$checkout"; then
        rm -rf "$checkout"
        fail "FRAMEWORKS: git cannot clone the tag $version of $source; set ORDERMQ_FASTSTREAM"
    fi
fi
packages=$folder/packages
if [ ! -d "$packages" ]; then
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --target "$packages" \
        --no-deps pytest-asyncio pytest-rerunfailures dirty-equals
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --target "$packages" \
        typer httpx python-multipart psutil
fi

echo "ordermq: FastStream's patterns for brokers, of $checkout"
# Its package `tests` must be found, and not this checkout's: so it is the working directory, and no
# conftest.py above the file is read.
cd "$checkout"
PYTHONPATH=$checkout:$root:$packages exec "$venv/bin/python" -m pytest -p no:cacheprovider \
    -p tests.conftest -c "$checkout/pyproject.toml" --rootdir "$checkout" \
    --import-mode importlib --confcutdir "$root/tests/frameworks" \
    "$root/tests/frameworks/faststream_patterns.py" -v --tb=short -m "" "$@"
