"""The clients of linear.py: each makes random calls, one after another, and records them in the history."""

import http.client
import json
import random
import socket
import threading

import linear_doubles
from linear_check import FLEETS
from linear_contents import N_ADAPTERS, N_CONTENTS, misnamed
from linear_deltas import by_delta, by_wrong_delta
from linear_world import CALL_S

PROMPTS = [[40, 77, 258], [5, 6], [829, 256, 273], [17], [400, 401, 402, 403, 404, 405]]
MODES = ["finish", "recompute", "continue"]
PARTIAL_SHARE, ADAPTER_SHARE, HANGUP_SHARE = 0.12, 0.25, 0.1
FILE = "application/vnd.safetensors"


class Client(threading.Thread):
    def __init__(self, world, name, does, pause_s):
        super().__init__(daemon=True)
        self.name, self.world, self.does, self.pause_s = name, world, does, pause_s
        self.rand, self.failure = random.Random(f"{world.options.seed} {name}"), None

    def run(self):
        try:
            while not self.world.stop.is_set():
                self.does(self)
                self.wait(self.rand.random() * 2 * self.pause_s)
        except Exception as e:  # pylint: disable=broad-except
            self.failure = e

    def wait(self, seconds):
        self.world.stop.wait(seconds)

    def post(self, path, body=None, **more):
        return self.world.ask("POST", path, body, **more)

    def status(self):
        return self.world.ask("GET", "/v1/status")

    def begin(self, op, **more):
        return self.world.history.begin(self.name, op, **more)

    def end(self, call, answer, **more):
        self.world.history.end(call, *answer, **more)

    def new_label(self, form):
        return self.world.new_label(form)


def clients_of(world):
    clients = [("trainer0", trainer, 0.15), ("trainer1", trainer, 0.4), ("reader", reader, 0.05), ("life", lifecycle, 0.8),
               ("label", labeller, 0.5), *((f"gen{i}", generator, 0.02) for i in range(5))]
    if world.mode == "single":
        clients.append(("lora", adapters, 0.6))
    if world.options.kill_every > 0:
        clients.append(("chaos", world.chaos, 0.1))
    return [Client(world, *c) for c in clients]


# ---- trainers: a way to push returns (status, answer); None: the client knows that there is no answer ----

def query_of(call):
    return f"/v1/update_weights?weight_version={call['label']}{'&partial=true' if call['partial'] else ''}"


def data_of(c, call):
    return c.world.contents.data(call["content"], call["partial"])


def named(c, call):
    """What it is: a vLLM has no word for partial, not even for one that is not."""
    said = call["partial"] or c.world.mode != "passed"
    return {"weight_version": call["label"], **({"partial": call["partial"]} if said else {})}


def by_path(c, call):
    return c.post("/v1/update_weights", dict(c.world.body(call), **named(c, call)))


def by_body(c, call):
    return c.post(query_of(call), data_of(c, call), kind=FILE)


def by_session(c, call):
    """Started, sent, verified or not, and finished or aborted."""
    status, said = c.post("/v1/update_weights/start", dict(named(c, call), lease_s=5))
    if status != 200:
        call["never"] = True
        return status, said
    mine = {"update_id": said["update_id"]}
    status, said = send_within(c, call, mine)
    gives_up = call["how"] == "abort"
    if status == 200 and call["how"] == "verify":
        status, said = c.post("/v1/update_weights/verify", mine)
        c.wait(c.rand.random() * 0.1)
        gives_up = c.rand.random() < 0.3
    if status == 200 and not gives_up:
        return c.post("/v1/update_weights/finish", mine)
    call["never"] = True
    c.post("/v1/update_weights/abort", mine)
    return (None, {}) if gives_up else (status, said)


def send_within(c, call, mine):
    if c.world.takes_bodies:
        return c.post(f"/v1/update_weights?update_id={mine['update_id']}", data_of(c, call), kind=FILE)
    return c.post("/v1/update_weights", dict(mine, **c.world.body(call)))


def by_group(c, call):
    """By a group of the trainer, which its engines join first."""
    c.post("/v1/weight_transfer/init", {"transport": "nccl", "master_address": "10.0.0.1", "master_port": 29500,
                                        "world_size": 1 + len(c.world.engines)})
    return c.post("/v1/update_weights", dict(linear_doubles.COLUMNS, transport="nccl", weight_version=call["label"]))


def by_cut(c, call):
    """The connection ends in mid body."""
    data = data_of(c, call)
    head = (f"POST {query_of(call)} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FILE}\r\n"
            f"Content-Length: {len(data)}\r\n\r\n")
    call["never"] = True
    try:
        with socket.create_connection(("127.0.0.1", c.world.port), timeout=10) as s:
            s.sendall(head.encode() + data[:c.rand.randrange(len(data) - 1)])
    except OSError:
        pass
    return None, {}


def by_mistake(c, call):
    """Tensors that the model does not have."""
    call["never"] = True
    if c.world.takes_bodies:
        answer = c.post(query_of(call), misnamed(data_of(c, call), c.rand), kind=FILE)
    elif c.world.mode == "passed":
        answer = c.post("/v1/update_weights", dict(linear_doubles.WRONG, transport="nccl", weight_version=call["label"]))
    else:
        path = f"{c.world.contents.adapter_path(0)}/adapter_model.safetensors"
        answer = c.post("/v1/update_weights", {"path": path, "weight_version": call["label"]})
    assert answer[0] != 200, f"a wrong update was committed: {answer}"
    return answer


WAYS = {"path": by_path, "body": by_body, "session": by_session, "verify": by_session, "abort": by_session,
        "cut": by_cut, "wrong": by_mistake, "group": by_group, "delta": by_delta, "wrong_delta": by_wrong_delta}
OF_BODIES = ("body", "cut", "delta", "wrong_delta")


def can(world, way):
    return world.mode == "passed" if way == "group" else world.takes_bodies or way not in OF_BODIES


def trainer(c):
    k, how = c.rand.randrange(N_CONTENTS), c.rand.choice([way for way in WAYS if can(c.world, way)])
    partial = "delta" not in how and c.rand.random() < PARTIAL_SHARE
    call = c.begin("push", label=c.new_label("v{}-" + f"{'p' if partial else 'c'}{k}"), content=k, partial=partial, how=how)
    status, said = WAYS[how](c, call)
    made = {"serial": said.get("serial"), "update_id": said.get("update_id")} if status == 200 else {"serial": None}
    c.end(call, (status, said), **made)
    # 408: it may have been committed; the 5xx of one in front says that some engines may have it.
    refused = status is not None and (400 <= status < 500 and status != 408 or status >= 500 and c.world.mode == "single")
    call["never"] = call.get("never", False) or refused
    if status == 200 and said.get("phase") != "committed":
        call["odd"] = str(said)[:300]


def labeller(c):
    label, body = c.new_label("L{}"), {}
    if c.rand.random() < 0.5 and c.world.mode not in FLEETS:
        at = (c.status()[1].get("weights") or {}).get("serial")
        body = {"if_serial": at} if at else {}
    call = c.begin("label", label=label, if_serial=body.get("if_serial"))
    status, said = c.post("/v1/weights/label", dict(body, weight_version=label))
    c.end(call, (status, said), serial=said.get("serial") if status == 200 else None)
    call["never"] = status is not None and 400 <= status < 500
    if call["never"] and call["if_serial"] is None and (said.get("error") or {}).get("param") == "/if_serial":
        call["odd"] = f"it names /if_serial, which was not sent: {said}"[:300]


# ---- others that change something ----

def pause_and_resume(c):
    mode = c.rand.choice(["keep", "keep", "wait", "abort"])
    call = c.begin("pause", mode=mode)
    c.end(call, c.post("/v1/pause", {"mode": mode, "timeout_s": 3, "lease_s": 4,
                                     "new_requests": c.rand.choice(["queue", "reject"])}))
    c.wait(c.rand.random() * 0.4)
    call = c.begin("resume")
    c.end(call, c.post("/v1/resume", {}))


def sleep_and_wake(c):
    level = 2 if c.rand.random() < 0.3 else 1
    call = c.begin("sleep", level=level)
    c.end(call, c.post("/v1/sleep", {"level": level}))
    c.wait(c.rand.random() * 0.2)
    for _ in range(20):
        call = c.begin("wake")
        c.end(call, c.post("/v1/wake", {}))
        if call["status"] == 200 or c.world.stop.is_set():
            return
        c.wait(0.2)


def abort_requests(c):
    call = c.begin("abort_requests")
    c.end(call, c.post("/v1/abort_requests", {"all": True}))


def abort_update(c):
    """That of a trainer, by its id."""
    call = c.begin("abort_update")
    status, said = c.status()
    update = (said.get("update") or {}).get("update_id")
    c.end(call, c.post("/v1/update_weights/abort", {"update_id": update}) if update else (status, said))


def lifecycle(c):
    does, = c.rand.choices((pause_and_resume, sleep_and_wake, abort_requests, abort_update), (55, 25, 10, 10))
    does(c)


def adapters(c):
    if c.rand.random() < 0.25:
        call = c.begin("unload")
        c.end(call, c.post("/v1/unload_lora_adapter", {"lora_name": "ad"}))
        return
    k = c.rand.randrange(N_ADAPTERS)
    call = c.begin("load", content=k)
    status, said = c.post("/v1/load_lora_adapter", {"lora_name": "ad", "lora_path": c.world.contents.adapter_path(k)})
    c.end(call, (status, said), revision=said.get("revision"))


# ---- those that look ----

def reader(c):
    call = c.begin("read")
    status, said = c.status()
    weights = said.get("weights") or {}
    c.end(call, (status, said), label=weights.get("weight_version"), serial=weights.get("serial"), ready=said.get("ready"))


class Reply:
    """What came of a generation."""

    def __init__(self, now):
        self.now, self.status, self.said = now, None, {}
        self.tokens, self.at, self.lps, self.spans = [], [], [], []
        self.finish = self.adapter = self.boot = self.upstream = None

    def take(self, event):
        if event.get("error"):
            self.said = event
            return
        choice = event["choices"][0]
        self.boot, self.spans = event["boot_id"], choice.get("weight_versions") or self.spans
        self.tokens += choice["token_ids"]
        self.at += [self.now()] * len(choice["token_ids"])
        self.lps += [one["logprob"] for one in (choice.get("logprobs") or {"content": []})["content"]]
        self.finish, self.adapter = choice["finish_reason"] or self.finish, event.get("adapter") or self.adapter

    def read(self, answer, quit_at):
        self.status, self.upstream = answer.status, answer.getheader("X-Baton-Upstream")
        if answer.status != 200:
            self.said = json.loads(answer.read())
            return
        for line in iter(answer.readline, b""):
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                self.take(json.loads(line[6:]))
            if quit_at and len(self.tokens) >= quit_at:
                return

    def record(self):
        names = ("tokens", "at", "lps", "spans", "finish", "adapter", "boot", "upstream")
        return {**{name: getattr(self, name) for name in names}, "error": self.said or None}


def generator(c):
    prompt, n = c.rand.choice(PROMPTS), c.rand.choice([1, 8, 40, 120, 300])
    mode = c.world.options.on_update or c.rand.choice(MODES)
    model = "ad" if c.world.mode == "single" and c.rand.random() < ADAPTER_SHARE else None
    body = {"token_ids": prompt, "on_update": mode, "stream": True, **({"model": model} if model else {}),
            "sampling_params": {"max_tokens": n, "temperature": 0, "ignore_eos": True, "logprobs": 1}}
    path, headers, reply = "/v1/generate", {}, Reply(c.world.history.now)
    if c.world.mode in linear_doubles.MODES:
        path, body, headers = linear_doubles.request_of(prompt, n)
        reply = linear_doubles.Reply(c.world.history.now, c.world.tags)
    quit_at = c.rand.randrange(1, 400) if c.rand.random() < HANGUP_SHARE else None
    call = c.begin("generate", prompt=prompt, on_update=mode, n=n, model=model)
    connection = http.client.HTTPConnection("127.0.0.1", c.world.port, timeout=CALL_S)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
        reply.read(connection.getresponse(), quit_at)
    except (OSError, http.client.HTTPException, ValueError) as e:
        reply.said = {"lost": repr(e)}
    finally:
        connection.close()
    c.end(call, (reply.status, reply.said), **reply.record())
    if reply.status != 200:
        c.wait(0.05)
