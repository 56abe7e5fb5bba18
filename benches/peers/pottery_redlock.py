"""pottery's Redlock: one client per node and process, a lock and a thread per client."""

from importlib.metadata import version

import redis
from pottery import Redlock

import load


def main():
    args = load.arguments()
    masters = {redis.Redis.from_url(url) for url in args.urls}
    for master in masters:
        master.ping()

    def lock_of(key):
        lock = Redlock(key=key, masters=masters, auto_release_time=10)
        return (lambda seconds: lock.acquire(timeout=seconds), lock.release)

    load.drive(args, version("pottery"), lock_of)


main()
