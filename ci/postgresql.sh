#!/usr/bin/env bash
# Run a PostgreSQL of one's own for tests: a cluster in a folder of its own, on a free port of
# 127.0.0.1, which vanishes with the tests. Installs Debian's package where it is missing and that
# is allowed. The server refuses root, so root runs it as the package's user.
#   ci/postgresql.sh start            a new cluster; prints its folder and its port. Its user is
#                                     ordermq, without a password:
#                                     psql --host 127.0.0.1 --port PORT --user ordermq postgres
#   ci/postgresql.sh start FOLDER     the same cluster again, on its port
#   ci/postgresql.sh stop FOLDER      in order; --crash: as if it had been killed
#   ci/postgresql.sh remove FOLDER    stop it and delete everything
#   ci/postgresql.sh --help
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"

fail() {
    echo "ordermq: $*" >&2
    exit 1
}

server_folder() {
    # Debian keeps the server's own commands out of the path.
    local folder
    for folder in "${PGBIN:-}" $(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -rV) \
        "$(dirname "$(command -v pg_ctl || echo /none/pg_ctl)")"; do
        [ -n "$folder" ] && [ -x "$folder/initdb" ] && echo "$folder" && return
    done
    return 1
}

install() {
    local as_root=
    [ "$(id -u)" = 0 ] || as_root="sudo -n"
    if command -v apt-get >/dev/null && $as_root true 2>/dev/null; then
        echo "ordermq: PostgreSQL not found, installing postgresql" >&2
        $as_root apt-get -qq update >/dev/null &&
            DEBIAN_FRONTEND=noninteractive $as_root apt-get -qq install \
                --no-install-recommends -y postgresql >/dev/null || true
    fi
    server_folder >/dev/null ||
        fail "no PostgreSQL: install one (Debian: apt install postgresql;" \
            "macOS: brew install postgresql), or set PGBIN to the folder of its initdb"
}

as_user() {
    if [ "$(id -u)" = 0 ]; then
        runuser -u "$user" -- "$@"
    else
        "$@"
    fi
}

control() {
    (cd "$folder" && as_user "$bin/pg_ctl" --pgdata "$folder/data" --silent --wait "$@") >&2
}

create() {
    folder=$(mktemp -d "${TMPDIR:-/tmp}/ordermq-postgresql.XXXXXX")
    [ "$(id -u)" != 0 ] || chown "$user" "$folder"
    (cd "$folder" && as_user "$bin/initdb" --pgdata "$folder/data" --username ordermq --auth trust \
        --encoding UTF8 --no-locale --no-sync >/dev/null)
    local port
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    # A killed server loses nothing without fsync; a power cut is not tested here.
    as_user tee -a "$folder/data/postgresql.conf" >/dev/null <<SETTINGS
listen_addresses = '127.0.0.1'
port = $port
unix_socket_directories = '$folder'
fsync = off
max_connections = 200
SETTINGS
}

user=${PGUSER_SERVER:-postgres}
command=${1:-}
folder=${2:-}
server_folder >/dev/null || install
bin=$(server_folder)
case $command in
start)
    [ -n "$folder" ] || create
    control --log "$folder/server.log" start || fail "PostgreSQL did not start: $(tail -3 "$folder/server.log")"
    echo "$folder $(sed -n 's/^port = //p' "$folder/data/postgresql.conf")"
    ;;
stop)
    mode=fast
    [ "${3:-}" != --crash ] || mode=immediate
    control --mode "$mode" stop
    ;;
remove)
    control --mode immediate stop 2>/dev/null || true
    rm -rf "${folder:?a folder}"
    ;;
*) fail "start, stop or remove: see the top of $0" ;;
esac
