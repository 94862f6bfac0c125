#!/usr/bin/env bash
# Install the wheel with one extra, and nothing else, in an environment of its own, as who reads
# `pip install 'ordermq[sql]'` does; import what the extra is for, and use it once
# (ci/extras_check.py). The other checks have all extras at once and miss what one of them lacks.
#   ci/extras.sh                     each extra for users, and `base`: the wheel without any
#   ci/extras.sh base sql demo       these only
#   ci/extras.sh --lowest            the libraries as old as pyproject.toml allows, Spark left out
#   WHEEL=dist/ordermq-....whl PYTHON=python3.12 ci/extras.sh
#                                    another wheel than that of ci/wheel.sh, and its Python
# Needs a package index. Takes some ten seconds for each extra, minutes for those of Spark; without
# Java those are only imported.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD

say() { echo "ordermq: $*"; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset ORDERMQ_CORE PYTHONPATH
export PIP_DISABLE_PIP_VERSION_CHECK=1

bounds=()
[ "${1:-}" != --lowest ] || {
    bounds=(--lowest)
    shift
}
python=${PYTHON:-python3}
listed=$("$python" ci/extras_check.py --list "${bounds[@]}")
extras=${*:-$listed}
for extra in $extras; do
    grep -qxF "$extra" <<<"$listed" || {
        say "no extra $extra to check; there are: ${listed//$'\n'/ }" >&2
        exit 2
    }
done

if [ -z "${WHEEL:-}" ]; then
    DIST=$work/dist ci/wheel.sh
    WHEEL=$(echo "$work"/dist/*.whl)
    python=${PYTHON:-$root/.venv/bin/python} # which made it
fi
wheel=$(cd "$(dirname "$WHEEL")" && pwd)/$(basename "$WHEEL")
[ ${#bounds[@]} -eq 0 ] || {
    "$python" ci/extras_check.py --constraints >"$work/lowest.txt"
    bounds=(--constraint "$work/lowest.txt")
}

check() {
    local extra=$1 wanted="ordermq[$1] @ file://$wheel" place=$work/$1
    [ "$extra" != base ] || wanted="ordermq @ file://$wheel"
    mkdir -p "$place/away"
    "$python" -m venv "$place/env" &&
        "$place/env/bin/python" -m pip install --quiet "${bounds[@]}" "$wanted" &&
        (cd "$place/away" && "$place/env/bin/python" -I "$root/ci/extras_check.py" "$extra")
}

failed=()
for extra in $extras; do
    check "$extra" >"$work/log" 2>&1 && tail -n 1 "$work/log" || {
        cat "$work/log" >&2
        failed+=("$extra")
    }
    rm -rf "${work:?}/$extra"
done
[ ${#failed[@]} -eq 0 ] || {
    say "FAILED: ${failed[*]}" >&2
    exit 1
}
say "each works alone: $(wc -w <<<"$extras") of $(wc -w <<<"$listed")"
