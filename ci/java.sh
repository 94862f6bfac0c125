#!/usr/bin/env bash
# Make sure that Java 17 or later is available, which Spark needs: install it where that is allowed
# (Debian and Ubuntu, as root or with sudo without a password), else say what to do.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"

version_of() {
    "$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p'
}

has_java() {
    local java=${JAVA_HOME:+$JAVA_HOME/bin/}java
    command -v "$java" >/dev/null && [ "$(version_of "$java")" -ge 17 ] 2>/dev/null
}

has_java && exit 0
package=openjdk-17-jre-headless
as_root=
if [ "$(id -u)" != 0 ]; then
    as_root="sudo -n"
fi
if command -v apt-get >/dev/null && $as_root true 2>/dev/null; then
    echo "ordermq: Java 17 not found, installing $package"
    $as_root apt-get -qq update >/dev/null &&
        DEBIAN_FRONTEND=noninteractive $as_root apt-get -qq install --no-install-recommends -y \
            "$package" >/dev/null || true
    has_java && exit 0
fi
echo "ordermq: Spark needs a Java 17 or later: install one (Debian: apt install $package;" \
    "macOS: brew install openjdk@17) or set JAVA_HOME" >&2
exit 1
