#!/usr/bin/env bash
# Check that the C core and the pull engine compile without warnings, with gcc and with clang.
#   ci/compilers.sh              with the installed compilers, at least one
#   ci/compilers.sh --require    with both; on Debian, as root, a missing one is installed
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
strict=(-std=c11 -O2 -Wall -Wextra -Wpedantic -Wshadow -Werror -pthread -Iext/core -Iext/engine -Iext/wire)

fail() {
    echo "ordermq: $*" >&2
    exit 1
}

# Debian's package of a compiler has the compiler's name.
install() {
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        echo "ordermq: installing $1"
        apt-get -qq update && apt-get -qq install --no-install-recommends --yes "$1" >/dev/null
    fi
    command -v "$1" >/dev/null || fail "$1 not found and cannot be installed automatically: install it"
}

case ${1:-} in
"" | --require) ;;
*) fail "usage: ci/compilers.sh [--require]" ;;
esac

used=()
for cc in gcc clang; do
    if ! command -v "$cc" >/dev/null; then
        [ "${1:-}" = --require ] || continue
        install "$cc"
    fi
    for file in ext/core/*.h ext/engine/*.h ext/wire/*.h; do # alone: a header includes all that it uses
        # The typedef: ISO C wants a declaration, and a header may hold macros only.
        printf '#include "%s"\ntypedef int declared;\n' "${file##*/}" |
            "$cc" "${strict[@]}" -x c -fsyntax-only - ||
            fail "$cc: $file has warnings, see above"
    done
    for file in ext/core/*.c ext/engine/*.c ext/wire/*.c; do
        "$cc" "${strict[@]}" -c "$file" -o /dev/null || fail "$cc: $file has warnings, see above"
    done
    used+=("$cc")
done
[ ${#used[@]} -gt 0 ] || fail "neither gcc nor clang is installed"
echo "ordermq: the C core compiles without a warning: ${used[*]}"
