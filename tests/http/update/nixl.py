"""Updates with transport nixl: shards of several agents, ModelExpress's tables, refusals by name, and every fault of
the library and of the trainer: each ends in an answer, and the update after it commits.
Usage: nixl.py BATON CLIENT_DIR FOLDER DOUBLE DOUBLE_WITHOUT_A_SYMBOL"""
import base64
import contextlib
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import types

BATON, CLIENT, FOLDER, DOUBLE, INCOMPLETE = sys.argv[1:6]
sys.path.insert(0, CLIENT)
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../fakes"))
import baton  # noqa: E402
from fleet_world import Server, until  # noqa: E402
from nixl_trainer import Agent, update_of  # noqa: E402

SHAPES = {"embed": (300, 257), "norm": (1,), "scale": (), "up": (64, 512), "down": (512, 33), "big": (100, 4096)}
TIMEOUT_MS = 1000
UPDATE = "/v1/update_weights"
LIBRARY = os.path.join(FOLDER, "libnixl_capi.so")
FAULTS = os.path.join(FOLDER, "faults")
MANIFEST = os.path.join(FOLDER, "manifest.json")
LOG = os.path.join(FOLDER, "nixl.log")
SANITIZED = b"__asan_init" in open(BATON, "rb").read() or b"__tsan_init" in open(BATON, "rb").read()
n_checks = 0


def check(fact, about):
    global n_checks
    n_checks += 1
    assert fact, about


def same(found, wanted, about):
    check(found == wanted, f"{about}: {found!r}, wanted {wanted!r}")


def version(seed):
    rng = random.Random(seed)
    out = {}
    for name, shape in SHAPES.items():
        numel = 1
        for dim in shape:
            numel *= dim
        out[name] = baton.Tensor("BF16", shape, rng.randbytes(numel * 2).translate(bytes(b & 0x3F for b in range(256))))
    return out


def write_manifest(path, tensors):
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"names": list(tensors), "dtypes": [t.dtype for t in tensors.values()],
                   "shapes": [list(t.shape) for t in tensors.values()]}, f)


def faults(text):
    with open(FAULTS + ".new", "w", encoding="utf-8") as f:
        f.write(text)
    os.rename(FAULTS + ".new", FAULTS)


def serve(*options):
    return Server(BATON, LOG, "--engine", "none", "--weights", "none", "--manifest", MANIFEST, "--nixl-library", LIBRARY,
                  "--nixl-devices", "lo", "--update-timeout", TIMEOUT_MS, *options)


def served(s, tensors, about):
    for name, t in tensors.items():
        c = http.client.HTTPConnection("127.0.0.1", s.port)
        c.request("GET", f"/v1/weights/{name}")
        data = c.getresponse().read()
        c.close()
        check(data.endswith(bytes(t.data)), f"{about}: other bytes of {name} are served")


def by_body(s, seed, about):
    tensors = version(seed)
    baton.push(tensors, s.url, via="body")
    served(s, tensors, about)


def child_of(s):
    out = subprocess.run(["pgrep", "--parent", str(s.process.pid)], capture_output=True, text=True, check=False).stdout.split()
    return int(out[0]) if out else 0


def end_child(s):
    """Until it has ended: the next update must find it so."""
    pid = child_of(s)
    os.kill(pid, signal.SIGKILL)
    stat, end = pathlib.Path(f"/proc/{pid}/stat"), time.monotonic() + 10
    while stat.exists() and stat.read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z":
        check(time.monotonic() < end, "the killed process does not end")
        time.sleep(0.005)


def refuse(s, body, status, code, *words):
    found, said = s.ask("POST", UPDATE, body)
    text = json.dumps(said)
    check(found == status and said["error"]["code"] == code and all(w in text for w in words),
          f"{found} {said}, wanted {status} {code} {words}")
    return said


def check_good(s, agents):
    for k, n_shards in enumerate((1, 2, 7)):
        tensors = version(k)
        answer = s.post(UPDATE, update_of(agents, tensors, n_shards, seed=k, weight_version=f"v{k}"))
        same((answer["phase"], answer["n_checksums"], answer["weight_version"]), ("committed", len(SHAPES), f"v{k}"), n_shards)
        served(s, tensors, f"{n_shards} shards")
    status = s.status()
    same(status["recent_updates"][-1]["source"], "nixl", "the source in the status")
    nixl = status["nixl"]
    same((nixl["backends"], nixl["devices"], nixl["transports"], nixl["running"], nixl["n_started"]),
         (["UCX"], "lo", None, True, 2), "the status")  # one at start, which shows that it can be used
    body = update_of(agents, version(3), 3)
    body["unchecked"], body["checksums"] = True, None
    same(s.post(UPDATE, body)["n_checksums"], 0, "without checksums")
    start = s.post(UPDATE + "/start", {"trainer_ranks": 2})
    tensors = list(version(4).items())
    for rank in (0, 1):
        s.post(UPDATE, {**update_of(agents[rank:rank + 1], dict(tensors[rank::2]), 2), "update_id": start["update_id"],
                        "trainer_rank": rank})
    s.post(UPDATE + "/finish", {"update_id": start["update_id"]})
    served(s, version(4), "a session of two ranks")


def table_of(agents, tensors):
    """Each tensor in boxes: its rows or columns are cut between the agents, as ModelExpress's manifests have it."""
    tables = [{"schema": "mx.reshard.shard_table.v1", "agent_name": a.name, "metadata_endpoint": "h:1", "publisher_step": 3,
               "agent_meta_b64": a.json()["metadata"], "tensors": []} for a in agents]
    for agent in agents:
        agent.used = 0
    for i, (name, t) in enumerate(tensors.items()):
        dim = i % 2 if len(t.shape) == 2 else 0
        cut = t.shape[dim] // 2 if t.shape else 0
        for k, (table, agent) in enumerate(zip(tables, agents)):
            start, size = [0] * len(t.shape), list(t.shape)
            if cut:
                start[dim], size[dim] = (0, cut) if k == 0 else (cut, t.shape[dim] - cut)
            elif k == 1:
                continue
            rows = [bytes(t.data)] if not cut or dim == 0 else [
                bytes(t.data[r * t.shape[1] * 2:(r + 1) * t.shape[1] * 2]) for r in range(t.shape[0])]
            if cut and dim == 0:
                row = t.nbytes // t.shape[0]
                data = rows[0][start[0] * row:(start[0] + size[0]) * row]
            else:
                data = b"".join(r[start[1] * 2:(start[1] + size[1]) * 2] for r in rows) if cut else rows[0]
            table["tensors"].append({"name": name, "dtype": "torch.bfloat16", "elsize": 2, "full_shape": list(t.shape), "shards": [
                {"agent_name": agent.name, "device_id": 0, "mem": "DRAM", "addr": agent.put(data), "shard_offset": start,
                 "shape": size, "digest": "00" * 16}]})
    return tables


def check_tables(s, agents):
    tensors = version(10)
    tables = table_of(agents, tensors)
    s.post(UPDATE, {"transport": "nixl", "shard_table": tables, "checksums": [baton.tensors.checksum(t.data) for t in tensors.values()]})
    served(s, tensors, "tables")
    one = table_of(agents[:1], {"norm": tensors["norm"], "scale": tensors["scale"]})[0]
    s.post(UPDATE, {"transport": "nixl", "shard_table": one, "unchecked": True, "partial": True})
    say = {"transport": "nixl", "unchecked": True}
    one["tensors"][0]["elsize"] = 4
    refuse(s, {**say, "shard_table": one}, 400, "bad_request", "elsize", "BF16", "has 2 bytes")
    refuse(s, {**say, "shard_table": tables, "names": []}, 400, "bad_request", "leave out names")
    refuse(s, {**say, "shard_table": tables[:1]}, 422, "manifest_mismatch", "embed", "the first missing is [150, 0]")
    refuse(s, {**say, "shard_table": [tables[0], tables[0]]}, 400, "bad_request", "two agents")
    up = tables[1]["tensors"][1]  # each has half of its columns
    up["shards"][0]["shard_offset"] = [0, 255]
    refuse(s, {**say, "shard_table": tables}, 422, "manifest_mismatch", "'up'", "overlap")
    up["shards"][0]["shard_offset"] = [1, 256]
    refuse(s, {**say, "shard_table": tables}, 422, "manifest_mismatch", "dimension 0, which has 64")
    up["full_shape"] = [512, 64]
    refuse(s, {**say, "shard_table": tables}, 400, "bad_request", "two tables differ", "'up'")
    refuse(s, {**say, "shard_table": {**one, "schema": "v2"}}, 400, "bad_request", "mx.reshard.shard_table.v1")


class Registered:
    """As much of a torch tensor as baton.reshard.shard_table asks, in an agent's memory."""
    dtype, device = "torch.bfloat16", types.SimpleNamespace(type="cpu")

    def __init__(self, addr, n):
        self.is_contiguous, self.element_size = lambda: True, lambda: 2
        self.numel, self.data_ptr = lambda: n, lambda: addr


def check_plans(s):
    """The tables of baton.reshard for four ranks of FSDP and one that has nothing, each with an agent of its own: tensors in
    rows and columns, in rows that two ranks have, and whole on all ranks."""
    tensors, agents, tables = version(12), [], []
    words = {name: memoryview(t.data).cast("H") for name, t in tensors.items()}
    try:
        for at in ((0, 0), (0, 1), (1, 0), (1, 1), None):
            agents.append(Agent(FOLDER, 1 << 21))
            cuts = {name: (0, 1) if len(t.shape) == 2 else (None, 0) if t.shape else (None, None) for name, t in tensors.items()}
            cuts["down"] = (None, 0)
            shards = baton.reshard.fsdp2({name: baton.reshard.Placed(t.shape, (2, 2), at, cuts[name])
                                          for name, t in tensors.items()})
            memory = {shard.parameter: Registered(agents[-1].put(b"".join(
                words[shard.name][begin:begin + n].tobytes() for begin, n, _ in shard.ranges())), shard.numel) for shard in shards}
            metadata = base64.b64decode(agents[-1].json()["metadata"])
            tables.append(baton.reshard.shard_table(shards, memory, agents[-1].name, metadata))
        s.post(UPDATE, {"transport": "nixl", "shard_table": tables, "unchecked": True})
        served(s, tensors, "plans of FSDP")
    finally:
        for agent in agents:
            agent.close()


def check_client(s):
    """push(via="nixl") of numpy arrays and torch tensors, whole, in parts of two ranks, and when it fails."""
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../fakes/nixl_python"))
    import numpy
    import torch
    from nixl._api import nixl_agent

    tensors = version(15)
    arrays = {n: torch.from_numpy(numpy.frombuffer(bytearray(t.data), numpy.int16)).view(torch.bfloat16).reshape(t.shape)
              for n, t in tensors.items()}
    seen = []
    answer = baton.push(arrays, s.url, via="nixl", weight_version="torch", progress=lambda done, total: seen.append(done))
    same((answer["n_checksums"], answer["weight_version"], seen[-1]), (len(tensors), "torch", answer["nbytes_done"]), "a push")
    served(s, tensors, "torch tensors")
    same((nixl_agent.segments, "UCX_TCP_TX_SEG_SIZE" in os.environ), (["512k", "512k"], False), "segments of the client's agent")
    same(baton.push(tensors, s.url, via="nixl", checksums=False)["n_checksums"], 0, "a push without checksums")
    few = {"norm": numpy.frombuffer(tensors["norm"].data, numpy.uint16).view("<u2")}
    same(failed(few, s.url, partial=True).code, "manifest_mismatch", "another dtype")
    start = s.post(UPDATE + "/start", {"trainer_ranks": 2})
    for rank in (0, 1):
        baton.push(dict(list(arrays.items())[rank::2]), s.url, via="nixl", update_id=start["update_id"], trainer_rank=rank)
    s.post(UPDATE + "/finish", {"update_id": start["update_id"]})
    same(failed(tensors, s.url, update_id="upd-0").status, 404, "a session that is not there")
    same(nixl_agent.live, [], "memory that is still registered after every answer")
    same(failed(tensors, "http://127.0.0.1:1").status, 0, "no server")
    same(nixl_agent.live, [], "memory that is still registered after a request that never was sent")
    n = 0
    for what, said in (("no answer", b""), ("the answer of a proxy", b"HTTP/1.1 504 Gateway Timeout\r\nContent-Length: 3\r\n\r\nbad")):
        with Proxy(said) as proxy:
            failed(tensors, proxy.url)
        n, before = len(nixl_agent.live), n
        check(n > before, f"memory is kept registered after {what}")
    with Proxy(None) as proxy:
        proxy.came = lambda: os.kill(os.getpid(), signal.SIGINT)
        try:
            baton.push(tensors, proxy.url, via="nixl")
        except KeyboardInterrupt:
            check(len(nixl_agent.live) > n, "memory is kept registered when a push was interrupted")
        else:
            raise AssertionError("it was not interrupted")
    check("not the path" in failed(MANIFEST, s.url).message, "a path")


class Proxy:
    """Between a trainer and a server that it does not reach any more. @said  None: it never answers"""

    def __init__(self, said):
        self.said, self.came = said, lambda: None
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        held = []
        with contextlib.suppress(OSError):
            while True:
                held.append(self.socket.accept()[0])
                if not held[-1].recv(65536).startswith(b"POST"):
                    continue
                self.came()
                if self.said is not None:
                    held[-1].sendall(self.said)
                    held[-1].shutdown(socket.SHUT_WR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


def failed(tensors, url, **more):
    try:
        baton.push(tensors, url, via="nixl", **more)
    except baton.BatonError as e:
        return e
    raise AssertionError("the push succeeded")


def check_refused(s, agents):
    """Before a byte moves: no child is started for any of these."""
    good = update_of(agents, version(20), 2)
    before = s.status()["nixl"]["n_started"]

    def but(path, value):
        body = json.loads(json.dumps(good))
        *steps, last = path
        at = body
        for step in steps:
            at = at[step]
        at[last] = value
        return body

    first = good["shards"][0][0]
    big = base64.b64encode(bytes((16 << 20) + 3)).decode()
    for body, status, code, *words in (
            (but(["shards", 0], good["shards"][0][:1]), 422, "manifest_mismatch", "/shards/0", "'embed'", "the first missing is ["),
            (but(["shards", 0], []), 422, "manifest_mismatch", "0 of 77100 elements; the first missing is [0]"),
            (but(["shards", 0], [*good["shards"][0], {**first, "numel": 1}]), 422, "manifest_mismatch", "'embed'", "overlap"),
            (but(["shards", 0, 0, "numel"], 1 << 40), 422, "manifest_mismatch", "which has 77100"),
            (but(["shards", 0, 0, "numel"], 0), 422, "manifest_mismatch", "0 elements"),
            (but(["shards", 0, 0, "agent"], 2), 400, "bad_request", "of agent 2, there are 2"),
            (but(["shards", 0, 0, "addr"], (1 << 64) - 8), 400, "bad_request", "/shards/0/0"),
            (but(["shards", 0, 0, "addr"], 0), 400, "bad_request", "no range of memory"),
            (but(["shards", 0, 0, "mem"], "VRAM"), 409, "no_gpu", "/shards/0/0"),
            (but(["shards", 0, 0, "mem"], "FILE"), 400, "bad_request", "/shards/0/0/mem"),
            (but(["shards", 0, 0, "length"], 1), 400, "bad_request", "/shards/0/0/length"),
            (but(["shards"], good["shards"][1:]), 400, "bad_request", "for 6 tensors"),
            (but(["shards", 1], {}), 400, "bad_request", "/shards/1"),
            (but(["checksums", 3], None), 400, "bad_request", "'up' has no checksum"),
            (but(["agents", 1, "name"], good["agents"][0]["name"]), 400, "bad_request", "two agents"),
            (but(["agents", 1, "metadata"], "a b"), 400, "bad_request", "/agents/1"),
            (but(["agents", 1, "metadata"], ""), 400, "bad_request", "/agents/1"),
            (but(["agents", 1, "metadata"], big), 400, "bad_request", "16 MiB"),
            (but(["agents"], []), 400, "bad_request", "/agents"),
            (but(["packed"], True), 400, "bad_request", "/packed"),
            (but(["shm"], {"name": "/x", "nbytes": 1}), 400, "bad_request", "exactly one source"),
            (but(["transport"], "nccl"), 400, "bad_request", "transport: nixl"),
            ({"transport": "mooncake", "names": []}, 400, "bad_request", "not nccl or nixl"),
            (but(["group_name"], "g"), 400, "bad_request", "transport: nccl"),
            ({"path": "/x", "shards": []}, 400, "bad_request", "transport: nixl")):
        refuse(s, body, status, code, *words)
    same(s.status()["nixl"]["n_started"], before, "processes for what is refused at once")


def check_known_late(s, agents):
    """What only the library can say: names the tensor, and the next update commits."""
    body = update_of(agents, version(30), 1)
    body["shards"][3][0]["addr"] += agents[0].nbytes
    refuse(s, body, 422, "source_unreadable", "'up'", "has not registered", "device 0")
    body = update_of(agents, version(30), 1)
    body["agents"][0]["name"] = "other"
    refuse(s, body, 400, "bad_request", "agent", "not of 'other'")
    body["agents"][0] = {"name": agents[0].name, "metadata": base64.b64encode(b"NIXLDOUBLE").decode()}
    refuse(s, body, 422, "source_unreadable", "cannot be loaded")
    s.post(UPDATE, update_of(agents, version(31), 2))
    again = Agent(FOLDER, agents[0].nbytes)
    again.name = agents[0].name  # a process that was started again, under its old name
    s.post(UPDATE, update_of([again], version(32), 2))
    served(s, version(32), "an agent under its old name")
    again.close()


def check_faults(s, agents):
    for k, (fault, status, code, *words) in enumerate((
            ("fail:load_remote_md=-2", 422, "source_unreadable", "cannot be loaded"),
            ("fail:create_xfer_req=-2", 500, "nixl_error", "'embed'", "answers -2"),
            ("fail:post_xfer_req=-2", 500, "nixl_error", "answers -2"),
            ("fail:get_xfer_status=-2 error_line", 500, "nixl_error", "it wrote: E0101", "the double is in"),
            ("fail:release_xfer_req=-3", 500, "nixl_error", "release_xfer_req"),
            ("fail:create_agent=-4", 500, "nixl_error", "create_configured_agent answers -4"),
            ("segv:post_xfer_req", 500, "nixl_error", "" if SANITIZED else "signal 11 (Segmentation fault)"),
            ("abort:get_xfer_status", 500, "nixl_error", "signal 6"),
            ("exit:create_xfer_req", 500, "nixl_error", "ended"),
            ("sleep:post_xfer_req", 408, "timeout"),
            ("forever", 408, "timeout"),
            ("wrong_byte", 422, "checksum_mismatch", "/checksums/"),
            ("torn", 422, "checksum_mismatch"),
            ("unread_last", 422, "checksum_mismatch"),
            ("stub", 409, "no_nixl", "a stub"))):
        by_body(s, 40, fault)
        if child_of(s) and "create_agent" in fault or fault == "stub":  # calls of the start
            end_child(s)
        faults(fault)
        began = time.monotonic()
        refuse(s, update_of(agents, version(41 + k), 3), status, code, *words)
        took = time.monotonic() - began
        check(took < TIMEOUT_MS / 1000 + 3 + 8 * SANITIZED, f"{fault}: {took} s")
        check(child_of(s) == 0, f"{fault}: the process that read is still there")
        served(s, version(40), fault)
        faults("")
        by_body(s, 80 + k, f"after {fault}")
        s.post(UPDATE, update_of(agents, version(41 + k), 3))
        served(s, version(41 + k), f"after {fault}, by NIXL")
    faults("noise slow_open")
    end_child(s)
    s.post(UPDATE, update_of(agents, version(70), 3))
    faults("")


def check_late(s, agents):
    """It writes on after its status 0, and after the commit: nothing that is served changes."""
    faults("late")
    tensors = version(90)
    found, said = 422, None
    while found == 422:  # it wrote before the bytes were copied: that is noticed
        found, said = s.ask("POST", UPDATE, update_of(agents, tensors, 2))
    check(found == 200, said)
    end = time.monotonic() + 1
    while time.monotonic() < end:
        served(s, tensors, "late writes")
    faults("")
    by_body(s, 91, "after late writes")
    end_child(s)
    s.post(UPDATE, update_of(agents, version(92), 2))


def check_trainer(s, agents):
    """It stops, dies or disconnects in the middle; the server is told to abort."""
    for what in ("stop", "kill", "disconnect", "abort", "kill the child"):
        victim = Agent(FOLDER, agents[0].nbytes)
        body = update_of([victim, agents[1]], version(100), 4)
        if what == "stop":
            victim.process.send_signal(signal.SIGSTOP)
            until("it has stopped", lambda: state_of(victim.process.pid) == "T")
            refuse(s, body, 408, "timeout")
            check(child_of(s) == 0, "a stopped trainer: the process that read is still there")
            victim.process.send_signal(signal.SIGCONT)
        else:
            faults("slow")
            if what == "abort":
                body["update_id"] = s.post(UPDATE + "/start", {})["update_id"]
            said = []
            thread = threading.Thread(target=lambda b=body, to=said, w=what: to.append(interrupted(s, b, w)))
            thread.start()
            time.sleep(0.4)
            if what == "kill":
                victim.process.kill()
                victim.process.wait()
            elif what == "abort":
                s.post(UPDATE + "/abort", {"update_id": body["update_id"]})
            elif what == "kill the child":
                os.kill(child_of(s), signal.SIGKILL)
            thread.join()
            if what != "disconnect":
                wanted = (409, "update_closed") if what == "abort" else (500, "nixl_error")
                same((said[0][0], said[0][1]["error"]["code"]), wanted, f"{what}: {said}")
            until("the process that read has ended", lambda: child_of(s) == 0)
        faults("")
        by_body(s, 101, what)
        s.post(UPDATE, update_of(agents, version(102), 4))
        served(s, version(102), what)
        victim.close()


def interrupted(s, body, what):
    if what == "disconnect":
        data = json.dumps(body).encode()
        with socket.create_connection(("127.0.0.1", s.port)) as c:
            c.sendall(b"POST /v1/update_weights HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                      b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
            time.sleep(0.4)
        return None
    return s.ask("POST", UPDATE, body)


def state_of(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            return f.read().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def figures_of(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        rss = next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))
    return len(os.listdir(f"/proc/{pid}/fd")), rss


def check_growth(s, agents):
    """Many updates: neither process grows."""
    small = {name: t for name, t in version(110).items() if t.nbytes < 1000}
    body = update_of(agents, small, 1, partial=True)
    for _ in range(30):
        s.post(UPDATE, body)
    before = figures_of(s.process.pid), figures_of(child_of(s))
    n, end = 0, time.monotonic() + 2
    while n < 1000 and time.monotonic() < end:
        s.post(UPDATE, body)
        n += 1
    after = figures_of(s.process.pid), figures_of(child_of(s))
    for who, (fds, rss), (fds_after, rss_after) in zip(("the server", "its process"), before, after):
        check(abs(fds_after - fds) <= 2, f"{who} has {fds} descriptors, {fds_after} after {n} updates")
        check(SANITIZED or rss_after - rss < 4096, f"{who} has {rss} kB, {rss_after} after {n} updates")
    return n


def check_signals(agents):
    """What a terminal or a service manager sends to all processes does not end a read under way: the server drains. And
    a server whose starter ignores the ends of its children notices them all the same."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with serve() as s:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        s.post(UPDATE, update_of(agents, version(120), 2))
        pid, said = child_of(s), []
        faults("slow")
        thread = threading.Thread(target=lambda: said.append(s.ask("POST", UPDATE, update_of(agents, version(121), 2))))
        thread.start()
        time.sleep(0.1)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            os.kill(pid, number)
        thread.join()
        faults("")
        check(said[0][0] == 200, f"a read beside signals: {said}")
        served(s, version(121), "a read beside signals")
        same(child_of(s), pid, "the process after signals")
        os.kill(pid, signal.SIGKILL)
        until("its end is noticed", lambda: not s.status()["nixl"]["running"], 5)


def check_child(s):
    """It has its socket, its windows and its output, and no key; it ends with the server."""
    pid = child_of(s)
    found = sorted(int(fd) for fd in os.listdir(f"/proc/{pid}/fd"))
    check(found[:5] == [0, 1, 2, 3, 4], f"its descriptors are {found}")
    kinds = {os.readlink(f"/proc/{pid}/fd/{fd}").split(":")[0] for fd in found[1:]}
    check(kinds <= {"pipe", "socket", "/memfd"} or SANITIZED, f"its descriptors are {kinds}")
    with open(f"/proc/{pid}/environ", "rb") as f:
        names = {v.split(b"=")[0] for v in f.read().split(b"\0") if v}
    check(b"UCX_TCP_RX_SEG_SIZE" in names and b"BATON_SECRET" not in names, f"its environment has {names}")
    s.kill()
    until("the process ends with the server", lambda: state_of(pid) in "ZX")


def check_windows():
    """More than two windows of 32 MiB, tensors that lie across them, and a fault in a later one."""
    sizes = {"a": 33 << 20, "b": 1000, "c": 30 << 20, "d": 10 << 20}
    rng = random.Random(7)
    tensors = {n: baton.Tensor("U8", [size], rng.randbytes(1 << 20) * (size >> 20) or rng.randbytes(size)) for n, size in sizes.items()}
    tensors["d"] = baton.Tensor("U8", [10 << 20], rng.randbytes(10 << 20))
    manifest = os.path.join(FOLDER, "large.json")
    write_manifest(manifest, tensors)
    agents = [Agent(FOLDER, 80 << 20) for _ in range(2)]
    with Server(BATON, LOG, "--engine", "none", "--weights", "none", "--manifest", manifest, "--nixl-library", LIBRARY,
                "--nixl-devices", "lo") as s:
        s.post(UPDATE, update_of(agents, tensors, 5))
        served(s, tensors, "windows")
        body = update_of(agents, tensors, 3)
        body["shards"][3][0]["addr"] += 1 << 33
        refuse(s, body, 422, "source_unreadable", "'d'", "has not registered")
        s.post(UPDATE, update_of(agents, tensors, 1))
        served(s, tensors, "windows")
    for agent in agents:
        agent.close()


def check_options():
    def fails(words, *options):
        p = subprocess.run([BATON, "serve", "--check", "--engine", "none", "--manifest", MANIFEST, *options],
                           capture_output=True, text=True, check=False, timeout=60)
        check(p.returncode != 0 and all(w in p.stderr for w in words), f"{options}: {p.returncode} {p.stderr}")

    fails(["--nixl-devices"], "--nixl-library", LIBRARY)
    fails(["--nixl-library"], "--nixl-devices", "lo")
    fails(["--nixl-library", "nixl_capi_invalidate_remote_md"], "--nixl-library", INCOMPLETE, "--nixl-devices", "lo")
    fails(["--nixl-library", "could not be loaded"], "--nixl-library", "/nonexistent.so", "--nixl-devices", "lo")
    fails(["create_backend"], "--nixl-library", LIBRARY, "--nixl-devices", "nosuch0")
    faults("stub")
    fails(["a stub"], "--nixl-library", LIBRARY, "--nixl-devices", "lo")
    faults("")
    p = subprocess.run([BATON, "serve", "--check", "--engine", "none", "--manifest", MANIFEST, "--nixl-library", LIBRARY,
                        "--nixl-devices", "lo,eth7", "--nixl-tls", "tcp"], capture_output=True, text=True, check=True, timeout=60)
    check("nixl: backend UCX" in p.stdout and "devices lo,eth7, transports tcp" in p.stdout, p.stdout)
    with Server(BATON, LOG, "--engine", "none", "--weights", "none", "--manifest", MANIFEST) as s:
        refuse(s, {"transport": "nixl"}, 409, "no_nixl", "--nixl-library")
        same(s.status()["nixl"], None, "the status without the option")


def main():
    shutil.copy(DOUBLE, LIBRARY)
    faults("")
    tensors = version(0)
    write_manifest(MANIFEST, tensors)
    check_options()
    check_windows()
    agents = [Agent(FOLDER, 8 << 20) for _ in range(2)]
    os.environ["BATON_SECRET"] = "x"
    with serve() as s:
        check_good(s, agents)
        check_tables(s, agents)
        check_plans(s)
        check_client(s)
        check_refused(s, agents)
        check_known_late(s, agents)
        check_faults(s, agents)
        check_late(s, agents)
        check_trainer(s, agents)
        n = check_growth(s, agents)
        check_child(s)
    check_signals(agents)
    for agent in agents:
        agent.close()
    print(f"{n} updates without growth")
    print(f"ok: {n_checks} checks")


main()
