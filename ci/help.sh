# Sourced by the other scripts, first: answers --help with the comment that a script begins with.
set -euo pipefail
case ${1:-} in
-h | --help)
    sed -n '2,${/^#/!q;s/^# \{0,1\}//p}' "${BASH_SOURCE[1]}"
    exit 0
    ;;
esac
