#!/bin/sh
# Fetches what `make bench-peers` compares with, pinned, into target/peers: redis-py, pottery and
# kazoo into a venv, node-redlock with npm, and Curator as a Debian package. What cannot be fetched is
# named in target/peers/missing-{python,node,java}.txt, and its rows say so.
#
#   benches/peers/fetch.sh
#
# Exit status: 0, also when something is missing. Safe to run again; without anything to do it takes
# milliseconds. Leaves nothing outside target/ but Debian packages.
set -u

here=$(cd "$(dirname "$0")" && pwd)
peers=$(cd "$here/../.." && pwd)/target/peers
mkdir -p "$peers"
log=$peers/fetch.log
: >"$log"

has() { command -v "$1" >/dev/null 2>&1; }

missing() {
    echo "$1: not fetched: $2" >&2
    echo "$2" >"$peers/missing-$1.txt"
}

# Runs a command for a minute or two at most, its words in the log.
quietly() { timeout 180 "$@" >>"$log" 2>&1; }

last_word() { grep -v '^ *$' "$log" | tail -n 1; }

# Whether `$1` was made from the same list of packages as `$2` is now.
is_current() { [ -e "$1" ] && cmp -s "$1" "$2"; }

fetch_python() {
    rm -f "$peers/missing-python.txt"
    is_current "$peers/venv/requirements.txt" "$here/requirements.txt" && return 0
    has python3 || { missing python "python3 is not installed"; return 0; }
    echo "fetching redis-py, pottery and kazoo" >&2
    rm -rf "$peers/venv"
    if ! quietly python3 -m venv "$peers/venv" ||
        ! quietly "$peers/venv/bin/python" -m pip install --no-cache-dir --disable-pip-version-check \
            --timeout 15 --retries 1 -r "$here/requirements.txt"; then
        missing python "$(last_word)"
        rm -rf "$peers/venv"
        return 0
    fi
    cp "$here/requirements.txt" "$peers/venv/"
}

fetch_node() {
    rm -f "$peers/missing-node.txt"
    is_current "$peers/node/package.json" "$here/package.json" &&
        [ -d "$peers/node/node_modules/redlock" ] && return 0
    has node && has npm || { missing node "node and npm are not installed"; return 0; }
    echo "fetching node-redlock" >&2
    rm -rf "$peers/node"
    mkdir "$peers/node"
    cp "$here/package.json" "$peers/node/"
    if ! quietly npm install --prefix "$peers/node" --cache "$peers/npm-cache" --no-package-lock --no-audit \
        --no-fund --ignore-scripts --update-notifier=false --fetch-timeout=15000 --fetch-retries=1; then
        missing node "$(grep 'npm error' "$log" | head -n 1)"
        rm -rf "$peers/node"
    fi
    rm -rf "$peers/npm-cache"
}

jars=/usr/share/java

# `timeout` runs programs, not functions, so this is a list of words.
as_root=
[ "$(id -u)" -eq 0 ] || as_root="sudo -n"
apt="$as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=1 -o Acquire::http::Timeout=15"

fetch_java() {
    rm -f "$peers/missing-java.txt"
    packages=
    [ -e "$jars/curator-recipes.jar" ] || packages="libcurator-recipes-java"
    has javac || packages="$packages default-jdk-headless"
    if [ -n "$packages" ]; then
        has apt-get || { missing java "not a Debian system: no packages $packages"; return 0; }
        echo "fetching $packages" >&2
        # $apt and $packages are lists of words. The variable goes through env because sudo clears it.
        # shellcheck disable=SC2086
        if ! quietly $apt update || ! quietly $apt install -y --no-install-recommends $packages; then
            missing java "$(last_word)"
            return 0
        fi
    fi
    path=
    for jar in slf4j-simple curator-recipes curator-framework curator-client zookeeper zookeeper-jute guava; do
        path=$path$jars/$jar.jar:
    done
    if [ ! "$peers/classes/CuratorLock.class" -nt "$here/CuratorLock.java" ]; then
        mkdir -p "$peers/classes"
        if ! quietly javac -cp "$path" -d "$peers/classes" "$here/CuratorLock.java"; then
            missing java "$(grep -m 1 error "$log")"
            rm -rf "$peers/classes"
            return 0
        fi
    fi
    echo "${path%:}" >"$peers/classpath.txt"
}

fetch_python
fetch_node
fetch_java
