"""NCCL groups for tests: how a trainer joins one with the server in each form, how it divides a tensor list into
broadcasts, and an update by the group."""

import base64
import concurrent.futures
import contextlib
import hashlib
import json
import os
import socket

from ipc_world import WAIT_S, Server, World, columns, must
from nccl_trainer import Trainer, TrainerError

INIT, GROUP, UPDATE = "/v1/weight_transfer/init", "/v1/weight_transfer", "/v1/update_weights"
GIB = 1 << 30


class Groups(World):
    def __init__(self, baton, model, client, cuda, nccl, cuda_foreign, nccl_foreign, seed):
        super().__init__(baton, model, client, cuda, cuda_foreign, seed)
        self.nccl, self.nccl_foreign = nccl, nccl_foreign
        self.n_reports = 0

    def serve(self, *options, devices="cuda:0", n_devices="1", **environment):
        """A store without an engine; at its end NCCL has nothing left either."""
        self.n_reports += 1
        report = os.path.join(self.folder, f"nccl-{self.n_reports}")
        server = self.store(devices, n_devices, "--nccl-library", self.nccl, *options,
                            FAKENCCL_REPORT=report, **environment)
        return Ended(server, report)

    def nccl_trainer(self, **environment):
        return Trainer(self.nccl_foreign, self.foreign, **environment)


class Ended(contextlib.AbstractContextManager):
    """A server, whose NCCL has given everything back when it has ended."""

    def __init__(self, server, report):
        self.server, self.report = server, report

    def __enter__(self):
        return self.server

    def __exit__(self, *what):
        self.server.__exit__(*what)
        if what[0] is not None:
            return
        with open(self.report, encoding="utf-8") as f:
            counts = json.load(f)
        for kind in ("comms", "jobs", "sockets"):
            must(counts[kind] == 0, f"the server left {kind} of NCCL: {counts}")
        must(counts["races"] == 0, f"a second thread called a communicator: {counts}")


# Joining

def by_id(server, trainer, world_size=2, **more):
    unique_id = trainer.ask("mint")
    trainer.begin("join", unique_id, world_size, more.get("warm_up", True))
    return {"transport": "nccl", "world_size": world_size,
            "nccl_unique_id": base64.b64encode(unique_id).decode(), **more}


def by_store(server, trainer, world_size=2, **more):
    port = trainer.ask("open_store")
    trainer.begin("stateless", world_size)
    return {"transport": "nccl", "world_size": world_size, "master_address": "127.0.0.1",
            "master_port": port, **more}


def by_torch(server, trainer, world_size=2, group_name="slime-pp_0", **more):
    port = trainer.ask("open_store")
    return {"transport": "nccl", "world_size": world_size, "master_address": "127.0.0.1",
            "master_port": port, "group_name": group_name, **more}


def join(server, trainer, form=by_id, world_size=2, **more):
    """Until both have joined. The torch form only until the server has been counted in."""
    found = server.post(200, INIT, form(server, trainer, world_size, **more), form.__name__)
    if form is by_torch:
        must(found["state"] == "joining", f"{found}")
        trainer.ask("await_count", world_size)
        trainer.begin("first_collective", found["group_name"], world_size)
        return found
    must(found["state"] == "joined" and found["error"] is None, f"{found}")
    trainer.result()
    return found


def group(server):
    answer = server.ask("GET", GROUP)
    must(answer.status == 200, f"{answer}")
    return answer.body


def refuse(server, body, status, code, *words, param=None, path=INIT):
    found = server.post(status, path, body, f"{body}")["error"]
    must(found["code"] == code, f"{body}: {found}")
    must(param is None or found["param"] == param, f"{body}: {found}")
    for word in words:
        must(word in found["message"], f"'{word}' is not in {found['message']}")
    return found


# Updates

def cut_each(specs, data):
    return [data[s.name] for s in specs]


def cut_whole(specs, data):
    return [b"".join(data[s.name] for s in specs)]


def cut_vllm(specs, data, bound):
    """packed_tensor.py's rule, with its own words."""
    chunks, buffer = [], b""
    for s in specs:
        buffer += data[s.name]
        if len(buffer) > bound:
            chunks.append(buffer)
            buffer = b""
    return chunks + ([buffer] if buffer else [])


def digest(specs):
    """A plan's, as anyone can make it."""
    text = "".join(f"{s.name}\t{s.dtype}\t{','.join(map(str, s.shape))}\n" for s in specs)
    return hashlib.sha256(text.encode()).hexdigest()


def wire(specs, **more):
    return columns(specs, transport="nccl", **more)


def push(server, trainer, body, blobs, data, what=""):
    """The trainer broadcasts while its request is under way, as trainers do."""
    trainer.begin("send", blobs)
    found = server.post(200, UPDATE, body, what)
    must(found["phase"] == "committed", f"{what}: {found}")
    trainer.result()
    server.serve(data, found)
    server.check(what)
    return found


class Requests:
    """Requests that are answered later."""

    def __init__(self, server):
        self.server, self.pool = server, concurrent.futures.ThreadPoolExecutor(4)

    def post(self, path, body):
        return self.pool.submit(self.server.ask, "POST", path, body)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.pool.shutdown(wait=False)


@contextlib.contextmanager
def hanging_post(server, path, body):
    """A request on a connection of its own, which is cut at the end."""
    text = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as s:
        s.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n%s" % (path.encode(), len(text), text))
        yield s


__all__ = ["GIB", "GROUP", "INIT", "UPDATE", "Groups", "Requests", "Server", "Trainer",
           "TrainerError", "by_id", "by_store", "by_torch", "cut_each", "cut_vllm", "cut_whole",
           "digest", "group", "hanging_post", "join", "push", "refuse", "wire"]
