"""Replies with every logprob of the vocabulary. The server's peak of memory (VmHWM) may grow by a
small multiple of the text: a tree of values takes ten times it, and more. `unread`: replies that clients do not read
have at most --max-unread-bytes together, which is 40 MiB there.
Usage: reply_memory.py URL PID completions|chat|generate|skyrl|sglang|tokenize|prompt|unread"""

import json
import socket
import sys
import time
import urllib.request

URL, PID, FORM = sys.argv[1:]
IDS = [40, 77, 258, 803, 264, 77, 290]
VOCABULARY = 1024
PARAMS = {"max_tokens": 250, "logprobs": VOCABULARY, "ignore_eos": True}
SGLANG = {"max_new_tokens": 250, "ignore_eos": True}
FORMS = {
    "completions": ("/v1/completions", {"prompt": IDS, **PARAMS}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "In"}], **PARAMS, "logprobs": True,
                                      "top_logprobs": VOCABULARY}),
    "generate": ("/v1/generate", {"token_ids": IDS, "sampling_params": PARAMS}),
    "skyrl": ("/skyrl/v1/generate", {"token_ids": IDS, "sampling_params": PARAMS}),
    "sglang": ("/generate", {"input_ids": IDS, "return_logprob": True, "top_logprobs_num": VOCABULARY,
                             "sampling_params": SGLANG}),
    "tokenize": ("/tokenize", {"prompt": "In the beginning " * 60000, "return_token_strs": True}),
    "prompt": ("/v1/completions", {"prompt": [11] * 250, "max_tokens": 1, "prompt_logprobs": VOCABULARY}),
}
TIMES = 4  # the text, once more while it is put together, and once more as the buffer grows
REST = 16e6  # the engine's own of 250 * 1024 logprobs, the KV cache, stacks


class Unread:
    """A request whose reply stays in the server: a small window, and no read before read()."""

    def __init__(self, path, body):
        host, port = URL.removeprefix("http://").split(":")
        body = json.dumps(body).encode()
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        self.socket.settimeout(240)
        self.socket.connect((host, int(port)))
        self.socket.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    def status(self):
        return int(self.socket.recv(12, socket.MSG_PEEK | socket.MSG_WAITALL)[9:])

    def read(self):
        with self.socket:
            return self.socket.makefile("rb").read()


def post(path, body=None):
    request = urllib.request.Request(URL + path, json.dumps(body or {}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=240) as answer:
        return answer.read()


def paused(*requests):
    """Clients whose requests all wait in a pause, and begin together."""
    post("/v1/pause", {"mode": "keep"})
    clients = [Unread(*r) for r in requests]
    while True:
        with urllib.request.urlopen(URL + "/v1/status", timeout=60) as answer:
            admission = json.load(answer)["admission"]["generate"]
        if admission["running"] + admission["waiting"] == len(requests):
            break
        time.sleep(0.05)
    post("/v1/resume")
    return clients


def check(holds, *found):
    if not holds:
        sys.exit(f"unread: {found}")


def refused(reply):
    return reply.startswith(b"HTTP/1.1 503") and b"\r\nRetry-After: 1\r\n" in reply and b"--max-unread-bytes" in reply


def unread():
    first = Unread(*FORMS["generate"])
    check(first.status() == 200)
    for form in ("completions", "chat", "generate", "sglang"):  # at once, before anything is computed
        for stream in (False, True):
            path, body = FORMS[form]
            reply = Unread(path, {**body, "stream": stream}).read()
            check(refused(reply), form, stream, reply[:900])
    for path, body in (("/tokenize", {"prompt": "a!" * 500000, "return_token_strs": True}),
                       ("/detokenize", {"tokens": [803] * 1000000})):  # as soon as their length is known
        many = [Unread(path, body) for _ in range(6)]
        statuses = [x.status() for x in many]
        check(200 in statuses and 503 in statuses, path, statuses)
        for x in many:
            x.read()
    check(len(first.read()) > 20e6)
    while refused(reply := Unread(*FORMS["generate"]).read()):  # what was read makes room
        time.sleep(0.1)
    check(reply.startswith(b"HTTP/1.1 200") and len(reply) > 20e6, reply[:900])

    both = paused(FORMS["generate"], FORMS["generate"])  # neither takes room before it has ended
    check(sorted(x.status() for x in both) == [200, 503])
    check(sum(refused(x.read()) for x in both) == 1)

    slow = ("/v1/generate", {"token_ids": IDS, "stream": True, "sampling_params": {**PARAMS, "n": 8}})
    whole, stream = paused(FORMS["generate"], slow)  # what a stream holds when it has ended, 25 MB, counts too
    check(whole.status() == 200 and stream.status() == 200)
    wait_ended()
    check(len(whole.read()) > 20e6)
    told = stream.read()
    check(b'"code":"overloaded"' in told[-2000:] and told.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), told[-2000:])


def wait_ended():
    """Until no generation runs, and the outputs of the stream were counted."""
    while True:
        with urllib.request.urlopen(URL + "/v1/status", timeout=60) as answer:
            if json.load(answer)["admission"]["generate"]["running"] == 0:
                break
        time.sleep(0.05)
    time.sleep(1)


def peak():
    with open(f"/proc/{PID}/status", encoding="utf-8") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))


if FORM == "unread":
    unread()
    sys.exit()
path, body = FORMS[FORM]
before = peak()
request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
with urllib.request.urlopen(request, timeout=240) as answer:
    n = len(answer.read())
grown = peak() - before
print(f"{FORM}: a reply of {n / 1e6:.1f} MB, peak +{grown / 1e6:.1f} MB")
if grown > TIMES * n + REST:
    sys.exit(f"at most {(TIMES * n + REST) / 1e6:.1f} MB are allowed")
