#!/bin/sh
# Installs the servers that the lab starts (Redis, ZooKeeper with a Java runtime, PostgreSQL,
# MariaDB) where they are missing, and says how to get cargo.
#
#   compose/deps.sh           install what is missing (apt; through sudo when not root)
#   compose/deps.sh --check   only say what is missing
#
# Exit status: 0 when everything is there or the rest is named (the lab skips what is missing),
# 1 when apt failed, 2 for a wrong argument. Safe to run again; without anything to do it takes
# milliseconds.
set -eu

check_only=no
case "${1-}" in
'') ;;
--check) check_only=yes ;;
*)
    echo "usage: $0 [--check]" >&2
    exit 2
    ;;
esac

# PATH of a plain user often lacks the sbin directories, where mariadbd lives.
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

has() { command -v "$1" >/dev/null 2>&1; }

has_postgres() {
    has postgres && has initdb && return 0
    for dir in /usr/lib/postgresql/*/bin; do
        [ -x "$dir/postgres" ] && [ -x "$dir/initdb" ] && return 0
    done
    return 1
}

has_zookeeper() {
    [ -n "${ZOOKEEPER_HOME-}" ] && [ -d "$ZOOKEEPER_HOME/lib" ] && return 0
    [ -e /usr/share/java/zookeeper.jar ] && [ -e /usr/share/java/slf4j-simple.jar ] && return 0
    for lib in /opt/zookeeper/lib /usr/local/zookeeper/lib /usr/share/zookeeper/lib; do
        [ -d "$lib" ] && return 0
    done
    return 1
}

has_java() { has java || { [ -n "${JAVA_HOME-}" ] && [ -x "$JAVA_HOME/bin/java" ]; }; }

has_mariadb() { has mariadbd && has mariadb-install-db; }

# The Debian packages of what is missing.
missing() {
    has redis-server || echo redis-server
    has_java || echo default-jre-headless
    has_zookeeper || echo zookeeper libslf4j-java
    has_postgres || echo postgresql
    has_mariadb || echo mariadb-server
}

say_cargo() {
    if ! has cargo && [ ! -x "${CARGO_HOME:-${HOME-}/.cargo}/bin/cargo" ]; then
        echo "cargo is missing: see https://rustup.rs, or run" >&2
        echo "    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh" >&2
    elif ! has cc; then
        echo "a C compiler is missing (SQLite is built from source): install gcc, or build-essential" >&2
    fi
}

say_by_hand() {
    echo "The lab starts without what is missing. Install by hand:" >&2
    for package in $1; do
        case "$package" in
        redis-server) echo "    Redis 7 or newer: the program redis-server in PATH" >&2 ;;
        default-jre-headless) echo "    a Java runtime, 11 or newer: java in PATH, or JAVA_HOME" >&2 ;;
        zookeeper)
            echo "    ZooKeeper 3.6 or newer: unpack a release from" >&2
            echo "        https://zookeeper.apache.org/releases.html and set ZOOKEEPER_HOME to it" >&2
            ;;
        postgresql) echo "    PostgreSQL 13 or newer: the programs postgres and initdb in PATH" >&2 ;;
        mariadb-server) echo "    MariaDB 10.6 or newer: mariadbd and mariadb-install-db in PATH" >&2 ;;
        *) ;;
        esac
    done
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

# While packages are installed their services must not start: the lab starts its own, and a second
# server on the machine would disturb every measurement.
policy=/usr/sbin/policy-rc.d
policy_is_ours=no

allow_services() {
    if [ "$policy_is_ours" = yes ]; then
        policy_is_ours=no
        as_root rm -f "$policy"
    fi
}

forbid_services() {
    # A policy that is there already is the administrator's, and stays as it is.
    [ -e "$policy" ] && return 0
    policy_is_ours=yes
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
}

say_cargo
packages=$(missing | tr '\n' ' ')
packages=${packages% }
if [ -z "$packages" ]; then
    exit 0
fi
echo "missing: $packages" >&2
if [ "$check_only" = yes ]; then
    exit 0
fi
if ! has apt-get; then
    say_by_hand "$packages"
    exit 0
fi
if [ "$(id -u)" -ne 0 ] && ! has sudo; then
    echo "not root, and no sudo: as root, run" >&2
    echo "    apt-get update && apt-get install --no-install-recommends $packages" >&2
    exit 0
fi

trap allow_services EXIT
trap 'exit 1' HUP INT TERM
forbid_services
# $packages is a list of words. The variable goes through env because sudo clears it.
# shellcheck disable=SC2086
if ! as_root apt-get update -q ||
    ! as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $packages; then
    echo "apt could not install: $packages" >&2
    exit 1
fi
left=$(missing | tr '\n' ' ')
if [ -n "${left% }" ]; then
    say_by_hand "$left"
fi
