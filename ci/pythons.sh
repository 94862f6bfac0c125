#!/usr/bin/env bash
# Run the base part of the tests on each supported Python that is on PATH, each in an environment
# and a copy of its own. The other tests run on one Python, in ci/test.sh.
#   ci/pythons.sh                                python3.11 to 3.15
#   PYTHONS="python3.12 python3.13" ci/pythons.sh
#   ci/pythons.sh --free-threaded Python-3.14.7.tar.xz
#                                                without the interpreter lock, built of this source,
#                                                once, into the cache
#   ci/pythons.sh --debian python3.15            the one of Debian testing, in a folder of the cache with
#                                                that Debian, made once; needs root and debootstrap
# Other arguments go to pytest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# pyenv's Pythons, too; its shims run only the one that is chosen.
if command -v pyenv >/dev/null; then
    for folder in "$(pyenv root)"/versions/*/bin; do PATH=$folder:$PATH; done
fi
fail() {
    echo "ordermq: $*" >&2
    exit 1
}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ordermq
userland=
if [ "${1:-}" = --debian ]; then
    PYTHONS=${2:?a Python of Debian testing, for example python3.15}
    shift 2
    [ "$(id -u)" = 0 ] || fail "--debian needs root, for chroot and mounts"
    userland=$cache/debian-$PYTHONS
    if [ ! -d "$userland" ]; then
        command -v debootstrap >/dev/null || fail "debootstrap not found: apt install debootstrap"
        echo "ordermq: making a Debian with $PYTHONS in $userland: some minutes"
        mkdir -p "$cache"
        rm -rf --one-file-system "$userland.part"
        # As all mounts here, its own end with it, however it ends.
        unshare --mount debootstrap --variant=minbase --include="$PYTHONS-dev,$PYTHONS-venv,gcc" testing \
            "$userland.part" >"$userland.log" 2>&1 || { tail -20 "$userland.log" >&2; exit 1; }
        mkdir -p "$userland.part/etc/ssl/certs"
        mv "$userland.part" "$userland"
    fi
fi
work=$(mktemp -d ${userland:+-p "$userland/tmp"})
trap 'rm -rf --one-file-system "$work"' EXIT

# Run a command in a folder; with --debian inside that one, which pip leaves by this machine's name
# servers and certificates.
run_in() {
    if [ -z "$userland" ]; then
        (cd "$1" && "${@:2}")
    else
        unshare --mount sh -ec '
            for name in proc dev etc/ssl/certs etc/resolv.conf; do mount --rbind "/$name" "$0/$name"; done
            folder=$1
            shift
            exec chroot "$0" env --chdir "$folder" -u TMPDIR HOME=/root LANG=C.UTF-8 \
                PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
        ' "$userland" "${1#"$userland"}" "${@:2}"
    fi
}

extras=test
if [ "${1:-}" = --free-threaded ]; then
    source=${2:?the source of a Python, for example Python-3.14.7.tar.xz}
    shift 2
    home=$cache/free-threaded-$(sha256sum "$source" | cut -c1-8)
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
    # Some of the other extras have no wheels for it, nor compile.
    extras=free-threaded-test
fi
ran=0
for python in ${PYTHONS:-python3.11 python3.12 python3.13 python3.14 python3.15}; do
    # A version manager may leave a shim without its Python.
    if ! run_in "$work" "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        [ -z "${PYTHONS:-}" ] || fail "$python does not run, or has no venv module"
        echo "ordermq: NOT TESTED: $python not found"
        continue
    fi
    echo "ordermq: tests on $(run_in "$work" "$python" --version)"
    copy=$work/$(basename "$python")
    mkdir "$copy"
    git ls-files -z | xargs -0 cp --parents -t "$copy"
    run_in "$copy" env PYTHON="$python" EXTRAS="$extras" ci/venv.sh
    # shellcheck disable=SC2046
    run_in "$copy" .venv/bin/python -m pytest -q -n "${WORKERS:-2}" tests/unit/client \
        tests/unit/consumer tests/unit/core tests/unit/model tests/unit/producer tests/unit/remoting \
        tests/unit/broker tests/component/test_orderly_consumer.py \
        tests/component/test_producer.py tests/architecture/test_import_cost.py \
        $(git ls-files 'tests/unit/test_*.py' | grep -Ev '(settings_types|build_steps|docs_site)\.py') "$@"
    ran=$((ran + 1))
done
[ "$ran" -gt 0 ] || fail "no Python from 3.11 to 3.15 on PATH; set PYTHONS"
