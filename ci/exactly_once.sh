#!/usr/bin/env bash
# Count every message in a SQL database exactly once, while members are killed with -9 and stopped
# beyond their leases at random, and broker and database are restarted (docs/exactly-once.md).
#   ci/exactly_once.sh                                  200,000 messages, 50 faults: SQLite, embedded
#   ci/exactly_once.sh --database postgresql            in PostgreSQL, which is installed if missing
#   ci/exactly_once.sh --broker 5.3.3                   on RocketMQ; needs a JDK 17 and Maven
#   ci/exactly_once.sh --mode pop                       members that pop; --mode grpc at a proxy
#   ci/exactly_once.sh --messages 20000 --faults 10 --seed 7
# --help lists the rest. The seed is printed and repeats the plan of a run.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
exec "$venv/bin/python" -m tests.exactly_once.run "$@"
