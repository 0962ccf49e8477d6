"""Many generates wait while the server is paused, and others are served beside them: each client that stays
is answered in the end, those that disconnect free their slots, and nothing remains.

Usage: front_waiting.py HOST PORT PID N_CLIENTS SANITIZED(yes|no)
"""

import json
import sys

from front_crowd import HEALTH, Crowd, Process, ask, generate, post, room_for, wait

N_TOKENS = 3
MEMORY_NBYTES_MAX = 20 << 10  # of the server, for each that waits


def admission(url):
    return ask(url, "/v1/status")["admission"]["generate"]


def come(url, address, n, data):
    before = admission(url)["waiting"]
    crowd = Crowd(address, n)
    crowd.send(data)
    wait(f"{n} wait", lambda: admission(url)["waiting"] == before + n)
    return crowd


def leave(url, crowd, n):
    """Every other way to go: a FIN, a reset."""
    before = admission(url)
    for i, c in enumerate(list(crowd)[:n]):
        crowd.epoll.unregister(c.socket.fileno())
        del crowd.clients[c.socket.fileno()]
        c.close(reset=i % 2 == 1)
    wait(f"{n} slots are free again", lambda: admission(url)["waiting"] == before["waiting"] - n)
    wait("they count as cancelled", lambda: admission(url)["cancelled"] >= before["cancelled"] + n)


def beside(url, address):
    """Others are served while they wait: health, a flood of text, control."""
    crowd = Crowd(address, 16)
    kinds = [HEALTH, post("/detokenize", {"tokens": [40, 77, 258] * 100}), post("/tokenize", {"prompt": "In the"})]
    for i, c in enumerate(crowd):
        c.send(kinds[i % len(kinds)])
    crowd.gather("those beside", lambda: all(c.n_answers >= 20 for c in crowd),
                 lambda c: c.send(kinds[c.n_answers % len(kinds)]))
    assert {s for c in crowd for s, _ in c.answers} == {200}
    crowd.close()


def whole(answer, finish, n_tokens):
    status, body = answer
    assert status == 200, answer
    choice = json.loads(body)["choices"][0]
    assert choice["finish_reason"] == finish and len(choice["token_ids"]) == n_tokens, body


def events(answer):
    status, body = answer
    assert status == 200, answer
    said = [e[6:] for e in body.decode().split("\n\n") if e.startswith("data: ")]
    assert said[-1] == "[DONE]", said[-1]
    return [json.loads(e) for e in said[:-1]]


def resumed(url, address, process, n):
    """They wait, some leave, the others are served."""
    ask(url, "/v1/pause", {})
    before = process.rss_nbytes()
    crowd = come(url, address, n, generate(N_TOKENS))
    each = (process.rss_nbytes() - before) / n
    streams = come(url, address, n // 10, generate(N_TOKENS, stream=True))
    beside(url, address)
    leave(url, crowd, n // 4)
    leave(url, streams, n // 40)
    ask(url, "/v1/resume", {})
    for some in (crowd, streams):
        some.gather("those that stayed", lambda some=some: all(c.n_answers == 1 for c in some))
    for c in crowd:
        whole(c.answers[0], "length", N_TOKENS)
    for c in streams:
        made = [t for e in events(c.answers[0]) for choice in e["choices"] for t in choice["token_ids"]]
        assert len(made) == N_TOKENS, c.answers
    left_nothing(url)
    crowd.close()
    streams.close()
    return each


def aborted(url, address, n):
    """They wait, and all of them end at once."""
    ask(url, "/v1/pause", {})
    crowd = come(url, address, n, generate(N_TOKENS))
    assert ask(url, "/v1/abort_requests", {"all": True})["aborted"] == n
    crowd.gather("those that were aborted", lambda: all(c.n_answers == 1 for c in crowd))
    for c in crowd:
        whole(c.answers[0], "abort", 0)
    left_nothing(url)
    # Their connections go on.
    crowd.send(HEALTH)
    crowd.gather("after the abort", lambda: all(c.n_answers == 2 for c in crowd))
    crowd.close()
    ask(url, "/v1/resume", {})


def left_nothing(url):
    wait("nobody runs or waits", lambda: admission(url)["running"] + admission(url)["waiting"] == 0)


def running(url, address, n):
    """Clients that leave while theirs runs give their permits back."""
    crowd = Crowd(address, n)
    crowd.send(generate(100000))
    wait("one runs", lambda: admission(url)["running"] > 0)
    crowd.close()
    left_nothing(url)


def main():
    address, n = (sys.argv[1], int(sys.argv[2])), int(sys.argv[4])
    url, process = f"http://{address[0]}:{address[1]}", Process(int(sys.argv[3]))
    n = room_for(n)
    first = resumed(url, address, process, n)
    aborted(url, address, n)
    again = resumed(url, address, process, n)
    running(url, address, 50)
    wait("no connection is left", lambda: ask(url, "/v1/status")["http"]["connections"] == 1)
    print(f"{n} waited, {first / 1024:.1f} KiB for each, {again / 1024:.1f} KiB the second time")
    if sys.argv[5] == "no":  # a sanitizer has memory of its own
        assert first <= MEMORY_NBYTES_MAX, first


if __name__ == "__main__":
    main()
