"""How fast a host takes a version from a peer (--seed), as ratios to a plain copy of the same bytes over the
same link, in one run.

Usage: bench_seed.py BATON [MIB [RATE...]]      (default 512 MiB in 64 tensors; 1gbit and 10gbit)

Two network namespaces with a link between them, limited in both directions. The plain copy is one TCP
connection that sends a file and receives into memory that was touched before, a MiB at a time. The host is
timed from its start, with a new process each time, to the event that says that it serves; so its own start
counts. Both are taken by turns after a first round that is left out: there the giving host makes its
checksums. Needs root, ip and tc, and memory for four times MIB; ends with 77 (skipped) without root."""

import json
import os
import pathlib
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

N_ROUNDS = 5
N_TENSORS = 64
PIECE = 1 << 20
GIVE, TAKE = "baton-seed-a", "baton-seed-b"
HOST = "10.213.7.1"
PORT, COPY_PORT = 8700, 8701
WAIT_S = 120


def run(*command, check=True):
    subprocess.run(command, check=check, capture_output=True)


def inside(name, *command):
    return ["ip", "netns", "exec", name, *command]


def link(rate):
    remove()
    for name in (GIVE, TAKE):
        run("ip", "netns", "add", name)
    run("ip", "link", "add", "seed-a", "netns", GIVE, "type", "veth", "peer", "name", "seed-b", "netns", TAKE)
    for name, device, host in ((GIVE, "seed-a", HOST), (TAKE, "seed-b", "10.213.7.2")):
        run("ip", "-n", name, "addr", "add", host + "/24", "dev", device)
        run("ip", "-n", name, "link", "set", device, "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("tc", "-n", name, "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "1mb", "latency", "50ms")


def remove():
    for name in (GIVE, TAKE):
        run("ip", "netns", "del", name, check=False)


def write_weights(folder, nbytes):
    """A safetensors file, finite as bfloat16, and the manifest of its tensors."""
    each = nbytes // N_TENSORS // 2 * 2
    names = [f"layers.{i}.weight" for i in range(N_TENSORS)]
    head = json.dumps({n: {"dtype": "BF16", "shape": [each // 2], "data_offsets": [i * each, (i + 1) * each]}
                       for i, n in enumerate(names)}).encode()
    finite = bytes(b & 0x3F for b in range(256))
    with open(folder / "weights.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for _ in names:
            f.write(os.urandom(each).translate(finite))
    manifest = {"names": names, "dtypes": ["BF16"] * N_TENSORS, "shapes": [[each // 2]] * N_TENSORS}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


class Host:
    def __init__(self, name, baton, folder, log, *options):
        self.began, self.log = time.perf_counter(), folder / log
        with open(self.log, "wb") as f:
            self.child = subprocess.Popen(
                inside(name, baton, "serve", "--engine", "none", "--manifest", str(folder / "manifest.json"), *options), stderr=f)

    def wait(self, event):
        """Seconds from the start to this event of the log; what the event says."""
        end = time.perf_counter() + WAIT_S
        while time.perf_counter() < end and self.child.poll() is None:
            text = self.log.read_text(encoding="utf-8")
            for line in text[: text.rfind("\n") + 1].splitlines():
                if f'"event":"{event}"' in line:
                    return time.perf_counter() - self.began, json.loads(line)
            time.sleep(0.005)
        raise SystemExit(f"no {event}: {self.log.read_text(encoding='utf-8')[-500:]}")

    def end(self):
        self.child.terminate()
        self.child.wait(WAIT_S)


def send(path):
    with socket.create_server((HOST, COPY_PORT)) as listener:
        print("ready", flush=True)
        peer, _ = listener.accept()
        with peer, open(path, "rb") as f:
            peer.sendfile(f)


def receive(nbytes):
    memory = memoryview(bytearray(nbytes))
    memory[::4096] = bytes(len(memory[::4096]))
    began, at = time.perf_counter(), 0
    with socket.create_connection((HOST, COPY_PORT)) as peer:
        while at < nbytes:
            n = peer.recv_into(memory[at : at + PIECE])
            if n == 0:
                raise SystemExit("the copy is short")
            at += n
    print(time.perf_counter() - began)


def copy_s(path):
    with subprocess.Popen(inside(GIVE, sys.executable, __file__, "--send", str(path)), stdout=subprocess.PIPE) as sender:
        sender.stdout.readline()
        done = subprocess.run(inside(TAKE, sys.executable, __file__, "--receive", str(path.stat().st_size)),
                              check=True, capture_output=True, timeout=WAIT_S)
    return float(done.stdout)


def seed_s(baton, folder):
    host = Host(TAKE, baton, folder, "take.log", "--listen", f"127.0.0.1:{PORT}", "--seed", f"http://{HOST}:{PORT}")
    took, said = host.wait("weights.seeded")
    host.end()
    return took, said["ms"] / 1e3


def measure(baton, folder, rate):
    weights, copies, starts, reads = folder / "weights.safetensors", [], [], []
    link(rate)
    giver = Host(GIVE, baton, folder, "give.log", "--listen", f"{HOST}:{PORT}", "--no-auth-cidr", "10.213.7.0/24",
                 "--weights", str(weights), "--weight-version", "step-1")
    giver.wait("serving")
    for i in range(N_ROUNDS + 1):
        copy, (start, read) = copy_s(weights), seed_s(baton, folder)
        if i > 0:
            copies.append(copy)
            starts.append(start)
            reads.append(read)
    giver.end()
    mib = weights.stat().st_size / PIECE
    ratios = sorted(s / c for s, c in zip(starts, copies))
    print(f"{rate:>8}: plain copy {statistics.median(copies):.3f} s ({mib / statistics.median(copies):.0f} MiB/s), from start to served "
          f"{statistics.median(starts):.3f} s (of it reading {statistics.median(reads):.3f}): "
          f"{statistics.median(ratios):.2f} x the copy ({ratios[0]:.2f} to {ratios[-1]:.2f})", flush=True)


def main():
    if sys.argv[1:2] == ["--send"]:
        return send(sys.argv[2])
    if sys.argv[1:2] == ["--receive"]:
        return receive(int(sys.argv[2]))
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    if os.geteuid() != 0:
        print("SKIPPED: network namespaces need root")
        raise SystemExit(77)
    baton = os.path.abspath(sys.argv[1])
    mib, rates = int(sys.argv[2]) if len(sys.argv) > 2 else 512, sys.argv[3:] or ["1gbit", "10gbit"]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        write_weights(pathlib.Path(folder), mib << 20)
        try:
            for rate in rates:
                measure(baton, pathlib.Path(folder), rate)
        finally:
            remove()
    return None


if __name__ == "__main__":
    main()
