"""What must go wrong well: handles that nobody can open, trainers that die in the middle, and what
/v1/preflight says of them beforehand. Sections of test_ipc_torch.py."""

import concurrent.futures
import contextlib
import json
import os
import signal
import socket
import tempfile

import gpu_world as world
from gpu_world import baton

NAMES = ["first", "second", "third"]
NUMEL = 100_000  # of each, bfloat16
KILL_BUCKETS, KILL_NBYTES = 8, 1 << 30  # of the update in whose middle a trainer dies
KILL_ROUNDS = 4
LONG_CYCLES = 20_000_000_000  # ten seconds of a GPU's clock


# --- in the trainer


def make_small(state, seed):
    import torch

    state.seed = seed
    generator = torch.Generator(device="cuda:0").manual_seed(seed)
    state.named = [
        (name, torch.randn(NUMEL, generator=generator, device="cuda:0").to(torch.bfloat16))
        for name in NAMES
    ]


def body_small(state, seed, label=None):
    """A whole update of the small model, not sent; its bucket stays in state."""
    import torch

    make_small(state, seed)
    body, state.args, state.packed = world.skyrl_chunk(state.named)
    torch.cuda.synchronize(0)
    return dict(body, weight_version=label or f"small-{seed}")


def push_small(state, url, seed):
    answer = baton.request(url, "POST", "/v1/update_weights", body_small(state, seed))
    return answer["phase"], world.counter(state.args)


def count(state):
    return world.counter(state.args)


def alloc_conf(_state):
    return os.environ.get("PYTORCH_CUDA_ALLOC_CONF")


def push_auto(state, url, seed):
    make_small(state, seed)
    return baton.push(dict(state.named), url, weight_version=f"small-{seed}")["phase"]


# --- checks


@contextlib.contextmanager
def small_world(args):
    """A server with the small model's manifest, and a trainer that has pushed seed 1."""
    with tempfile.TemporaryDirectory() as folder:
        manifest = world.write_manifest(folder, [(n, "bfloat16", (NUMEL,)) for n in NAMES])
        with world.Server(
            args.baton,
            "--engine",
            "none",
            "--manifest",
            manifest,
            "--device",
            "cuda:0",
            "--max-versions",
            "2",
        ) as server, world.Worker() as trainer:
            phase, left = trainer.ask(push_small, server.url, 1)
            assert (phase, left) == ("committed", 0), (phase, left)
            yield server, trainer


def small_expected(seed):
    class State:
        pass

    state = State()
    make_small(state, seed)
    return dict(state.named)


def untouched(checks, server, seed, what):
    checks.same(
        world.differing(server.url, small_expected(seed)), [], f"{what}: the old version serves"
    )
    checks.same(server.mapped(), 0, f"{what}: mappings left")


def goes_on(checks, server, trainer, seed, what):
    checks.same(
        trainer.ask(push_small, server.url, seed), ("committed", 0), f"{what}: the next update"
    )
    untouched(checks, server, seed, f"{what}, next update")


def post(server, body):
    return server.post("/v1/update_weights", body)


def plain(body, uuid, handle, offset, nbytes):
    out = {k: v for k, v in body.items() if k != "ipc_handles_pickled"}
    out["ipc_handles"] = {uuid: {"handle": handle, "offset": offset, "nbytes": nbytes}}
    return out


def refused(checks, args, torch):
    """Handles that do not open, or do not hold what the request says."""
    other = "11111111-2222-3333-4444-555555555555"
    with small_world(args) as (server, trainer):
        nbytes, uuid = 2 * NUMEL * len(NAMES), world.uuid_of(0)
        with checks.section("a process that has died"):
            with world.Worker() as dead:
                body = dead.ask(body_small, 2)
                dead.kill()
            e = checks.refused(lambda: post(server, body), "its handle is refused")
            checks.that(e is not None and e.status != 507, "and not for lack of memory")
            untouched(checks, server, 1, "dead")
            goes_on(checks, server, trainer, 3, "dead")
        with checks.section("the server's own handle"):
            mine = server.get("/v1/weights/handles?lease_s=30")
            handle = mine["devices"][0]["slabs"][0]["handle"]
            checks.refused(
                lambda: post(server, plain(body, uuid, handle, 0, nbytes)), "it is refused"
            )
            baton.request(server.url, "DELETE", f"/v1/weights/handles/{mine['lease_id']}")
            untouched(checks, server, 3, "own handle")
        with checks.section("other handles"):
            good = trainer.ask(body_small, 4)
            checks.refused(
                lambda: post(server, plain(good, other, handle, 0, nbytes)),
                "a GPU that nobody has: both sides are named",
                words=(other, uuid),
                status=400,
            )
            longer = dict(
                good, shapes=[[NUMEL], [NUMEL], [NUMEL + 1]], sizes=[NUMEL, NUMEL, NUMEL + 1]
            )
            checks.refused(lambda: post(server, longer), "metadata longer than the bucket")
            shorter = dict(
                good, shapes=[[NUMEL], [NUMEL], [NUMEL - 1]], sizes=[NUMEL, NUMEL, NUMEL - 1]
            )
            checks.refused(lambda: post(server, shorter), "metadata shorter than the bucket")
            checks.refused(
                lambda: post(server, dict(good, dtype_names=["float16"] * 3)),
                "another dtype than the handle's",
                status=400,
            )
            checks.refused(
                lambda: post(server, dict(good, sizes=[1, 1, 1])),
                "sizes against shapes",
                status=400,
            )
            checks.same(trainer.ask(count), 1, "nothing refused so early was counted down")
            beyond(checks, server, trainer, uuid, nbytes)
            goes_on(checks, server, trainer, 5, "refused")


def export_plain(state, seed):
    """The bare handle and offset of a bucket, and the body that goes with it."""
    body = body_small(state, seed)
    handle = state.args[7]
    return body, handle if len(handle) == 64 else handle[2:], state.args[9]


def beyond(checks, server, trainer, uuid, nbytes):
    """torch's allocations are bigger than a tensor, but not by this."""
    import base64

    body, handle, offset = trainer.ask(export_plain, 6)
    text = base64.b64encode(handle).decode()
    checks.refused(
        lambda: post(server, plain(body, uuid, text, 1 << 40, nbytes)),
        "a bucket beyond the end of its allocation",
    )
    untouched(checks, server, 3, "beyond")
    answer = post(server, plain(body, uuid, text, offset, nbytes))
    checks.same(answer["phase"], "committed", "a plain handle")
    untouched(checks, server, 6, "plain handle")


def expandable(checks, args, torch):
    """A trainer whose allocator makes segments that only it can map."""
    sentence = ("expandable segment", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False")
    with checks.section("expandable segments"), small_world(args) as (
        server,
        trainer,
    ), world.Worker(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True") as other:
        checks.same(other.ask(alloc_conf), "expandable_segments:True", "the trainer's setting")
        body = other.ask(body_small, 2)
        checks.refused(
            lambda: post(server, body), "it is refused, with what to do", sentence, status=400
        )
        report = server.post("/v1/preflight", {"ipc_handles_pickled": body["ipc_handles_pickled"]})
        checks.same(verdicts(report).get("allocator"), False, "preflight names the allocator")
        untouched(checks, server, 1, "expandable")
        checks.same(
            other.ask(push_auto, server.url, 7), "committed", "push by itself takes another way"
        )
        untouched(checks, server, 7, "expandable, through shared memory")
        goes_on(checks, server, trainer, 8, "expandable")


def verdicts(report):
    """check -> its worst verdict."""
    out = {}
    for row in report["checks"]:
        out[row["check"]] = row["ok"] if out.get(row["check"], True) is not False else False
        if not row["message"]:
            raise AssertionError(f"a check without a sentence: {row}")
    return out


def preflight(checks, args, torch):
    with small_world(args) as (server, trainer):
        with checks.section("preflight, good"):
            body = trainer.ask(body_small, 2)
            report = server.post(
                "/v1/preflight", {"ipc_handles_pickled": body["ipc_handles_pickled"]}
            )
            print(
                "    "
                + "\n    ".join(
                    f"{r['check']}: {r['ok']}: {r['message']}" for r in report["checks"]
                )
            )
            found = verdicts(report)
            checks.that(report["ok"] is True, "all is well")
            checks.that(
                found.get("open") is True and found.get("uuid") is True, "it opened a handle"
            )
            checks.same(trainer.ask(count), 1, "nothing was counted down")
            checks.same(post(server, body)["phase"], "committed", "the same handles, in an update")
            checks.same(trainer.ask(count), 0, "counted down then")
            untouched(checks, server, 2, "preflight")
        with checks.section("preflight, bad"):
            with world.Worker() as dead:
                gone = dead.ask(body_small, 3)["ipc_handles_pickled"]
                dead.kill()
            bad_preflight(checks, server, gone)
            checks.refused(
                lambda: server.post("/v1/preflight", {}), "no handles at all", status=400
            )
            untouched(checks, server, 2, "bad preflight")


def bad_preflight(checks, server, gone):
    report = server.post("/v1/preflight", {"ipc_handles_pickled": gone})
    checks.that(
        report["ok"] is False,
        "a process that has died",
        "; ".join(r["message"] for r in report["checks"] if r["ok"] is False)[:300],
    )
    unknown = {
        "11111111-2222-3333-4444-555555555555": {
            "handle": "A" * 86 + "==",
            "offset": 0,
            "nbytes": 4,
        }
    }
    found = verdicts(server.post("/v1/preflight", {"ipc_handles": unknown}))
    checks.same(found.get("uuid"), False, "a GPU that nobody has")
    mine = server.get("/v1/weights/handles?lease_s=30")
    own = {
        mine["devices"][0]["uuid"]: {
            "handle": mine["devices"][0]["slabs"][0]["handle"],
            "offset": 0,
            "nbytes": 4,
        }
    }
    report = server.post("/v1/preflight", {"ipc_handles": own})
    checks.that(
        report["ok"] is False,
        "the server's own handle",
        "; ".join(r["message"] for r in report["checks"] if r["ok"] is False)[:300],
    )
    baton.request(server.url, "DELETE", f"/v1/weights/handles/{mine['lease_id']}")


# --- killed


def big_names(bucket):
    return [f"bucket{bucket}.tensor{i}" for i in range(4)]


def big_pattern(version, bucket):
    """The bytes of one bucket of one version, the same in every process."""
    import torch

    generator = torch.Generator(device="cuda:0").manual_seed(1000 * version + bucket)
    return torch.randint(
        0, 256, (KILL_NBYTES,), generator=generator, dtype=torch.uint8, device="cuda:0"
    )


def big_bodies(state, version, pending_from=KILL_BUCKETS):
    """One request for each bucket. From `pending_from` on the export's event has not happened, and
    will not for longer than this process lives."""
    import torch

    state.buckets = [big_pattern(version, b) for b in range(KILL_BUCKETS)]
    torch.cuda.synchronize(0)
    bodies = []
    for b, bucket in enumerate(state.buckets):
        if b >= pending_from:
            torch.cuda._sleep(LONG_CYCLES)
        _, args = world.export(bucket)
        part = KILL_NBYTES // 4
        bodies.append(
            {
                "names": big_names(b),
                "dtypes": ["uint8"] * 4,
                "shapes": [[part]] * 4,
                "tensor_sizes": [part] * 4,
                "ipc_handles_pickled": world.pickled({world.uuid_of(0): args}),
            }
        )
    return bodies


def push_big(state, url, version):
    bodies = big_bodies(state, version)
    session = world.Session(url, weight_version=f"big-{version}")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(session.send, bodies))
    phase = session.finish()["phase"]
    state.buckets = None
    import torch

    torch.cuda.empty_cache()
    return phase


def request_bytes(update_id, body):
    data = json.dumps(dict(body, update_id=update_id)).encode()
    return (
        f"POST /v1/update_weights HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    ).encode() + data


def send_at_once(state, port, update_id, bodies):
    """Each on a connection of its own, without waiting for an answer. The sockets stay open."""
    requests = [request_bytes(update_id, b) for b in bodies]
    state.sockets = [socket.create_connection(("127.0.0.1", port)) for _ in requests]
    for to, data in zip(state.sockets, requests):
        to.sendall(data)


def send_half(state, url, port, update_id, version):
    """Half of the buckets, one after the other; then the rest, whose events have not happened."""
    half = KILL_BUCKETS // 2
    bodies = big_bodies(state, version, pending_from=half)
    for body in bodies[:half]:
        baton.request(url, "POST", "/v1/update_weights", dict(body, update_id=update_id))
    send_at_once(state, port, update_id, bodies[half:])


def send_and_die(state, port, update_id, version):
    send_at_once(state, port, update_id, big_bodies(state, version))
    os.kill(os.getpid(), signal.SIGKILL)


def big_wrong(server, version):
    """Buckets of what is served that are not that version's."""
    import torch

    with baton.attach(server.url) as served:
        wrong = []
        for b in range(KILL_BUCKETS):
            found = torch.cat([world.raw_of(served.tensors[n]) for n in big_names(b)])
            if not torch.equal(found, big_pattern(version, b)):
                wrong.append(b)
            del found
    torch.cuda.empty_cache()
    return wrong


def gpu_used(torch):
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(0)
    return total - free


def end_session(server, update_id):
    """As whoever watches over the trainer would: it ends, and within seconds."""
    with contextlib.suppress(baton.BatonError):
        server.post(
            "/v1/update_weights/abort", {"update_id": update_id, "reason": "its trainer died"}
        )
    ended = world.until(
        lambda: [
            u
            for u in [server.get(f"/v1/update_weights/{update_id}")]
            if u["phase"] in ("aborted", "committed")
        ],
        "the update ends",
        20,
    )
    world.until(lambda: server.mapped() == 0, "its mappings are closed", 20)
    return ended[0]["phase"]


def killed_waiting(checks, server):
    """It dies while the server has half of the update and waits for the other half's events."""
    half, lease_s = KILL_BUCKETS // 2 * KILL_NBYTES, 600
    with checks.section("killed between buckets"), world.Worker() as trainer:
        start = server.post(
            "/v1/update_weights/start", {"weight_version": "never", "lease_s": lease_s}
        )
        update_id = start["update_id"]
        look = lambda: server.get(f"/v1/update_weights/{update_id}")  # noqa: E731
        trainer.ask(send_half, server.url, server.port, update_id, 9)
        checks.same(look()["nbytes_done"], half, "bytes received before it dies")
        checks.same(look()["phase"], "receiving", "the update is under way")
        trainer.kill()
        checks.same(big_wrong(server, 2), [], "the old version serves at once")
        # A lease runs only while no bucket is under way: they have ended by themselves.
        world.until(lambda: look()["lease_left_s"] < lease_s - 0.01, "the server gives them up", 30)
        checks.same(look()["nbytes_done"], half, "bytes received in all")
        checks.same(end_session(server, update_id), "aborted", "the update")
        checks.same(big_wrong(server, 2), [], "and afterwards")


def killed_copying(checks, server):
    """It dies while the server copies: whichever bucket that happens in."""
    with checks.section("killed in the middle of copies"):
        for i in range(KILL_ROUNDS):
            start = server.post("/v1/update_weights/start", {"weight_version": "never"})
            update_id = start["update_id"]
            with world.Worker() as trainer:
                trainer.tell(send_and_die, server.port, update_id, 20 + i)
                trainer.process.join(world.PATIENCE_S)
                checks.same(trainer.process.exitcode, -signal.SIGKILL, f"round {i}: the trainer")
            got = server.get(f"/v1/update_weights/{update_id}")["nbytes_done"]
            checks.same(
                end_session(server, update_id),
                "aborted",
                f"round {i}: the update, after {got >> 20} MiB",
            )
            checks.same(big_wrong(server, 2), [], f"round {i}: the old version serves")


def killed(checks, args, torch):
    """A trainer that is killed in the middle of an update of 8 GiB."""
    named = [(n, "uint8", (KILL_NBYTES // 4,)) for b in range(KILL_BUCKETS) for n in big_names(b)]
    slack = 64 << 20
    with tempfile.TemporaryDirectory() as folder, world.Server(
        args.baton,
        "--engine",
        "none",
        "--manifest",
        world.write_manifest(folder, named),
        "--device",
        "cuda:0",
    ) as server:
        with world.Worker() as first:
            phases = [first.ask(push_big, server.url, version) for version in (1, 2)]
        checks.same(phases, ["committed"] * 2, "two versions")
        checks.same(big_wrong(server, 2), [], "the second serves")
        used, fds = gpu_used(torch), server.usage()["fds"]
        killed_waiting(checks, server)
        killed_copying(checks, server)
        with world.Worker() as trainer:
            checks.same(
                trainer.ask(push_big, server.url, 3),
                "committed",
                "the next update, by a new process",
            )
        checks.same(big_wrong(server, 3), [], "its bytes")
        world.until(lambda: gpu_used(torch) <= used + slack, "the GPU's memory comes back", 30)
        now = gpu_used(torch)
        checks.that(now <= used + slack, "memory of the GPU in use", f"{used} before, {now} now")
        world.until(lambda: server.usage()["fds"] <= fds, "closed connections are gone", 30)
        checks.same(server.usage()["fds"], fds, "descriptors")
