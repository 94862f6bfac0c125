#!/usr/bin/env bash
# Check style and types, and that the documents show the recorded figures.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
bin=$venv/bin

"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
"$bin/mypy" examples
if command -v node >/dev/null; then # else pyright would download it
    # Those of Spark follow in ci/spark.sh, which installs PySpark.
    "$bin/pyright" --pythonpath "$bin/python" $(ls examples/*.py | grep -v _on_spark)
fi
"$bin/python" -m bench.report --check
