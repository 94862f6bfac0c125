#!/usr/bin/env bash
# The demo: an embedded broker, producers, a group of consumers that come, go and crash, and
# the check of their history. Arguments go to `ordermq demo`; --help lists them.
set -euo pipefail
here=$(pwd)
EXTRAS=${EXTRAS:-demo}
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
cd "$here"
exec "$venv/bin/ordermq" demo "$@"
