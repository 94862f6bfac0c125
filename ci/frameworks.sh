#!/usr/bin/env bash
# Run the test suites that FastStream and kombu have for brokers on those of ordermq.contrib.
#   ci/frameworks.sh                 all of them, most through an embedded broker
#   ci/frameworks.sh -k Consume      arguments go to pytest
# kombu's sdist has its tests. FastStream's has not, so they are cloned from its repository, at the tag
# of the installed version; ORDERMQ_FASTSTREAM names another source, or a checkout. They are fetched
# into build/frameworks, and so is what they need besides, in no environment.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
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

kombu=kombu-$("$venv/bin/python" -c 'from importlib.metadata import version; print(version("kombu"))')
if [ ! -d "$folder/$kombu" ]; then
    "$venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps \
        --no-binary kombu --dest "$folder" "${kombu/-/==}"
    tar -xzf "$folder/$kombu.tar.gz" -C "$folder"
fi

failed=0
# The suite's own packages must be found, and not this checkout's `tests`: so the suite is the working
# directory, and no conftest.py above our file is read.
suite() { # folder, our file, arguments of pytest
    local place=$1 file=$2
    shift 2
    echo "ordermq: $file, with the tests in $place"
    (cd "$place" && PYTHONPATH=$place:$root:$packages "$venv/bin/python" -m pytest -v --tb=short \
        -p no:cacheprovider --rootdir "$place" --import-mode importlib \
        --confcutdir "$root/tests/frameworks" "$root/tests/frameworks/$file" "$@") || failed=1
}
suite "$checkout" faststream_patterns.py -p tests.conftest -c "$checkout/pyproject.toml" -m "" "$@"
suite "$folder/$kombu" kombu_patterns.py -c /dev/null "$@"
exit $failed
