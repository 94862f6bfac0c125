#!/usr/bin/env bash
# Check style and types, and that the documents show the recorded figures.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
bin=$venv/bin

"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
"$bin/mypy" examples
"$bin/python" -m bench.report --check
