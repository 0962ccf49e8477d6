"""How many stops a reader makes who follows an update through the program. A stop is a stay in a file that runs a function
not met yet; a return is one that runs none. Each thread is followed by itself; functions of headers are passed over.

The program is built with -finstrument-functions, trace_calls.c as a shared object:

    cmake --preset release -B build/trace -DBATON_TESTS=ON -DCMAKE_C_FLAGS="-finstrument-functions -fno-inline"
    ninja -C build/trace baton fake_engine fakecuda
    gcc -O2 -shared -fPIC -o build/trace/trace_calls.so tests/tools/trace_calls.c
    python3 tests/tools/trace_calls.py build/trace tests/fixtures/kjv-qwen3-1m

Usage: trace_calls.py BUILD MODEL
"""

import collections
import glob
import os
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [f"{HERE}/http/lib", f"{HERE}/fakes"]

from fake_engine_world import Double  # noqa: E402
from fleet_world import Server, until  # noqa: E402

BUILD, MODEL = map(os.path.abspath, sys.argv[1:3])
HANDLES = {"names": ["a", "b"], "dtypes": ["bfloat16", "bfloat16"], "shapes": [[1], [2, 3]], "packed": True,
           "tensor_sizes": [2, 12], "ipc_handles_pickled": "gASVAAAAAAAAAAB9lC4="}


def passed_on(server):
    mine = {"update_id": server.post("/v1/update_weights/start", {"weight_version": "a"})["update_id"]}
    server.post("/v1/update_weights", dict(HANDLES, **mine))
    server.post("/v1/update_weights/finish", mine)


def handed_over(server):
    server.post("/v1/update_weights", {"path": f"{MODEL}/checkpoints/step-00100.safetensors", "weight_version": "a"})


def trace(does, work, *options):
    """(begin, end) of the walk in µs"""
    os.mkdir(work)
    os.environ.update(TRACE_DIR=work, FAKECUDA_DEVICES="1")
    with Double(f"{BUILD}/tests/fakes/fake_engine", "vllm", "--vllm-version", "0.33.0", "--weight-version", "0") as d:
        os.environ["LD_PRELOAD"] = f"{BUILD}/trace_calls.so"
        with Server(f"{BUILD}/baton", f"{work}.log", "--upstream", f"{d.url},vllm", "--probe-interval", 600000, "--prove", "none",
                    *options) as server:
            del os.environ["LD_PRELOAD"]
            until("it serves", server.ready)
            time.sleep(1)
            begin = time.monotonic_ns() // 1000
            does(server)
            return begin, time.monotonic_ns() // 1000


def events_of(path):
    with open(path, "rb") as file:
        yield from struct.iter_unpack("<QQ", file.read())


def files_of(addresses):
    """{address: file, but of headers None}; the load address is found by a function that every program has."""
    symbols = subprocess.run(["nm", f"{BUILD}/baton"], capture_output=True, text=True, check=True).stdout.splitlines()
    known = {int(line.split()[0], 16) for line in symbols if line.split()[1] in "tT" and len(line.split()) == 3}
    pages = collections.Counter(a - k for a in list(addresses)[:1] for k in known if (a - k) % 4096 == 0)
    base = next(b for b in pages if all(a - b in known for a in addresses))
    asked = "\n".join(hex(a - base) for a in addresses)
    said = subprocess.run(["addr2line", "-e", f"{BUILD}/baton"], input=asked, capture_output=True, text=True, check=True).stdout
    found = [line.partition(":")[0] for line in said.splitlines()]
    return {a: None if file.endswith(".h") else file for a, file in zip(addresses, found)}


def walk(work, begin, end):
    """{calls, functions, files, threads, stops, returns}"""
    paths = glob.glob(f"{work}/[0-9]*")
    addresses = sorted({f for path in paths for _, f in events_of(path) if f})
    files, met, count = files_of(addresses), set(), collections.Counter()
    threads = [(us, path, f) for path in paths for us, f in events_of(path) if begin <= us <= end]
    by_thread = collections.defaultdict(list)
    for us, path, f in sorted(threads, key=lambda e: e[0]):
        by_thread[path].append(f)
    for calls in sorted(by_thread.values(), key=len):
        stack, at, new = [], None, False
        for f in [*calls, None]:
            file = files.get(f) if f else next((files[s] for s in reversed(stack[:-1]) if files[s]), None)
            stack = [*stack, f] if f else stack[:-1]
            if f and not file:
                continue
            if file != at:
                count["stops" if new else "returns"] += at is not None
                at, new = file, False
            if f:
                count["calls"] += 1
                new = new or f not in met
                met.add(f)
    return {**count, "functions": len(met), "files": len({files[f] for f in met}), "threads": len(by_thread)}


def main():
    with tempfile.TemporaryDirectory() as work:
        staged = ("--stage", "cuda:0", "--cuda-library", f"{BUILD}/tests/fakes/libcuda/libfakecuda.so", "--allow-path", MODEL,
                  "--manifest", f"{MODEL}/checkpoints/step-00000.safetensors")
        for does, options in (passed_on, ()), (handed_over, staged):
            at = f"{work}/{does.__name__}"
            print(f"{does.__name__}:", walk(at, *trace(does, at, *options)), flush=True)


if __name__ == "__main__":
    main()
