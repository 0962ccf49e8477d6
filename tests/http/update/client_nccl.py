"""The client's join and push via nccl: this process is the trainer, over a stand-in for torch
and the fakes; the servers are real.
Usage: client_nccl.py BATON MODEL CLIENT_DIR FAKECUDA FAKENCCL TRAINERS_FAKECUDA TRAINERS_FAKENCCL
[SEED]"""

import concurrent.futures
import ctypes
import faulthandler
import http.server
import json
import os
import shutil
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[3])
os.environ["FAKECUDA_MEMORY"] = str(4 << 30)

import baton  # noqa: E402
import client_streams  # noqa: E402
import numpy  # noqa: E402
from ipc_world import TORCH, columns, must  # noqa: E402
from transfer_world import GROUP, UPDATE, Groups  # noqa: E402

GIVE_UP_S = 240
BLIND_S = 0.7
BLIND_S = 0.7  # for which no event is seen done
PUSH_S = 60  # longest that one may take
GRANULE_NBYTES = 2 << 20  # of the server's memory on a GPU
ALIGN_NBYTES = 256  # of each tensor in it
SOON_S = 10.0  # what must not wait for anything takes less
START, ABORT = UPDATE + "/start", UPDATE + "/abort"


class Counts(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint64) for n in (
        "comms", "jobs", "sockets", "roots", "hung", "calls", "comms_made", "aborts", "broadcasts",
        "all_reduces", "gone", "races", "nbytes")]


class Here(Groups):
    """The trainer's side is this process."""

    def __init__(self, *args, seed):
        super().__init__(*args, seed)
        # With buckets of 1 byte, each tensor is one: an aligned one, which comes where it stays.
        self.specs = [s for s in self.specs if s.nbytes != 1]
        with open(self.manifest, "w", encoding="utf-8") as f:
            json.dump(columns(self.specs), f)
        self.streams = client_streams.World(self.foreign, 2)
        self.library = os.path.join(self.folder, "libnccl.so.2")  # by this name it can be found
        shutil.copy(self.nccl_foreign, self.library)
        self.lib = ctypes.CDLL(self.library)
        self.total = sum(s.nbytes for s in self.specs)

    def counts(self):
        found = Counts()
        self.lib.fakenccl_counts(ctypes.byref(found))
        return found

    def tensors(self, data, specs=None, index=0):
        torch = self.streams.torch
        return {s.name: self.streams.made(numpy.frombuffer(data[s.name], numpy.uint8),
                                          getattr(torch, TORCH[s.dtype]), s.shape, f"cuda:{index}")
                for s in specs or self.specs}

    def quiet(self, what):
        """Nothing of NCCL is left here."""
        found = self.counts()
        must(found.comms == 0 and found.jobs == 0, f"{what}: {found.comms} communicators are left")
        must(found.races == 0, f"{what}: two threads were in one communicator")


def url_of(server):
    return f"http://127.0.0.1:{server.port}"


def refused(call, what, *words, status=None, code=None, within=SOON_S):
    began = time.monotonic()
    try:
        answer = call()
    except baton.BatonError as e:
        took = time.monotonic() - began
        must(took < within, f"{what}: it took {took:.1f} s")
        must(all(w in str(e) for w in words), f"{what}: {words} are not all in: {e}")
        must(status in (None, getattr(e, "status", None)), f"{what}: {status}: {e}")
        must(code in (None, getattr(e, "code", None)), f"{what}: {code}: {e}")
        return e
    raise AssertionError(f"{what}: {str(answer)[:300]}")


def works(world, group, servers, label, specs=None, **options):
    """A push that must succeed, on every server, to the last byte."""
    data = world.data()
    answer = group.push(world.tensors(data, specs), weight_version=label,
                        **{"timeout": PUSH_S, **options})
    answers = answer if isinstance(group.url, list) else [answer]
    must(len(answers) == len(servers), f"{label}: {answer}")
    for server, found in zip(servers, answers):
        must(found["phase"] == "committed" and found["weight_version"] == label, f"{found}")
        server.serve(data, found)
        server.check(label)
    return answers


def starts_anew(world, servers, label):
    """After whatever happened."""
    with baton.join([url_of(s) for s in servers]) as group:
        works(world, group, servers, label)
    world.quiet(label)


def same_as_before(servers, what):
    for server in servers:
        must(server.ask("GET", "/v1/status").body["update"] is None, f"{what}: an update is open")
        server.check(what)


def never_broadcasts(world, call, what, *words, **how):
    """A refusal without waiting for a GPU."""
    before = world.counts().broadcasts
    e = refused(call, what, *words, **how)
    must(world.counts().broadcasts == before, f"{what}: it was broadcast")
    return e


# What works

def pushes(world, server):
    url, specs = url_of(server), world.specs
    with baton.join(url) as group:
        must((group.world_size, group.nccl_version) == (2, "2.28.9"), f"{group.world_size}")
        must(os.path.samefile(group.library, world.library), f"it found {group.library}")
        for bucket in (1, 1000, world.total // 3, world.total - 1, world.total, 1 << 30):
            works(world, group, [server], f"bucket {bucket}", bucket_nbytes=bucket)
            found = works(world, group, [server], f"unproven {bucket}", bucket_nbytes=bucket,
                          checksums=False)
        must(found[0]["changes"]["n_not_compared"] == len(specs), f"no checksums: {found}")
        works(world, group, [server], "shuffled", world.rng.sample(specs, len(specs)),
              bucket_nbytes=5000)
        seen = []
        found = works(world, group, [server], "told", progress=lambda *at: seen.append(at))[0]["changes"]
        must((found["n_not_compared"], found["before"]["weight_version"]) == (0, "shuffled"), f"{found}")
        must(found["n_changed"] > 0 and found["warnings"] == [], f"{found}")
        must(seen[-1] == (world.total, world.total), f"{seen}")
        parts(world, server, group)
        spread(world, server, group)
        data = world.data()
        found = baton.push(world.tensors(data), url, via="nccl", group=group, checksums=False)
        server.serve(data, found)
        server.check("by the function")
        misused(world, group, url)
    must(server.ask("GET", GROUP).body["state"] == "none", "the server has left too")
    group.close()
    refused(lambda: works(world, group, [server], "closed"), "closed", "closed")
    world.quiet("closed")


def parts(world, server, group):
    """A few tensors; and an open session, which stays open."""
    few = world.rng.sample(world.specs, 3)
    data = world.data(few)
    found = group.push(world.tensors(data, few), partial=True, weight_version="few")
    server.serve({**server.served, **data}, found)
    server.check("few")
    data, half = world.data(), len(world.specs) // 2
    update_id = server.post(200, START, {"weight_version": "halves", "trainer_ranks": 2})["update_id"]
    for rank, some in enumerate((world.specs[:half], world.specs[half:])):
        found = group.push(world.tensors(data, some), update_id=update_id, trainer_rank=rank)
        must(found["phase"] == "receiving", f"{found}")
        must(found["senders"][rank]["n_tensors"] == len(some), f"{found['senders']}")
    server.serve(data, server.post(200, UPDATE + "/finish", {"update_id": update_id}))
    server.check("halves")


def spread(world, server, group):
    """Tensors of another GPU of the trainer's."""
    data, half = world.data(), len(world.specs) // 2
    tensors = {**world.tensors(data, world.specs[:half], 1),
               **world.tensors(data, world.specs[half:])}
    server.serve(data, group.push(tensors, weight_version="spread"))
    server.check("spread")


def misused(world, group, url):
    tensors = world.tensors(world.data())
    host = {n: t.to("cpu") for n, t in tensors.items()}
    for call, words in (
            (lambda: group.push(host), "on a GPU"), (lambda: group.push({}), "nothing to push"),
            (lambda: group.push("file"), "not the path"),
            (lambda: baton.push(tensors, url, via="nccl"), "go together"),
            (lambda: baton.push(tensors, url, via="ipc", group=group), "go together"),
            (lambda: baton.push(tensors), "url"),
            (lambda: baton.push(tensors, "http://x", via="nccl", group=group), "joined with"),
            (lambda: group.push(tensors, placement="sharded"), "placement"),
            (lambda: group.push(tensors, update_id=["a", "b"]), "2 update_ids"),
            (lambda: baton.join([url, url]), "once"), (lambda: baton.join([]), "once")):
        never_broadcasts(world, call, words, words)


def several(world):
    """Two servers, one of them with two GPUs: three ranks and this one."""
    with world.serve() as one, world.serve(devices="cuda:0,cuda:1", n_devices="2") as two:
        servers = [one, two]
        with baton.join([url_of(s) for s in servers]) as group:
            must(group.world_size == 4, f"{group.world_size}")
            for bucket in (1, 3000, 1 << 30):
                works(world, group, servers, f"both {bucket}", bucket_nbytes=bucket)
                with world.trainer(two) as reader:
                    two.check_gpus(reader, [two.served] * 2, f"both {bucket}")
            before = [s.served for s in servers]
            other = two.post(200, START, {})["update_id"]
            never_broadcasts(world, lambda: works(world, group, servers, "busy"), "busy",
                             url_of(two), other, status=409)
            two.post(200, ABORT, {"update_id": other})
            same_as_before(servers, "one was busy")
            never_broadcasts(world, lambda: group.push(
                world.tensors(world.data()), update_id=[other, other]), "no session", other)
            must([s.served for s in servers] == before, "nothing has changed")
            same_as_before(servers, "no session")
            works(world, group, servers, "not busy")
            first = one.post(200, START, {})["update_id"]
            never_broadcasts(world, lambda: group.push(
                world.tensors(world.data()), update_id=[first, other]), "one waits", url_of(two))
            never_broadcasts(world, lambda: works(world, group, servers, "one waited"), "waited",
                             "can not be used any more")
            one.post(200, ABORT, {"update_id": first})
            same_as_before(servers, "one waited")
        world.quiet("several")
        for server in servers:
            must(server.ask("GET", GROUP).body["state"] == "none", "a server stayed")
        starts_anew(world, servers[::-1], "again")


# What is refused

def refusals(world, server):
    """Nothing is broadcast, and the group goes on."""
    specs = world.specs
    with baton.join(url_of(server)) as group:
        works(world, group, [server], "first")
        tensors = world.tensors(world.data())
        for change, status, *words in (
                ({"large": tensors["large"].reshape(401, 500)}, 422, "large", "401"),
                ({"large": tensors["odd.u8"]}, 422, "large"),
                ({"stray": tensors["large"]}, 422, "stray")):
            never_broadcasts(world, lambda: group.push({**tensors, **change}), "another plan",
                             *words, status=status)
            same_as_before([server], "another plan")
            works(world, group, [server], f"after {words[0]}")
        short = {s.name: tensors[s.name] for s in specs if s.name != "odd.u8"}
        never_broadcasts(world, lambda: group.push(short), "too few", "odd.u8", status=422,
                         code="incomplete_update")
        never_broadcasts(world, lambda: group.push(tensors, update_id="upd-" + "0" * 32), "no such",
                         status=404)
        same_as_before([server], "too few")
        works(world, group, [server], "after too few")
        wrong_sum(world, server, group)
        works(world, group, [server], "after a wrong sum")
    world.quiet("refusals")


def wrong_sum(world, server, group):
    """All has been broadcast, and is not taken; every rank is where it was."""
    real = baton.gpu_checksums
    baton.group.gpu_checksums = lambda raws: ["0" * 32] + real(raws)[1:]
    for blind_s in (0.0, BLIND_S):  # then the answer is there before the broadcast is seen to end
        world.streams.blind_until = time.monotonic() + blind_s
        refused(lambda: group.push(world.tensors(world.data())), "a wrong sum", "checksum",
                status=422)
    baton.group.gpu_checksums = real
    same_as_before([server], "a wrong sum")


def no_room(world):
    """The update is open and the plan is known; but then there is no memory for a bucket that
    cannot come where its tensors stay."""
    if -world.total % GRANULE_NBYTES < ALIGN_NBYTES * len(world.specs):
        return  # how many granules a version takes depends on the padding between its tensors
    version = -(-world.total // GRANULE_NBYTES) * GRANULE_NBYTES
    with world.serve(FAKECUDA_MEMORY=str(version * 5 // 2)) as server, \
            baton.join(url_of(server)) as group:
        for label in ("each", "each once more"):
            works(world, group, [server], label, bucket_nbytes=1)
        never_broadcasts(world, lambda: works(world, group, [server], "no room"), "no room",
                         code="insufficient_staging", status=507)
        same_as_before([server], "no room")
        works(world, group, [server], "each again", bucket_nbytes=1)


# Who does not join

class Mute(http.server.BaseHTTPRequestHandler):
    """Says what a server is, and to nothing else anything."""
    protocol_version, over = "HTTP/1.1", threading.Event()

    def do_GET(self):
        text = json.dumps({"version": "0.1.0", "ready": True, "weights": {}, "update": None, "cuda": {"ranks": [{}]},
                           "nccl": {"available": True, "reason": None, "version": "2.28.9"}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self):
        self.over.wait()
        self.close_connection = True

    def log_message(self, *_):
        pass


def not_joined(world):
    with world.serve("--nccl-allow-cidr", "10.0.0.0/8") as server:
        refused(lambda: baton.join(url_of(server)), "an address", "127.0.0.1", status=403)
        world.quiet("an address")
    with world.serve(FAKENCCL_HANG_INIT="1") as server:
        refused(lambda: baton.join(url_of(server), timeout=1), "a hung init", "NCCL_CUMEM_ENABLE",
                url_of(server), status=408, within=1 + baton.group.REASON_S + SOON_S)
        world.quiet("a hung init")
    with world.serve(FAKENCCL_REFUSE_JOIN="1") as server, world.serve() as other:
        refused(lambda: baton.join([url_of(other), url_of(server)]), "one that cannot",
                url_of(server), code="nccl_error")
        world.quiet("one that cannot")
        starts_anew(world, [other], "without it")
    with world.serve(FAKENCCL_VERSION="22803") as server:
        refused(lambda: baton.join(url_of(server)), "another version", "2.28.3", "2.28.9")
    with world.store("cpu") as server:
        refused(lambda: baton.join(url_of(server)), "no GPU", "host memory", code="no_gpu")
    with world.store("cuda:0", "1", "--nccl-library", "/nowhere/libnccl.so.2") as server:
        refused(lambda: baton.join(url_of(server)), "no NCCL", "loaded", code="no_nccl")
    refused(lambda: baton.join("http://127.0.0.1:1"), "nobody", "127.0.0.1:1", code="connection")
    refused(lambda: baton.join("http://x", library="/nowhere/libnccl.so.2"), "no library",
            "nowhere", code="no_nccl")
    world.quiet("not joined")


def mute(world):
    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mute)
    listener.daemon_threads = True
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    try:
        refused(lambda: baton.join(f"http://127.0.0.1:{listener.server_port}", timeout=1), "mute",
                "NCCL_CUMEM_ENABLE", code="timeout", within=1 + baton.group.REASON_S + SOON_S)
        world.quiet("mute")
    finally:
        Mute.over.set()
        listener.shutdown()
        listener.server_close()


# Who goes, or stalls

def broken(world, group, servers, what, *words, **how):
    """The push fails in time and names the server; the group is closed."""
    data = world.data()
    e = refused(lambda: group.push(world.tensors(data), bucket_nbytes=world.total // 4), what,
                *words, **how)
    again = never_broadcasts(world, lambda: group.push(world.tensors(data)), what,
                             "can not be used any more")
    must(e.message in str(again), f"{what}: it forgot why: {again}")
    world.quiet(what)
    return e


def dies(world):
    half = str(world.total // 2)
    with world.serve() as stays:
        starts_anew(world, [stays], "before")
        dead = world.serve(FAKENCCL_DIE_AFTER_BYTES=half).server
        group = baton.join([url_of(stays), url_of(dead)])
        broken(world, group, [stays], "one dies", url_of(dead), code="connection")
        dead.process.wait()
        same_as_before([stays], "one dies")
        refused(lambda: baton.join([url_of(stays), url_of(dead)]), "dead", url_of(dead))
        starts_anew(world, [stays], "without the dead")
        group.close()
        starts_anew(world, [stays], "closed late")
    dead = world.serve(FAKENCCL_DIE_AFTER_BYTES=half).server
    with baton.join(url_of(dead)) as group:
        broken(world, group, [], "the only one dies", url_of(dead), code="connection")
        dead.process.wait()
    group.close()


def stalls(world):
    half = str(world.total // 2)
    with world.serve("--update-timeout", "1000", FAKENCCL_STALL_AFTER_BYTES=half) as server:
        group = baton.join(url_of(server))
        broken(world, group, [server], "the server's deadline", url_of(server), status=408)
        same_as_before([server], "the server's deadline")
        group.close()
    with world.serve(FAKENCCL_STALL_AFTER_BYTES=half) as server, \
            baton.join(url_of(server)) as group:
        e = refused(lambda: group.push(world.tensors(world.data()), timeout=1), "ours", "time",
                    url_of(server), code="timeout")
        refused(lambda: group.push(world.tensors(world.data())), "ours", e.message)
        same_as_before([server], "our deadline")
    world.quiet("stalls")


def closed_meanwhile(world):
    """close() while another thread pushes; and what close() must not take from others."""
    with world.serve(FAKENCCL_STALL_AFTER_BYTES=str(world.total // 2)) as server, \
            concurrent.futures.ThreadPoolExecutor(1) as pool:
        group = baton.join(url_of(server))
        answer = pool.submit(group.push, world.tensors(world.data()), bucket_nbytes=1000)
        while (server.ask("GET", "/v1/status").body["update"] or {"nbytes_done": 0})[
                "nbytes_done"] == 0:
            must(not answer.done(), "the push ended")
        group.close()
        refused(answer.result, "closed meanwhile", "closed")
        same_as_before([server], "closed meanwhile")
    with world.serve() as server:
        first = baton.join(url_of(server))
        with baton.join(url_of(server)) as second:
            first.close()
            first.close()
            works(world, second, [server], "not the first's")
            with baton.join(url_of(server)) as third:
                never_broadcasts(world, lambda: works(world, second, [server], "replaced"),
                                 "replaced", "another's")
                works(world, third, [server], "the third's still")
    world.quiet("closed meanwhile")


def main():
    faulthandler.dump_traceback_later(GIVE_UP_S, exit=True)
    world = Here(*sys.argv[1:8], seed=sys.argv[8] if len(sys.argv) > 8 else os.urandom(4).hex())
    try:
        with world.serve() as server:
            pushes(world, server)
            refusals(world, server)
        for step in (several, no_room, not_joined, mute, dies, stalls, closed_meanwhile):
            step(world)
    finally:
        shutil.rmtree(world.folder)
    print(f"ok: {must.n} checks")


if __name__ == "__main__":
    main()
