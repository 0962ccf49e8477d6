"""The client's push via ipc and attach, over a stand-in for torch and a fake GPU.
Usage: client_ipc.py URL CLIENT_DIR LIBFAKECUDA WHAT CHECKPOINT...
WHAT: whole (a model on one GPU), several (two ranks), hostless (a server without a GPU rank)."""

import base64
import sys
import threading

url, client, library, what = sys.argv[1:5]
sys.path.insert(0, client)
import baton  # noqa: E402
import client_torch  # noqa: E402
import numpy  # noqa: E402

WAIT_S = 60
n_checks = 0


def same(found, wanted, about):
    global n_checks
    n_checks += 1
    if found != wanted:
        raise SystemExit(f"{about}: {str(found)[:400]!r}, wanted {str(wanted)[:400]!r}")


def refused(call, words, about, status=None):
    try:
        answer = call()
    except baton.BatonError as e:
        same((words in str(e), e.status or None), (True, status or None), f"{about}: {e}")
        return
    raise SystemExit(f"{about}: {str(answer)[:300]}")


def tensors_of(checkpoint, world, index=0):
    """A checkpoint as tensors on a GPU."""
    out = {}
    for name, t in baton.load_file(checkpoint).items():
        dtype = getattr(world.torch, baton.DTYPES[t.dtype][1][0])
        out[name] = client_torch.made(
            numpy.frombuffer(bytes(t.data), numpy.uint8), dtype, t.shape, f"cuda:{index}"
        )
    return out


def sums_of(checkpoint):
    return {n: baton.checksum(t.data) for n, t in baton.load_file(checkpoint).items()}


def served():
    return {t["name"]: t["checksum"] for t in baton.request(url, "GET", "/v1/weights")["tensors"]}


def settled(world, about):
    """No counter keeps memory, and torch was told to look."""
    same([c.count() for c in world.counters], [0] * len(world.counters), f"{about}: counters")
    same(world.n_collected > 0, True, f"{about}: ipc_collect")


def compared(answer, label):
    """Only what was given a checksum is compared with the version before."""
    found = {k[2:]: v for k, v in answer["changes"].items() if k.startswith("n_") and v}
    if label == "unproven":
        return same((found, answer["changes"]["warnings"]), ({"not_compared": 46}, []), label)
    newly = found.pop("newly_unchanged", 0)
    first = {"changed": 46} if label == "one" else {"unchanged": 46}
    same((found, newly > 0), (first, label != "one" and newly > 0), f"{label}: changes")
    same(answer["changes"]["warnings"], [] if label == "one" else ["nothing_changed"], f"{label}: warnings")


def pushes(world, first, second):
    tensors = tensors_of(second, world)
    for label, options in (
        ("one", {}),
        ("two", {"bucket_nbytes": 100_001}),
        ("tiny", {"bucket_nbytes": 1}),
        ("auto", {"via": "auto"}),
        ("unproven", {"checksums": False}),
    ):
        answer = baton.push(tensors, url, **{"via": "ipc", "weight_version": label, **options})
        same((answer["phase"], answer["weight_version"]), ("committed", label), label)
        same(answer["mappings"]["opened"] > 0, True, f"{label}: it came from a GPU")
        same(served(), sums_of(second), f"{label}: bytes")
        compared(answer, label)
        settled(world, label)
        tensors = tensors_of(second, world)
    norm = {"model.norm.weight": tensors_of(first, world)["model.norm.weight"]}
    answer = baton.push(norm, url, via="ipc", partial=True, weight_version="norm")
    same((answer["partial"], answer["n_tensors_done"]), (True, 1), "partial")
    start = baton.request(url, "POST", "/v1/update_weights/start", {"weight_version": "open"})
    answer = baton.push(tensors_of(first, world), url, via="ipc", update_id=start["update_id"])
    same(answer["phase"], "receiving", "an open session stays open")
    settled(world, "open session")
    baton.request(url, "POST", "/v1/update_weights/finish", {"update_id": start["update_id"]})
    same(served(), sums_of(first), "an open session: bytes")


def failures(world, first):
    tensors = tensors_of(first, world)
    before = served()
    real = baton.gpu_checksums
    baton.ipc.gpu_checksums = lambda raws: ["0" * 32] + real(raws)[1:]
    refused(
        lambda: baton.push(tensors, url, via="ipc", bucket_nbytes=200_000),
        "checksum",
        "a wrong checksum",
        422,
    )
    baton.ipc.gpu_checksums = real
    settled(world, "a wrong checksum")
    missing = dict(list(tensors.items())[1:])
    refused(lambda: baton.push(missing, url, via="ipc"), "missing", "a tensor too few", 422)
    stray = dict(tensors, stray=tensors["model.norm.weight"])
    refused(
        lambda: baton.push(stray, url, via="ipc", bucket_nbytes=200_000),
        "stray",
        "a tensor too many",
        422,
    )
    settled(world, "refused")  # of what was never opened too
    same(baton.request(url, "GET", "/v1/status")["update"], None, "no session is left open")
    same(served(), before, "what failed changed nothing")
    refused(lambda: baton.push({}, url, via="ipc"), "nothing to push", "no tensors")
    refused(lambda: baton.push(first, url, via="ipc"), "not the path", "a path")
    refused(
        lambda: baton.push(tensors, url, via="shm", placement="sharded"), "placement", "placement"
    )
    host = {n: t.to("cpu") for n, t in tensors.items()}
    refused(lambda: baton.push(host, url, via="ipc"), "on a GPU", "tensors of the host")


def buckets_wait(world, first):
    """A bucket is not written between its request and the answer to that. Each answer is held back
    until the next request has come, which the other bucket must have carried."""
    real, came, broken, sent = baton.request, {}, [], []
    tensors = tensors_of(first, world)

    def slow(at, method, path, body=None, **more):
        if path != "/v1/update_weights":
            return real(at, method, path, body, **more)
        k = len(sent)
        sent.append(body["names"])
        handles = base64.b64decode(body["ipc_handles_pickled"])
        mine = [tensor for tensor, _, handle in world.exports if handle in handles]
        was = [t.storage.tobytes() for t in mine]
        came.setdefault(k, threading.Event()).set()
        last = sum(map(len, sent)) == len(tensors)
        if not last and not came.setdefault(k + 1, threading.Event()).wait(WAIT_S):
            broken.append("no second request came while the first waited")
        if len(mine) != 1 or [t.storage.tobytes() for t in mine] != was:
            broken.append(f"bucket of request {k} was written")
        return real(at, method, path, body, **more)

    baton.ipc.ask = slow
    answer = baton.push(tensors, url, via="ipc", bucket_nbytes=300_000, weight_version="held")
    baton.ipc.ask = real
    same((answer["phase"], broken), ("committed", []), "buckets wait for their answers")
    same(len(sent) > 4, True, "in several requests")
    same(served(), sums_of(first), "held back: bytes")


def attaches(world, first, second):
    baton.push(tensors_of(first, world), url, via="ipc", weight_version="seen")
    with baton.attach(url, lease_s=1) as held:
        same(held.weight_version, "seen", "its version")
        wanted = baton.load_file(first)
        same(sorted(held.tensors), sorted(wanted), "names")
        for name, t in wanted.items():
            tensor = held.tensors[name]
            same((tuple(tensor.shape), tensor.flat.tobytes()), (t.shape, bytes(t.data)), name)
        baton.push(tensors_of(second, world), url, via="ipc", weight_version="later")
        same(held.renew(5)["served"], False, "renew")
        lease = held.lease_id
    refused(
        lambda: baton.request(url, "POST", "/v1/weights/handles/renew", {"lease_id": lease}),
        "lease",
        "closed",
        404,
    )
    lost = baton.attach(url, lease_s=1)
    baton.request(url, "DELETE", f"/v1/weights/handles/{lost.lease_id}")
    lost._thread.join(WAIT_S)
    refused(lambda: lost.tensors, "lease", "a lost lease", 404)
    lost.close()
    kept, renewed = baton.attach(url, lease_s=1), threading.Semaphore(0)
    real = kept.renew
    kept.renew = lambda: (real(), renewed.release())
    same([renewed.acquire(timeout=WAIT_S) for _ in range(4)], [True] * 4, "renewed by itself")
    same(len(kept.tensors), len(wanted), "for longer than a lease")
    kept.close()


def whole(world, first, second):
    pushes(world, first, second)
    failures(world, first)
    buckets_wait(world, first)
    attaches(world, first, second)
    odd_places(world)
    baton.push(tensors_of(second, world), url, via="ipc", weight_version="last")


def odd_places(world):
    """Checksums of pieces that are no whole words, or begin between two; views in a slab."""
    data = numpy.random.default_rng(1).integers(0, 256, 70_001, numpy.uint8)
    flat = client_torch.made(data, world.torch.uint8, (len(data),), "cuda:0")
    real, baton.gpu.GPU_PIECE_NBYTES = baton.gpu.GPU_PIECE_NBYTES, 4096
    for a, b in ((0, 70_001), (0, 70_000), (1, 4097), (2, 2), (3, 8195), (4, 9), (6, 70_000)):
        same(
            baton.gpu_checksums([flat[a:b]]),
            [baton.checksum(data[a:b].tobytes())],
            f"bytes {a} to {b}",
        )
    baton.gpu.GPU_PIECE_NBYTES = real
    storage = client_torch.Storage(data.tobytes(), "cuda:0")
    for dtype, shape, offset, seen in (
        ("bfloat16", [3, 5], 8, (3, 5)),
        ("bfloat16", [3, 5], 7, (30,)),
        ("float32", [], 16, ()),
        ("float32", [0, 4], 4, (0, 4)),
        ("U64", [2], 8, (16,)),
        ("uint8", [9], 5, (9,)),
    ):
        view = baton.attached._view(storage, dtype, shape, offset)
        same(tuple(view.shape), seen, f"{dtype} {shape} at {offset}")
        same(view.flat.tobytes(), data[offset : offset + view.flat.nbytes].tobytes(), "its bytes")


def several(world, first, second):
    """Two ranks: everything from one GPU, and each rank from its own."""
    everything = tensors_of(first, world, 1)
    same(
        baton.push(everything, url, via="ipc", weight_version="from 1")["phase"],
        "committed",
        "one GPU",
    )
    both(first)
    there = tensors_of(second, world, 0)
    other = sorted(tensors_of(second, world, 1).items(), key=lambda item: item[1].numel())
    cuts = [len(list(baton.ipc._cut(baton.gpu.on_gpus(p), 150_000)))
            for p in (list(there.items()), other)]
    same(cuts[0] != cuts[1], True, f"they are cut into {cuts} pieces")
    answer = baton.push(
        list(there.items()) + other,
        url,
        via="ipc",
        bucket_nbytes=150_000,
        placement="replicated",
        weight_version="own order",
    )
    same(answer["phase"], "committed", "a list for each GPU")
    both(second)
    names = list(everything)
    halves = {
        n: (tensors_of(first, world, 0) if i % 2 else everything)[n] for i, n in enumerate(names)
    }
    answer = baton.push(
        halves, url, via="ipc", bucket_nbytes=300_000, placement="sharded", weight_version="halves"
    )
    same(answer["placement"], "sharded", "half on each GPU")
    with baton.attach(url) as held:
        same(
            {n: t.device.index for n, t in held.tensors.items()},
            {n: 1 - i % 2 for i, n in enumerate(names)},
            "where they are",
        )
        same(
            {n: baton.checksum(t.flat.tobytes()) for n, t in held.tensors.items()},
            sums_of(first),
            "union",
        )
    settled(world, "several")


def both(checkpoint):
    for index in (0, 1):
        with baton.attach(url, device=f"cuda:{index}") as held:
            found = {n: baton.checksum(t.flat.tobytes()) for n, t in held.tensors.items()}
            same(
                (found, {t.device.index for t in held.tensors.values()}),
                (sums_of(checkpoint), {index}),
                f"rank {index}",
            )


def hostless(world, first, second):
    """No GPU rank, or segments that only their own process can map: another way is found."""
    answer = baton.push(tensors_of(first, world), url, weight_version="auto")
    same((answer["phase"], answer["mappings"]["opened"]), ("committed", 0), "no GPU rank")
    refused(lambda: baton.attach(url), "host memory", "attach", 409)
    refused(lambda: baton.push(tensors_of(second, world), url, via="ipc"), "GPU", "ipc", 409)
    world.expandable = True
    norm = tensors_of(first, world)["model.norm.weight"]
    same(baton.ipc.exports_plainly(norm), False, "expandable")
    settled(world, "hostless")


def main():
    world = client_torch.World(library, 2 if what == "several" else 1)
    try:
        {"whole": whole, "several": several, "hostless": hostless}[what](world, *sys.argv[5:])
    finally:
        world.remove_counters()
    print(f"{what}: {n_checks} checks")


main()
