#!/usr/bin/env bash
# Create .venv and install this checkout into it; sourced or run by the other scripts.
#   PYTHON=python3.13 ci/venv.sh      the interpreter of a new .venv
#   EXTRAS=cli,report ci/venv.sh      extras to install (default: dev)
# Installs again only when something that is built or pinned has changed; other extras of the same
# checkout are added to what is there. Compiled modules are kept in build/extensions by what they are
# made from (ext/build_steps.py), so that going back to an older commit compiles nothing.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
EXTRAS=${EXTRAS:-dev}
venv=$root/.venv

fail() {
    echo "ordermq: $*" >&2
    exit 1
}

check_tools() {
    local python=$1
    command -v "$python" >/dev/null || fail "$python not found: install Python 3.11 or later, or set PYTHON"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "$("$python" --version) is too old: ordermq needs 3.11 or later; set PYTHON to one"
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$python has no venv module: install it (on Debian: apt install python3-venv)"
    local compiler
    compiler=${CC:-$(command -v cc || command -v gcc || command -v clang || true)}
    [ -n "$compiler" ] ||
        fail "no C compiler: install one (Debian: apt install gcc libc6-dev; macOS: xcode-select --install)"
    local include
    include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [ -f "$include/Python.h" ] ||
        fail "no Python.h in $include: install the headers (on Debian: apt install python3-dev)"
}

# Everything a build depends on: the metadata, the C core and its bindings, the interpreter.
fingerprint() {
    {
        "$venv/bin/python" --version
        find pyproject.toml setup.py ext -type f ! -name _cython.c ! -name libordermq.pxd -print | LC_ALL=C sort |
            xargs cksum
    } | cksum
}

if [ ! -x "$venv/bin/python" ]; then
    check_tools "${PYTHON:-python3}"
    echo "ordermq: creating .venv with $("${PYTHON:-python3}" --version)"
    "${PYTHON:-python3}" -m venv "$venv"
fi
stamp=$venv/.ordermq-${EXTRAS//,/-}
current=$(fingerprint)
if [ "$(cat "$stamp" 2>/dev/null)" != "$current" ]; then
    if grep -qsxF "$current" "$venv"/.ordermq-*; then
        echo "ordermq: installing what [$EXTRAS] needs"
        wanted=("ordermq[$EXTRAS]") # ordermq itself is there, from this checkout
    else
        check_tools "$venv/bin/python"
        echo "ordermq: building and installing [$EXTRAS]"
        wanted=(--editable ".[$EXTRAS]")
    fi
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${wanted[@]}"
    echo "$current" >"$stamp"
fi
