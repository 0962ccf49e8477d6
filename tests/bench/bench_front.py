"""Requests a second of the front, against nginx and against FastAPI, as ratios.

Usage: bench_front.py BATON MODEL_DIR [ROUNDS [SECONDS]]

GET /health and a control POST of 1 KiB of JSON, with the same load generator (wrk, 63 connections)
on one processor and each server on another. nginx answers with a constant; FastAPI (uvicorn with
uvloop and httptools) checks the same body by a model and answers. Rounds are interleaved; the
medians and their ratios are printed. It judges nothing but that all answers were good.

Needs wrk; compares with what it finds of nginx (nginx-light) and python3-fastapi, python3-uvicorn,
python3-uvloop, python3-httptools. NGINX names another nginx, FASTAPI_PYTHON another python3."""

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "http", "lib"))
from front_crowd import ask, wait  # noqa: E402

CONNECTIONS = 63
BODY_NBYTES = 1024
ANSWER = '{"aborted":0}'
IDS = [f"request-{i:03}-of-a-trainer-that-gives-up" for i in range(64)]

NGINX = """daemon off; master_process off; error_log stderr error; pid %(dir)s/nginx.pid;
events { worker_connections 1024; }
http { access_log off; keepalive_requests 1000000000; client_body_temp_path %(dir)s/body;
proxy_temp_path %(dir)s/p; fastcgi_temp_path %(dir)s/f; uwsgi_temp_path %(dir)s/u; scgi_temp_path %(dir)s/s;
server { listen 127.0.0.1:%(port)d; default_type application/json;
location / { return 200 '%(answer)s'; } } }
"""

FASTAPI = """from typing import List
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()

class Abort(BaseModel):
    request_ids: List[str]

@app.get("/health")
async def health():
    return {"status": "ok"}

@app.post("/v1/abort_requests")
async def abort(body: Abort):
    return {"aborted": 0}
"""

LUA = """wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = [[%s]]
function done(summary, latency, requests)
    io.write("errors: " .. summary.errors.status + summary.errors.read + summary.errors.timeout .. "\\n")
end
"""


def body():
    """A body of BODY_NBYTES bytes that baton, too, has to read and look up."""
    ids = []
    while len(json.dumps({"request_ids": ids + [IDS[len(ids)]]})) <= BODY_NBYTES:
        ids.append(IDS[len(ids)])
    text = json.dumps({"request_ids": ids})
    return text[:-1] + " " * (BODY_NBYTES - len(text)) + "}"


def cores():
    have = sorted(os.sched_getaffinity(0))
    return have[0], have[-1]


def spawn(command, directory, name, **more):
    log = open(os.path.join(directory, name + ".log"), "w+", encoding="utf-8")
    return subprocess.Popen(["taskset", "--cpu-list", str(cores()[0])] + command, stdout=log, stderr=log, **more)


def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_baton(directory):
    port = free_port()
    model = sys.argv[2]
    return port, spawn([sys.argv[1], "serve", "--listen", f"127.0.0.1:{port}", "--model", model, "--weights",
                        f"{model}/checkpoints/step-00000.safetensors", "--log-level", "warn"], directory, "baton")


def start_nginx(directory):
    binary = shutil.which(os.environ.get("NGINX", "nginx"), path=os.environ["PATH"] + ":/usr/sbin")
    if binary is None:
        return None
    port, conf = free_port(), os.path.join(directory, "nginx.conf")
    with open(conf, "w", encoding="utf-8") as f:
        f.write(NGINX % {"dir": directory, "port": port, "answer": ANSWER})
    return port, spawn([binary, "-p", directory, "-c", conf], directory, "nginx")


def start_fastapi(directory):
    python = os.environ.get("FASTAPI_PYTHON", "/usr/bin/python3")
    if subprocess.run([python, "-c", "import fastapi, uvicorn, uvloop, httptools"], stderr=subprocess.DEVNULL,
                      check=False).returncode != 0:
        return None
    with open(os.path.join(directory, "bench_app.py"), "w", encoding="utf-8") as f:
        f.write(FASTAPI)
    port = free_port()
    return port, spawn([python, "-m", "uvicorn", "--port", str(port), "--loop", "uvloop", "--http", "httptools",
                        "--log-level", "error", "--no-access-log", "bench_app:app"], directory, "fastapi",
                       cwd=directory)


def wrk(port, path, script, seconds):
    command = ["taskset", "--cpu-list", str(cores()[1]), "wrk", "--threads", "1", "--connections",
               str(CONNECTIONS), "--duration", f"{seconds}s", "--latency", "--script", script,
               f"http://127.0.0.1:{port}{path}"]
    said = subprocess.run(command, stdout=subprocess.PIPE, check=True, encoding="utf-8").stdout
    assert re.search(r"^errors: 0$", said, re.M), said
    return float(re.search(r"Requests/sec: *([0-9.]+)", said)[1])


def answers(port):
    try:
        ask(f"http://127.0.0.1:{port}", "/health")
        return True
    except OSError:
        return False


def measure(directory, servers, rounds, seconds):
    get, post = os.path.join(directory, "get.lua"), os.path.join(directory, "post.lua")
    with open(post, "w", encoding="utf-8") as f:
        f.write(LUA % body())
    with open(get, "w", encoding="utf-8") as f:
        f.write("function done" + LUA.split("function done")[1])
    for what, path, script in (("GET /health", "/health", get),
                               (f"POST of {BODY_NBYTES} bytes", "/v1/abort_requests", post)):
        found = {name: [] for name in servers}
        for _ in range(rounds):
            for name, (port, _) in servers.items():
                found[name].append(wrk(port, path, script, seconds))
        for name, r in found.items():
            ratios = [b / x for b, x in zip(found["baton"], r)]
            print(f"{what:20} {name:8} {statistics.median(r):10.0f} a second, of {min(r):.0f} to {max(r):.0f};"
                  f" baton is {statistics.median(ratios):.2f} of it")


def main():
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    seconds = int(sys.argv[4]) if len(sys.argv) > 4 else 4
    assert len(body()) == BODY_NBYTES
    with tempfile.TemporaryDirectory() as directory:
        servers = {}
        try:
            for name, start in (("baton", start_baton), ("nginx", start_nginx), ("fastapi", start_fastapi)):
                started = start(directory)
                if started is None:
                    print(f"{name} is not installed: left out")
                    continue
                servers[name] = started
                wait(f"{name} answers", lambda started=started: answers(started[0]))
            measure(directory, servers, rounds, seconds)
        finally:
            for _, child in servers.values():
                child.send_signal(signal.SIGTERM)
                child.wait(60)


if __name__ == "__main__":
    main()
