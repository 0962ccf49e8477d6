"""How fast weights come in, as a ratio to memcpy of the same bytes in the same run.

Usage: bench_update.py BATON CLIENT_DIR [MIB] [N_TENSORS]      (default 1024 MiB in 256 tensors)

Starts `baton serve --engine none` on a made-up manifest, pushes it by shm, body and path several
times, and prints the median of what the server measured (receive) and of the whole call, each as
GB/s and as a share of the memcpy rate. It checks the checksums of what is served, and times nothing
that it does not print."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, sys.argv[2])
import baton  # noqa: E402
import numpy  # noqa: E402

N_RUNS = 5


def memcpy_rate(source):
    target = numpy.empty_like(source)
    numpy.copyto(target, source)  # pages come on first touch
    times = []
    for _ in range(N_RUNS):
        began = time.perf_counter()
        numpy.copyto(target, source)
        times.append(time.perf_counter() - began)
    return source.nbytes / statistics.median(times)


def start(binary, directory, manifest):
    log = open(os.path.join(directory, "log"), "w+", encoding="utf-8")
    child = subprocess.Popen([binary, "serve", "--engine", "none", "--manifest", manifest, "--listen",
                              "127.0.0.1:0", "--allow-path", directory], stderr=log)
    while child.poll() is None:
        log.seek(0)
        for line in log.read().splitlines():
            if '"event":"serving"' in line and line.endswith("}"):
                return child, f"http://127.0.0.1:{json.loads(line)['port']}"
        time.sleep(0.02)
    raise SystemExit("the server did not start")


def main():
    mib = int(sys.argv[3]) if len(sys.argv) > 3 else 1024
    n = int(sys.argv[4]) if len(sys.argv) > 4 else 256
    numel = (mib << 20) // n // 2
    data = numpy.random.default_rng(1).integers(0, 65536, n * numel, dtype=numpy.uint16)
    raw = memoryview(data).cast("B")
    tensors = {f"layer.{i}.weight": baton.Tensor("BF16", [numel], raw[2 * i * numel:2 * (i + 1) * numel])
               for i in range(n)}
    rate = memcpy_rate(data)
    print(f"{raw.nbytes / 1e6:.0f} MB in {n} tensors; memcpy {rate / 1e9:.2f} GB/s")
    print(f"{'door':6} {'receive GB/s':>12} {'of memcpy':>9} {'call ms':>9} {'server ms':>9}")
    with tempfile.TemporaryDirectory() as directory:
        manifest = os.path.join(directory, "manifest.json")
        with open(manifest, "w", encoding="utf-8") as f:
            json.dump({"names": list(tensors), "dtypes": ["BF16"] * n, "shapes": [[numel]] * n}, f)
        path = os.path.join(directory, "weights.safetensors")
        with open(path, "wb") as f:
            head, _ = baton._header(list(tensors.items()), False)
            f.write(head)
            f.write(raw)
        child, url = start(sys.argv[1], directory, manifest)
        try:
            for via in ("shm", "body", "path"):
                receive, call, server = [], [], []
                for _ in range(N_RUNS + 1):
                    began = time.perf_counter()
                    answer = baton.push(path if via == "path" else tensors, url, via=via, checksums=False)
                    call.append(time.perf_counter() - began)
                    timing = answer["timing"]
                    receive.append(timing["receive_ms"] / 1e3)
                    server.append(sum(timing.values()))
                got = raw.nbytes / statistics.median(receive[1:])
                print(f"{via:6} {got / 1e9:12.2f} {got / rate:9.2f} "
                      f"{statistics.median(call[1:]) * 1e3:9.1f} {statistics.median(server[1:]):9.1f}")
            served = baton.request(url, "GET", "/v1/weights")["tensors"]
            name = served[-1]["name"]
            if served[-1]["checksum"] != baton.checksum(tensors[name].data):
                raise SystemExit("what is served is not what was sent")
        finally:
            child.terminate()
            child.wait(60)


main()
