#!/usr/bin/env bash
# Start and stop RocketMQ: name server and brokers from Maven Central, several instances if wanted.
#   ci/rocketmq.sh up 5.3.3                 prints the name server's address when all are ready
#   ci/rocketmq.sh down 5.3.3
# See --help for the rest; implemented in ci/rocketmq/ with the standard library only.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "ordermq: $python is no Python 3.11 or later: set PYTHON to one" >&2
    exit 1
fi
exec "$python" "$here/rocketmq" "$@"
