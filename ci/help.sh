# Sourced by the other scripts, first: answers --help with the comment that a script begins with, and
# has what several of them use.
set -euo pipefail
case ${1:-} in
-h | --help)
    sed -n '2,${/^#/!q;s/^# \{0,1\}//p}' "${BASH_SOURCE[1]}"
    exit 0
    ;;
esac

# Run each line of standard input as a command, as many at a time as there are cores. All are run;
# fails if one of them did.
at_once() {
    xargs -d '\n' -n 1 -P "$(nproc)" bash -euc
}
