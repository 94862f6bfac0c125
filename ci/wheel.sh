#!/usr/bin/env bash
# Build an sdist and from it one wheel, with the tools of .venv and without network; check what is
# in them and how large they are, and use the wheel where nothing of this checkout is on the path.
# Takes seconds, as extensions compiled from the same files are not compiled again. ci/wheels.sh
# builds what is published, for each Python and repaired for manylinux.
#   ci/wheel.sh                      keeps neither: `pip wheel --no-deps .` makes one to install
#   DIST=/tmp/out ci/wheel.sh        copies both there at the end
#   ci/wheel.sh --help
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
if ! git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    echo "ordermq: WHEEL SKIPPED: this is no git checkout, so nothing tells which files belong in it"
    exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset ORDERMQ_CORE PYTHONPATH
# By its contents: what the sdist lacks is not found there either (ext/build_steps.py).
export ORDERMQ_BUILD_CACHE=$root/build/extensions

# Tracked files only, as in a fresh clone: what was built in a checkout must not be needed.
mkdir "$work/checkout" "$work/source" "$work/made"
git ls-files -z | xargs -0 cp --parents -t "$work/checkout"
build() {
    (cd "$1" && "$venv/bin/python" -c "from setuptools import build_meta; build_meta.$2('$work/made')") \
        >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "$2 failed in a fresh copy of this checkout"; }
}
build "$work/checkout" build_sdist
sdist=$(echo "$work"/made/*.tar.gz)
tar -xzf "$sdist" -C "$work/source" --strip-components=1
build "$work/source" build_wheel
wheel=$(echo "$work"/made/*.whl)
"$venv/bin/python" ci/wheel_contents.py "$sdist" "$wheel"

# The wheel's own environment; .venv lends it the one dependency, then all packages for the core of
# cffi. Its ordermq is not lent: that is found through a .pth file, which a folder named in one does
# not get read.
"$venv/bin/python" -m venv --without-pip "$work/clean"
site=$("$work/clean/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$venv/bin/python" -m zipfile -e "$wheel" "$site"
lender=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
ln -s "$lender/orjson" "$site"
PYTHON=$work/clean/bin/python ci/wheel_check.sh
echo "$lender" >"$site/lent.pth"
PYTHON=$work/clean/bin/python ci/wheel_check.sh
if [ -n "${DIST:-}" ]; then
    mkdir -p "$DIST"
    cp "$sdist" "$wheel" "$DIST"
fi
