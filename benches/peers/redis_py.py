"""redis-py's Lock: one client (a connection pool) per process, a lock and a thread per client."""

import redis

import load


def main():
    args = load.arguments()
    client = redis.Redis.from_url(args.urls[0])
    client.ping()

    def lock_of(key):
        lock = client.lock(key, timeout=10, sleep=0.001)
        return (lambda seconds: lock.acquire(blocking_timeout=seconds), lock.release)

    load.drive(args, redis.__version__, lock_of)


main()
