"""Every allocation, or every system call, of a request, a start and a drain fails in turn.

Whatever fails: no crash, no hang, no 4xx for a failure of the server, no partial weights served, and the next
request works. If the failure comes after the commit, an update may lose its reply; then the new weights are
complete.

Usage: torture.py BATON MODEL_DIR CLIENT_DIR FAIL_SO WORK_DIR N_STARTS allocation|call
       THOROUGH=1: each one, however many there are
"""

import http.client
import json
import mmap
import os
import random
import socket
import subprocess
import sys
import time
import urllib.parse

sys.path.insert(0, sys.argv[3])
import baton
from fault_world import WAIT_S, Fault, World, body_of, members_of, TENSORS

WHAT = sys.argv[7]
THOROUGH = os.environ.get("THOROUGH") == "1"
FOREVER = 1 << 40
EXHAUSTIVE = FOREVER if THOROUGH else 150  # the first ones one by one, then ever wider apart
# Memory runs out for a while; a system call fails, or some after each other do.
HOW_MANY = {"allocation": (1, FOREVER), "call": (1, 3)}[WHAT]


class Memory:
    """The control page of fail_malloc.c and fail_calls.c."""

    def __init__(self, path):
        with open(path, "wb") as f:
            f.write(b"\0" * 4096)
        with open(path, "r+b") as f:
            self.page = mmap.mmap(f.fileno(), 4096)
        self.words = memoryview(self.page).cast("q")
        self.path = path

    def arm(self, first, n):
        self.words[1], self.words[2], self.words[3] = n, 0, 0
        self.words[0] = first  # last: from now on it counts

    def disarm(self):
        self.words[0] = 0

    @property
    def n_asked(self):
        return self.words[2]

    @property
    def n_failed(self):
        return self.words[3]

    @property
    def last(self):
        """Name of the call that failed last."""
        return bytes(self.words[4:8]).split(b"\0")[0].decode() or WHAT


class Server:
    """A `baton serve` under the preloaded library."""

    def __init__(self, memory):
        self.memory, self.log = memory, os.path.join(sys.argv[5], "torture.log")
        model = sys.argv[2]
        with open(self.log, "wb") as f:
            self.process = subprocess.Popen(
                [sys.argv[1], "serve", "--listen", "127.0.0.1:0", "--model", model, "--weights",
                 f"{model}/checkpoints/step-00000.safetensors", "--weight-version", "step-0",
                 "--allow-path", f"{model}/adapters"],
                stderr=f, env=dict(os.environ, LD_PRELOAD=sys.argv[4], FAIL_MALLOC=memory.path,
                                   FAIL_CALLS=memory.path))

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return f.read()

    def wait_started(self, lost_line=lambda: False):
        """The URL; None when it ended instead; "" when the line that has it may have been lost."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            ended = self.process.poll() is not None
            for line in self.said().splitlines(keepends=True):
                if '"event":"serving"' in line and line.endswith("\n"):
                    return f"http://127.0.0.1:{json.loads(line)['port']}"
            if ended:
                return None
            if lost_line() and self.is_listening():
                return ""
            time.sleep(0.005)
        self.process.kill()
        raise Fault("neither served nor ended")

    def is_listening(self):
        """Its loops are the last that it starts."""
        tasks = f"/proc/{self.process.pid}/task"
        for task in os.listdir(tasks):
            try:
                with open(f"{tasks}/{task}/comm", encoding="ascii") as name:
                    if name.read().startswith("http/"):
                        return True
            except (FileNotFoundError, ProcessLookupError):  # it has just ended
                continue
        return False

    def alive(self):
        if self.process.poll() is not None:
            raise Fault(f"the server ended with {self.process.returncode}: {self.said()[-2000:]}")

    def end(self):
        """Its exit status."""
        self.process.terminate()
        try:
            return self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired as e:
            self.process.kill()
            raise Fault(f"it does not end: {self.said()[-2000:]}") from e

    def stop(self):
        rc = self.end()
        if rc != 0:
            raise Fault(f"the server ended with {rc}: {self.said()[-2000:]}")


def numbers(total):
    """1, 2, 3, ... and then ever wider apart, up to total."""
    n = 1
    while n <= total:
        yield n
        n += 1 if n < EXHAUSTIVE else max(1, n // 40)


def judge(what, answer):
    """A reply under an injected failure: success, or a server error, never a client error. A file that
    cannot be read (EIO) is its owner's."""
    if answer is not None and answer.status == 422 and b"source_unreadable" in answer.raw and \
            b"(errno 5)" in answer.raw:
        return
    if answer is not None and answer.status not in (200, 503, 507, 500):
        raise Fault(f"{what}: {answer}")


def sweep(w, server, what, once, check, counts):
    """Runs `once` with each one failing alone, then with each and more after it failing."""
    memory = server.memory
    for n_to_fail in HOW_MANY:
        memory.arm(FOREVER, 1)
        once()
        total = memory.n_asked
        memory.disarm()
        check(None)
        for n in numbers(total + 20):
            memory.arm(n, n_to_fail)
            failing = f"{what}, {WHAT} {n} of {total}, {n_to_fail} fail"
            try:
                answer = attempt(w, once)
                memory.disarm()
                w.hang_up()
                server.alive()
                judge(what, answer)
                check(answer)
            except Fault as e:
                raise Fault(f"{failing}, the last was {memory.last}: {e}") from e
            key = (what, "lost" if answer is None else answer.status)
            counts[key] = counts.get(key, 0) + 1


def attempt(w, once):
    """The answer, or None when the connection was lost to the failure; a hang is a Fault."""
    try:
        return once()
    except Fault as e:
        if isinstance(e.__cause__, (TimeoutError, socket.timeout)):
            raise
        return None
    except ConnectionError:
        return None


def update_checks(w, goal):
    """What must hold after an attempt to push goal[0] under the label goal[1]."""

    def check(answer):
        rows, label = goal
        listed = w.ask("GET", "/v1/weights")
        if listed.status != 200:
            raise Fault(f"GET /v1/weights: {listed}")
        if answer is not None and answer.status == 200 and listed.body["weight_version"] != label:
            raise Fault(f"a success that serves {listed.body['weight_version']}, not {label}")
        if listed.body["weight_version"] == label:
            w.n_after += answer is not None and answer.status != 200
            w.label, w.serial = label, listed.body["serial"]
            w.tensors = {r.name: (r.true_sum, label, w.serial) for r in rows}
        w.check()
        w.wait_no_update()

    return check


def sweep_updates(w, server, counts):
    for door in ("shm", "body", "session"):
        goal = [None, None]
        check = update_checks(w, goal)

        def once():
            goal[:] = [w.rng.choice(w.checkpoints).rows, w.new_label()]
            rows, label = goal
            if door == "shm":
                return w.ask("POST", "/v1/update_weights", members_of(rows, label=label))
            if door == "body":
                query = urllib.parse.urlencode({"weight_version": label})
                return w.ask("POST", f"/v1/update_weights?{query}", body_of(rows), {"Content-Type": TENSORS})
            return session(w, rows, label)

        sweep(w, server, f"update by {door}", once, check, counts)


def fail(e):
    raise e


def session(w, rows, label):
    """start, one chunk, finish; the first failed reply ends it. If the reply to start is lost for lack of
    memory, the session stays until its lease ends or it is looked up."""
    try:
        a = w.ask("POST", "/v1/update_weights/start", {"weight_version": label})
    except Fault as e:
        a = None if not isinstance(e.__cause__, TimeoutError) else fail(e)
    if a is None or a.status != 200:
        w.memory.disarm()
        orphan = w.status()["update"]
        if orphan is not None:
            w.n_orphans += 1
            if a is not None and "to answer" in a.body["error"]["message"]:
                raise Fault(f"a refused start leaves {orphan}")
            w.ask("POST", "/v1/update_weights/abort", {"update_id": orphan["update_id"]})
        return a
    update = a.body["update_id"]
    for path, body in (("", members_of(rows, update_id=update)), ("/finish", {"update_id": update})):
        try:
            a = w.ask("POST", "/v1/update_weights" + path, body)
        except Fault:
            a = None
        if a is None or a.status != 200:
            w.memory.disarm()
            again = w.ask("POST", "/v1/update_weights/abort", {"update_id": update})
            if again.status not in (200, 404, 409):  # 409: committed, and the answer was lost
                raise Fault(f"abort: {again}")
            return a
    return a


def sweep_generate(w, server, golden, counts):
    case = golden["step-00000"]["cases"][0]
    request = {"token_ids": case["prompt_token_ids"],
               "sampling_params": {"max_tokens": 8, "temperature": 0, "logprobs": 1}}
    text = {"prompt": "In the beginning", "max_tokens": 4, "temperature": 0, "stream": True}

    def check(answer):
        if answer is not None and answer.status == 200:
            true(answer)
        idle(w)
        sound = w.ask("POST", "/v1/generate", request)
        if sound.status != 200 or sound.body["choices"][0]["token_ids"] != case["greedy_token_ids"][:8]:
            raise Fault(f"the next one: {sound}")

    def true(answer):
        """What is called a success is the whole truth."""
        if answer.body is None:
            events = [e[6:] for e in answer.raw.decode().split("\n\n") if e.startswith("data: ")]
            parts = [json.loads(e) for e in events if e != "[DONE]"]
            said = "".join(p["choices"][0]["text"] for p in parts if p.get("choices"))
            if parts and "meta_info" in parts[-1]:
                said = parts[-1]["text"]
            ok = any("error" in p for p in parts) or events[-1:] != ["[DONE]"] or said == whole_text
        elif "meta_info" in answer.body:
            ok = answer.body["text"] == whole_text and answer.body["meta_info"]["completion_tokens"] == 4
        elif "choices" in answer.body:
            ok = answer.body["choices"][0]["token_ids"] == case["greedy_token_ids"][:8]
        else:
            ok = answer.body["tokens"] == case["prompt_token_ids"]
        if not ok:
            raise Fault(f"not true: {answer}")

    whole = w.ask("POST", "/v1/completions", dict(text, stream=False))
    whole_text = whole.body["choices"][0]["text"]
    sweep(w, server, "generate", lambda: w.ask("POST", "/v1/generate", request), check, counts)
    sweep(w, server, "stream", lambda: w.ask("POST", "/v1/completions", text), check, counts)
    sglang = {"text": "In the beginning", "return_logprob": True, "logprob_start_len": 0,
              "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
    for name, stream in ("sglang", False), ("sglang stream", True):
        sweep(w, server, name, lambda s=stream: w.ask("POST", "/generate", dict(sglang, stream=s)),
              check, counts)
    sweep(w, server, "tokenize", lambda: w.ask("POST", "/tokenize", {"prompt": "In the beginning"}),
          check, counts)


def sweep_lora(w, server, counts):
    """Loads of one name, requests that use it: what serves is whole, and is what was said."""
    request = {"model": "x", "token_ids": [40, 77, 258],
               "sampling_params": {"max_tokens": 8, "temperature": 0}}
    known, goal = {}, ["rslora"]

    def load():
        goal[0] = "rslora" if goal[0] == "shout" else "shout"
        return w.ask("POST", "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": goal[0]})

    def serving():
        """(digest, token ids) of what serves now."""
        answer = w.ask("POST", "/v1/generate", request)
        listed = w.ask("GET", "/v1/lora_adapters").body["adapters"]
        if answer.status != 200 or len(listed) != 1:
            raise Fault(f"the next one: {answer}, {listed}")
        if answer.body["adapter"] != {"name": "x", "revision": listed[0]["revision"]}:
            raise Fault(f"{answer.body['adapter']}, but {listed} serves")
        return listed[0]["digest"], answer.body["choices"][0]["token_ids"]

    def settled():
        body = w.ask("GET", "/v1/lora_adapters").body
        t = body["totals"]
        return t["loading"] + t["users"] + t["older_revisions"] + t["nbytes_reserved"] == 0 and \
            t["nbytes"] == sum(a["nbytes"] for a in body["adapters"])

    def check(answer):
        idle(w)
        w.wait("nothing is left of the load", settled)
        digest, ids = serving()
        if known[digest] != ids:
            raise Fault(f"{digest} generates {ids}")
        if answer is not None and answer.status == 200 and "digest" in (answer.body or {}) and \
                answer.body["digest"] != digest:
            raise Fault(f"a success that serves {digest}: {answer}")

    def generate():
        answer = w.ask("POST", "/v1/generate", request)
        if answer.status == 200 and answer.body["choices"][0]["token_ids"] not in known.values():
            raise AssertionError(f"not true: {answer}")
        return answer

    for _ in range(2):
        if load().status != 200:
            raise Fault("it was not loaded")
        known.update([serving()])
    if len({tuple(ids) for ids in known.values()}) != 2:
        raise Fault(f"adapters that change nothing: {known}")
    sweep(w, server, "load of an adapter", load, check, counts)
    sweep(w, server, "generate with an adapter", generate, check, counts)
    sweep(w, server, "list of adapters", lambda: w.ask("GET", "/v1/lora_adapters"), check, counts)
    if w.ask("POST", "/v1/unload_lora_adapter", {"lora_name": "x"}).status != 200:
        raise Fault("it was not unloaded")


def idle(w):
    def condition():
        a = w.status()["admission"]["generate"]
        return a["running"] == 0 and a["waiting"] == 0

    w.wait("no generation is left", condition)


def sweep_cancel(w, server, counts):
    """The client goes away from a long generation; memory fails from then on."""
    body = json.dumps({"token_ids": [1], "sampling_params": {"max_tokens": 900, "ignore_eos": True}})
    head = f"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    for n_to_fail in HOW_MANY:
        for n in range(1, 40):
            s = w.raw(head)
            w.wait("it runs", lambda: w.status()["admission"]["generate"]["running"] == 1)
            server.memory.arm(n, n_to_fail)
            s.close()
            end = time.monotonic() + 0.02  # a window for the failure, not a wait for an event
            while time.monotonic() < end and server.memory.n_failed == 0:
                time.sleep(0.001)
            server.memory.disarm()
            server.alive()
            idle(w)
            counts["cancel", "ended"] = counts.get(("cancel", "ended"), 0) + 1


def sweep_start(memory, n_starts, counts):
    memory.arm(FOREVER, 1)
    server = Server(memory)
    if server.wait_started() is None:
        raise Fault(f"no start at all: {server.said()}")
    total = memory.n_asked
    memory.disarm()
    server.stop()
    rng = random.Random(total)
    few = sorted(set(range(1, n_starts // 3)) | {rng.randint(1, total) for _ in range(n_starts)})
    for n in range(1, total + 1) if THOROUGH else few:
        memory.arm(n, HOW_MANY[n % 2])
        server = Server(memory)
        try:
            url = server.wait_started(lambda: memory.last == "write" and memory.n_failed > 0)
        except Fault as e:
            raise Fault(f"start, {WHAT} {n} of {total}, {memory.last}: {e}: {server.said()[-1500:]}") from e
        memory.disarm()
        if url == "" and server.end() == 0:
            counts["start", "unheard"] = counts.get(("start", "unheard"), 0) + 1
            continue
        if url:
            if baton.request(url, "GET", "/v1/weights", timeout=WAIT_S)["weight_version"] != "step-0":
                raise Fault("it started without its weights")
            server.stop()
            counts["start", "serves"] = counts.get(("start", "serves"), 0) + 1
            continue
        if server.process.returncode not in (1, 2) or "\nbaton: " not in "\n" + server.said():
            raise Fault(f"start, {WHAT} {n} of {total}, {memory.last}: {server.process.returncode}: "
                        f"{server.said()[-1500:]}")
        counts["start", "refused"] = counts.get(("start", "refused"), 0) + 1


def drained(memory, n, n_to_fail, golden):
    """A server that is told to end while it generates, and what it then asked for. It stops cleanly, and each
    reply is correct."""
    case = golden["step-00000"]["cases"][0]
    server = Server(memory)
    url = urllib.parse.urlsplit(server.wait_started())
    body = json.dumps({"token_ids": case["prompt_token_ids"],
                       "sampling_params": {"max_tokens": 16, "temperature": 0}})
    s = socket.create_connection((url.hostname, url.port), timeout=WAIT_S)
    s.sendall(f"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    idle = socket.create_connection((url.hostname, url.port), timeout=WAIT_S)
    memory.arm(n, n_to_fail)
    server.stop()
    total = memory.n_asked
    memory.disarm()
    try:
        answer = World.answer_on(s)
        judge("drain", answer)
        if answer.status == 200 and \
                answer.body["choices"][0]["token_ids"] != case["greedy_token_ids"][:16] and \
                answer.body["choices"][0]["finish_reason"] != "abort":
            raise Fault(f"not true: {answer}")
    except (OSError, http.client.HTTPException):
        answer = None
    s.close()
    idle.close()
    return total, answer


def sweep_drain(memory, golden, n_drains, counts):
    total, answer = drained(memory, FOREVER, 1, golden)
    if answer is None:
        raise Fault("a drain without any failure lost an answer")
    step = 1 if THOROUGH else max(1, total // n_drains)
    for n_to_fail in HOW_MANY:
        for n in range(1, total + 10, step):
            try:
                _, answer = drained(memory, n, n_to_fail, golden)
            except Fault as e:
                raise Fault(f"drain, {WHAT} {n} of {total}, {memory.last}: {e}") from e
            key = ("drain", "lost" if answer is None else answer.status)
            counts[key] = counts.get(key, 0) + 1


def main():
    with open(f"{sys.argv[2]}/golden.json", encoding="utf-8") as f:
        golden = json.load(f)["checkpoints"]
    memory, counts, began = Memory(os.path.join(sys.argv[5], "fail_malloc")), {}, time.monotonic()
    server = Server(memory)
    w = World(server.wait_started(), sys.argv[2], sys.argv[5], random.Random(1), server.process.pid)
    w.memory, w.n_orphans, w.n_after = memory, 0, 0
    try:
        w.look()
        sweep_generate(w, server, golden, counts)
        sweep_cancel(w, server, counts)
        sweep_lora(w, server, counts)
        sweep_updates(w, server, counts)
        w.wait("one version is alive", lambda: w.status()["weights"]["versions_alive"] == 1)
        server.stop()
        sweep_start(memory, int(sys.argv[6]), counts)
        sweep_drain(memory, golden, int(sys.argv[6]) // 2, counts)
    finally:
        memory.disarm()
        server.process.kill()
        for name in w.left_over():
            w.unlink(name)
    print(", ".join(f"{what} {how}: {n}" for (what, how), n in sorted(counts.items(), key=str)) +
          f"; {w.n_orphans} starts and {w.n_after} commits whose answer was lost to the failure"
          f"; {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
