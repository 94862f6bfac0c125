#!/usr/bin/env bash
# Run the C core alone under ASan and UBSan (random steps with all checks, the same with failing
# allocations, mutated records, headers, batch bodies, answers, sends, messages of a proxy) and under
# TSan (threads on one queue, one lock table, one lane map, one assigned queue); under both the pull
# engine against brokers that misbehave, answers handed from thread to thread, and threads that send
# through one connection.
#   SEED=7 CASES=9000000 ci/sanitize.sh     another seed, more mutated inputs
#   CC=clang ci/sanitize.sh                 another compiler
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
SEED=${SEED:-$RANDOM}
STEPS=${STEPS:-20000}
CASES=${CASES:-1000000}
ROUNDS=${ROUNDS:-20000}
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
python=$(command -v python3 || command -v python)
read -ra sources < <("$python" -c '
import runpy
core = runpy.run_path("ext/c_core.py")
print(*core["SOURCES"], *core["ENGINE_SOURCES"])')
strict=(-std=c11 -g -O1 -Wall -Wextra -Wpedantic -Werror -fno-omit-frame-pointer -pthread
    -Iext/core -Iext/engine -Iext/wire)
driver=(tests/unit/core/sanitize_*.c)
wrap=-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc
records=(tests/vectors/core/stored_message_*.hex)
headers=(tests/vectors/core/binary_header.hex)
replies=(tests/vectors/core/reply_header.hex)
sends=(tests/vectors/core/plain_sends.hex)
proxied=(tests/vectors/core/proxy_message.hex)
acknowledged=(tests/vectors/core/proxy_answer.hex)
batches=(tests/vectors/messages/batch_body.hex)

cc=${CC:-$(command -v gcc || command -v cc || command -v clang)}
for kind in address,undefined thread; do
    if ! echo 'int main(void) { return 0; }' |
        "$cc" -x c - -fsanitize=$kind "$wrap" -o "$build/probe" 2>/dev/null; then
        echo "ordermq: SANITIZERS SKIPPED: $cc cannot link -fsanitize=$kind; set CC to a compiler" \
            "that can (gcc on Linux does)"
        exit 0
    fi
done
echo "ordermq: C core under sanitizers, SEED=$SEED"
memory=(-fsanitize=address,undefined -fno-sanitize-recover=all)
at_once <<END
$cc ${strict[*]} ${memory[*]} ${driver[*]} ${sources[*]} $wrap -o $build/memory
$cc ${strict[*]} -fsanitize=thread ${driver[*]} ${sources[*]} $wrap -o $build/threads
END
export TSAN_OPTIONS=halt_on_error=1
at_once <<END # the long ones first; each of the batches with five kinds of record
$build/memory fuzz $CASES $SEED ${records[*]}
$build/threads threads $ROUNDS
$build/memory single $STEPS $SEED
$build/memory starved $STEPS $SEED
$build/memory answers $((CASES / 2)) $SEED ${records[*]}
$build/memory headers $CASES $SEED ${headers[*]}
$build/memory replies $CASES $SEED ${replies[*]} ${headers[*]}
$build/memory sends $CASES $SEED ${sends[*]}
$build/memory proxied $CASES $SEED ${proxied[*]}
$build/memory proxied $((CASES / 2)) $SEED ${acknowledged[*]}
$build/memory to_proxy $CASES $SEED ${batches[*]} ${proxied[*]}
$build/memory engine $((ROUNDS / 400)) $SEED
$build/memory handover $((ROUNDS / 400)) $SEED
$build/memory waits $((ROUNDS / 400)) $SEED
$build/memory batches $((CASES / 10)) $SEED ${batches[*]}
$build/threads engine $((ROUNDS / 400)) $SEED
$build/threads handover $((ROUNDS / 400)) $SEED
$build/threads waits $((ROUNDS / 400)) $SEED
END
