"""update_weights_from_ipc, as checkpoint-engine pushes weights: through ZeroMQ sockets, in vLLM's and
in SGLang's form, on one GPU and on two; and what happens when the trainer dies,
sends wrong data, or is late, when its client disconnects, and when another client aborts the update.
Usage: checkpoint_engine_update.py BATON MODEL CLIENT_DIR FAKECUDA FAKECUDA_OF_TRAINERS [SEED]"""

import contextlib
import faulthandler
import http.client
import json
import os
import pickle
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[3] if len(sys.argv) > 3 else "")

import ipc_world  # noqa: E402
import zmq  # noqa: E402
from parameter_server import (Rank, as_list, dumps, entry, handle, place, sglang_body,  # noqa: E402
                               vllm_body)
from ipc_world import TORCH, WAIT_S, World, must  # noqa: E402

GIVE_UP_S = 280
ABORT = "/v1/update_weights/abort"
LATE_MS = 1500  # --update-timeout where it is to pass


class Asked:
    """The request, whose answer comes when the update has ended."""

    def __init__(self, server, path, body):
        self.answer, self.error = None, None
        self.thread = threading.Thread(target=self._ask, args=(server, path, body))
        self.thread.start()

    def _ask(self, server, path, body):
        try:
            self.answer = server.ask("POST", path, body)
        except Exception as e:  # checked by end()
            self.error = e

    def end(self, status, *words, what=""):
        self.thread.join(WAIT_S)
        must(self.error is None and self.answer is not None, f"{what}: no answer: {self.error}")
        must(self.answer.status == status, f"{what}: wanted {status}, got {self.answer}")
        for word in words:
            must(word in self.answer.raw.decode(), f"{what}: '{word}' is not in {self.answer}")
        return self.answer.body


@contextlib.contextmanager
def ranks_of(world, server, devices=(0,), half=None, **more):
    """A trainer with a rank on each of those GPUs, and halves that hold half of the model, or its
    largest tensor."""
    half = half or max(place(world.specs)[1] // 2, *(place([s])[1] for s in world.specs))
    with world.trainer(server) as trainer:
        ranks = [Rank(trainer, d, half, **more) for d in devices]
        try:
            yield ranks
        finally:
            for r in ranks:
                r.close()


def cut(specs, half):
    """Into lists that fit into a half."""
    out, used = [[]], 0
    for s in specs:
        nbytes = place([s])[1]
        if used + nbytes > half and out[-1]:
            out.append([])
            used = 0
        out[-1].append(s)
        used += nbytes
    return out


def large_list(world):
    return as_list(place(world.specs[-1:])[0], TORCH)


def begin(ranks, what):
    for r in ranks:
        r.send(handle(r.export))
    for r in ranks:
        must(r.reply() == "", f"{what}: the buffer was refused")


def send_lists(world, ranks, data, what, specs=None):
    """All lists, in turn into the two halves. A half is overwritten as soon as that is allowed."""
    for i, part in enumerate(cut(specs or world.specs, ranks[0].half)):
        placed, _ = place(part, i % 2 * ranks[0].half)
        for r in ranks:
            r.fill(placed, data)
        for r in ranks:
            r.send(as_list(placed, TORCH))
        for r in ranks:
            said = r.reply()
            must(said == "", f"{what}: list {i}: {said}")
            r.refill(i % 2, world.rng.randbytes(r.half))


def end(ranks, what):
    for r in ranks:
        r.send(None)
    for r in ranks:
        said = r.reply()
        must(said == "", f"{what}: the end was refused: {said}")


def committed(server, data, what, label=None):
    status = server.ask("GET", "/v1/status").body
    must(status["weights"]["serial"] > server.serial, f"{what}: {status['weights']}")
    must(label in (None, status["weights"]["weight_version"]), f"{what}: {status['weights']}")
    server.serve(data, status["weights"])
    server.check(what)
    must(server.metric("baton_ipc_mapped") == 0, f"{what}: the trainer's memory is still mapped")


def spent(trainer, what):
    must(trainer.counters() and not any(trainer.counters()), f"{what}: {trainer.counters()}")


@contextlib.contextmanager
def updating(world, server, what, status, *words, devices=(0,), form=vllm_body, buffers=True, **more):
    """From the request to its answer, which must have that status and these words, and after which
    nobody holds a buffer. Yields the trainer's ranks, with their buffers taken.
    @buffers  False: none has been sent yet
    @more     Rank's: half, bind, address"""
    with ranks_of(world, server, devices, **more) as ranks:
        asked = Asked(server, *form(ranks))
        if buffers:
            begin(ranks, what)
        yield ranks
        asked.end(status, *words, what=what)
        if buffers:
            spent(ranks[0].trainer, what)


def hears(rank, what, *words):
    """The reply is why it was refused."""
    said = rank.reply()
    must(said != "", f"{what}: was taken")
    for word in words:
        must(word in said, f"{what}: '{word}' is not in {said}")


def gives_up(rank, what, *words):
    hears(rank, what, *words)
    rank.fail()


def undone(server, what):
    """What served before serves, and nothing of the trainer's stays mapped."""
    must(server.metric("baton_ipc_mapped") == 0, f"{what}: still mapped")
    server.check(what, list(server.served)[-1:])


def good(world, server, what, devices=(0,), form=vllm_body, data=None, **more):
    """A whole update as checkpoint-engine makes it."""
    data = data or world.data()
    with ranks_of(world, server, devices, **more) as ranks:
        asked = Asked(server, *form(ranks))
        begin(ranks, what)
        send_lists(world, ranks, data, what)
        serial = server.ask("GET", "/v1/status").body["weights"]["serial"]
        end(ranks, what)
        must(server.metric("baton_ipc_mapped") == 0, f"{what}: mapped after the first None")
        spent(ranks[0].trainer, what)
        must(server.ask("GET", "/v1/status").body["weights"]["serial"] == serial,
             f"{what}: committed before the second None")
        end(ranks, what)
        found = asked.end(200, what=what)
    committed(server, data, what)
    return found


def good_in_one_list(world, server, what, placed, half, protocol=4):
    data = world.data()
    with updating(world, server, what, 200, buffers=False, half=half) as (r,):
        r.send(handle(r.export), protocol)
        must(r.reply() == "", f"{what}: the buffer")
        r.fill(placed, data)
        r.send(as_list(placed, TORCH), protocol)
        must(r.reply() == "", f"{what}: the list")
        end([r], what)
        end([r], what)
    committed(server, data, what)


# What works

def vllm_form(world, server):
    with world.trainer(server) as trainer:
        world.uuid = trainer.uuid(0)
    must(good(world, server, "vllm") == {"results": [None]}, "vllm: the answer")


def sglang_form(world, server):
    found = good(world, server, "sglang", form=lambda r: sglang_body(r, weight_version="step-7"))
    must(found["success"] is True and "step-7" in found["message"], f"sglang: {found}")
    must(server.ask("GET", "/v1/status").body["weights"]["weight_version"] == "step-7", "the label")


def one_buffer_for_all(world, server):
    """One list; protocol 5, as Python 3.14 writes."""
    good_in_one_list(world, server, "one list", *place(world.specs), protocol=5)


def binds_late(world, server):
    """Other ranks of the trainer may come to their sockets after the first has asked."""
    data, what = world.data(), "late"
    with updating(world, server, what, 200, buffers=False, bind=False) as (r,):
        time.sleep(0.4)
        r.bind()
        begin([r], what)
        send_lists(world, [r], data, what)
        end([r], what)
        end([r], what)
    committed(server, data, what)


def two_gpus(world, server):
    good(world, server, "two GPUs", (0, 1))
    data = server.served
    with world.trainer(server) as reader:
        server.check_gpus(reader, [data, data], "two GPUs")


def without_gaps(world, server):
    """As of files that checkpoint-engine pins where they lie: some begin at odd bytes."""
    placed, at = [], 1
    for s in world.specs:
        placed.append((s, at))
        at += s.nbytes
    good_in_one_list(world, server, "without gaps", placed, at)


def own_gpu_only(world, server):
    """The trainer names all of its GPUs; this server's is among them."""
    def with_another(ranks):
        path, body = sglang_body(ranks)
        body["zmq_handles"]["GPU-00000000-1111-2222-3333-444444444444"] = "ipc://@somebody-else"
        return path, body

    good(world, server, "own GPU", form=with_another)


def file_socket(world, server):
    """A socket with a name in the file system lies beneath --allow-path."""
    good(world, server, "a file", address=f"ipc://{world.folder}/trainer.sock")
    for path, status, word in (("/run/other.sock", 403, "--allow-path"),
                               (f"{world.folder}/nothing.sock", 422, "cannot be opened"),
                               (f"{world.folder}/../etc/x.sock", 422, "cannot be opened")):
        more = {"bind": False, "address": "ipc://" + path}
        with updating(world, server, path, status, word, buffers=False, **more):
            pass


# What is refused at once

def refused_requests(world, server):
    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    with ranks_of(world, server) as (r,):
        cases = (
            ({}, 400, "1 to 64"),
            ({uuid: r.address}, 400, uuid[4:]),
            ({"GPU-0": r.address}, 400, "UUID"),
            ({"NPU-1.2.3.4-0": r.address}, 400, "UUID"),
            ({r.key: r.address, r.key.upper().replace("GPU-", ""): r.address}, 400, "twice"),
            ({r.key: 7}, 400, "an integer"),
            ({r.key: "tcp://127.0.0.1:5555"}, 400, "ipc://@NAME"),
            ({r.key: "ipc://relative"}, 400, "ipc://@NAME"),
            ({r.key: "ipc://@"}, 400, "ipc://@NAME"),
            ({r.key: "ipc:///run/x.sock"}, 403, "--allow-path"),
            ({r.key: "ipc://@" + "x" * 200}, 400, "limit"),
            ({r.key: "ipc://@a b"}, 400, "printable"),
            ({r.key: "IPC://@a"}, 400, "ipc://@NAME"),
        )
        for handles, status, word in cases:
            Asked(server, "/update_weights_from_ipc", {"zmq_handles": handles}).end(
                status, word, what=str(handles))
            Asked(server, "/collective_rpc", {"method": "update_weights_from_ipc",
                                              "args": [handles], "timeout": 5}).end(
                status, word, what=str(handles))
    for body, word in (({}, "zmq_handles"), ({"zmq_handles": []}, "zmq_handles")):
        Asked(server, "/update_weights_from_ipc", body).end(400, word)
    for body, word in (({}, "one argument"), ({"args": [{}, {}]}, "one argument"),
                       ({"args": [{}], "timeout": "5"}, "timeout"),
                       ({"args": [{}], "timeout": 0}, "timeout"), ({"args": {}}, "args")):
        Asked(server, "/collective_rpc", {"method": "update_weights_from_ipc", **body}).end(400, word)
    server.check("refused requests", list(server.served)[-1:])


# What a trainer may say that is wrong

def refuse_list(world, server, items, status, *words, what, first=None):
    """The trainer gets the reason, acknowledges that it gives up, and the request is answered."""
    with updating(world, server, what, status, *words) as (r,):
        if first is not None:
            r.send(first)
            must(r.reply() == "", f"{what}: the list before it")
        r.send(items)
        gives_up(r, what, *words)
    undone(server, what)


def wrong_lists(world, server):
    large, name = world.specs[-1], world.specs[0].name
    half = max(place(world.specs)[1] // 2, place([large])[1])
    one = as_list(place([large])[0], TORCH)
    scalar = next(s for s in world.specs if s.dtype == "F64" and s.shape == [])

    def at(spec, offset, **more):
        return {**entry(spec.name, spec.shape, TORCH[spec.dtype], offset), **more}

    cases = [
        ("beyond", [at(large, 2 * half - 2)], 400, ["has", "bytes from byte"]),
        ("far beyond", [at(large, 1 << 62)], 400, ["bytes from byte"]),
        ("negative", [at(large, -2)], 400, ["offset is not an int from 0 on"]),
        ("overlap", [at(large, 0), at(scalar, 8)], 400, ["overlap"]),
        ("twice", [at(large, 0), at(large, half)], 400, ["large"]),
        ("unknown name", [at(large, 0, name="nobody")], 422, ["nobody"]),
        ("shape", [{**at(large, 0), "shape": (500, 400)}], 422, ["large"]),
        ("dtype", [{**one[0], "dtype": entry("", [], "int8", 0)["dtype"]}], 422, ["large"]),
        ("no dtype", [{**one[0], "dtype": "bfloat16"}], 400, ["dtype"]),
        ("no offset", [{k: v for k, v in one[0].items() if k != "offset"}], 400, ["no 'offset'"]),
        ("member", [{**one[0], "scale": 1}], 400, ["'scale'"]),
        ("no dict", [7], 400, ["not a dict"]),
        ("empty", [], 400, ["tensor"]),
        ("dimension", [{**one[0], "shape": (-500, -401)}], 400, ["dimension"]),
        ("dimensions", [{**one[0], "shape": (1,) * 9}], 400, ["dimensions"]),
        ("overflow", [{**one[0], "shape": (1 << 40, 1 << 40)}], 400, ["large"]),
        ("a str", "weights", 400, ["a str"]),
        ("a tuple", (1, 2), 400, ["pair"]),
    ]
    for what, items, status, words in cases:
        refuse_list(world, server, items, status, *words, what=what)
    refuse_list(world, server, one, 409, "already", what="again", first=one)
    refuse_list(world, server, handle(FAKE), 400, "a buffer's handle", what="a second buffer")
    must(name in server.served, "the model")


class _Fake:
    """A made-up export, for messages that are refused before it is opened."""
    uuid, handle, shape, dtype, tensor_offset = "", b"\1" * 64, (64,), "uint8", 0
    storage_offset, storage_nbytes, ref_name, slot, event = 0, 64, b"/torch_1_2_0", 0, None


FAKE = _Fake()


def hostile_messages(world, server):
    """Pickles that are programs, and what is no pickle at all: never run, always answered."""
    class Run:
        def __reduce__(self):
            return os.system, (f"touch {world.folder}/executed",)

    deep = []
    for _ in range(12):
        deep = [deep]
    messages = [("a program", pickle.dumps(Run(), 4)), ("nothing", b""), ("text", b"hello"),
                ("protocol 2", pickle.dumps([], 2)), ("deep", dumps(deep)),
                ("another error", pickle.dumps(KeyError("x"), 4)),
                ("a class", pickle.dumps(RuntimeError, 4)), ("cut", dumps([1, 2, 3])[:-1])]
    for n, (what, raw) in enumerate(messages):
        for early in (True, False):
            with updating(world, server, f"{n} {what}", 400, buffers=not early) as (r,):
                r.socket.send(raw)
                gives_up(r, what)
    must(not os.path.exists(f"{world.folder}/executed"), "a pickle was executed")
    for what, parts in (("two parts", [b"a", b"b"]), ("too long", [bytes((64 << 20) + 1)])):
        status = 400 if len(parts) > 1 else 499
        with updating(world, server, what, status, "trainer", buffers=False) as (r,):
            r.socket.send_multipart(parts)
    server.check("hostile messages", list(server.served)[-1:])


def wrong_buffers(world, server):
    with ranks_of(world, server) as (r,):
        cases = (("dtype", handle(r.export, _5=entry("", [], "int8", 0)["dtype"]), "uint8"),
                 ("no handle", handle(r.export, _7=None), "buffer"),
                 ("another GPU", handle(r.export, _6="11111111-2222-3333-4444-555555555555"),
                  "11111111"),
                 ("longer", handle(r.export.seen_as((2 * r.half * 8,), "uint8")), "buffer"))
    for what, message, word in cases:
        with updating(world, server, what, 400, word, buffers=False) as (r,):
            r.send(message)
            gives_up(r, what, word)


def not_there(world, server):
    """A handle of memory that does not exist: it fails when the first list is copied."""
    what = "no such memory"
    with updating(world, server, what, 422, "cuIpcOpenMemHandle", buffers=False) as (r,):
        r.export.handle = bytes(64)
        begin([r], what)
        r.send(large_list(world))
        gives_up(r, what)


def short_memory(world, server):
    """An allocation that has fewer bytes than the buffer is said to have is not read beyond."""
    what = "short"
    with updating(world, server, what, 400, "memory has", buffers=False) as (r,):
        r.send(handle(r.export.seen_as((1 << 40,), "uint8"), _8=1 << 40))
        must(r.reply() == "", what)
        r.send([entry("large", [500, 401], "bfloat16", 1 << 39)])
        gives_up(r, what, "memory has")


def incomplete(world, server):
    """Replies to None are not looked at by checkpoint-engine, and the answer says what is missing."""
    for what, specs, word in (("incomplete", world.specs[:-1], "large"), ("nothing", None, "")):
        with updating(world, server, what, 422, word) as (r,):
            if specs:
                send_lists(world, [r], world.data(), what, specs)
            for _ in range(2):
                r.send(None)
                hears(r, what, word)
        server.check(what, list(server.served)[-1:])


def other_rank_failed(world, server):
    what = "given up"
    for lists in (0, 1):
        with updating(world, server, what, 409, "has aborted the update") as (r,):
            if lists:
                send_lists(world, [r], world.data(), what, world.specs[:3])
            r.fail()
    server.check(what, list(server.served)[-1:])


def not_finite(world, server):
    """What goes from GPU to GPU without checksums is not looked at (docs/protocol.md): it is what was sent."""
    data = world.data()
    data["large"] = struct.pack("<H", 0x7fc0) + data["large"][2:]
    good(world, server, "NaN", data=data)


def two_gpus_disagree(world, server):
    what = "they disagree"
    large = world.specs[-1:]
    for second in (as_list(place(large, 256)[0], TORCH), as_list(place(world.specs[:1])[0], TORCH),
                   None):
        with updating(world, server, what, 400, devices=(0, 1)) as ranks:
            ranks[0].send(large_list(world))
            ranks[1].send(second)
            for r in ranks:
                gives_up(r, what)
    with updating(world, server, what, 409, devices=(0, 1)) as ranks:  # one fails: so does the other
        ranks[0].fail()
        ranks[1].send(large_list(world))
        gives_up(ranks[1], what, "has aborted the update")
    server.check(what, list(server.served)[-1:])


# Unexpected ends

def deaths(world, server):
    """At each step. The answer comes at once, and nothing of the trainer's stays mapped."""
    def die(ranks):
        ranks[0].trainer.kill()
        ranks[0].close()

    for step in ("connected", "buffer", "list sent", "list", "released"):
        began = time.monotonic()
        with ranks_of(world, server) as ranks:
            (r,) = ranks
            asked = Asked(server, *vllm_body(ranks))
            if step == "connected":
                wait_for_connection(r)
            else:
                begin(ranks, step)
            if step in ("list", "released"):
                send_lists(world, ranks, world.data(), step)
            if step == "list sent":
                r.send(large_list(world))
            if step == "released":
                end(ranks, step)
            die(ranks)
            if step == "list sent":  # the worker may be the first to see that the memory is gone
                asked.thread.join(WAIT_S)
                must(asked.answer and asked.answer.status in (422, 499), f"{step}: {asked.answer}")
            else:
                asked.end(499, "trainer", what=f"died: {step}")
        must(time.monotonic() - began < 20, f"died: {step}: it took {time.monotonic() - began} s")
        undone(server, f"died: {step}")


def wait_for_connection(rank):
    """The update may be open before: a trainer that dies then is one that is not there yet, and is waited for."""
    name, until = rank.address.removeprefix("ipc://"), time.monotonic() + WAIT_S
    while time.monotonic() < until:
        with open("/proc/net/unix", encoding="ascii") as f:
            rows = [line.split() for line in f]
        if any(row[5] == "03" and row[-1] == name for row in rows[1:]):  # 03: connected
            return
        time.sleep(0.01)
    raise AssertionError("the server did not connect")


def wait_for_update(server, is_open=True):
    """Until one is open, or none is. Returns its id."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        found = server.ask("GET", "/v1/status").body["update"]
        if is_open == bool(found and found["phase"] not in ("none", "committed", "aborted")):
            return found and found["update_id"]
        time.sleep(0.01)
    raise AssertionError("no update began" if is_open else "the update stays open")


def client_goes(world, server):
    """The client disconnects: the update ends, and the trainer gets the reason at its next step."""
    what = "the client went"
    with ranks_of(world, server) as (r,):
        path, body = vllm_body([r])
        raw = json.dumps(body).encode()
        with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as c:
            c.sendall(f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n"
                      f"Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
            begin([r], what)
        wait_for_update(server, is_open=False)
        r.send(large_list(world))
        gives_up(r, what, "has disconnected")
        spent(r.trainer, what)
    undone(server, what)


def aborted(world, server):
    """By another client, at each step."""
    for step in ("buffer", "list", "released"):
        what = f"aborted: {step}"
        with ranks_of(world, server) as ranks:
            (r,) = ranks
            asked = Asked(server, *sglang_body(ranks))
            update_id = wait_for_update(server)
            begin(ranks, what)
            if step != "buffer":
                send_lists(world, ranks, world.data(), what)
            if step == "released":
                end(ranks, what)
            server.post(200, ABORT, {"update_id": update_id, "reason": "another client"}, what)
            asked.end(400, "another client", what=what)  # SGLang's form has one status
            r.send(None if step == "released" else large_list(world))
            hears(r, what, "another client")
            if step != "released":
                r.fail()
            spent(r.trainer, what)
        undone(server, what)


def two_at_once(world, server):
    """The second is refused, and so is its trainer; the first goes on as if nothing had been."""
    what, data = "two at once", world.data()
    with updating(world, server, what, 200) as first, ranks_of(world, server) as (second,):
        update_id = wait_for_update(server)
        Asked(server, *vllm_body([second])).end(409, update_id, what=what)
        second.send(handle(second.export))
        gives_up(second, what, update_id)
        server.post(409, "/v1/update_weights/start", {}, what)
        answer = server.ask("POST", "/continue_generation", {})
        must(answer.status == 200, f"{what}: {answer}")
        send_lists(world, first, data, what)
        end(first, what)
        end(first, what)
    committed(server, data, what)


def many_at_once(world, server):
    """More than there are threads: none hangs, one at most is taken, and all trainers hear of it."""
    what = "many"
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(ranks_of(world, server))[0] for _ in range(7)]
        asked = [Asked(server, *vllm_body([r])) for r in ranks]
        update_id = wait_for_update(server)
        until = time.monotonic() + WAIT_S
        while sum(a.answer is not None for a in asked) < 6 and time.monotonic() < until:
            time.sleep(0.01)
        must(sorted(a.answer.status for a in asked if a.answer)[:3] == [409] * 3, f"{what}: answers")
        must({a.answer.status for a in asked if a.answer} == {409, 503}, f"{what}: answers")
        server.post(200, ABORT, {"update_id": update_id}, what)
        for a in asked:
            a.thread.join(WAIT_S)
    server.check(what, list(server.served)[-1:])


def too_late(world, server):
    """Of a server with a short --update-timeout; and the request's own timeout."""
    what = "too late"
    with updating(world, server, what, 408, "a buffer's handle", buffers=False, bind=False):
        pass  # there is no listener
    with ranks_of(world, server) as (r,):
        asked = Asked(server, *vllm_body([r]))
        begin([r], what)
        asked.end(408, "a list of tensors", what=what)
        r.send(large_list(world))
        gives_up(r, what, "deadline")
        spent(r.trainer, what)
    with ranks_of(world, server) as ranks:
        began = time.monotonic()
        Asked(server, *vllm_body(ranks, timeout=0.2)).end(408, what=what)
        must(time.monotonic() - began < LATE_MS / 1000, f"{what}: the request's own timeout")
    must(server.metric("baton_ipc_mapped") == 0, f"{what}: still mapped")


def wrong_addresses(world, server):
    """Sockets without a listener need no notification: as many failed updates as there are threads do not delay
    the next one."""
    what = "wrong addresses"
    with ranks_of(world, server, bind=False) as ranks:
        for _ in range(4):
            Asked(server, *vllm_body(ranks, timeout=0.4)).end(408, what=what)
    good(world, server, what)


def few_descriptors(world):
    """libzmq ends the process that has none left: it is not called then."""
    what = "few descriptors"
    server = world.store()
    with server, ranks_of(world, server, bind=False) as ranks:
        pid, said = server.process.pid, []
        path, body = vllm_body(ranks, timeout=0.2)
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        server.ask("GET", "/v1/status")
        n = max(int(x) for x in os.listdir(f"/proc/{pid}/fd")) + 1
        for spare in range(64):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (n + spare, hard))
            said.append(server.ask("POST", path, body))
            if said[-1].status == 408:
                break
            must(said[-1].status == 503 and "too few file descriptors" in said[-1].raw.decode(),
                 f"{what}: {spare}: {said[-1]}")
        must(len(said) > 4 and said[-1].status == 408, f"{what}: {len(said)} {said[-1]}")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        good(world, server, what)


def stopped(world):
    """A server that ends in mid update answers, and says by its exit code that it cut work."""
    for step in ("buffer", "list"):
        server = world.store("cuda:0", "1", "--drain-timeout", "300")
        with ranks_of(world, server) as ranks:
            asked = Asked(server, *vllm_body(ranks))
            begin(ranks, "stop")
            if step == "list":
                send_lists(world, ranks, world.data(), "stop")
            server.process.send_signal(signal.SIGTERM)
            asked.end(503, "stopping", what=f"stopped: {step}")
            must(server.process.wait(WAIT_S) == 3, f"stopped: {step}: {server.tail()}")
            server.reader.join(WAIT_S)


def no_library(world):
    """A machine without libzmq: the answer says what to install."""
    folder = os.path.join(world.folder, "lib")
    os.mkdir(folder)
    with open(os.path.join(folder, "libzmq.so.5"), "w", encoding="utf-8") as f:
        f.write("not a library")
    server = world.store(LD_LIBRARY_PATH=folder)
    preloaded = os.environ.get("LD_LIBRARY_PATH")
    must(preloaded is None, "LD_LIBRARY_PATH is somebody's")
    with server, ranks_of(world, server) as ranks:
        Asked(server, *vllm_body(ranks)).end(501, "libzmq5", what="no libzmq")
        with open(f"/proc/{server.process.pid}/maps", encoding="utf-8") as f:
            must("libzmq" not in f.read(), "libzmq is loaded")


def no_gpu(world):
    with world.store("cpu", "1") as server, ranks_of(world, server) as ranks:
        Asked(server, *vllm_body(ranks)).end(409, "--device", what="no GPU")


def in_front(world):
    """In front of engines (here of one that is not there) it is refused by name."""
    key = "GPU-11111111-2222-3333-4444-555555555555"
    with subprocess.Popen([world.baton, "serve", "--listen", "127.0.0.1:0", "--upstream",
                           "http://127.0.0.1:9,vllm"], stderr=subprocess.PIPE, text=True) as front:
        try:
            line = next(x for x in front.stderr if '"event":"serving"' in x)
            for path, body in (("/update_weights_from_ipc", {"zmq_handles": {key: "ipc://@x"}}),
                               ("/collective_rpc", {"method": "update_weights_from_ipc",
                                                    "args": [{key: "ipc://@x"}]})):
                c = http.client.HTTPConnection("127.0.0.1", json.loads(line)["port"], timeout=WAIT_S)
                c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
                answer = c.getresponse()
                said = answer.read().decode()
                must(answer.status in (400, 409) and "is not forwarded to upstream engines" in said,
                     f"in front: {answer.status} {said}")
        finally:
            front.kill()


BOUND_BY_ANOTHER = """
import os, sys, zmq
s = zmq.Context().socket(zmq.REQ)
os.setuid(int(sys.argv[1]))
s.bind(sys.argv[2])
print("bound", flush=True)
sys.stdin.read()
"""


def another_user(world):
    """Whose process listens is asked of the kernel: another user's is not believed, root's is. Only
    root can try."""
    if os.geteuid() != 0:
        return
    address, key = f"ipc://@checkpoint-engine-of-another-{os.getpid()}", "GPU-" + world.uuid
    os.chmod(world.folder, 0o755)
    before, ipc_world._ends_with_us = ipc_world._ends_with_us, lambda: os.setuid(65534)
    try:
        server = world.store("cuda:0", "1")
    finally:
        ipc_world._ends_with_us = before
    try:
        for user, status, word in ((65533, 403, "65533"), (0, 408, "deadline")):
            with subprocess.Popen([sys.executable, "-c", BOUND_BY_ANOTHER, str(user), address],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
                must(other.stdout.readline() == b"bound\n", f"user {user} does not bind")
                Asked(server, "/collective_rpc", {
                    "method": "update_weights_from_ipc", "args": [{key: address}],
                    "timeout": 1}).end(status, word, what=f"user {user}")
                other.stdin.close()
    finally:
        server.process.kill()
        server.process.wait()


ONE_GPU = (vllm_form, sglang_form, one_buffer_for_all, binds_late, without_gaps, own_gpu_only, refused_requests,
           wrong_lists, hostile_messages, wrong_buffers, not_there, short_memory, incomplete,
           other_rank_failed, not_finite, deaths, client_goes, aborted, two_at_once, many_at_once,
           wrong_addresses)


def run(world):
    with world.store() as server:
        for case in ONE_GPU:
            n_fds = None if case is vllm_form else server.descriptors()
            case(world, server)
            until = time.monotonic() + WAIT_S
            while n_fds is not None and server.descriptors() > n_fds + 2:
                must(time.monotonic() < until, f"{case.__name__}: descriptors stay open")
                time.sleep(0.02)
        good(world, server, "after all")
    with world.store("cuda:0", "1", "--allow-path", world.folder) as server:
        file_socket(world, server)
    with world.store("cuda:0", "1", "--update-timeout", str(LATE_MS)) as server:
        too_late(world, server)
    with world.store("cuda:0,cuda:1", "2") as server:
        two_gpus(world, server)
        two_gpus_disagree(world, server)
        good(world, server, "after all", (0, 1))
    another_user(world)
    few_descriptors(world)
    stopped(world)
    no_library(world)
    no_gpu(world)
    in_front(world)


def main():
    faulthandler.dump_traceback_later(GIVE_UP_S, exit=True)  # where it hangs, rather than that it does
    world = World(*sys.argv[1:6], seed=sys.argv[6] if len(sys.argv) > 6 else os.urandom(4).hex())
    try:
        run(world)
    finally:
        shutil.rmtree(world.folder)
        zmq.Context.instance().destroy(0)
    print(f"ok: {must.n} checks; libzmq {zmq.zmq_version()}")


if __name__ == "__main__":
    main()
