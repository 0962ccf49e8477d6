"""How fast a host takes a version from a peer (--seed), as ratios to a plain copy of the same bytes over the
same link, in one run.

Usage: bench_seed.py BATON [--hosts N] [MIB [RATE...]]      (default 512 MiB in 64 tensors; 1gbit and 10gbit)

Two network namespaces with a link between them, limited in both directions. The plain copy is one TCP
connection that sends a file and receives into memory that was touched before, a MiB at a time. The host is
timed from its start, with a new process each time, to the event that says that it serves; so its own start
counts. Both are taken by turns after a first round that is left out: there the giving host makes its
checksums.

--hosts N: how much longer N hosts take than one. Each is in a namespace of its own, with a link to a bridge that is
limited in both directions, and a server in front of them has them read the version of one more, all at once; the time is
from its start until the last serves. One host and N by turns, each time with new processes, and the share of all cores that
was busy: near 1 the cores were the limit, not the links.

Needs root, ip and tc, and memory for four times MIB; ends with 77 (skipped) without root."""

import http.client
import json
import math
import os
import pathlib
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

N_ROUNDS = 5
N_ROUNDS_OF_HOSTS = 3
N_TENSORS = 64
MODEL = pathlib.Path(__file__).parents[1] / "fixtures" / "kjv-qwen3-1m"
PIECE = 1 << 20
GIVE, TAKE = "baton-seed-a", "baton-seed-b"
HOST = "10.213.7.1"
PORT, COPY_PORT = 8700, 8701
WAIT_S = 60
BRIDGE = "baton-seed"
FRONT = "10.213.7.254"


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


def write_model(folder, nbytes):
    """A model that the engine serves, with more and larger layers than the one of the tests: 2 MiB most tensors."""
    with open(MODEL / "config.json", encoding="utf-8") as f:
        config = json.load(f)
    hidden, heads, kv_heads, inner = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"], 8192
    size, n_layers = config["head_dim"], max(1, nbytes // (6 << 20))
    config.update(num_hidden_layers=n_layers, layer_types=["full_attention"] * n_layers, intermediate_size=inner)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shutil.copy(MODEL / "tokenizer.json", folder)
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for i in range(n_layers):
        shapes.update({f"model.layers.{i}.{k}.weight": v for k, v in {
            "input_layernorm": [hidden], "post_attention_layernorm": [hidden], "mlp.down_proj": [hidden, inner],
            "mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden], "self_attn.q_norm": [size], "self_attn.k_norm": [size],
            "self_attn.q_proj": [heads * size, hidden], "self_attn.k_proj": [kv_heads * size, hidden],
            "self_attn.v_proj": [kv_heads * size, hidden], "self_attn.o_proj": [hidden, heads * size]}.items()})
    sizes, head, at = {k: 2 * math.prod(v) for k, v in shapes.items()}, {}, 0
    for k, v in shapes.items():
        head[k] = {"dtype": "BF16", "shape": v, "data_offsets": [at, at + sizes[k]]}
        at += sizes[k]
    text, finite = json.dumps(head).encode(), bytes(b & 0x3F for b in range(256))
    with open(folder / "weights.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for n in sizes.values():
            f.write(os.urandom(n).translate(finite))


class Host:
    def __init__(self, name, baton, folder, log, *options):
        self.began, self.log = time.perf_counter(), folder / log
        with open(self.log, "wb") as f:
            self.child = subprocess.Popen(
                inside(name, baton, "serve", *options), stderr=f)

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


def store_only(folder):
    return "--engine", "none", "--manifest", str(folder / "manifest.json")


def seed_s(baton, folder):
    host = Host(TAKE, baton, folder, "take.log", *store_only(folder), "--listen", f"127.0.0.1:{PORT}", "--seed", f"http://{HOST}:{PORT}")
    took, said = host.wait("weights.seeded")
    host.end()
    return took, said["ms"] / 1e3


def measure(baton, folder, rate):
    weights, copies, starts, reads = folder / "weights.safetensors", [], [], []
    link(rate)
    giver = Host(GIVE, baton, folder, "give.log", *store_only(folder), "--listen", f"{HOST}:{PORT}", "--no-auth-cidr", "10.213.7.0/24",
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


def host_name(i):
    return f"baton-seed-{i}"


def remove_hosts(n):
    run("ip", "link", "del", BRIDGE, check=False)
    for i in range(n + 1):
        run("ip", "netns", "del", host_name(i), check=False)


def link_hosts(n, rate):
    """Host 0 gives; the front is on the bridge."""
    limit = ("root", "tbf", "rate", rate, "burst", "1mb", "latency", "50ms")
    remove_hosts(n)
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "addr", "add", FRONT + "/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    for i in range(n + 1):
        name, port = host_name(i), f"seed-{i}"
        run("ip", "netns", "add", name)
        run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth", "netns", name)
        run("ip", "link", "set", port, "master", BRIDGE, "up")
        run("ip", "-n", name, "addr", "add", f"10.213.7.{i + 1}/24", "dev", "eth")
        run("ip", "-n", name, "link", "set", "eth", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("tc", "qdisc", "add", "dev", port, *limit)
        run("tc", "-n", name, "qdisc", "add", "dev", "eth", *limit)


def cores_s():
    """Seconds of all cores: busy, all."""
    with open("/proc/stat", encoding="ascii") as f:
        ticks = [int(x) for x in f.readline().split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def count_serving():
    connection = http.client.HTTPConnection(FRONT, PORT, timeout=5)
    try:
        connection.request("GET", "/v1/status")
        return sum(u["state"] == "serving" for u in json.load(connection.getresponse())["upstreams"]["list"])
    except OSError:
        return 0  # it is not up yet
    finally:
        connection.close()


def served_s(baton, folder, n):
    """Seconds from the front's start until n hosts serve; the share of the cores that was busy."""
    options = ["--model", str(folder), "--no-auth-cidr", "10.213.7.0/24", "--seed-cidr", "10.213.7.0/24", "--weights", "none"]
    hosts = [Host(host_name(i), baton, folder, f"host{i}.log", "--listen", f"10.213.7.{i + 1}:{PORT}", *options) for i in range(1, n + 1)]
    for host in hosts:
        host.wait("serving")
    upstreams = [x for i in range(n + 1) for x in ("--upstream", f"http://10.213.7.{i + 1}:{PORT},baton")]
    before, began = cores_s(), time.perf_counter()
    with open(folder / "front.log", "wb") as log, subprocess.Popen(
            [baton, "serve", "--listen", f"{FRONT}:{PORT}", "--min-ready", "1", "--probe-interval", "100", "--no-auth-cidr", "10.213.7.0/24", *upstreams], stderr=log) as front:
        n_serving = 0
        while n_serving <= n and time.perf_counter() < began + WAIT_S:
            time.sleep(0.02)
            n_serving = count_serving()
        took, after = time.perf_counter() - began, cores_s()
        front.terminate()
    for host in hosts:
        host.end()
    if n_serving <= n:
        raise SystemExit(f"only {n_serving} of {n + 1} hosts serve")
    from_giver = sum(f'"from":"http://10.213.7.1:{PORT}"' in line for line in (folder / "front.log").read_text(encoding="utf-8").splitlines())
    return took, (after[0] - before[0]) / (after[1] - before[1]), from_giver


def measure_hosts(baton, folder, rate, n):
    weights, times = folder / "weights.safetensors", {1: [], n: []}
    link_hosts(n, rate)
    giver = Host(host_name(0), baton, folder, "give.log", "--listen", f"10.213.7.1:{PORT}", "--no-auth-cidr", "10.213.7.0/24",
                 "--model", str(folder), "--weights", str(weights), "--weight-version", "step-1")
    giver.wait("serving")
    for i in range(N_ROUNDS_OF_HOSTS + 1):
        for count, taken in times.items():
            took = served_s(baton, folder, count)
            if i > 0:
                taken.append(took)
    giver.end()
    one, all_n = (statistics.median(t for t, _, _ in times[count]) for count in (1, n))
    busy = statistics.median(b for _, b, _ in times[n])
    ratios = sorted(b[0] / a[0] for a, b in zip(times[1], times[n]))
    print(f"{rate:>8}, {weights.stat().st_size / PIECE:.0f} MiB: one host serves after {one:.2f} s, {n} after {all_n:.2f} s: "
          f"{statistics.median(ratios):.2f} x ({ratios[0]:.2f} to {ratios[-1]:.2f}); {busy:.2f} of all cores were busy; "
          f"{max(g for _, _, g in times[n])} read from the first", flush=True)


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
    n_hosts = int(sys.argv.pop(3)) if sys.argv[2:3] == ["--hosts"] else 0
    if n_hosts > 0:
        del sys.argv[2]
    mib, rates = int(sys.argv[2]) if len(sys.argv) > 2 else 512, sys.argv[3:] or ["1gbit", "10gbit"]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        (write_model if n_hosts > 0 else write_weights)(pathlib.Path(folder), mib << 20)
        try:
            for rate in rates:
                if n_hosts > 0:
                    measure_hosts(baton, pathlib.Path(folder), rate, n_hosts)
                else:
                    measure(baton, pathlib.Path(folder), rate)
        finally:
            remove()
            remove_hosts(n_hosts)
    return None


if __name__ == "__main__":
    main()
