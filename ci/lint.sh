#!/usr/bin/env bash
# Style, types, and whether the documents show the recorded figures.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
bin=$venv/bin

"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
"$bin/python" -m bench.report --check
