"""How does a Python process run its clients? The arguments and output of every driver (worker.rs)."""

import argparse
import json
import os
import sys
import threading
import time

MS = 1_000_000


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library")
    parser.add_argument("--urls", type=lambda text: text.split(","))
    parser.add_argument("--key")
    parser.add_argument("--keys", choices=["one", "own"])
    parser.add_argument("--clients", type=int)
    parser.add_argument("--warm-ms", type=int)
    parser.add_argument("--run-ms", type=int)
    return parser.parse_args()


def drive(args, version, lock_of):
    """A thread per client. `lock_of(key)` answers a pair: `acquire(seconds)`, true when it was
    granted, and `release()`; both may raise."""
    locks = []
    for n in range(args.clients):
        locks.append(lock_of(args.key if args.keys == "one" else f"{args.key}-{n}"))
    print(json.dumps({"version": version}), flush=True)
    line = sys.stdin.readline()
    if not line:
        # Whoever started it is gone; a library's own threads would keep it alive.
        os._exit(1)
    start = int(line)
    probe_until = start + args.warm_ms * MS // 2
    counted_from = start + args.warm_ms * MS
    end = counted_from + args.run_ms * MS
    counts = [0] * args.clients
    holds = [[] for _ in range(args.clients)]
    failures = []

    def client(n):
        acquire, release = locks[n]
        now = time.monotonic_ns()
        time.sleep(max(0, start - now) / 1e9)
        while now < end:
            try:
                now = time.monotonic_ns()
                if not acquire(max(0.001, (end - now) / 1e9 + 0.5)):
                    failures.append("the wait was over")
                    continue
                acquired = time.monotonic_ns()
                if acquired < probe_until:
                    time.sleep(0.001)
                released = time.monotonic_ns()
                release()
                now = time.monotonic_ns()
                if counted_from <= now < end:
                    counts[n] += 1
                holds[n].append((acquired - start, released - start))
            except Exception as error:
                failures.append(f"{type(error).__name__}: {error}")
                now = time.monotonic_ns()

    threads = [threading.Thread(target=client, args=(n,), daemon=True) for n in range(args.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.001, (end - time.monotonic_ns()) / 1e9 + 1))
    flat = []
    for n, thread in enumerate(threads):
        if thread.is_alive():
            failures.append("an acquire did not end within a second of the end")
        for acquired, released in list(holds[n]):
            flat += [n, acquired, released]
    report = {
        "counts": counts,
        "failed": len(failures),
        "failure": failures[0] if failures else None,
        "holds": flat,
    }
    print(json.dumps(report), flush=True)
    # Threads that still wait for a lock, and the libraries' own, end here.
    os._exit(0)
