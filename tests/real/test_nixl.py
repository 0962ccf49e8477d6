"""The real NIXL over TCP, between two processes and, as root, between two network namespaces with a limited link: pushes by
baton's client; a trainer that is killed or stopped in mid read, a link that goes down; the update after each.
Usage: test_nixl.py --baton PROGRAM
       test_nixl.py --trainer DEVICE MIB     (started by itself: registers tensors and says where they are)"""

import argparse
import base64
import http.client
import importlib.util
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

N, LINK, RATE = 16, "10.77.0.", "1gbit"


def trainer(device, mib):
    """One line of JSON: the members of an update; then it waits until its input ends."""
    os.environ["UCX_NET_DEVICES"] = device
    import numpy
    from nixl_cu12._api import nixl_agent, nixl_agent_config

    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client"))
    import baton

    name = f"trainer-{os.getpid()}-{time.time_ns()}"
    agent = nixl_agent(name, nixl_agent_config(enable_prog_thread=True, backends=["UCX"]))
    arena = numpy.random.default_rng(mib).integers(0, 256, mib << 20, dtype=numpy.uint8)
    parts = numpy.split(arena, N)
    agent.register_memory([(arena.ctypes.data, arena.nbytes, 0, "")], "DRAM")
    body = {
        "transport": "nixl", "names": [f"w{i}" for i in range(N)], "dtypes": ["U8"] * N,
        "shapes": [[p.size] for p in parts], "checksums": [baton.checksum(p) for p in parts],
        "agents": [{"name": name, "metadata": base64.b64encode(agent.get_agent_metadata()).decode()}],
        "shards": [[{"agent": 0, "offset": 0, "numel": p.size, "addr": p.ctypes.data}] for p in parts],
    }
    sys.stdout.write("\n" + json.dumps(body) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # an exit with an agent can crash


def push(device, url, mib):
    """By the client."""
    os.environ["UCX_NET_DEVICES"] = device
    import numpy

    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client"))
    import baton

    arena = numpy.random.default_rng(mib).integers(0, 256, mib << 20, dtype=numpy.uint8)
    answer = baton.push({f"w{i}": p for i, p in enumerate(numpy.split(arena, N))}, url, via="nixl")
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
    sys.stdout.flush()
    os._exit(0)


class Checks:
    def __init__(self):
        self.n, self.n_failed = 0, 0

    def that(self, fact, about, found):
        self.n += 1
        self.n_failed += not fact
        print(f"{'ok' if fact else 'FAILED'}: {about}{'' if fact else f': {found}'}", flush=True)

    def result(self):
        print(f"{self.n} checks, {self.n_failed} failed")
        return 1 if self.n_failed else 0


class World:
    """A server, and trainers, each in a network namespace or in none."""

    def __init__(self, baton, library, folder, mib, here="", there="", devices=("lo", "lo"), options=()):
        self.here, self.there, self.devices, self.mib, self.folder = here, there, devices, mib, folder
        manifest = os.path.join(folder, "manifest.json")
        with open(manifest, "w", encoding="utf-8") as f:
            json.dump({"names": [f"w{i}" for i in range(N)], "dtypes": ["U8"] * N, "shapes": [[(mib << 20) // N]] * N}, f)
        self.socket = os.path.join(folder, "socket")
        self.log = os.path.join(folder, "log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                self.within(here, baton, "serve", "--engine", "none", "--weights", "none", "--manifest", manifest,
                            "--listen", f"unix:{self.socket}", "--nixl-library", library, "--nixl-devices", devices[0],
                            "--update-timeout", "8000", *options), stderr=log)
        end = time.monotonic() + 60
        while not os.path.exists(self.socket) or self.ask("GET", "/v1/status")[0] != 200:
            assert time.monotonic() < end and self.process.poll() is None, open(self.log, encoding="utf-8").read()[-2000:]
            time.sleep(0.1)

    @staticmethod
    def within(namespace, *command):
        return [*(["ip", "netns", "exec", namespace] if namespace else []), *command]

    def end(self):
        self.process.terminate()
        self.process.wait()

    def trainer(self):
        process = subprocess.Popen(self.within(self.there, sys.executable, __file__, "--trainer", self.devices[1], str(self.mib)),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in process.stdout:
            if line.startswith("{"):
                return process, json.loads(line)
        raise AssertionError("the trainer said nothing")

    def ask(self, method, path, body=None):
        c = http.client.HTTPConnection("localhost", timeout=60)
        c.sock = socket.socket(socket.AF_UNIX)
        try:
            c.sock.connect(self.socket)
            c.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
            answer = c.getresponse()
            text = answer.read()
        except OSError:
            return 0, None
        finally:
            c.close()
        return answer.status, json.loads(text) if answer.getheader("Content-Type", "").startswith("application/json") else text

    def update(self, body, label):
        began = time.monotonic()
        status, said = self.ask("POST", "/v1/update_weights", {**body, "weight_version": label})
        return status, said, time.monotonic() - began


def good(world, checks, label):
    process, body = world.trainer()
    status, said, took = world.update(body, label)
    checks.that(status == 200 and said["n_checksums"] == N, f"{label}: {world.mib / took:.0f} MiB/s", said)
    status, said, took = world.update(body, label + " again")
    checks.that(status == 200, f"{label}, again: {world.mib / took:.0f} MiB/s", said)
    process.kill()
    process.wait()


def faults(world, checks, cut=None, mend=None):
    """@cut, @mend  commands for the link; without them the trainer alone fails"""
    for what in ("kill", "stop", *(["link"] if cut else [])):
        process, body = world.trainer()
        killer = subprocess.Popen(["sleep", "0.6"])
        def act(what=what, process=process, killer=killer):
            killer.wait()
            if what == "kill":
                process.kill()
            elif what == "stop":
                process.send_signal(signal.SIGSTOP)
            else:
                subprocess.run(cut, check=True)

        thread = threading.Thread(target=act)
        thread.start()
        status, said, took = world.update(body, what)
        thread.join()
        error = said["error"] or {"code": "committed", "message": ""}
        checks.that(status in (500, 408) and took < 10,
                    f"{what}: {status} {error['code']} after {took:.1f} s: {error['message'][:160]}", said)
        process.kill()
        process.wait()
        if what == "link":
            subprocess.run(mend, check=True)
            time.sleep(1)
        checks.that(world.ask("GET", "/v1/status")[1]["nixl"]["running"] is False, f"{what}: no process reads any more", "")
        good(world, checks, f"after {what}")


def namespaces():
    a, b = "baton-nixl-a", "baton-nixl-b"
    run = lambda *c, check=True: subprocess.run(c, check=check, capture_output=True)  # noqa: E731
    for name in (a, b):
        run("ip", "netns", "del", name, check=False)
        run("ip", "netns", "add", name)
    run("ip", "link", "add", "nixl-a", "netns", a, "type", "veth", "peer", "name", "nixl-b", "netns", b)
    for name, device, host in ((a, "nixl-a", "1"), (b, "nixl-b", "2")):
        run("ip", "-n", name, "addr", "add", f"{LINK}{host}/24", "dev", device)
        run("ip", "-n", name, "link", "set", device, "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("tc", "-n", name, "qdisc", "add", "dev", device, "root", "tbf", "rate", RATE, "burst", "1mb", "latency", "50ms")
    return a, b


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--baton", required=True)
    args, checks = parser.parse_args(), Checks()
    site = pathlib.Path(importlib.util.find_spec("nixl_cu12").origin).parents[1]
    library = str(site / ".nixl_cu12.mesonpy.libs" / "libnixl_capi.so")
    baton = os.path.abspath(args.baton)
    with tempfile.TemporaryDirectory() as folder:
        world = World(baton, library, folder, 64, options=("--nixl-tls", "tcp"))
        print("the server: ", world.ask("GET", "/v1/status")[1]["nixl"])
        good(world, checks, "two processes by tcp")
        world.end()
    with tempfile.TemporaryDirectory() as folder:
        world = World(baton, library, folder, 64)
        good(world, checks, "two processes, UCX chooses")
        url = "unix:" + world.socket
        made = subprocess.run([sys.executable, __file__, "--push", "lo", url, "64"], capture_output=True, text=True, check=False)
        checks.that('"committed"' in made.stdout, "baton.push(via='nixl')", made.stderr[-300:])
        world.end()
    if os.geteuid() != 0:
        print("SKIPPED: two network namespaces, kill -9, SIGSTOP, a link that goes down: they need root")
        return checks.result()
    a, b = namespaces()
    try:
        with tempfile.TemporaryDirectory() as folder:
            world = World(baton, library, folder, 192, a, b, ("nixl-a", "nixl-b"),
                          ("--nixl-tls", "tcp"))  # else UCX reads the process's memory, whatever its namespace
            good(world, checks, f"two namespaces, a link of {RATE}")
            faults(world, checks, ["ip", "-n", b, "link", "set", "nixl-b", "down"], ["ip", "-n", b, "link", "set", "nixl-b", "up"])
            world.end()
    finally:
        for name in (a, b):
            subprocess.run(["ip", "netns", "del", name], check=False)
    return checks.result()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--trainer"]:
        trainer(sys.argv[2], int(sys.argv[3]))
    if sys.argv[1:2] == ["--push"]:
        push(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    sys.exit(main())
