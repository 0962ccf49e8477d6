"""examples/ray on a real Ray of two nodes on this machine: hosts join and leave by requests, one is killed in the middle of
an update, another node is lost. Usage: test_ray.py --baton PROGRAM"""

import os
import signal
import socket
import sys

import real_world
from gpu_world import until
from real_world import SAYS, world

ROOT = real_world.ROOT
CHECKPOINTS = world.MODEL / "checkpoints"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Tried:
    def __init__(self, checks, fleet, ray, baton):
        self.checks, self.fleet, self.ray, self.baton = checks, fleet, ray, baton

    def states(self):
        rows = self.baton.request(self.fleet.url, "GET", "/v1/upstreams")["list"]
        return {r["upstream"]: r["state"] for r in rows}

    def ended(self, url):
        try:
            return not self.baton.request(url, "GET", "/livez", timeout=5)
        except self.baton.BatonError:
            return True

    def serving(self, n):
        return self.fleet.look() and sorted(self.states().values()) == ["serving"] * n

    def update(self, step, meanwhile=lambda: None):
        """The answer of the finish, or the error of a step."""
        def post(path, body):
            return self.baton.request(self.fleet.url, "POST", path, body, timeout=60)
        try:
            sent = {"update_id": post("/v1/update_weights/start", {"weight_version": step})["update_id"]}
            post("/v1/update_weights", dict(sent, path=str(CHECKPOINTS / f"{step}.safetensors")))
            meanwhile()
            return post("/v1/update_weights/finish", sent)
        except self.baton.BatonError as e:
            return e

    def says(self):
        asked = {"prompt": "In the beginning", "max_tokens": 6, "temperature": 0}
        return {self.baton.request(self.fleet.url, "POST", "/v1/completions", asked)["choices"][0]["text"] for _ in range(6)}

    def node_of(self, host):
        def of_actor(_):
            import ray
            return ray.get_runtime_context().get_node_id()
        return self.ray.get(host.__ray_call__.remote(of_actor))

    def pid_of(self, host):
        def of_actor(_):
            import os
            return os.getpid()
        return self.ray.get(host.__ray_call__.remote(of_actor))


def joins(t):
    hosts = [t.fleet.add() for _ in range(2)]
    t.ray.get([h.where.remote() for h in hosts])
    url, t.fleet.url = t.fleet.url, "http://127.0.0.1:1"
    t.checks.same(t.fleet.look(), False, "a front that does not answer for a moment ends nothing")
    t.fleet.url = url
    until(t.fleet.look, "both have joined")
    t.checks.same(len(t.states()), 2, "both joined by requests")
    t.checks.same(len({t.node_of(h) for h in hosts}), 2, "one on each node")
    first = t.update("step-00100")
    t.checks.same(isinstance(first, dict) and first["phase"], "committed", "an update reaches both")
    until(lambda: t.serving(2), "both serve")
    t.checks.same(t.says(), {SAYS}, "both say what the checkpoint says")


def killed_in_an_update(t):
    host, before = next(iter(t.fleet.hosts.items()))
    pid = t.pid_of(host)

    def kill():
        os.kill(pid, signal.SIGKILL)
        until(lambda: t.ended(before), "its baton has ended with it")
    failed = t.update("step-01500", kill)
    t.checks.that(isinstance(failed, t.baton.BatonError), "the update fails", failed)
    t.checks.same(t.says(), {SAYS}, "the other one serves the version before")
    until(lambda: t.fleet.look() and t.fleet.hosts[host] != before, "Ray has started another")
    t.checks.that(before not in t.states(), "the URL of the dead one has left", t.states())
    t.checks.same(t.states()[t.fleet.hosts[host]] == "serving", False, "the new one has no weights and gets no requests")
    t.checks.same(t.says(), {SAYS}, "clients are served meanwhile")
    again = t.update("step-00100")
    t.checks.same(isinstance(again, dict) and [r["ok"] for r in again["upstreams"]], [True, True], "the next update reaches both")
    until(lambda: t.serving(2), "both serve")
    t.checks.same(t.says(), {SAYS}, "both say what it says")


def leaves(t):
    host, url = next(iter(t.fleet.hosts.items()))
    t.fleet.remove(host)
    t.checks.same(list(t.states().values()), ["serving"], "one has left by a request")
    t.checks.that(url not in t.states(), "it is gone")
    t.checks.same(t.says(), {SAYS}, "the other one serves")


def loses_a_node(t, cluster, nodes):
    host, before = next(iter(t.fleet.hosts.items()))
    at = t.node_of(host)
    cluster.remove_node(next(n for n in nodes if n.node_id == at))
    until(lambda: t.fleet.look() and t.fleet.hosts[host] != before, "it runs on the node that is left")
    t.checks.that(t.node_of(host) != at, "Ray has placed it on another node")
    after = t.update("step-00100")
    t.checks.same(isinstance(after, dict) and after["phase"], "committed", "an update reaches it there")
    until(lambda: t.serving(1), "it serves")
    t.checks.same(t.says(), {SAYS}, "it says what it says")


def main():
    args = real_world.options()
    os.environ["PATH"] = f"{os.path.dirname(os.path.abspath(args.baton))}:{os.environ['PATH']}"
    os.environ["PYTHONPATH"] = f"{ROOT / 'client'}:{ROOT / 'examples' / 'ray'}:{os.environ.get('PYTHONPATH', '')}"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # no network
    sys.path[:0] = [str(ROOT / "client"), str(ROOT / "examples" / "ray")]
    import baton
    import fleet
    import ray
    from ray.cluster_utils import Cluster

    checks = world.Checks()
    # The head runs no host, so that any node with one may be lost.
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [cluster.add_node(num_cpus=2, resources={"host": 2}) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False)
    open_to = ["--no-auth-cidr", "0.0.0.0/0", "--allow-path", str(CHECKPOINTS)]
    f = fleet.Fleet(str(world.MODEL), f"127.0.0.1:{free_port()}", ["--min-ready", "1", "--probe-interval", "200"], open_to,
                    reserve={"resources": {"host": 1}, "num_cpus": 1})
    try:
        t = Tried(checks, f, ray, baton)
        for name, part in (("join", lambda: joins(t)), ("an actor killed in mid update", lambda: killed_in_an_update(t)),
                           ("leave", lambda: leaves(t)), ("a node is lost", lambda: loses_a_node(t, cluster, nodes))):
            with checks.section(f"Ray {ray.__version__}, {name}"):
                part()
    finally:
        f.end()
        ray.shutdown()
        cluster.shutdown()
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
