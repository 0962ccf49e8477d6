"""Aborts of SGLang's /generate by id: a request, one of a batch, one that waits; and a client that disconnects.

Usage: sglang_generate.py URL, of a server that generates nothing else
"""
import http.client
import json
import sys
import time

HOST, PORT = "127.0.0.1", int(sys.argv[1].rsplit(":", 1)[1])
PATIENCE_S = 120
# More tokens than any machine makes before the abort comes.
N_PROMPTS, LONG = 64, {"max_new_tokens": None, "ignore_eos": True, "sampling_seed": 3}


def call(method, path, body=None):
    c = http.client.HTTPConnection(HOST, PORT, timeout=PATIENCE_S)
    c.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    text = r.read()
    c.close()
    assert r.status == 200, f"{path}: {r.status} {text[:600]}"
    return json.loads(text)


def send(body):
    c = http.client.HTTPConnection(HOST, PORT, timeout=PATIENCE_S)
    c.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
    return c


def open_stream(body):
    c = send(body)
    r = c.getresponse()
    assert r.status == 200, r.read()
    return c, r


def events(r):
    """Until [DONE], which must come."""
    for line in r:
        if line.startswith(b"data: [DONE]"):
            return
        if line.startswith(b"data: "):
            yield json.loads(line[6:])
    raise AssertionError("the stream ended without [DONE]")


def wait_for(what, test):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if test():
            return
        time.sleep(0.002)
    sys.exit(f"{what}: not within {PATIENCE_S} s")


def idle():
    generate = call("GET", "/v1/status")["admission"]["generate"]
    return generate["running"] + generate["waiting"] == 0


def finish(event):
    return event["meta_info"]["finish_reason"]


def batch():
    """One of a batch ends at once, then all others."""
    c, r = open_stream({"input_ids": [[40, 77, 258]] * N_PROMPTS, "rid": "big", "stream": True,
                        "sampling_params": LONG})
    stream, last = events(r), {}
    for event in stream:
        last[event["index"]] = event
        if len(last) == N_PROMPTS:
            break
    assert call("POST", "/v1/abort_requests", {"request_ids": ["big_3"]}) == {"aborted": 1}
    for event in stream:
        last[event["index"]] = event
        if finish(event) is not None:
            break
    assert event["index"] == 3 and finish(event)["type"] == "abort", finish(event)
    assert event["meta_info"]["id"] == "big_3"
    call("POST", "/abort_request", {"rid": "big"})
    for event in stream:
        last[event["index"]] = event
    c.close()
    for i, event in last.items():
        reason = finish(event)
        assert reason["type"] == "abort" and reason["message"] == "Aborted", (i, reason)
        n = len(event["output_ids"])
        assert n == event["meta_info"]["completion_tokens"] > 0
        assert event["meta_info"]["weight_versions"][-1]["end"] == n
    assert len(last) == N_PROMPTS


def waiting():
    """While the server is paused nothing is made: an abort ends the request without tokens."""
    call("POST", "/v1/pause", {"mode": "keep"})
    c = send({"text": "In the beginning", "rid": "slow", "return_logprob": True})
    wait_for("the abort", lambda: call("POST", "/v1/abort_requests", {"request_ids": ["slow"]})["aborted"] == 1)
    reply = json.load(c.getresponse())
    c.close()
    call("POST", "/v1/resume")
    assert reply["output_ids"] == [] and reply["text"] == "", reply
    assert finish(reply)["message"].startswith("Abort before prefill"), reply
    assert reply["meta_info"]["output_token_logprobs"] == []


def gone():
    """A client that leaves ends what it asked for."""
    c, r = open_stream({"input_ids": [[40, 77, 258]] * N_PROMPTS, "stream": True, "sampling_params": LONG})
    r.readline()
    r.close()
    c.close()
    wait_for("the end of what nobody waits for", idle)


batch()
waiting()
gone()
wait_for("the end of all", idle)
