#!/usr/bin/env bash
# Create .venv and install this checkout into it; sourced or run by the other scripts.
#   PYTHON=python3.13 ci/venv.sh      the interpreter of a new .venv
#   EXTRAS=cli,report ci/venv.sh      extras to install (default: dev)
# Installs again only when something that is built or pinned has changed; other extras of the same
# checkout are added to what is there. Compiled modules are kept in build/extensions by what they are
# made from (ext/build_steps.py), so that going back to an older commit compiles nothing.
set -euo pipefail
[ "${BASH_SOURCE[0]}" != "$0" ] || source "$(dirname "${BASH_SOURCE[0]}")/help.sh"

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
EXTRAS=${EXTRAS:-dev}
venv=$root/.venv
# Where containers set it, each worker of the tests rewrites all of them, and each of the thousands of
# programs that they start compiles the whole house anew: two minutes of CPU for the first alone.
unset PYTHONDONTWRITEBYTECODE

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
# What the extras name, each of ordermq's own among them opened, one requirement a line.
requirements() {
    "$venv/bin/python" - "$EXTRAS" <<'PYTHON'
import re
import sys
import sysconfig
import tomllib

with open("pyproject.toml", "rb") as file:
    metadata = tomllib.load(file)
extras = metadata["project"]["optional-dependencies"]
named, left = {}, sys.argv[1].split(",")
while left:
    for requirement in extras[left.pop()]:
        own = re.fullmatch(r"ordermq\[(.*)\]", requirement)
        left += own[1].split(",") if own else []
        named |= {} if own else {requirement: None}
if not sysconfig.get_config_var("Py_GIL_DISABLED"):  # as setup.py
    named |= dict.fromkeys(metadata["tool"]["ordermq"]["dependencies"])
print("\n".join(named))
PYTHON
}

stamp=$venv/.ordermq-${EXTRAS//,/-}
current=$(fingerprint)
if [ "$(cat "$stamp" 2>/dev/null)" != "$current" ]; then
    install=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
    building=
    if grep -qsxF "$current" "$venv"/.ordermq-*; then # ordermq itself is there, from this checkout
        echo "ordermq: installing what [$EXTRAS] needs"
    else
        check_tools "$venv/bin/python"
        echo "ordermq: building and installing [$EXTRAS]"
        rm -f "$venv"/.ordermq-* # of other extras: they would say that an older build is there
        # Nearly all of its time is the compiler's for one file: on one core, while the other one
        # installs what the extras need.
        "${install[@]}" --no-deps --editable . &
        building=$!
    fi
    requirements | "${install[@]}" --requirement /dev/stdin ||
        { kill $building 2>/dev/null; fail "what [$EXTRAS] needs cannot be installed, see above"; }
    [ -z "$building" ] || wait "$building" || fail "the checkout cannot be built, see above"
    echo "$current" >"$stamp"
fi
