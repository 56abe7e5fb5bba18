"""kazoo's Lock recipe: one KazooClient per process, a lock and a thread per client."""

import kazoo
from kazoo.client import KazooClient

import load


def main():
    args = load.arguments()
    client = KazooClient(hosts=",".join(args.urls))
    client.start(timeout=20)

    def lock_of(key):
        lock = client.Lock(f"/peers-kazoo/{key}")
        return (lambda seconds: lock.acquire(timeout=seconds), lock.release)

    load.drive(args, kazoo.__version__, lock_of)


main()
