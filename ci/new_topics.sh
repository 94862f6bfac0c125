#!/usr/bin/env bash
# Measure the time from the first send of a new topic to a started consumer, 200 times, on a machine
# that is kept busy; fail if the slowest is above a second.
#   ci/new_topics.sh                     on the embedded broker, then on RocketMQ 5.3.3
#   ci/new_topics.sh --version 4.9.7     another version of RocketMQ
#   ci/new_topics.sh --embedded          on the embedded broker alone; needs no JDK
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

version=5.3.3
embedded_only=
while [ $# -gt 0 ]; do
    case $1 in
    --version) version=${2:?a version, for example 5.3.3} && shift ;;
    --embedded) embedded_only=yes ;;
    *) fail "$1: see ci/new_topics.sh --help" ;;
    esac
    shift
done
"$venv/bin/python" -m bench.end_to_end.new_topics --runs 200
[ -z "$embedded_only" ] || exit 0
folder=$root/build/new-topics-$$
trap '[ -d "$folder" ] && ci/rocketmq.sh down "$version" --folder "$folder"' EXIT
servers=$(ci/rocketmq.sh up "$version" --folder "$folder" --heap 256)
"$venv/bin/python" -m bench.end_to_end.new_topics --runs 200 --name-servers "$servers"
