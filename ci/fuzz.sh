#!/usr/bin/env bash
# Coverage-guided fuzzing. Of the C core under ASan and UBSan: stored records, their columns, command
# headers, batch bodies, replies (headers of answers to pulls), sends (to a broker), messages and
# acknowledgements of a proxy (proxied), requests to one (to_proxy), the steps of maps, queues, lanes
# and locks, and sequences of calls on an assigned queue (assigned). Of Python's decoders, with Atheris
# (tests/fuzz/decoders.py): frames, fields, parts (bodies), packed (compressed bodies), what a broker
# sends to a client: answers, requests, pulls, and what a proxy does: http2, proto (messages of gRPC).
#   ci/fuzz.sh                      ten minutes for each target
#   SECONDS_EACH=15 ci/fuzz.sh      less
#   ci/fuzz.sh records headers      only these targets
#   ci/fuzz.sh --keep               add what reached new code to tests/fuzz
# Starts from tests/fuzz/TARGET. What breaks is left in build/fuzz; replay it with
# `build/fuzz/TARGET FILE`, or `.venv/bin/python tests/fuzz/decoders.py TARGET FILE`. Needs clang
# with libFuzzer (Debian: apt install clang libclang-rt-14-dev), and Atheris (`ordermq[fuzz]`).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
keep=
if [ "${1:-}" = --keep ]; then
    keep=yes
    shift
fi
native=(records columns headers batches replies sends proxied to_proxy structures assigned)
decoders=(frames fields parts packed answers requests pulls http2 proto)
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=("${native[@]}" "${decoders[@]}")
each=${SECONDS_EACH:-600}
build=build/fuzz
mkdir -p "$build"
for target in "${targets[@]}"; do
    [ -d "tests/fuzz/$target" ] || {
        echo "ordermq: no target $target: there is ${native[*]} ${decoders[*]}" >&2
        exit 2
    }
done
is_native() {
    [[ " ${native[*]} " == *" $1 "* ]]
}

# One target, in a shell of its own.
fuzz() {
    local target=$1 seeds=tests/fuzz/$1 log=$build/$1.log
    local limits="-max_total_time=$each -timeout=20 -rss_limit_mb=2048 -max_len=4096"
    shift
    mkdir -p "$build/corpus-$target"
    # shellcheck disable=SC2086 # the limits are words
    "$@" $limits -print_final_stats=1 -artifact_prefix="$build/$target-" "$build/corpus-$target" "$seeds" \
        >"$log" 2>&1 || {
        tail -40 "$log" >&2
        exit 1
    }
    echo "ordermq: fuzzed $target for $each s, from $(find "$seeds" -type f | wc -l) inputs:" \
        "$(grep -E 'number_of_executed_units|DONE' "$log" | tr -s '\n\t ' ' ')"
    # Only what reaches another edge: without counters of how often, the corpus stays small.
    [ -z "$keep" ] ||
        "$@" -merge=1 -use_counters=0 "$seeds" "$build/corpus-$target" >/dev/null 2>&1
}
export -f fuzz
export build each keep

commands=()
if .venv/bin/python -c 'import atheris' 2>/dev/null; then
    for target in "${targets[@]}"; do
        is_native "$target" ||
            commands+=("fuzz $target .venv/bin/python tests/fuzz/decoders.py $target")
    done
else
    echo "ordermq: FUZZING OF PYTHON SKIPPED: no Atheris in .venv; pip install 'ordermq[fuzz]'"
fi

if ! echo '#include <stddef.h>
#include <stdint.h>
int LLVMFuzzerTestOneInput(const uint8_t *b, size_t n) { return b == NULL && n > 0; }' |
    clang -x c - -fsanitize=fuzzer,address,undefined -o "$build/probe" 2>/dev/null; then
    echo "ordermq: FUZZING SKIPPED: clang cannot link -fsanitize=fuzzer;" \
        "install clang and its runtime (Debian: apt install clang libclang-rt-14-dev)"
else
    read -ra sources < <("$(command -v python3 || command -v python)" -c '
import runpy
core = runpy.run_path("ext/c_core.py")
print(*core["SOURCES"], *core["ENGINE_SOURCES"])')
    compile="clang -std=c11 -g -O1 -Wno-unused-function -fno-omit-frame-pointer -pthread"
    compile+=" -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all"
    compile+=" -Iext/core -Iext/engine -Iext/wire"
    driver=tests/unit/core/sanitize_driver.c # the only one that differs
    rm -rf "$build/objects"
    mkdir "$build/objects"
    for file in tests/unit/core/sanitize_*.c "${sources[@]}"; do
        [ "$file" = $driver ] || echo "$compile -c $file -o $build/objects/$(basename "$file" .c).o"
    done | at_once
    compile+=" $build/objects/*.o -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc"
    for target in "${targets[@]}"; do
        is_native "$target" || continue
        commands+=("$compile -DOMQ_FUZZ='\"$target\"' $driver -o $build/$target; fuzz $target $build/$target")
    done
fi
printf '%s\n' "${commands[@]}" | at_once
