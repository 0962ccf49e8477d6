"""What a server in front of doubles of batons reports of engines and updates, and how long a pause may take.

Usage: fleet_reports.py BATON FAKE_ENGINE LOG WORK
"""

import json
import signal
import sys
import threading
import time

from fake_engine_world import Double
from fleet_world import Server, until

BATON, ENGINE, LOG, WORK = sys.argv[1:5]
FILE = {"path": WORK}
PAUSE_S, SPARE_S = 1, 1


def front(doubles, *options):
    upstreams = [x for d in doubles for x in ("--upstream", f"{d.url},baton")]
    return Server(BATON, LOG, "--probe-interval", 50, *options, *upstreams)


def serving(f, doubles):
    until(lambda: f"all serve: {f.upstreams()}",
          lambda: all(f.upstreams()[d.url]["state"] == "serving" for d in doubles))


def logged(event):
    with open(LOG, encoding="utf-8") as log:
        return [json.loads(line) for line in log if f'"event":"{event}"' in line]


def in_background(f, path, body):
    replies = []
    thread = threading.Thread(target=lambda: replies.append(f.ask("POST", path, body)))
    thread.start()
    return thread, replies


def an_engine_that_was_not_probed_yet_is_not_down(doubles):
    doubles[0].order("GET /v1/status", "hang", times=0)
    with front(doubles, "--probe-timeout", 5000) as f:
        until("the other serves", lambda: f.upstreams()[doubles[1].url]["last_heard_s"] is not None)
        status, reply = f.ask("POST", "/v1/update_weights/start", {})
        message = reply["error"]["message"]
        assert status == 503 and f"not yet probed: {doubles[0].url}" in message and "down" not in message, reply
    doubles[0].good("DELETE", "/fault")


def a_starting_update_is_shown(f, doubles):
    doubles[1].order("start", "slow", ms=700)
    thread, replies = in_background(f, "/v1/update_weights/start", {"weight_version": "slow"})
    update = until("the status shows it", lambda: f.status()["update"])
    assert (update["phase"], update["weight_version"]) == ("starting", "slow"), update
    thread.join()
    status, reply = replies[0]
    assert status == 200 and reply["update_id"] == update["update_id"], (update, reply)
    assert f.status()["update"]["phase"] == "open"
    f.post("/v1/update_weights/abort", {"update_id": reply["update_id"]})
    doubles[1].order("start", "status", status=500)
    assert f.ask("POST", "/v1/update_weights/start", {})[0] >= 500
    assert f.status()["update"] is None


def an_abort_ends_a_start(f, doubles):
    """Which an engine would keep waiting for 30 s."""
    doubles[1].order("start", "hang")
    thread, replies = in_background(f, "/v1/update_weights/start", {"weight_version": "hangs"})
    mine = {"update_id": until("the status shows it", lambda: f.status()["update"])["update_id"]}
    doubles[1].wait("it hangs", lambda: doubles[1].journal("start"))
    ended = f.post("/v1/update_weights/abort", mine)
    assert (ended["phase"], ended["update_id"]) == ("aborted", mine["update_id"]), ended
    thread.join()
    assert replies[0][0] >= 500 and "given up" in str(replies[0][1]), replies
    assert f.status()["update"] is None
    for d in doubles:
        d.good("DELETE", "/fault")
    f.post("/v1/update_weights/abort", {"update_id": f.post("/v1/update_weights/start", {})["update_id"]})


def an_abort_after_a_refusal_names_the_refusal(f, doubles):
    text = json.dumps({"error": {"message": "checksum of 'a'", "code": "checksum_mismatch", "param": "/checksums/0"}})
    mine = {"update_id": f.post("/v1/update_weights/start", {"weight_version": "bad"})["update_id"]}
    for d in doubles:
        d.order("update", "status", status=422, text=text)
    status, reply = f.ask("POST", "/v1/update_weights", dict(FILE, **mine))
    assert status == 422 and reply["error"]["code"] == "checksum_mismatch", reply
    f.post("/v1/update_weights/abort", dict(mine, reason="my trainer stops"))
    said = until("it is logged", lambda: [r for r in logged("update.aborted") if r["update_id"] == mine["update_id"]])[0]
    assert said["code"] == "checksum_mismatch" and "checksum of 'a'" in said["message"], said
    assert any(d.url in said["message"] for d in doubles), said


def an_abort_after_accepted_tensors_has_the_reason(f, _):
    mine = {"update_id": f.post("/v1/update_weights/start")["update_id"]}
    f.post("/v1/update_weights", dict(FILE, **mine))
    f.post("/v1/update_weights/abort", dict(mine, reason="my trainer stops"))
    said = until("it is logged", lambda: [r for r in logged("update.aborted") if r["update_id"] == mine["update_id"]])[0]
    assert said["code"] == "conflict" and "my trainer stops" in said["message"], said


def a_pause_ends_in_time(f, doubles):
    hung = doubles[1]
    hung.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    status, reply = f.ask("POST", "/v1/pause", {"timeout_s": PAUSE_S})
    took = time.monotonic() - began
    hung.process.send_signal(signal.SIGCONT)
    assert status >= 500 and took < PAUSE_S + SPARE_S, (took, status, reply)
    ok, not_ok = reply["error"]["details"]["upstreams"]
    assert ok["ok"] and not not_ok["ok"] and "did not answer" in not_ok["error"], reply
    until(lambda: f"both run again: {[d.state() for d in doubles]}",
          lambda: all(d.state()["pause"] is None for d in doubles))
    serving(f, doubles)
    assert f.status()["pause"] is None
    f.post("/v1/pause", {"timeout_s": PAUSE_S})
    f.post("/v1/resume")


def a_dead_engine_is_named_once(f, doubles):
    """Out of rotation because it did not answer a resume, and then dead."""
    dead = doubles[1]
    f.post("/v1/pause")
    dead.order("resume", "close_before", times=0)
    assert f.ask("POST", "/v1/resume")[0] >= 500
    out = f.upstreams()[dead.url]["error"]["message"]
    assert out.startswith("it failed to resume") and dead.url not in out, out
    for d in doubles:
        d.kill()
    until(lambda: f"both fail their probes: {f.upstreams()}",
          lambda: all("/v1/status" in (u["error"] or {"message": ""})["message"] for u in f.upstreams().values()))
    assert all(str(d.port) not in f.upstreams()[d.url]["error"]["message"] for d in doubles), f.upstreams()
    message = f.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[1]["error"]["message"]
    assert all(message.count(str(d.port)) <= 1 for d in doubles), message


def main():
    doubles = [Double(ENGINE, "baton", "--weight-version", "step-0") for _ in range(2)]
    try:
        an_engine_that_was_not_probed_yet_is_not_down(doubles)
        with front(doubles, "--probe-timeout", 400) as f:
            serving(f, doubles)
            for test in (a_starting_update_is_shown, an_abort_ends_a_start, an_abort_after_a_refusal_names_the_refusal,
                         an_abort_after_accepted_tensors_has_the_reason):
                test(f, doubles)
        with front(doubles, "--probe-interval", 1000, "--probe-timeout", 1000) as f:
            serving(f, doubles)
            a_pause_ends_in_time(f, doubles)
            a_dead_engine_is_named_once(f, doubles)
    finally:
        for d in doubles:
            d.process.send_signal(signal.SIGCONT)
            d.kill()
            d.process.stdout.close()


main()
