#!/usr/bin/env bash
# Check an installed ordermq as a user has it: native modules, types, header, and 1,000 messages
# through the embedded broker, audited. Nothing of this checkout is on its path. Where cffi is
# installed its core is checked, elsewhere what is said to who asks for that core.
#   ci/wheel_check.sh                        the python on PATH (cibuildwheel's test command)
#   PYTHON=venv/bin/python ci/wheel_check.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$(command -v "${PYTHON:-python}") || {
    echo "ordermq: ${PYTHON:-python} not found: set PYTHON to where ordermq is installed" >&2
    exit 1
}
case $python in /*) ;; *) python=$PWD/$python ;; esac
away=$(mktemp -d)
trap 'rm -rf "$away"' EXIT
cd "$away"
unset ORDERMQ_CORE PYTHONPATH
"$python" -I -W error "$here/wheel_check.py" "$away"
