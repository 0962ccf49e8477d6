"""A server in front of doubles: what it reports about them, checked against the doubles.

Usage of the tests: TEST.py BATON FAKE_ENGINE MODEL WORK [NAME ...]
"""

import contextlib
import json
import os
import re
import socket
import sys
import time

from fake_engine_world import PROMPT, Double
from fleet_world import Server, until

BATON, ENGINE, MODEL, WORK = sys.argv[1:5]
LOG = os.path.join(WORK, "log")
HANDLES = {"names": ["a"], "dtypes": ["bfloat16"], "shapes": [[1]], "ipc_handles_pickled": "gASVAA=="}
PROBES = ("--probe-interval", 20, "--probe-timeout", 1000)
N_CHECKS = 0


def check(true, what):
    global N_CHECKS
    N_CHECKS += 1
    assert true, what


def same(found, wanted, what=""):
    check(found == wanted, f"{what}: {found}, wanted {wanted}")


def double(dialect="baton", *options):
    return Double(ENGINE, dialect, "--weight-version", "step-0", "--world-size", 2, *options)


@contextlib.contextmanager
def world(*dialects, server=(), n_serving=None):
    """A server in front of one double for each dialect."""
    with contextlib.ExitStack() as stack:
        ds = [stack.enter_context(double(d)) for d in dialects]
        specs = [o for d in ds for o in ("--upstream", f"{d.url},{d.dialect}")]
        s = stack.enter_context(Server(BATON, LOG, *specs, *PROBES, *server))
        until("all serve", lambda: s.status()["upstreams"]["n_serving"] == (n_serving or len(ds)))
        yield s, *ds


def write(name, text):
    path = os.path.join(WORK, name)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path, 0o600)
    return path


def state_of(s, url):
    return s.upstreams().get(url, {}).get("state")


def becomes(s, url, state):
    until(lambda: f"{url} is {state}: {s.upstreams().get(url)}", lambda: state_of(s, url) == state)


def why_not(s):
    status, said = s.ask("GET", "/health/ready")
    same(status, 503, "not ready")
    same(said["reason"], s.status()["reason"]["code"])
    return said["message"]


def metric(s, line):
    found = re.search(f"^{re.escape(line)} (.*)$", s.get("/metrics"), re.M)
    return found and float(found[1])


def refused(s, status, code, method, path, body=None):
    found, said = s.ask(method, path, body)
    same((found, said["error"]["code"]), (status, code), path)
    return said["error"]["message"]


def logged(event):
    with open(LOG, encoding="utf-8") as f:
        return [json.loads(line) for line in f if f'"event":"{event}"' in line]


def asked(d):
    """What clients asked a double for: not the server's own question for a token."""
    return [r for r in d.journal("completions") if PROMPT in r["body"]]


def closed_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def commit(s, label):
    """A version of the whole fleet, from tensors that doubles do not look at."""
    update = s.post("/v1/update_weights/start", {"weight_version": label})["update_id"]
    body = HANDLES if "vllm" in [u["dialect"] for u in s.upstreams().values()] else {"path": WORK}
    s.post("/v1/update_weights", dict(body, update_id=update))
    return s.post("/v1/update_weights/finish", {"update_id": update})


def run(tests):
    """Those named on the command line, or all."""
    only = sys.argv[5:]
    for name, test in tests.items():
        if not only or name in only:
            began = time.monotonic()
            test()
            print(f"  {name}: {time.monotonic() - began:.2f} s", flush=True)
    print(f"ok: {N_CHECKS} checks")
