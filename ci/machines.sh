#!/usr/bin/env bash
# Run the C core where this machine's Python does not run: built by cross compilers, under QEMU's user
# emulation (aarch64; s390x, which is big-endian), with musl, and for Windows under Wine. With
# --python also the unit tests of core, model and remoting, by Debian's Python of aarch64 and s390x.
#   ci/machines.sh                        all four; what is not installed is left out, and said
#   ci/machines.sh s390x windows          only these: aarch64, s390x, musl, windows
#   ci/machines.sh --python s390x         slow: minutes, after a download of 100 MB
#   SEED=7 CASES=100000 ci/machines.sh    another seed, more mutated inputs
# On Debian: apt install qemu-user-static debootstrap musl-tools gcc-aarch64-linux-gnu
# gcc-s390x-linux-gnu libc6-dev-arm64-cross libc6-dev-s390x-cross gcc-mingw-w64-x86-64-posix wine64
# docs/internals/machines.md says what was found.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
with_python=
if [ "${1:-}" = --python ]; then
    with_python=yes
    shift
fi
machines=("$@")
[ ${#machines[@]} -gt 0 ] || machines=(aarch64 s390x musl windows)
SEED=${SEED:-$RANDOM}
CASES=${CASES:-5000}
build=$root/build/machines
mkdir -p "$build"
strict=(-std=c11 -O1 -Wall -Wextra -Werror -pthread -Iext/core -Iext/engine -Iext/wire)
wrap=-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc
vectors=tests/vectors
failed=()
left_out=()

# The driver of ci/sanitize.sh, with fewer steps: an emulated processor is ten times slower.
drive() { # the machine's name, then the command that runs its driver
    local machine=$1
    shift
    local records=("$vectors"/core/stored_message_*.hex) plan
    local plans=("single 300 $SEED" "starved 300 $SEED" "fuzz $CASES $SEED ${records[*]}"
        "answers $((CASES / 2)) $SEED ${records[*]}" "headers $CASES $SEED $vectors/core/binary_header.hex"
        "sends $CASES $SEED $vectors/core/plain_sends.hex"
        "proxied $CASES $SEED $vectors/core/proxy_message.hex"
        "proxied $CASES $SEED $vectors/core/proxy_answer.hex"
        "to_proxy $CASES $SEED $vectors/messages/batch_body.hex"
        "batches $((CASES / 10)) $SEED $vectors/messages/batch_body.hex" "handover 3 $SEED" "threads 200"
        "replies $CASES $SEED $vectors/core/reply_header.hex $vectors/core/binary_header.hex" "engine 3 $SEED")
    # Threads that wait read by epoll.
    [ "$machine" = windows ] || plans+=("waits 2 $SEED")
    for plan in "${plans[@]}"; do
        # shellcheck disable=SC2086
        timeout 600 "$@" $plan >"$build/$machine.log" 2>&1 || {
            echo "ordermq: $machine: $plan:" >&2
            tail -20 "$build/$machine.log" >&2
            failed+=("$machine")
            return
        }
    done
    echo "ordermq: $machine: the C core is sound, SEED=$SEED"
}

has() {
    local tool
    for tool in "${@:2}"; do
        command -v "$tool" >/dev/null || {
            left_out+=("$1 ($tool not found)")
            return 1
        }
    done
}

compile() { # compiler, output, further flags
    "$1" "${strict[@]}" tests/unit/core/sanitize_*.c ext/core/*.c ext/wire/*.c ext/engine/*.c -static \
        "$wrap" -o "$2"
}

# The unit tests by Debian's Python of a machine. Compiled here against that Python's headers;
# pure Python comes from .venv, but for a Hypothesis from before it had native parts. Tests of what
# needs pyarrow, NumPy or pydantic are left out: these have no wheels of all of the machines; so is
# that of hardening, which is of setup.py's flags.
python_tests() {
    local machine=$1 debian=${1/aarch64/arm64} home=$build/$1 archive wheel
    local tree=$home/tree here=.venv/lib/python3*/site-packages
    if [ ! -e "$home/debian/usr/include/python3.11/Python.h" ]; then
        debootstrap --foreign --arch="$debian" --variant=minbase \
            --include=python3,libpython3-dev,python3-lz4,python3-uvloop \
            bookworm "$home/debian" >"$build/$machine.log" 2>&1
        for archive in "$home"/debian/var/cache/apt/archives/*.deb; do
            dpkg -x "$archive" "$home/debian"
        done
    fi
    rm -rf "$tree" && mkdir -p "$tree/packages"
    cp -R ordermq pyspark_ordermq tests ext pyproject.toml "$tree"
    find "$tree/ordermq" -name '*.so' -delete
    .venv/bin/python -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 \
        --platform "manylinux_2_17_$machine" --platform "manylinux2014_$machine" \
        --dest "$home/wheels" orjson cffi backports.zstd
    for wheel in "$home"/wheels/*.whl; do
        python3 -m zipfile -e "$wheel" "$tree/packages"
    done
    .venv/bin/python -m pip install --quiet --no-deps --target "$tree/packages" hypothesis==6.131.0
    for package in _pytest pytest pluggy iniconfig packaging pytest_timeout.py py.py sortedcontainers hpack \
        attr attrs sqlalchemy typing_extensions.py pygments; do
        cp -R $here/$package "$tree/packages"
    done
    # Both bindings are made on this machine, by its own build.
    .venv/bin/python setup.py -q build_ext --build-lib "$home/lib" --build-temp "$home/made" --force
    local flags=(-std=c11 -O1 -g0 -w -pthread -fPIC -shared -DNDEBUG -I"$home/debian/usr/include/python3.11"
        -I"$home/debian/usr/include" -Iext/core -Iext/engine -Iext/wire)
    "$machine-linux-gnu-gcc" "${flags[@]}" ext/cython/_cython.c ext/core/*.c ext/wire/*.c ext/engine/*.c \
        -o "$tree/ordermq/core/_cython.so"
    "$machine-linux-gnu-gcc" "${flags[@]}" "$home"/made/*_cffi.c ext/core/*.c -o "$tree/ordermq/core/_cffi.abi3.so"
    # What tests start with sys.executable is emulated, too, also where the kernel does not know how.
    printf '#!/bin/sh\nexec qemu-%s-static -L "%s" "%s" "$@"\n' \
        "$machine" "$home/debian" "$home/debian/usr/bin/python3.11" >"$home/python"
    chmod +x "$home/python"
    echo "import sys; sys.executable = '$home/python'" >"$tree/packages/sitecustomize.py"
    mkdir -p "$home/bin"
    ln -sf "$(command -v "$machine-linux-gnu-gcc")" "$home/bin/cc" # for tests that compile
    (cd "$tree" && PATH=$home/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$tree:$tree/packages \
        "$home/python" -m pytest -q \
        -p no:cacheprovider -p pytest_timeout --timeout 600 tests/unit/core tests/unit/remoting \
        tests/unit/model --ignore tests/unit/core/test_core_message_fields.py \
        --ignore tests/unit/model/test_arrow.py --ignore tests/unit/model/test_codec.py \
        --ignore tests/unit/model/test_json_values.py --ignore tests/unit/core/test_core_hardening.py) ||
        failed+=("$machine, Python")
}

for machine in "${machines[@]}"; do
    case $machine in
    aarch64 | s390x)
        has "$machine" "$machine-linux-gnu-gcc" "qemu-$machine-static" || continue
        compile "$machine-linux-gnu-gcc" "$build/driver-$machine"
        drive "$machine" "qemu-$machine-static" "$build/driver-$machine"
        [ -z "$with_python" ] || ! has "$machine, Python" debootstrap dpkg || python_tests "$machine"
        ;;
    musl)
        has musl musl-gcc || continue
        compile musl-gcc "$build/driver-musl"
        drive musl "$build/driver-musl"
        ;;
    windows)
        has windows x86_64-w64-mingw32-gcc-posix || continue
        wine=$(command -v wine64 || ls /usr/lib/wine/wine64 2>/dev/null || true)
        [ -n "$wine" ] || { left_out+=("windows (wine64 not found)") && continue; }
        printf '%s\n' '#include <stdint.h>' '#include <stdlib.h>' '#include "sanitize.h"' \
            'void drive_waits(uint64_t *s, int n) { (void)s, (void)n, abort(); }' >"$build/absent.c"
        kept=(ext/core/*.c ext/wire/*.c ext/engine/*.c)
        for file in tests/unit/core/sanitize_*.c; do
            [ "$file" = tests/unit/core/sanitize_waits.c ] || kept+=("$file")
        done
        x86_64-w64-mingw32-gcc-posix "${strict[@]}" -Itests/unit/core "$build/absent.c" "${kept[@]}" -static \
            "$wrap" -lws2_32 -o "$build/driver.exe"
        # Elsewhere: its drive z: is a link to /, into which builds of the checkout would follow.
        WINEPREFIX=$(mktemp -d)
        export WINEPREFIX WINEDEBUG=-all
        drive windows "$wine" "$build/driver.exe"
        rm -rf "$WINEPREFIX"
        ;;
    *)
        echo "ordermq: no machine $machine: there is aarch64 s390x musl windows" >&2
        exit 2
        ;;
    esac
done
[ ${#left_out[@]} -eq 0 ] || printf 'ordermq: NOT TESTED: %s\n' "${left_out[@]}"
[ ${#failed[@]} -eq 0 ] || { echo "ordermq: failed: ${failed[*]}" >&2 && exit 1; }
