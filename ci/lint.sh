#!/usr/bin/env bash
# Style, types, and the native module against its stubs.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
bin=$venv/bin

"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
"$bin/stubtest" ordermq.core._cython --mypy-config-file pyproject.toml
"$bin/python" -m bench.report --check
