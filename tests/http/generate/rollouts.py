"""POST /v1/rollouts against the JSON replies of the same server, one command each: equal, routed, streams,
refusals, arguments, disturbed, failed, unread.

Usage: rollouts.py URL MODEL WORK COMMAND (the last line says how many checks were made)
"""
import json
import random
import socket
import struct
import sys
import threading
import time

import baton
from baton.rollouts import check_steps
import numpy

URL, MODEL, WORK, COMMAND = sys.argv[1:]
PATIENCE_S = 100
N_ROUNDS = 12
SERVED = ("layout", "sequence_multiple", "pad_token_id", "n_rows", "width", "response_width", "n_prompts", "n",
          "finish_reasons", "versions", "stop_reasons", "trajectory_ids")
n_checks = 0


def check(condition, *what):
    global n_checks
    n_checks += 1
    assert condition, what


def status():
    return baton.request(URL, "GET", "/v1/status")


def wait(condition, what):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def same_batch(found, wanted, where):
    """Every array of the same dtype, shape and bytes, and the metadata that JSON replies have too."""
    check(list(found) == list(wanted), where, list(found), list(wanted))
    for name in wanted:
        a, b = found[name], wanted[name]
        check(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes(), where, name, a, b)
    for name in SERVED:
        check(found.metadata[name] == wanted.metadata[name], where, name, found.metadata[name],
              wanted.metadata[name])


def random_steps(rng, n_prompts):
    steps, trajectory, step = [], 0, rng.randrange(3)
    for _ in range(n_prompts):
        steps.append({"trajectory_id": f"t{trajectory}", "step": step})
        step += 1
        if rng.random() < 0.5:
            trajectory, step = trajectory + 1, rng.randrange(3)
    return steps


def random_request(rng):
    prompts = [[rng.randrange(3, 1000) for _ in range(rng.choice((1, 2, 7, 30)))] for _ in range(rng.randint(1, 6))]
    sampling = {"max_tokens": rng.choice((1, 5, 24)), "n": rng.randint(1, 3), "seed": rng.randrange(1 << 30),
                "temperature": rng.choice((0, 0.7, 1)), "logprobs": rng.choice((None, 0, 1)),
                "stop_token_ids": rng.sample(range(3, 1000), 60)}
    options = {"layout": rng.choice(("left_padded", "tight")), "sequence_multiple": rng.choice((1, 2, 8, 64)),
               "pad_token_id": rng.randrange(1000)}
    if rng.random() < 0.5:
        options["steps"] = random_steps(rng, len(prompts))
    return prompts, sampling, options


def json_replies(prompts, sampling, **members):
    sampling = dict(sampling, logprobs=1)
    return [baton.request(URL, "POST", "/v1/generate", dict(members, token_ids=p, sampling_params=sampling))
            for p in prompts]


def equal():
    rng = random.Random(20)
    finishes = set()
    for i in range(N_ROUNDS):
        prompts, sampling, options = random_request(rng)
        batch = baton.rollouts(URL, prompts, sampling, **options)
        same_batch(batch, baton.assemble_rollouts(prompts, json_replies(prompts, sampling), **options),
                   (i, prompts, sampling, options))
        check(batch.metadata["format"] == 1 and batch.metadata["errors"] == [None] * len(batch["groups"]))
        check(batch.metadata["n_experts"] is None and batch.metadata["route_layers"] is None, batch.metadata)
        finishes |= set(batch["finish_reasons"].tolist())
    check(finishes == {1, 2}, "stop and length", finishes)


def routed():
    rng = random.Random(21)
    for i in range(N_ROUNDS):
        prompts, sampling, options = random_request(rng)
        replies = json_replies(prompts, sampling, return_routed_experts=True)
        batch = baton.rollouts(URL, prompts, sampling, return_routed_experts=True, **options)
        same_batch(batch, baton.assemble_rollouts(prompts, replies, return_routed_experts=True,
                                                  n_experts=batch.metadata["n_experts"], **options),
                   (i, prompts, sampling, options))
        check((batch["route_lengths"] == batch["prompt_lengths"] + batch["response_lengths"] - 1).all())
        check(batch.metadata["route_layers"] == replies[0]["choices"][0]["routed_experts"]["layers"])
        top_k = batch["routed_experts"].shape[3]
        check((batch["routed_experts"][~batch["attention_mask"]] == numpy.arange(top_k)).all())


def streams():
    rng = random.Random(22)
    for i in range(6):
        prompts, sampling, options = random_request(rng)
        replies = json_replies(prompts, sampling)
        steps = options.pop("steps", None)
        spans = [(p, p + 1) for p in range(len(prompts))] if steps is None else \
            check_steps(steps, len(prompts))
        groups = {}
        for batch in baton.stream_rollouts(URL, prompts, sampling, steps=steps, **options):
            (group,) = set(batch["groups"].tolist())
            check(group not in groups, "a group twice")
            groups[group] = batch
        check(sorted(groups) == list(range(len(spans))), i, sorted(groups))
        for group, (begin, end) in enumerate(spans):
            wanted = baton.assemble_rollouts(prompts[begin:end], replies[begin:end],
                                             steps=steps and steps[begin:end], **options)
            wanted["groups"][:] = group
            wanted.metadata["n_prompts"] = len(prompts)
            same_batch(groups[group], wanted, (i, group))
    # the group that ends first comes first, whatever its place
    order = [int(b["groups"][0]) for b in baton.stream_rollouts(
        URL, [[5, 6], [7] * 1022], {"max_tokens": 400, "ignore_eos": True})]
    check(order == [1, 0], order)
    # a large frame: pieces, and a client that reads them late
    (batch,) = baton.stream_rollouts(URL, [[7] * 9], {"n": 8, "max_tokens": 23, "ignore_eos": True},
                                     sequence_multiple=65536)
    check(sum(a.nbytes for a in batch.values()) > 16 << 20 and batch["response_lengths"].sum() == 8 * 23)
    # tensors for clients that accept them on /v1/generate
    body = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 9, "n": 2, "seed": 4, "logprobs": 1}}
    for accept in ("application/vnd.safetensors", "text/html, application/vnd.safetensors;q=0.9",
                   "application/vnd.safetensors ; a=b; q=0.01, */*;q=0"):
        data = baton.request(URL, "POST", "/v1/generate", body, headers={"Accept": accept})
        same_batch(baton.read_rollouts(data), baton.assemble_rollouts(
            [body["token_ids"]], json_replies([body["token_ids"]], body["sampling_params"])), accept)
    try:
        baton.request(URL, "POST", "/v1/generate", dict(body, return_token_ids=True, features=None),
                      headers={"Accept": "application/vnd.safetensors"})
        sys.exit("return_token_ids was ignored")
    except baton.BatonError as e:
        check((e.status, e.param) == (400, "/return_token_ids") and "Accept" in e.message, e)
    for accept in ("*/*", "application/json", "application/vnd.safetensors2", "application/vnd.safetensors;q=0",
                   "application/vnd.safetensors;a=b ; Q=0.00 , */*"):
        check("choices" in baton.request(URL, "POST", "/v1/generate", body, headers={"Accept": accept}))


def refused(status_, param, words, body):
    try:
        baton.request(URL, "POST", "/v1/rollouts", body)
    except baton.BatonError as e:
        check((e.status, e.param) == (status_, param) and words in e.message, e, e.param, words)
    else:
        sys.exit(f"{words}: accepted")


def refusals():
    good = {"prompts": [[5], [6]], "sampling_params": {"max_tokens": 2}}
    steps = [{"trajectory_id": "a", "step": 1}, {"trajectory_id": "a", "step": 0}]
    for status_, param, words, members in (
            (400, "/prompts", "required", {"prompts": None}),
            (400, "/prompts", "0 prompts", {"prompts": []}),
            (400, "/prompts/1", "no tokens", {"prompts": [[5], []]}),
            (400, "/prompts/1", "an array of token ids is expected", {"prompts": [[5], "text"]}),
            (400, "/prompts/1/0", "1024", {"prompts": [[5], [1024]]}),
            (400, "/prompts/0", "maximum context length", {"prompts": [[5] * 1024]}),
            (400, "/sampling_params", "required", {"sampling_params": None}),
            (400, "/sampling_params/n", "at most 1024", {"sampling_params": {"n": 128}, "prompts": [[5]] * 9}),
            (400, "/sampling_params/logprobs", "sampled tokens only", {"sampling_params": {"logprobs": 5}}),
            (400, "/sampling_params/prompt_logprobs", "no logprobs", {"sampling_params": {"prompt_logprobs": 0}}),
            (400, "/sampling_params/routed_experts_prompt_start", "all positions",
             {"sampling_params": {"routed_experts_prompt_start": 1}}),
            (400, "/layout", "not one of left_padded, tight", {"layout": "right"}),
            (400, "/steps/1", "ascend by 1", {"steps": steps}),
            (400, "/steps", "1 steps for 2 prompts", {"steps": steps[:1]}),
            (400, "/return_routed_experts", "experts", {"return_routed_experts": True}),
            (400, "/token_ids", "token ids are prompts", {"token_ids": [5]}),
            (400, "/messages", "/v1/chat/completions/render", {"messages": []}),
            (413, "/sampling_params/max_tokens", "a batch of this request may have",
             {"prompts": [[5]] * 1024, "sequence_multiple": 65536})):
        refused(status_, param, words, dict(good, **members))
    for bad in ([{"trajectory_id": "a", "step": 0}, {"trajectory_id": "b", "step": 0},
                 {"trajectory_id": "a", "step": 1}], steps + [{"trajectory_id": "b", "step": 0}]):
        refused(400, f"/steps/{2 if bad[1]['step'] == 0 and bad[1]['trajectory_id'] == 'b' else 1}", "steps",
                {"prompts": [[5]] * 3, "sampling_params": {"max_tokens": 2}, "steps": bad})
        try:
            check_steps(bad, 3)
            sys.exit("accepted")
        except baton.InputError as e:
            check(e.param.startswith("/steps/"), e.param)


def input_error(call, *words, param=None):
    try:
        call()
    except baton.InputError as e:
        check(all(w in e.message for w in words) and e.param == param, words, e.message, e.param)
    else:
        sys.exit(f"{words}: accepted")


def arguments():
    """What the client refuses before it sends anything, or of replies that are no rollouts."""
    sampling = {"max_tokens": 2, "ignore_eos": True}
    for prompts, param, found in (("hi", "/prompts", "'hi'"), (None, "/prompts", "None"), ({0: [5]}, "/prompts", "{0"),
                                  ([[5], "hi"], "/prompts/1", "'hi'"), ([1, 2], "/prompts/0", "prompt 0 is 1"),
                                  ([[5, None]], "/prompts/0", "[5, None]"), ([[5], None], "/prompts/1", "None"),
                                  ([[1.5]], "/prompts/0", "[1.5]"), ([["5"]], "/prompts/0", "['5']")):
        for call in (lambda p: baton.rollouts(URL, p, sampling), lambda p: list(baton.stream_rollouts(URL, p, sampling)),
                     lambda p: baton.assemble_rollouts(p, [])):
            input_error(lambda: call(prompts), found, "token ids", param=param)
    input_error(lambda: baton.rollouts(URL, [[5]], None), "expected a dict", param="/sampling_params")
    input_error(lambda: baton.rollouts(URL, [[5]], sampling, stream=True), "stream_rollouts()", param="/stream")
    batch = baton.rollouts(URL, numpy.array([[5, 6]]), sampling, stream=False)
    check(batch["prompt_lengths"].tolist() == [2])

    def reply(**members):
        return baton.request(URL, "POST", "/v1/generate", {"token_ids": [5], "sampling_params": dict(sampling, **members)})

    whole = reply(logprobs=1)
    check(baton.assemble_rollouts([[5]], [reply(logprobs=0)])["logprobs"][0, 1:].all())
    batch = baton.assemble_rollouts([[5]], [{"choices": [dict(whole["choices"][0], finish_reason="repetition")]}])  # vLLM's
    check(batch.metadata["finish_reasons"][batch["finish_reasons"][0]] == "repetition" and batch["loss_mask"].any())
    text = baton.request(URL, "POST", "/v1/completions", {"prompt": [5], "max_tokens": 2})
    for bad, *words in ((reply(), "reply 0, choice 0 has 0 logprobs", "2 tokens", '"logprobs": 1'),
                        (text, "choice 0 has no list token_ids", "/v1/generate"),
                        ({"error": {}}, "reply 0 has no choices", "/v1/generate"), (None, "None"),
                        ({"choices": []}, "no choices"), ({"choices": [None]}, "reply 0, choice 0", "/v1/generate"),
                        ({"choices": [dict(whole["choices"][0], finish_reason="eos")]}, "'eos'", "stop, length"),
                        ({"choices": [dict(whole["choices"][0], weight_versions=[1])]}, "reply 0, choice 0"),
                        ({"choices": [dict(whole["choices"][0], token_ids=[5, None])]}, "reply 0, choice 0")):
        input_error(lambda: baton.assemble_rollouts([[5]], [bad]), *words)
    input_error(lambda: baton.assemble_rollouts([[5]], whole["choices"] + [whole]), "2 replies for 1 prompts")
    input_error(lambda: baton.assemble_rollouts([[5]], None), "replies are not a list")
    input_error(lambda: baton.assemble_rollouts([], []), "no prompts", param="/prompts")
    input_error(lambda: baton.assemble_rollouts([[5]], [whole], steps=[3]), "steps are not a list")
    input_error(lambda: baton.assemble_rollouts([[5]], [whole], return_routed_experts=True),
                "the reply has no routed experts")
    for name, value in (("sequence_multiple", 0), ("sequence_multiple", "8"), ("pad_token_id", None)):
        input_error(lambda: baton.assemble_rollouts([[5]], [whole], **{name: value}), "expected an integer",
                    param=f"/{name}")


class Running(threading.Thread):
    """A request for rollouts on a thread of its own."""

    def __init__(self, prompts, sampling, **options):
        super().__init__(daemon=True)
        self.args, self.options, self.batch, self.error = (URL, prompts, sampling), options, None, None
        self.start()

    def run(self):
        try:
            self.batch = baton.rollouts(*self.args, **self.options)
        except baton.BatonError as e:
            self.error = e

    def result(self):
        self.join(PATIENCE_S)
        check(not self.is_alive() and self.error is None, self.error)
        return self.batch


def listed(request_id):
    rows = baton.request(URL, "GET", "/v1/generations")["generations"]
    return [r for r in rows if r["request_id"] == request_id]


def push(path, label):
    return baton.push(path, URL, via="path", weight_version=label)["serial"]


def pause_in(request_id, n_rows):
    """Pauses when each of its sequences has tokens; the numbers of tokens, which then stay."""
    wait(lambda: [r["n_tokens"] > 3 for r in listed(request_id)] == [True] * n_rows, "tokens")
    baton.request(URL, "POST", "/v1/pause", {"mode": "keep"})
    counts = [r["n_tokens"] for r in listed(request_id)]
    time.sleep(0.05)
    check(counts == [r["n_tokens"] for r in listed(request_id)] and len(counts) == n_rows, counts)
    return counts


def disturbed():
    """A pause and an update in mid batch, the boundary in `versions`; an abort of one prompt."""
    prompts, sampling = [[5, 6], [7, 8, 9]], {"max_tokens": 900, "n": 2, "ignore_eos": True, "seed": 3}
    first = status()["weights"]["serial"]
    running = Running(prompts, sampling, request_id="mid", layout="tight")
    counts = pause_in("mid", 4)
    second = push(f"{MODEL}/checkpoints/step-00100.safetensors", "step-100")
    baton.request(URL, "POST", "/v1/resume")
    batch = running.result()
    serials = [v["serial"] for v in batch.metadata["versions"]]
    check(serials == [first, second], serials)
    for row, count in enumerate(counts):
        made = batch["versions"][row][batch["loss_mask"][row]]
        check(made.tolist() == [0] * count + [1] * (900 - count), row, count)
    check((batch["versions"][~batch["loss_mask"]] == -1).all())

    running = Running(prompts, sampling, request_id="cut")
    counts = pause_in("cut", 4)
    check(baton.request(URL, "POST", "/v1/abort_requests", {"request_ids": ["rollouts-cut-1"]}) is not None)
    baton.request(URL, "POST", "/v1/resume")
    batch = running.result()
    names = [batch.metadata["finish_reasons"][i] for i in batch["finish_reasons"]]
    check(names == ["length", "length", "abort", "abort"], names)
    check(batch["response_lengths"].tolist()[:2] == [900, 900])
    check(batch["response_lengths"].tolist()[2:] == counts[2:], batch["response_lengths"], counts)
    check(batch["loss_mask"].sum(1).tolist() == batch["response_lengths"].tolist())


def spoil(source, out):
    """The checkpoint, with a norm so large that its logits are not finite."""
    with open(source, "rb") as f:
        raw = bytearray(f.read())
    begin = 8 + struct.unpack("<Q", raw[:8])[0]
    first, last = (begin + at for at in json.loads(raw[8:begin])["model.norm.weight"]["data_offsets"])
    raw[first:last] = bytes.fromhex("7f7f") * ((last - first) // 2)
    with open(out, "wb") as f:
        f.write(raw)


def failed():
    """Sequences that fail in mid batch are rows; those that had ended are whole; if all fail it is an error."""
    spoil(f"{MODEL}/checkpoints/step-00100.safetensors", f"{WORK}/huge.safetensors")
    prompts, sampling = [[5, 6], [7] * 1016], {"max_tokens": 900, "ignore_eos": True}
    running = Running(prompts, sampling, request_id="fails")
    wait(lambda: [r["n_tokens"] for r in listed("fails")][1:] == [8], "the short one")
    baton.request(URL, "POST", "/v1/pause", {"mode": "keep"})
    (count, _) = [r["n_tokens"] for r in listed("fails")]
    push(f"{WORK}/huge.safetensors", "huge")
    baton.request(URL, "POST", "/v1/resume")
    batch = running.result()
    check([batch.metadata["finish_reasons"][i] for i in batch["finish_reasons"]] == ["error", "length"])
    error, none = batch.metadata["errors"]
    check(none is None and error["code"] == "non_finite_logits" and "'huge'" in error["message"], error)
    check(batch["response_lengths"].tolist() == [count, 8], batch["response_lengths"], count)
    check(batch["loss_mask"].sum(1).tolist() == [0, 8] and batch["attention_mask"].sum() == 2 + count + 1024)
    try:
        baton.rollouts(URL, prompts, sampling)
        sys.exit("a batch of failures was answered")
    except baton.BatonError as e:
        check((e.status, e.code) == (500, "non_finite_logits"), e)
    (a, b) = baton.stream_rollouts(URL, prompts, sampling)
    check({a.metadata["errors"][0]["code"], b.metadata["errors"][0]["code"]} == {"non_finite_logits"})


class Unread:
    """A client that does not read the reply to a request for rollouts, until its test calls read()."""

    def __init__(self, stream=False, max_tokens=1, n=24):
        host, port = URL.removeprefix("http://").split(":")
        body = json.dumps({"prompts": [[5, 6]], "sampling_params": {"max_tokens": max_tokens, "n": n, "ignore_eos": True},
                           "layout": "tight", "sequence_multiple": 65536, "stream": stream}).encode()
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect((host, int(port)))
        self.socket.sendall(b"POST /v1/rollouts HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                            b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def replied(self):
        """Its status, as soon as there is one; the rest is left where it is."""
        return int(self.socket.recv(12, socket.MSG_PEEK | socket.MSG_WAITALL)[9:])

    def read(self):
        with self.socket:
            return self.socket.makefile("rb").read()


def begun(n):
    wait(lambda: status()["admission"]["generate"]["running"] + status()["admission"]["generate"]["waiting"] == n, "begun")


def unread():
    """Batches that clients do not read count against --max-unread-bytes; what is read makes room. The limit is 40 MiB
    here, and a batch of 24 rows has 27 MiB: more than the sockets take."""
    try:
        baton.rollouts(URL, [[5]], {"n": 64, "max_tokens": 1}, layout="tight", sequence_multiple=65536)
        sys.exit("a batch above the limit was made")
    except baton.BatonError as e:
        check(e.status == 413 and f"at most {40 << 20} are allowed" in e.message, e)

    first = Unread()
    check(first.replied() == 200)
    refused_ = Unread().read()  # at once, before anything is computed
    check(refused_.startswith(b"HTTP/1.1 503") and b'"overloaded"' in refused_ and b"--max-unread-bytes" in refused_ and
          b"Retry-After" in refused_, refused_[:900])
    check(len(first.read()) > 27 << 20)
    wait(lambda: Unread(n=23).read().startswith(b"HTTP/1.1 200"), "room again")

    baton.request(URL, "POST", "/v1/pause", {"mode": "keep"})
    both = [Unread(), Unread()]  # neither takes room before it has ended
    begun(2)
    baton.request(URL, "POST", "/v1/resume")
    check(sorted(x.replied() for x in both) == [200, 503])
    for x in both:
        x.read()

    baton.request(URL, "POST", "/v1/pause", {"mode": "keep"})
    stream, whole = Unread(stream=True, max_tokens=100), Unread()
    begun(2)
    baton.request(URL, "POST", "/v1/resume")
    check(whole.replied() == 200)
    told = stream.read()  # its only frame found no room: an error before the first byte
    if told.startswith(b"HTTP/1.1 200"):  # on a slow machine its rows end one after the other, and small frames fit
        check(len(told) > 27 << 20, len(told))
    else:
        check(told.startswith(b"HTTP/1.1 503") and b"--max-unread-bytes" in told, told[:900])
    whole.read()


{"equal": equal, "routed": routed, "streams": streams, "refusals": refusals,
 "arguments": arguments, "disturbed": disturbed, "failed": failed, "unread": unread}[COMMAND]()
print(n_checks)
