"""Engines at the addresses of a name: glibc's resolver asks a name server of this test.

Usage: as upstreams_world.py says, with USE_NAME_SERVER in the environment: the library that leads the resolver there.
"""

import contextlib
import os
import signal
import socket
import subprocess
import threading

from fake_engine_world import Double, completion
from fleet_world import Server, until
from name_server import NameServer
from upstreams_world import (BATON, ENGINE, LOG, MODEL, PROBES, WORK, asked, becomes, check, commit, logged, metric, refused, run, same,
                             state_of, why_not, write)

NAME, OFTEN, NEVER = "engines.test", ("--dns-interval", 100), ("--dns-interval", 3600000)


def free_port():
    """Free at all addresses of loopback, so that every engine can have it."""
    with socket.socket() as s:
        s.bind(("0.0.0.0", 0))
        return s.getsockname()[1]


class World(contextlib.ExitStack):
    """A name server, doubles on one port of several addresses, and a server in front of the name."""

    def __enter__(self):
        super().__enter__()
        self.dns, self.port, self.doubles = self.enter_context(NameServer()), free_port(), {}
        os.environ.update(LD_PRELOAD=os.environ["USE_NAME_SERVER"], NAME_SERVER=str(self.dns.port))
        self.callback(os.environ.pop, "LD_PRELOAD")
        return self

    def double(self, address, *options):
        d = self.enter_context(Double(ENGINE, "vllm", "--weight-version", "step-0", "--address", address, "--port", self.port, *options))
        self.doubles[address] = d
        return d

    def say(self, *addresses):
        self.dns.names[NAME] = list(addresses)

    def url(self, address):
        return f"http://{address}:{self.port}"

    def serve(self, *options, spec=None):
        spec = spec or f"dns+http://{NAME}:{self.port},vllm"
        self.front = self.enter_context(Server(BATON, LOG, "--upstream", spec, "--min-ready", 1, *PROBES, *options))
        return self.front

    def settles(self):
        """What is said now has been heard: a look-up takes two questions, of which some may have been on their way."""
        n = self.dns.n_asked
        until("it is asked", lambda: self.dns.n_asked > n + 5)

    def members(self):
        return sorted(u.removeprefix("http://").split(":")[0] for u in self.front.upstreams())


def joins_and_leaves():
    """One that leaves the answer ends what it runs."""
    with World() as w:
        a, b = w.double("127.0.0.2", "--interval-us", 20000), w.double("127.0.0.3")
        w.say("127.0.0.2", "127.0.0.3")
        s = w.serve(*OFTEN)
        for d in a, b:
            becomes(s, d.url, "serving")
        same({(u["origin"], u["name"]) for u in s.upstreams().values()}, {("name", s.get("/v1/upstreams")["names"][0]["name"])})
        commit(s, "v1")
        same([d.state()["version"] for d in (a, b)], ["v1", "v1"], "an update reaches all addresses")
        c = w.double("127.0.0.4")
        w.say("127.0.0.2", "127.0.0.3", "127.0.0.4")
        becomes(s, c.url, "unsynced")  # as one that joins by a request
        commit(s, "v2")
        becomes(s, c.url, "serving")
        said = []
        slow = threading.Thread(target=lambda: said.append(s.ask("POST", "/v1/completions", completion(100))))
        s.post("/v1/upstreams/remove", {"upstream": b.url})
        s.post("/v1/upstreams/remove", {"upstream": c.url})
        slow.start()
        until("it runs there", lambda: asked(a))
        w.say("127.0.0.3", "127.0.0.4")
        becomes(s, a.url, "removed")  # and is listed while it runs something
        same(w.members(), ["127.0.0.2"], "what a request removed stays away")
        slow.join()
        check(said[0][0] == 200 and len(said[0][1]["choices"][0]["text"].split()) == 100, said)
        until("it has left", lambda: not w.members())
        w.say("127.0.0.2")
        until("it is back", lambda: w.members() == ["127.0.0.2"])
        s.process.send_signal(signal.SIGHUP)
        w.settles()
        same(w.members(), ["127.0.0.2"])


def says_nothing():
    """A name server that fails, is silent or knows no address changes nothing, and is said everywhere."""
    with World() as w:
        a, b = w.double("127.0.0.2"), w.double("127.0.0.3")
        w.dns.fails = "servfail"
        s = w.serve(*OFTEN)
        until("it is said", lambda: f"dns+http://{NAME}:{w.port}" in why_not(s))
        check("0 of 0 upstreams serve" in why_not(s), why_not(s))
        w.dns.fails = None
        w.say("127.0.0.2", "127.0.0.3")
        for d in a, b:
            becomes(s, d.url, "serving")
        def name():
            return s.get("/v1/upstreams")["names"][0]
        for how, wanted in (("servfail", "cannot be looked up"), ("silent", "cannot be looked up"), ("nxdomain", "has no address"),
                            ("empty", "has no address")):
            before = name()["n_failures"]
            if how == "empty":
                w.say()
            else:
                w.dns.fails = how
            until(f"{how} is said", lambda: name()["error"] and wanted in name()["error"]["message"] and name()["n_failures"] > before, 30)
            same([state_of(s, d.url) for d in (a, b)], ["serving"] * 2, how)
            same(name()["n_addresses"], 2)
            check(any(wanted in e["why"] and e["level"] == "warn" for e in logged("upstream.name")), how)
            check(metric(s, f'baton_upstream_name_failures_total{{name="dns+http://{NAME}:{w.port}"}}') > before, how)
            text = subprocess.run([BATON, "status", "--url", s.url], capture_output=True, text=True, timeout=60, check=True).stdout
            check(f"{NAME}:{w.port}: " in text and "the 2 upstreams at its addresses stay" in text, text)
            w.dns.fails = None
            w.say("127.0.0.2", "127.0.0.3")
            until("it is well", lambda: name()["error"] is None)
        w.dns.fails = "truncated"  # so it is asked by TCP
        w.say("127.0.0.2", "127.0.0.3", *(f"127.1.0.{i}" for i in range(1, 201)))
        until("all are there", lambda: len(w.members()) == 202)
        w.say("127.0.0.2", *(f"127.1.{i // 250}.{i % 250 + 1}" for i in range(256)))
        until("it is too much", lambda: name()["error"] and "more than 256 addresses" in name()["error"]["message"])
        same(len(w.members()), 202)
        same(metric(s, f'baton_upstream_name_addresses{{name="dns+http://{NAME}:{w.port}"}}'), 202)


def is_replaced():
    """A pod that dies and comes back at another address: asked at once, not at the interval."""
    with World() as w:
        a, b = w.double("127.0.0.2"), w.double("127.0.0.3")
        w.say("127.0.0.2")
        s = w.serve(*NEVER)
        becomes(s, a.url, "serving")
        w.say("127.0.0.3")
        n = w.dns.n_asked
        s.post("/v1/completions", completion())
        same(w.dns.n_asked, n, "it is not asked without a reason")
        a.kill()
        becomes(s, b.url, "serving")
        until("it has left", lambda: w.members() == ["127.0.0.3"])


def by_certificate():
    """The certificate is that of the name, at every address."""
    with World() as w:
        key = write("key", "sk-0123456789abcdef\n")
        options = ("--model", MODEL, "--weights", os.path.join(MODEL, "checkpoints", "step-00000.safetensors"),
                   "--tls-cert", os.path.join(WORK, f"{NAME}.pem"), "--tls-key", os.path.join(WORK, f"{NAME}.key"),
                   "--allowed-host", NAME, "--api-key-file", write("keys", "control sk-0123456789abcdef\n"))
        other = [o.replace(NAME, "other.test") if o.endswith((".pem", ".key")) else o for o in options]
        for address, o in (("127.0.0.2", options), ("127.0.0.3", options), ("127.0.0.4", other)):
            w.enter_context(Server(BATON, LOG, *o, host=address, port=w.port))
        w.say("127.0.0.2", "127.0.0.3", "127.0.0.4")
        s = w.serve(*OFTEN, spec=f"dns+https://{NAME}:{w.port},key-file={key},ca-file={os.path.join(WORK, 'ca.pem')}")
        for address in "127.0.0.2", "127.0.0.3":
            becomes(s, f"https://{address}:{w.port}", "serving")
        becomes(s, f"https://127.0.0.4:{w.port}", "down")
        error = s.upstreams()[f"https://127.0.0.4:{w.port}"]["error"]["message"]
        check("certificate" in error or "subject name" in error, error)
        same(len({u["process"] for u in s.upstreams().values() if u["state"] == "serving"}), 2, "two processes")
        for _ in range(4):
            same(len(s.post("/v1/completions", completion(4))["choices"]), 1)
        message = refused(s, 400, "bad_request", "POST", "/v1/upstreams", {"upstream": f"dns+http://{NAME}:{w.port}"})
        check("a name is for the configuration" in message, message)


run({test.__name__: test for test in (joins_and_leaves, says_nothing, is_replaced, by_certificate)})
