"""Engines as Ray actors, on any nodes of a cluster: each has its baton, which joins a front by a request. Ray places and
restarts them; weights and versions are baton's.

Usage: fleet.py N MODEL [OPTION...]     (options of each host's `baton serve`; Ctrl-C ends all)
env:   FRONT (where it listens, 127.0.0.1:8700), FRONT_OPTIONS
       ENGINE (the command of a host's engine, as 'vllm serve MODEL --host 127.0.0.1 --port {port}'; default: baton's own)
       HOST_OPTIONS (what Ray reserves for each host, as '{"num_gpus": 1}')
"""

import ctypes
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time

import ray

import baton

PR_SET_PDEATHSIG = 1
LOOK_S = 1.0


def run(command):
    """A process that ends when this one does, also if that is killed."""
    parent = os.getpid()

    def with_parent():
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    return subprocess.Popen(command, preexec_fn=with_parent)


def free_port(address):
    with socket.socket() as s:
        s.bind((address, 0))
        return s.getsockname()[1]


@ray.remote(max_restarts=-1, max_task_retries=0)
class Host:
    """An engine and its baton, which end with the actor. Another one in its place has another URL, and no weights."""

    def __init__(self, model, options, engine):
        address, self.processes = ray.util.get_node_ip_address(), []
        if engine:
            command = shlex.split(engine.replace("{port}", str(port := free_port("127.0.0.1"))))
            self.processes.append(run(command))
            options = ["--upstream", f"http://127.0.0.1:{port},{command[0]}", *options]
        self.url = f"http://{address}:{free_port(address)}"
        self.processes.append(run(["baton", "serve", "--model", model, "--listen", self.url.removeprefix("http://"), *options]))
        baton.wait_ready(self.url, timeout_s=600, for_="control")

    def where(self):
        """Its URL. If a process of it has ended, the actor ends too, and Ray starts another one."""
        if any(p.poll() is not None for p in self.processes):
            os._exit(1)
        return self.url

    def stop(self):
        for p in reversed(self.processes):
            p.terminate()
            p.wait()
        self.processes = []


class Fleet:
    """A front beside this process, and its hosts."""

    def __init__(self, model, listen="127.0.0.1:8700", front_options=(), options=(), engine=None, reserve=None):
        self.args, self.reserve = (model, list(options), engine), {"scheduling_strategy": "SPREAD", **(reserve or {})}
        self.url, self.hosts = f"http://{listen}", {}  # an actor: the URL by which the front has it, or None
        self.none = tempfile.NamedTemporaryFile("w", prefix="upstreams.")
        self.none.write("# hosts join by requests\n")
        self.none.flush()
        self.front = run(["baton", "serve", "--upstream-file", self.none.name, "--listen", listen, *front_options])
        baton.wait_ready(self.url, for_="control")

    def add(self):
        host = Host.options(**self.reserve).remote(*self.args)
        self.hosts[host] = None
        return host

    def look(self):
        """Call it every second: hosts that started join, the URLs of those that died leave. Returns: are all there?"""
        for host, last in self.hosts.items():
            try:
                now = ray.get(host.where.remote(), timeout=LOOK_S)
            except ray.exceptions.GetTimeoutError:  # it starts
                continue
            except ray.exceptions.RayActorError:
                now = None
            if now == last:
                continue
            try:
                self._remove(last)
                if now is not None:
                    baton.request(self.url, "POST", "/v1/upstreams", {"upstream": now})
            except baton.BatonError as e:  # once more at the next look
                print(f"{now or last}: {e}", file=sys.stderr, flush=True)
                continue
            self.hosts[host] = now
        return None not in self.hosts.values()

    def remove(self, host):
        """It gets no more requests, and ends when those that run there have ended."""
        left = self._remove(self.hosts[host])
        while left and left["generate"] + left["text"] > 0:
            time.sleep(0.2)
            rows = baton.request(self.url, "GET", "/v1/upstreams")["list"]
            left = next((r["outstanding"] for r in rows if r["upstream"] == self.hosts[host]), None)
        if self.hosts[host]:  # else it may wait for its place for ever
            ray.get(host.stop.remote())
        ray.kill(host)
        del self.hosts[host]

    def _remove(self, url):
        try:
            return url and baton.request(self.url, "POST", "/v1/upstreams/remove", {"upstream": url})["outstanding"]
        except baton.BatonError as e:
            if e.status != 404:  # somebody else has removed it
                raise
            return None

    def end(self):
        for host in self.hosts:
            ray.kill(host)
        self.front.terminate()
        self.front.wait()
        self.none.close()


def main():
    n, model, options = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    env = os.environ.get
    ray.init(address="auto")
    fleet = Fleet(model, env("FRONT", "127.0.0.1:8700"), shlex.split(env("FRONT_OPTIONS", "")), options, env("ENGINE"),
                  json.loads(env("HOST_OPTIONS", "{}")))
    try:
        for _ in range(n):
            fleet.add()
        while fleet.front.poll() is None:
            fleet.look()
            time.sleep(LOOK_S)
    finally:
        fleet.end()


if __name__ == "__main__":
    main()
