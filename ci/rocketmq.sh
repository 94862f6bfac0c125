#!/usr/bin/env bash
# A real RocketMQ: name server and brokers from Maven Central, beside each other if wanted.
#   ci/rocketmq.sh up 5.3.3                 prints the name server's address when all answer
#   ci/rocketmq.sh down 5.3.3
# Everything else is in --help; ci/rocketmq/ does the work, with nothing but the standard library.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "ordermq: $python is no Python 3.11 or later: set PYTHON to one" >&2
    exit 1
fi
exec "$python" "$here/rocketmq" "$@"
