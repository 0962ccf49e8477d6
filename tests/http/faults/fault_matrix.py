"""Thousands of faulted updates, from a seeded generator, between valid ones, on one server.

After a faulted one: it was refused with a status and an error that names the cause, and the served weights
are unchanged, to the last checksum, label and serial. After a valid one exactly its bytes are served. Every
so often greedy text is that of the served checkpoint. At the end nothing is left: no open update, no second
version, no shared memory, no descriptors, no memory.

Usage: fault_matrix.py URL MODEL_DIR ALLOWED_DIR CLIENT_DIR PID N_CASES SEED SANITIZED
"""

import json
import os
import random
import sys
import time

sys.path.insert(0, sys.argv[4])
import fault_cases
import fault_sessions
from fault_world import Fault, World

PROMPT = "In the beginning"
TEXT_EVERY = 100
LEASE_EVERY = 400  # a lease lasts a second at least, so few cases wait for one
RSS_DRIFT_MAX = 6 << 20
FDS_DRIFT_MAX = 2


def rss(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def n_fds(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def check_text(w, golden):
    while w.served_checkpoint() is None:
        fault_sessions.valid(w)
        w.check()
    a = w.ask("POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 24, "temperature": 0})
    choice = a.body["choices"][0] if a.status == 200 else {}
    want = golden[w.served_checkpoint().step]["cases"][0]["greedy_text"]
    if choice.get("text") != want:
        raise Fault(f"{w.served_checkpoint().step} makes {want!r}: {a}")
    spans = choice["weight_versions"]
    if [(s["version"], s["serial"]) for s in spans] != [(w.label, w.serial)]:
        raise Fault(f"made by {spans}, served is {(w.label, w.serial)}")


def check_nothing_left(w):
    w.wait_no_update()
    w.wait("one version is alive", lambda: w.status()["weights"]["versions_alive"] == 1)
    s = w.status()
    busy = [k for k in ("running", "waiting") if s["admission"]["generate"][k] != 0]
    if busy or not s["ready"]:
        raise Fault(f"at the end: {s}")


def run(w, cases, golden, n_cases, marks):
    counts, ahead = {}, []
    for i in range(n_cases):
        ahead = ahead or w.rng.sample(cases, len(cases))  # each once before any comes again
        case = fault_sessions.lease_lost if i % LEASE_EVERY == LEASE_EVERY - 1 else ahead.pop()
        if i % 3 == 0:
            valid = w.rng.choice(fault_sessions.VALID if i % 60 else [fault_sessions.valid_converted])
            w.doing = f"{valid.__name__} before case {i}"
            valid(w)
            w.check()
        w.doing = f"{case.__name__}, case {i}"
        case(w)
        w.check()
        counts[case.__name__] = counts.get(case.__name__, 0) + 1
        if i % TEXT_EVERY == TEXT_EVERY - 1:
            w.doing = f"text after case {i}"
            check_text(w, golden)
        if i == n_cases // 4:
            marks.update(rss=rss(w.pid), fds=n_fds(w.pid))
    return counts


def main():
    url, model, root, _, pid, n_cases, seed, sanitized = sys.argv[1:]
    with open(f"{model}/golden.json", encoding="utf-8") as f:
        golden = json.load(f)["checkpoints"]
    w = World(url, model, root, random.Random(int(seed)), int(pid))
    cases, marks, began = fault_cases.CASES + fault_sessions.CASES, {}, time.monotonic()
    try:
        w.look()
        counts = run(w, cases, golden, int(n_cases), marks)
        w.doing = "the end"
        check_text(w, golden)
        check_nothing_left(w)
        grown, fds = rss(w.pid) - marks["rss"], n_fds(w.pid) - marks["fds"]
        if abs(fds) > FDS_DRIFT_MAX:
            raise Fault(f"{fds:+} descriptors since the first quarter")
        if grown > RSS_DRIFT_MAX and sanitized != "yes":
            raise Fault(f"{grown:+} bytes of memory since the first quarter")
    except Exception:
        print(f"seed {seed}: {w.doing}", file=sys.stderr)
        raise
    finally:
        for checkpoint in w.checkpoints:
            w.unlink(checkpoint.shm)
        left = w.left_over()
        for name in left:
            w.unlink(name)
    if left:
        raise Fault(f"left in shared memory: {left}")
    print(f"{sum(counts.values())} faulted updates of {len(counts)} kinds, serial {w.serial}, "
          f"{grown / 1e6:+.1f} MB, {fds:+} fds, {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
