"""Several GPUs of one host: a trainer on another GPU than the server, and a server with two ranks.
Sections of test_ipc_torch.py; skipped where there is one GPU."""

import gpu_world as world
from gpu_world import baton

NAMES = [f"layer{i}.weight" for i in range(12)]
NUMEL = 300_000


def make(seed, index):
    """The same bytes on whichever GPU."""
    import torch

    generator = torch.Generator(device="cpu").manual_seed(seed)
    return {
        name: torch.randn(NUMEL + 7 * i, generator=generator).to(torch.bfloat16).to(f"cuda:{index}")
        for i, name in enumerate(NAMES)
    }


def push_from(_state, url, seed, index, **options):
    return baton.push(make(seed, index), url, weight_version=f"seed-{seed}", **options)["phase"]


def push_per_gpu(_state, url, seed, mixed_up=False):
    """Each GPU's bucket has an order of its own, and a list of its own."""
    import torch

    orders = {0: list(NAMES), 1: list(reversed(NAMES))}
    handles, lists, kept = {}, {}, []
    for index, order in orders.items():
        tensors = make(seed, index)
        chunk = [(name, tensors[name]) for name in order]
        packed = torch.cat([t for _, t in chunk])
        kept.append((packed, world.export(packed)))
        torch.cuda.synchronize(index)
        handles[world.uuid_of(index)] = kept[-1][1]
        lists[world.uuid_of(index)] = {
            "names": order,
            "dtypes": ["bfloat16"] * len(order),
            "shapes": [list(t.shape) for _, t in chunk],
            "sizes": [t.numel() for _, t in chunk],
        }
    if mixed_up:
        del lists[world.uuid_of(1)]
    body = {
        "ipc_handles_pickled": world.pickled(handles),
        "per_gpu": lists,
        "weight_version": f"seed-{seed}",
    }
    phase = baton.request(url, "POST", "/v1/update_weights", body)["phase"]
    return phase, [world.counter(args) for _, (_, args) in kept]


def refusal(state, url, seed):
    try:
        return push_per_gpu(state, url, seed, mixed_up=True)
    except baton.BatonError as e:
        return f"{e.status} {e.code}"


def push_halves(_state, url, seed, **options):
    """Half of the tensors on each GPU."""
    on = [make(seed, 0), make(seed, 1)]
    mine = {name: on[i % 2][name] for i, name in enumerate(NAMES)}
    return baton.push(
        mine, url, via="ipc", bucket_nbytes=2_000_000, weight_version=f"seed-{seed}", **options
    )["phase"]


def push_both(_state, url, seed):
    """Everything on both GPUs, in different orders: cut in different places, sent together."""
    pairs = list(make(seed, 0).items()) + list(reversed(make(seed, 1).items()))
    return baton.push(
        pairs,
        url,
        via="ipc",
        bucket_nbytes=1_500_000,
        placement="replicated",
        weight_version=f"seed-{seed}",
    )["phase"]


def serve(args, folder, devices):
    manifest = world.write_manifest(
        folder, [(n, "bfloat16", (NUMEL + 7 * i,)) for i, n in enumerate(NAMES)]
    )
    return world.Server(args.baton, "--engine", "none", "--manifest", manifest, "--device", devices)


def from_another(checks, args, folder):
    with checks.section("from one GPU to another"), serve(
        args, folder, "cuda:1"
    ) as server, world.Worker() as trainer:
        for seed, options in (
            (1, {"via": "ipc"}),
            (2, {"via": "ipc", "bucket_nbytes": 1_000_000}),
            (3, {}),
        ):
            checks.same(
                trainer.ask(push_from, server.url, seed, 0, **options), "committed", options
            )
            checks.same(world.differing(server.url, make(seed, 1)), [], "bytes on the server's GPU")
        checks.same(
            world.differing(server.url, make(3, 0), device="cuda:0"),
            [],
            "the same, mapped on the trainer's GPU",
        )
        checks.same(server.mapped(), 0, "mappings left")


def two_ranks(checks, args, folder):
    with checks.section("two ranks, replicated"), serve(
        args, folder, "cuda:0,cuda:1"
    ) as server, world.Worker() as trainer:
        checks.same(
            trainer.ask(push_per_gpu, server.url, 1), ("committed", [0, 0]), "a list for each GPU"
        )
        for index in (0, 1):
            checks.same(
                world.differing(server.url, make(1, index), device=f"cuda:{index}"),
                [],
                f"bytes on rank {index}",
            )
        checks.same(
            trainer.ask(refusal, server.url, 2),
            "400 bad_request",
            "a GPU without a list is refused",
        )
        checks.same(
            world.differing(server.url, make(1, 1), device="cuda:1"), [], "nothing was written"
        )
        checks.same(
            trainer.ask(push_from, server.url, 3, 0, via="ipc"),
            "committed",
            "one trainer GPU for both ranks",
        )
        for seed, push, what in (
            (4, push_halves, "half a model on each GPU"),
            (5, push_both, "the model on both GPUs, in different orders"),
        ):
            checks.same(trainer.ask(push, server.url, seed), "committed", what)
            for index in (0, 1):
                checks.same(
                    world.differing(server.url, make(seed, index), device=f"cuda:{index}"),
                    [],
                    f"{what}: bytes on rank {index}",
                )
        checks.same(server.mapped(), 0, "mappings left")


def sharded(checks, args, folder):
    with checks.section("two ranks, sharded"), serve(
        args, folder, "cuda:0,cuda:1"
    ) as server, world.Worker() as trainer:
        checks.same(
            trainer.ask(push_halves, server.url, 1, placement="sharded"),
            "committed",
            "half to each",
        )
        checks.same(world.differing(server.url, make(1, 0)), [], "together they are whole")
        about = server.get("/v1/weights/handles?lease_s=1")
        counts = [sum(s is not None for s in d["slab"]) for d in about["devices"]]
        checks.same(counts, [len(NAMES) // 2] * 2, "tensors on each rank")
        checks.same(about["placement"], "sharded", "the placement that is told")


def several(checks, args, torch):
    if torch.cuda.device_count() < 2:
        checks.skip("several GPUs", "there is one")
        return
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        from_another(checks, args, folder)
        two_ranks(checks, args, folder)
        sharded(checks, args, folder)
