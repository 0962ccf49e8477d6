"""GET /v1/generations: a running sequence shows the versions of its tokens, a waiting one none; the
list is whole while tokens are made and versions change.

Usage: running.py BATON MODEL WORK
"""

import http.client
import json
import os
import sys
import threading
import time

from fleet_world import Server, until

BATON, MODEL, WORK = sys.argv[1:4]
OPTIONS = ("--model", MODEL, "--weights", os.path.join(MODEL, "checkpoints/step-00000.safetensors"), "--weight-version", "step-0",
           "--allow-path", MODEL, "--generate-concurrency", "2")


def begin(server, request_id, stream):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = {"prompt": "In the", "max_tokens": 900, "ignore_eos": True, "request_id": request_id, "stream": stream}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    return connection


def listed(server):
    said = server.get("/v1/generations")
    assert said["n"] == len(said["generations"]), said
    return {g["request_id"]: g for g in said["generations"]}


def generate(server, stream, deadline):
    while time.monotonic() < deadline:
        server.good("POST", "/v1/completions", {"prompt": "In the", "max_tokens": 200, "ignore_eos": True, "stream": stream, "n": 2})


def push(server, deadline):
    n = 0
    while time.monotonic() < deadline:
        n += 1
        server.post("/v1/update_weights", {"path": f"checkpoints/step-0{('0000', '1500')[n % 2]}.safetensors", "weight_version": f"v{n}"})


def watch(server, deadline):
    """Returns the largest number of versions that a sequence had."""
    most = 0
    while time.monotonic() < deadline:
        for row in server.get("/v1/generations")["generations"]:
            spans = row["weight_versions"]
            assert all(a["end"] == b["start"] and a["serial"] < b["serial"] for a, b in zip(spans, spans[1:])), row
            assert (spans[-1]["end"] if spans else 0) == row["n_tokens"], row
            most = max(most, len(spans))
    return most


def storm(server):
    """A few requests and an updater, for two seconds, while this thread lists."""
    faults, deadline = [], time.monotonic() + 2

    def run(work, *args):
        try:
            work(server, *args, deadline)
        except BaseException as e:
            faults.append(e)

    threads = [threading.Thread(target=run, args=a) for a in ((generate, True), (generate, False), (push,))]
    for t in threads:
        t.start()
    most = watch(server, deadline)
    for t in threads:
        t.join()
    assert not faults, faults
    assert most > 1, "no sequence had tokens of two versions"


def main():
    with Server(BATON, os.path.join(WORK, "log"), *OPTIONS) as server:
        assert server.get("/v1/generations") == {"n": 0, "generations": []}
        open_ones = [begin(server, name, stream) for name, stream in (("one", True), ("two", False))]
        until("both run", lambda: [g for g in listed(server).values() if g["n_tokens"] > 20][1:])
        server.post("/v1/pause", {"mode": "keep"})
        open_ones.append(begin(server, "\u00e9" * 128, False))  # 256 bytes
        until("three", lambda: len(listed(server)) == 3)
        path = "checkpoints/step-01500.safetensors"
        server.post("/v1/update_weights", {"path": path, "weight_version": "<b>new</b>"})
        server.post("/v1/resume")
        until("both go on", lambda: [g for g in listed(server).values() if len(g["weight_versions"]) > 1][1:])
        server.post("/v1/pause", {"mode": "keep"})
        rows = listed(server)
        assert sorted(rows) == ["one", "two", "\u00e9" * 127 + "?"] or sorted(rows) == ["one", "two", "\u00e9" * 128], sorted(rows)
        for name in "one", "two":
            row = rows[name]
            first, second = row["weight_versions"]
            assert (first["version"], first["serial"], first["start"]) == ("step-0", 1, 0), row
            assert (second["version"], second["serial"], second["end"]) == ("<b>new</b>", 2, row["n_tokens"]), row
            assert first["end"] == second["start"] > 20 and row["state"] == "running" and row["n_prompt_tokens"] > 0, row
            assert row["age_s"] > 0 and "In" not in json.dumps(row), row
        waiting = next(g for name, g in rows.items() if name not in ("one", "two"))
        assert (waiting["state"], waiting["n_tokens"], waiting["weight_versions"]) == ("waiting", 0, []), waiting
        server.post("/v1/resume")
        for connection in open_ones:
            connection.close()
        until("none is left", lambda: server.get("/v1/generations")["n"] == 0)
        storm(server)
        until("none is left", lambda: server.get("/v1/generations")["n"] == 0)
    print("generations: all well")


main()
