# Stands guard over one server: ends it when the parent that holds this script's stdin is gone.
# Arguments: signal log dir stdout command [argument...]
#   signal  what ends the server (QUIT, TERM or KILL); KILL follows when it takes over 10 s
#   log     file that gets the server's stderr, and its stdout too when `stdout` is `log`
#   dir     removed after the parent is gone or has let go; empty for none
#   stdout  `log`, or `lines` to leave the server's stdout on this script's stdout
# Prints the server's pid as its first line, and exits with the server's status.
signal=$1 log=$2 dir=$3 stdout=$4
shift 4
exec 3<&0 </dev/null
# When the parent dies while the server is stopped, the kernel sends HUP to the whole group, which
# has just become an orphan.
trap '' HUP
# The shell that prints its pid becomes the server, so the pid comes before any of its output.
if [ "$stdout" = lines ]; then
    sh -c 'echo $$; exec 2>>"$1"; shift; exec "$@"' ward "$log" "$@" 3<&- &
else
    sh -c 'echo $$; exec >>"$1" 2>&1; shift; exec "$@"' ward "$log" "$@" 3<&- &
fi
server=$!
# From here on the server alone holds the stdout pipe: its reader sees the end with the server.
exec >/dev/null 2>&1
(
    # Nobody writes: this returns when the last holder of the other end is gone.
    while read -r line; do :; done <&3
    # Told apart by its status: 0 means let go, TERM means the server ended by itself.
    trap '' TERM
    kill -s "$signal" "$server"
    # A stopped process acts on QUIT and TERM only once it runs again.
    kill -s CONT "$server"
    n=0
    while [ "$n" -lt 200 ] && kill -s 0 "$server"; do
        sleep 0.05
        n=$((n + 1))
    done
    [ "$n" -lt 200 ] || kill -s KILL "$server"
    exit 0
) &
watch=$!
exec 3<&-
wait "$server"
status=$?
kill -s TERM "$watch"
if wait "$watch" && [ -n "$dir" ]; then
    # Other processes may still be writing into it on their way out.
    n=0
    while ! rm -rf -- "$dir" && [ "$n" -lt 200 ]; do
        sleep 0.1
        n=$((n + 1))
    done
fi
exit "$status"
