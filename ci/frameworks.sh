#!/usr/bin/env bash
# Run the test suites that FastStream, kombu and Celery have for brokers on those of ordermq.contrib.
#   ci/frameworks.sh                 all of them, most through an embedded broker
#   ci/frameworks.sh --rocketmq      the same on RocketMQ 5.3.3; needs a JDK 17 and Maven
#   ci/frameworks.sh --only celery   one of faststream, kombu, celery
#   ci/frameworks.sh -k Consume      other arguments go to pytest
# The sdists of kombu and Celery have their tests. FastStream's has not, so they are cloned from its
# repository, at the tag of the installed version; ORDERMQ_FASTSTREAM names another source, or a
# checkout. They are fetched into build/frameworks, and so is what they need besides, in no
# environment. Celery's suite keeps its results in a Redis of its own (Debian: apt install
# redis-server), and takes half an hour.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

on_rocketmq=
only=
while [ $# -gt 0 ]; do
    case $1 in
    --rocketmq)
        on_rocketmq=yes
        shift
        ;;
    --only)
        only=${2:?faststream, kombu or celery}
        shift 2
        ;;
    *) break ;;
    esac
done

folder=$root/build/frameworks
packages=$folder/packages
rocketmq=$root/build/frameworks-rocketmq-$$
redis=
stop_servers() {
    [ -z "$redis" ] || kill "$redis"
    [ ! -d "$rocketmq" ] || ci/rocketmq.sh down any --folder "$rocketmq"
}
trap stop_servers EXIT
mkdir -p "$folder"

install() { # arguments of pip
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --target "$packages" "$@"
}
if [ ! -d "$packages" ]; then
    install --no-deps pytest-asyncio pytest-rerunfailures dirty-equals
    install typer httpx python-multipart psutil redis
fi
version_of() {
    "$venv/bin/python" -c "from importlib.metadata import version; print(version('$1'))"
}
sdist() { # name; prints the folder of its files
    local name version
    name=$1 version=$(version_of "$1")
    if [ ! -d "$folder/$name-$version" ]; then
        "$venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps \
            --no-binary "$name" --dest "$folder" "$name==$version"
        tar -xzf "$folder/$name-$version.tar.gz" -C "$folder"
    fi
    echo "$folder/$name-$version"
}
if [ -n "$on_rocketmq" ]; then
    ORDERMQ_NAME_SERVERS=$(ci/rocketmq.sh up 5.3.3 --folder "$rocketmq" \
        --set recallMessageEnable=true | tail -1)
    export ORDERMQ_NAME_SERVERS
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
faststream() {
    local source version checkout place
    source=${ORDERMQ_FASTSTREAM:-https://github.com/ag2ai/faststream}
    version=$(version_of faststream)
    checkout=$folder/faststream-$version
    if [ -d "$source/tests" ]; then
        checkout=$(cd "$source" && pwd)
    elif [ ! -d "$checkout" ]; then
        if ! GIT_TERMINAL_PROMPT=0 timeout 120 git -c advice.detachedHead=false clone --quiet --depth 1 \
            --branch "$version" "$source" "$checkout"; then
            rm -rf "$checkout"
            fail "FRAMEWORKS: git cannot clone the tag $version of $source; set ORDERMQ_FASTSTREAM"
        fi
    fi
    # Its tests alone: a checkout has FastStream itself, too, which would hide the installed one.
    place=$folder/faststream-tests
    rm -rf "$place"
    mkdir "$place"
    ln -s "$checkout/tests" "$checkout/pyproject.toml" "$place"
    suite "$place" faststream_patterns.py -p tests.conftest -c "$place/pyproject.toml" -m "" "$@"
}

kombu() {
    suite "$(sdist kombu)" kombu_patterns.py -c /dev/null "$@"
}

celery() {
    local place
    command -v redis-server >/dev/null ||
        fail "CELERY: redis-server not found (Debian: apt install redis-server)"
    place=$(sdist celery)
    REDIS_HOST=127.0.0.1
    REDIS_PORT=$("$venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    export REDIS_HOST REDIS_PORT
    redis-server --bind "$REDIS_HOST" --port "$REDIS_PORT" --save "" --dir "$folder" >"$folder/redis.log" &
    redis=$!
    suite "$place" celery_patterns.py -c "$place/pyproject.toml" -p celery.contrib.pytest \
        -p t.integration.conftest --timeout 300 "$@"
}

for framework in ${only:-faststream kombu celery}; do
    case $framework in
    faststream | kombu | celery) "$framework" "$@" ;;
    *) fail "no framework $framework: faststream, kombu or celery" ;;
    esac
done
exit $failed
