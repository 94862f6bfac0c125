#!/usr/bin/env bash
# Build the documentation as a site in build/site; any broken link or anchor is an error.
#   ci/docs.sh            then open build/site/index.html; the search needs a server:
#   ci/docs.sh --serve    serve it at http://127.0.0.1:8000, and rebuild on each change
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
if [ "${1:-}" = --serve ]; then
    exec "$venv/bin/python" -m mkdocs serve
fi
# A later major version would be another tool; its announcement is not an error of ours.
NO_MKDOCS_2_WARNING=1 "$venv/bin/python" -m mkdocs build --strict --quiet
echo "ordermq: the documentation is in build/site"
