"""What the tests of NCCL on GPUs share: servers, trainers that use NCCL without torch, how these
join and broadcast, and what is served then."""

import base64
import contextlib
import ctypes
import http.client
import itertools
import json
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.parse

import gpu_world as world
from gpu_world import ROOT, baton
from nccl_library import other_nccl, torch_nccl, version_of  # noqa: F401
from nccl_tensors import (  # noqa: F401
    GIB,
    Spec,
    block_of,
    checksums_of,
    content,
    cut_each,
    cut_vllm,
    cut_whole,
    digest,
    offsets,
    total_of,
    ways,
    wire,
)

sys.path.insert(0, str(ROOT / "tests" / "fakes"))
import nccl_trainer  # noqa: E402  (it knows vLLM's pickle, and brings the next two)
import nccl_rank  # noqa: E402
import tcpstore  # noqa: E402

INIT, GROUP, UPDATE = "/v1/weight_transfer/init", "/v1/weight_transfer", "/v1/update_weights"
START, FINISH = "/v1/update_weights/start", "/v1/update_weights/finish"
ANSWER_S = 60  # for what has to end by itself; whoever waits longer has found a hang
LATE_S = 1.0  # the promise: an answer by its deadline and this
SLACK_S = 0.5  # and what this client and a busy machine may add to that
HEALTH_S = 1.0  # slowest answer of /health that still counts as one
NOT_READY = 600  # CUDA_ERROR_NOT_READY


# --- a trainer without torch; all of it runs in a process of its own, on GPU 0


class Gpu(nccl_rank.Gpu):
    def alloc(self, nbytes):
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(nbytes))
        return at.value

    def tile(self, at, block, nbytes):
        done = min(len(block), nbytes)
        if done:
            self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(at), block, ctypes.c_size_t(done))
        while done < nbytes:
            n = min(done, nbytes - done)
            self.call(
                "cuMemcpyDtoD_v2",
                ctypes.c_uint64(at + done),
                ctypes.c_uint64(at),
                ctypes.c_size_t(n),
            )
            done += n

    def settle(self):
        """The copies: they are on the default stream, which the other one does not wait for."""
        self.call("cuStreamSynchronize", None)

    def wait(self, patience_s=ANSWER_S):
        end = time.monotonic() + patience_s
        while True:
            result = self.lib.cuStreamQuery(self.stream)
            if result == 0:
                return
            if result != NOT_READY:
                raise RuntimeError(f"cuStreamQuery: {result}")
            if time.monotonic() > end:
                raise TimeoutError(f"a broadcast did not end within {patience_s} s")


def be_rank(state, cuda, nccl):
    state.gpu = Gpu(cuda)
    state.rank = nccl_rank.Rank(nccl, state.gpu)
    state.at, state.room, state.store = 0, 0, None


def load(state, specs, seed):
    """The tensors, packed in one allocation."""
    total = total_of(specs)
    if total > state.room:
        if state.room:
            state.gpu.free(ctypes.c_uint64(state.at))
        state.at, state.room = state.gpu.alloc(total), total
    for at, spec in zip(offsets(specs), specs):
        state.gpu.tile(state.at + at, block_of(seed, spec), spec.nbytes)
    state.gpu.settle()


def mint(state):
    return state.rank.mint()


def join(state, unique_id, world_size, warm_up=True, rank=0):
    state.rank.join(unique_id, rank, world_size)
    if warm_up:
        state.rank.warm_up()


def open_store(state):
    """torch's TCPStore, by tests/fakes; it counts the trainer in. test_nccl_torch's are torch's."""
    state.store = tcpstore.Store()
    state.store.add("init/", 1)
    return state.store.port


def await_count(state, n):
    if not state.store.await_count(n, ANSWER_S):
        raise TimeoutError(f"not all of {n} ranks were counted in")


def stateless(state, counted, world_size=None):
    """As vLLM's trainer: the id into the store when all are there; then init and warm-up."""
    await_count(state, counted)
    unique_id = state.rank.mint()
    state.store.set("/broadcast_from/0/0", nccl_trainer.vllm_pickle(unique_id))
    join(state, unique_id, world_size or counted)


def first_collective(state, name, world_size):
    """As a torch process group, when its first collective begins."""
    await_count(state, world_size)
    unique_id = state.rank.mint()
    state.store.set(f"/{name}/{name}//cuda//0", unique_id)
    join(state, unique_id, world_size, warm_up=False)


def send(state, cuts, at=None, what=signal.SIGKILL, inside=True, patience_s=ANSWER_S):
    """The broadcasts, each waited for. At number `at` it sends itself a signal: before it, or
    inside, when it has just begun."""
    for i, (offset, nbytes) in enumerate(cuts):
        if i == at and not inside:
            os.kill(os.getpid(), what)
        where = ctypes.c_uint64(state.at + offset)
        state.rank.broadcast(where, where, nbytes, 0)
        if i == at and inside:
            os.kill(os.getpid(), what)
        state.gpu.wait(patience_s)


class Trainer(world.Worker):
    """Ends by SIGKILL, since it may wait for a peer that never comes."""

    def __init__(self, args):
        super().__init__()
        self.tell(be_rank, args.cuda, args.nccl)

    def ready(self):
        self.hear(ANSWER_S)
        return self

    def hear(self, patience_s=ANSWER_S):
        return super().hear(patience_s)

    def signal(self, what):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, what)

    def until_stopped(self):
        def stopped():
            with open(f"/proc/{self.pid}/stat", encoding="ascii") as f:
                return f.read().rpartition(")")[2].split()[0] in "Tt"

        world.until(stopped, "the trainer stops", ANSWER_S)

    def __exit__(self, *_):
        if self.process.exitcode is None:
            self.kill()


@contextlib.contextmanager
def trainer(args):
    with Trainer(args) as made:
        yield made.ready()


# --- asking


class Answer:
    def __init__(self, status, body, took_s):
        self.status, self.body, self.took_s = status, body, took_s
        self.error = body.get("error") or {} if isinstance(body, dict) else {}

    @property
    def code(self):
        return self.error.get("code", "") if self.status >= 400 or self.status == 0 else ""

    @property
    def message(self):
        return self.error.get("message", "")

    def __str__(self):
        return f"{self.status} after {self.took_s:.2f} s: {json.dumps(self.body)[:500]}"


def ask(server, method, path, body=None, patience_s=ANSWER_S):
    """Always an Answer; status 0: there was none."""
    began = time.monotonic()
    at = urllib.parse.urlsplit(server.url)
    connection = http.client.HTTPConnection(at.hostname, at.port, timeout=patience_s)
    headers = {"Content-Type": "application/json"} if body is not None else {}
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        status, raw = answer.status, answer.read()
        found = json.loads(raw) if raw else {}
    except (OSError, http.client.HTTPException, ValueError) as e:
        message = f"no answer to {method} {path}: {type(e).__name__}: {e}"
        status, found = 0, {"error": {"code": "connection", "message": message}}
    finally:
        connection.close()
    return Answer(status, found, time.monotonic() - began)


class Pending:
    """A request that is answered later."""

    def __init__(self, server, path, body):
        self.found, self.path = None, path
        self.thread = threading.Thread(target=self._run, args=(server, path, body), daemon=True)
        self.thread.start()

    def _run(self, server, path, body):
        self.found = ask(server, "POST", path, body)

    def done(self):
        return self.found is not None

    def answer(self):
        self.thread.join(2 * ANSWER_S)
        if self.found is None:
            raise AssertionError(f"POST {self.path} hangs")
        return self.found


class Health:
    """Asks for /health all the while; a context manager."""

    def __init__(self, server):
        self.server, self.n, self.slowest_s, self.wrong = server, 0, 0.0, []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self.over.wait(0.005):
            answer = ask(self.server, "GET", "/health")
            self.n += 1
            self.slowest_s = max(self.slowest_s, answer.took_s)
            if answer.status != 200:
                self.wrong.append(str(answer))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join(ANSWER_S)

    def judge(self, checks, what):
        checks.that(
            self.n > 0 and not self.wrong and self.slowest_s <= HEALTH_S,
            f"{what}: /health answers all the while",
            f"{self.n} times, {self.slowest_s * 1e3:.0f} ms at most, {self.wrong[:2]}",
        )


def in_time(checks, answer, deadline_s, what, more_s=0.0):
    allowed_s = deadline_s + LATE_S + SLACK_S + more_s
    return checks.that(
        answer.status != 0 and answer.took_s <= allowed_s,
        f"{what}: answered in time",
        f"{answer.took_s:.2f} s of {allowed_s:.2f}",
    )


def group(server):
    return server.get(GROUP)


def until_receiving(server):
    return world.until(
        lambda: (server.get("/v1/status")["update"] or {}).get("phase") == "receiving",
        "the update is receiving",
        ANSWER_S,
    )


@contextlib.contextmanager
def hanging_post(server, path, body):
    """A request on a connection of its own, which is cut at the end."""
    text = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=ANSWER_S) as s:
        s.sendall(
            b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (path.encode(), len(text), text)
        )
        yield s


# --- the server


SERVERS = []  # processes, for whoever must end everything


class Server(world.Server):
    def __init__(self, args, *options, devices=None, nccl=None):
        self.devices = devices or args.devices
        if args.cuda_library:
            options += ("--cuda-library", args.cuda_library)
        try:
            super().__init__(
                args.baton,
                "--nccl-library",
                nccl or args.nccl_server,
                "--device",
                ",".join(f"cuda:{i}" for i in self.devices),
                *options,
            )
        except BaseException:
            if hasattr(self, "child"):
                self.child.kill()
            raise
        SERVERS.append(self.child)

    @property
    def world_size(self):
        """With one trainer."""
        return 1 + len(self.devices)

    def get(self, path):
        return baton.request(self.url, "GET", path, timeout=ANSWER_S)

    def post(self, path, body):
        return baton.request(self.url, "POST", path, body, timeout=ANSWER_S)

    def stop(self):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
            self.child.wait(ANSWER_S)
        return self.child.returncode

    def usage(self):
        with open(f"/proc/{self.pid}/status", encoding="ascii") as f:
            threads = int(re.search(r"Threads:\s+(\d+)", f.read())[1])
        return dict(super().usage(), threads=threads)


@contextlib.contextmanager
def store(args, specs, *options, **where):
    """A server without an engine, for these tensors."""
    with tempfile.TemporaryDirectory() as folder:
        manifest = world.write_manifest(folder, [(s.name, s.dtype, s.shape) for s in specs])
        with Server(args, "--engine", "none", "--manifest", manifest, *options, **where) as server:
            yield server


# --- joining, as rank 0 of a trainer without torch


def by_id(server, rank_0, **more):
    unique_id = rank_0.ask(mint)
    rank_0.tell(join, unique_id, server.world_size, more.get("warm_up", True))
    return invitation(server, nccl_unique_id=base64.b64encode(unique_id).decode(), **more)


def by_store(server, rank_0, **more):
    port = rank_0.ask(open_store)
    rank_0.tell(stateless, server.world_size)
    return invitation(server, master_address="127.0.0.1", master_port=port, **more)


def by_torch(server, rank_0, **more):
    port = rank_0.ask(open_store)
    rank_0.tell(first_collective, "weights", server.world_size)
    return invitation(
        server, master_address="127.0.0.1", master_port=port, group_name="weights", **more
    )


FORMS = (by_id, by_store, by_torch)


def invitation(server, **members):
    return {"transport": "nccl", "world_size": server.world_size, "rank_offset": 1, **members}


def enter(server, rank_0, form, **more):
    """Until both have joined."""
    answer = ask(server, "POST", INIT, form(server, rank_0, **more))
    if answer.status != 200:
        raise AssertionError(f"{form.__name__}: the init was refused: {answer}")
    rank_0.hear()
    world.until(
        lambda: group(server)["state"] != "joining", f"{form.__name__}: it joins", ANSWER_S
    )
    found = group(server)
    if found["state"] != "joined":
        raise AssertionError(f"{form.__name__}: not joined: {found}")
    return found


def push(server, rank_0, specs, seed, cuts=None, **members):
    """A whole update that must succeed; one broadcast for each tensor unless said otherwise."""
    rank_0.ask(load, specs, seed)
    body = wire(specs, **{"weight_version": f"seed-{seed}", **members})
    pending = Pending(server, UPDATE, body)
    rank_0.tell(send, cut_each(specs) if cuts is None else cuts)
    answer = pending.answer()
    if answer.status != 200 or answer.body["phase"] != "committed":
        raise AssertionError(f"seed {seed}: the update failed: {answer}")
    rank_0.hear()
    return answer


# --- what is served


def _differs(torch, tensor, spec, block):
    if tensor.dtype != getattr(torch, spec.dtype) or list(tensor.shape) != spec.shape:
        return True
    raw = world.raw_of(tensor)
    block = torch.frombuffer(bytearray(block), dtype=torch.uint8).to(raw.device)
    k, rest = divmod(raw.numel(), block.numel())
    head, tail = raw[: k * block.numel()], raw[k * block.numel() :]
    return not (
        bool((head.view(k, block.numel()) == block).all()) and bool((tail == block[:rest]).all())
    )


def wrong_mapped(server, specs, seed):
    """(GPU, name) of what lies on the server's GPUs, mapped there, and is not the seed's."""
    import torch

    wrong = []
    for index in server.devices:
        with torch.cuda.device(index), baton.attach(server.url, f"cuda:{index}") as served:
            tensors = served.tensors
            wrong += [(index, n) for n in sorted(set(tensors) ^ {s.name for s in specs})]
            wrong += [
                (index, s.name)
                for s in specs
                if s.name in tensors and _differs(torch, tensors[s.name], s, block_of(seed, s))
            ]
            del tensors
            torch.cuda.synchronize(index)
    return wrong


def wrong_sums(server, specs, seed):
    """By the checksums that the server tells."""
    told = {t["name"]: t["checksum"] for t in server.get("/v1/weights")["tensors"]}
    wanted = checksums_of(seed, specs)
    return sorted(n for n in set(told) | set(wanted) if told.get(n) != wanted.get(n))


def wrong_bytes(server, specs, seed):
    return [s.name for s in specs if server.get(f"/v1/weights/{s.name}") != content(seed, s)]


def wrong(args, server, specs, seed):
    """What is served and not that seed's, by everything that can tell."""
    found = wrong_sums(server, specs, seed)
    found += wrong_mapped(server, specs, seed) if args.torch else wrong_bytes(server, specs, seed)
    return found


class Stage:
    """A server that outlives what is played on it; one that a scenario broke is replaced."""

    def __init__(self, checks, args, specs, *options):
        self.checks, self.args, self.specs, self.options = checks, args, specs, options
        self.seed, self.seeds, self.forms = None, itertools.count(1), itertools.cycle(FORMS)
        self.held, self.server = None, None

    def _open(self):
        if self.server is None:
            self.held = contextlib.ExitStack()
            self.server = self.held.enter_context(store(self.args, self.specs, *self.options))
            self.renew("the first version", FORMS[0])

    def close(self, broken=False):
        held, self.held, self.server = self.held, None, None
        if held is None:
            return
        if broken:
            held.__exit__(RuntimeError, RuntimeError("a scenario failed"), None)
        else:
            held.close()

    def scenario(self, title, play, *args):
        with self.checks.section(title):
            try:
                self._open()
                n_failed = self._failed()
                with Health(self.server) as health:
                    play(self, *args)
                health.judge(self.checks, title)
                if self._failed() > n_failed:
                    print(f"--- end of the server's log\n{self.server.tail()}", flush=True)
            except BaseException:
                self.close(broken=True)
                raise

    def _failed(self):
        return sum(not row[0] for row in self.checks.rows)

    def unchanged(self, what):
        self.checks.same(
            wrong(self.args, self.server, self.specs, self.seed), [], f"{what}: the old one serves"
        )

    def took(self, seed, what):
        """What serves from now on."""
        self.seed = seed
        self.checks.same(wrong(self.args, self.server, self.specs, seed), [], f"{what}: its bytes")

    def renew(self, what, form=None):
        """Another trainer joins, and its update is taken."""
        form, seed = form or next(self.forms), next(self.seeds)
        with trainer(self.args) as rank_0:
            enter(self.server, rank_0, form)
            push(self.server, rank_0, self.specs, seed)
        self.took(seed, f"{what}: next init and update ({form.__name__})")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.close(broken=kind is not None)
