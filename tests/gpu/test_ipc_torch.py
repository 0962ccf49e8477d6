"""CUDA IPC against torch: a trainer in a process of its own, baton on the same GPU, this process as
a reader that maps what is served.

Usage: test_ipc_torch.py --baton BATON [--only SECTION[,SECTION...]] [--updates N]
Ends with 0, or 1 if a check failed, or 77 (skipped) where there is no torch or no GPU; with
BATON_REQUIRE_GPU=1 that is a failure too."""

import argparse
import contextlib
import itertools
import json
import sys
import tempfile
import time

import gpu_world as world
import ipc_faults
import ipc_gpus
from gpu_world import baton

CHECKPOINTS = world.MODEL / "checkpoints"
CHUNK_NBYTES = 512 << 10  # of the small model, so that it comes in several


# --- in the trainer


def load(state, step, index=0):
    """A checkpoint as the state dict of a trainer."""
    from safetensors.torch import load_file

    state.index = index
    state.named = list(
        load_file(CHECKPOINTS / f"{step}.safetensors", device=f"cuda:{index}").items()
    )
    return len(state.named)


def _settled(exports):
    return [world.counter(args) for args in exports]


def push_skyrl(state, url, label, pair=True):
    """A fresh packed buffer for each chunk, let go of after the reply, as SkyRL does it."""
    import torch

    session, counters, highest = world.Session(url, weight_version=label), [], 0
    for chunk in world.cut(state.named, CHUNK_NBYTES):
        body, args, packed = world.skyrl_chunk(chunk, pair)
        session.send(body)
        counters += _settled([args])
        highest = max(highest, torch.cuda.memory_allocated(state.index))
        del packed
        torch.cuda.ipc_collect()
    return {"update": session.finish(), "counters": counters, "highest": highest}


def push_vllm_list(state, url, label, pair=True):
    """One handle for each tensor."""
    session, exports, kept = world.Session(url, weight_version=label), [], []
    for chunk in world.cut(state.named, CHUNK_NBYTES):
        body, made, copies = world.vllm_list_chunk(chunk, pair)
        session.send(body)
        exports += made
        kept.append(copies)
    update = session.finish()
    return {"update": update, "counters": _settled(exports)}


def push_vllm_packed(state, url, label):
    """One buffer of bytes, exported once and refilled."""
    import torch

    bucket = torch.empty(CHUNK_NBYTES, dtype=torch.uint8, device=f"cuda:{state.index}")
    _, args = world.export(bucket)
    session = world.Session(url, weight_version=label)
    for chunk in world.cut(state.named, CHUNK_NBYTES):
        world.pack(chunk, bucket)
        torch.cuda.synchronize(state.index)
        session.send(world.vllm_packed_body(chunk, args, state.index))
    update = session.finish()
    return {"update": update, "counters": _settled([args])}


def push_client(state, url, label, **options):
    return {
        "update": baton.push(dict(state.named), url, weight_version=label, **options),
        "counters": [],
    }


def push_buckets(state, url, label):
    """Several buckets in one request, which is a whole update by itself."""
    import torch

    parts, exports, kept = [], [], []
    for chunk in world.cut(state.named, CHUNK_NBYTES):
        body, args, packed = world.skyrl_chunk(chunk)
        parts.append(body)
        exports.append(args)
        kept.append(packed)
    torch.cuda.synchronize(state.index)
    update = baton.request(
        url, "POST", "/v1/update_weights", {"buckets": parts, "weight_version": label}
    )
    return {"update": update, "counters": _settled(exports), "n_buckets": len(parts)}


FORMS = {
    "SkyRL, (function, arguments)": (push_skyrl, {}),
    "SkyRL's buckets, arguments alone": (push_skyrl, {"pair": False}),
    "vLLM, list of (function, arguments)": (push_vllm_list, {}),
    "vLLM, list of arguments": (push_vllm_list, {"pair": False}),
    "vLLM, packed": (push_vllm_packed, {}),
    "baton.push via ipc": (push_client, {"via": "ipc"}),
    "baton.push via ipc, small buckets": (push_client, {"via": "ipc", "bucket_nbytes": 100_001}),
    "baton.push via auto": (push_client, {}),
    "several buckets in one request": (push_buckets, {}),
}


# --- what is served


def expected_on_gpu(step, index=0):
    from safetensors.torch import load_file

    return load_file(CHECKPOINTS / f"{step}.safetensors", device=f"cuda:{index}")


def wrong_generations(server, step, label):
    """Greedy tokens against what transformers made of that checkpoint: the prompts that differ."""
    with open(world.MODEL / "golden.json", encoding="utf-8") as f:
        cases = json.load(f)["checkpoints"][step]["cases"]
    wrong = []
    for case in cases:
        wanted = case["greedy_token_ids"]
        answer = server.post(
            "/v1/generate",
            {
                "token_ids": case["prompt_token_ids"],
                "sampling_params": {
                    "max_tokens": len(wanted),
                    "temperature": 0,
                    "ignore_eos": True,
                },
            },
        )
        choice = answer["choices"][0]
        made_by = {span["version"] for span in choice["weight_versions"]}
        if choice["token_ids"] != wanted or made_by != {label}:
            wrong.append((case["prompt"], choice["token_ids"][:6], wanted[:6], made_by))
    return wrong


def serve_model(args, *options):
    return world.Server(
        args.baton,
        "--model",
        world.MODEL,
        "--weights",
        CHECKPOINTS / "step-00000.safetensors",
        "--weight-version",
        "step-0",
        "--device",
        "cuda:0",
        *options,
    )


def check_served(checks, server, step, label):
    with baton.attach(server.url) as served:
        checks.same(served.weight_version, label, "the version that is mapped")
    checks.same(world.differing(server.url, expected_on_gpu(step)), [], "bytes on the GPU")
    checks.same(wrong_generations(server, step, label), [], "generation from the mirror")
    checks.same(server.mapped(), 0, "mappings left")


def check_push(checks, server, trainer, label, push, options):
    before = trainer.ask(world.memory)
    answer = trainer.ask(push, server.url, label, **options)
    mappings = answer["update"].get("mappings", {})
    checks.same(answer["update"]["phase"], "committed", "the update")
    checks.that(
        mappings.get("opened", 0) > 0
        and mappings.get("opened") == mappings.get("closed")
        and mappings.get("still_mapped") == 0,
        "mappings of the update",
        mappings,
    )
    checks.that(
        not any(answer["counters"]), "counters are at zero", f"{len(answer['counters'])} exports"
    )
    checks.same(
        trainer.ask(world.memory), before, "bytes that the trainer's tensors take, as before"
    )


def forms(checks, args, torch):
    """Each form in which torch trainers send weights."""
    with serve_model(args) as server, world.Worker() as trainer:
        with checks.section("first weights"):
            check_served(checks, server, "step-00000", "step-0")
        steps = itertools.cycle(("step-00100", "step-01500", "step-00000"))
        for (name, (push, options)), step in zip(FORMS.items(), steps):
            with checks.section(name):
                trainer.ask(load, step)
                check_push(checks, server, trainer, name, push, options)
                check_served(checks, server, step, name)
        with checks.section("checksums"):
            tensors = expected_on_gpu(step)
            sums = baton.gpu_checksums([world.raw_of(t) for t in tensors.values()])
            served = {t["name"]: t["checksum"] for t in server.get("/v1/weights")["tensors"]}
            checks.same(served, dict(zip(tensors, sums)), "the server's are those made by torch")
            trainer.ask(load, "step-00100")
            lying(checks, server, trainer)
            check_served(checks, server, step, name)


def push_lying(state, url):
    """One checksum of many is not that of the bytes."""
    import torch

    bucket = torch.empty(4 << 20, dtype=torch.uint8, device=f"cuda:{state.index}")
    _, args = world.export(bucket)
    world.pack(state.named, bucket)
    torch.cuda.synchronize(state.index)
    body = world.vllm_packed_body(state.named, args, state.index)
    body["checksums"] = baton.gpu_checksums([world.raw_of(t) for _, t in state.named])
    body["checksums"][7] = "0" * 32
    try:
        baton.request(url, "POST", "/v1/update_weights", body)
    except baton.BatonError as e:
        return {
            "status": e.status,
            "code": e.code,
            "param": e.param,
            "counter": world.counter(args),
        }
    return None


def lying(checks, server, trainer):
    found = trainer.ask(push_lying, server.url)
    checks.same(
        found,
        {"status": 422, "code": "checksum_mismatch", "param": "/checksums/7", "counter": 0},
        "a wrong checksum is told by its place",
    )


# --- mixed dtypes


MIXED = [
    ("a.bf16", "bfloat16", (3, 5)),
    ("b.u8", "uint8", (7,)),
    ("c.f32", "float32", (5, 3)),
    ("d.i8", "int8", (1,)),
    ("e.bf16", "bfloat16", (1021,)),
    ("f.f64", "float64", (3,)),
    ("g.bool", "bool", (13,)),
    ("h.f32.scalar", "float32", ()),
    ("i.f8", "float8_e4m3fn", (11, 3)),
    ("j.i64", "int64", (2, 2, 2)),
    ("k.empty", "float32", (0, 4)),
    ("l.f16", "float16", (129,)),
    ("m.f8", "float8_e5m2", (5,)),
    ("n.i32", "int32", (77,)),
    ("o.u8", "uint8", (3,)),
    ("p.bf16", "bfloat16", (64, 64)),
    ("q.i16", "int16", (9,)),
    ("r.f32", "float32", (1 << 20,)),
]


def make_mixed(_state=None, seed=1, specs=None):
    """Random bytes of each dtype, finite as any, the same in every process."""
    import torch

    generator = torch.Generator(device="cuda:0").manual_seed(seed)
    named = []
    for name, dtype, shape in specs or MIXED:
        numel, dtype = 1, getattr(torch, dtype)
        for dim in shape:
            numel *= dim
        top = 2 if dtype == torch.bool else 0x70
        raw = torch.randint(
            0,
            top,
            (numel * dtype.itemsize,),
            generator=generator,
            device="cuda:0",
            dtype=torch.uint8,
        )
        named.append((name, raw.view(dtype).reshape(shape)))
    return named


def push_mixed(state, url, seed, via):
    state.index, state.named = 0, make_mixed(seed=seed)
    push = {"packed": push_vllm_packed_whole, "list": push_vllm_list, "client": push_client}[via]
    options = {"via": "ipc", "bucket_nbytes": 4099} if via == "client" else {}
    return push(state, url, f"mixed-{seed}", **options)


def push_vllm_packed_whole(state, url, label):
    import torch

    total = sum(t.numel() * t.element_size() for _, t in state.named)
    bucket = torch.empty(total + 1000, dtype=torch.uint8, device="cuda:0")
    _, args = world.export(bucket)
    world.pack(state.named, bucket)
    torch.cuda.synchronize(0)
    body = dict(world.vllm_packed_body(state.named, args, 0), weight_version=label)
    return {
        "update": baton.request(url, "POST", "/v1/update_weights", body),
        "counters": _settled([args]),
    }


def mixed(checks, args, torch):
    """Every dtype in one bucket, at odd places, byte for byte."""
    with checks.section("mixed dtypes in one bucket"):
        with tempfile.TemporaryDirectory() as folder:
            manifest = world.write_manifest(folder, MIXED)
            with world.Server(
                args.baton, "--engine", "none", "--manifest", manifest, "--device", "cuda:0"
            ) as server, world.Worker() as trainer:
                for seed, via in enumerate(("packed", "list", "client", "packed"), 1):
                    answer = trainer.ask(push_mixed, server.url, seed, via)
                    checks.same(answer["update"]["phase"], "committed", via)
                    checks.that(not any(answer["counters"]), f"{via}: counters are at zero")
                    checks.same(
                        world.differing(server.url, dict(make_mixed(seed=seed))),
                        [],
                        f"{via}: bytes on the GPU",
                    )
                with baton.attach(server.url) as served:
                    wrong = [
                        n
                        for n, d, s in MIXED
                        if served.tensors[n].dtype != getattr(torch, d)
                        or tuple(served.tensors[n].shape) != s
                    ]
                    checks.same(wrong, [], "dtypes and shapes as torch sees them")


# --- numbers that are not finite


FINITE = [
    ("a.bf16", "bfloat16", (33, 65)),
    ("b.u8", "uint8", (1001,)),  # all that follows comes from odd places
    ("c.f16", "float16", (70001,)),
    ("d.f32", "float32", (40009,)),
    ("e.e4m3", "float8_e4m3fn", (70001,)),
    ("f.e5m2", "float8_e5m2", (131,)),
    ("g.f64", "float64", (257,)),
]


def push_not_finite(state, url, name=None, value=0.0, last=False, proven=True):
    """A whole update with a checksum for each tensor; one element of `name` is `value`."""
    import torch

    state.index, state.named = 0, make_mixed(specs=FINITE)
    if name is not None:
        tensor = dict(state.named)[name]
        raw, width = world.raw_of(tensor), tensor.element_size()
        at = raw.numel() - width if last else raw.numel() // width // 2 * width
        raw[at : at + width] = torch.tensor([value]).to(tensor.dtype).view(torch.uint8).cuda()
    total = sum(t.numel() * t.element_size() for _, t in state.named)
    bucket = torch.empty(total, dtype=torch.uint8, device="cuda:0")
    _, args = world.export(bucket)
    world.pack(state.named, bucket)
    torch.cuda.synchronize(0)
    body = dict(world.vllm_packed_body(state.named, args, 0), weight_version="looked-at")
    if proven:
        body["checksums"] = baton.gpu_checksums([world.raw_of(t) for _, t in state.named])
    try:
        answer = baton.request(url, "POST", "/v1/update_weights", body)
        return {k: answer[k] for k in ("phase", "n_non_finite", "non_finite")}
    except baton.BatonError as e:
        return {"status": e.status, "code": e.code, "param": e.param, "message": e.message}


def expected_answer(policy, i, name):
    if policy == "refuse":
        return {"status": 422, "code": "non_finite_weights", "param": f"/names/{i}"}
    named = [name] if policy == "warn" else []
    return {"phase": "committed", "n_non_finite": len(named), "non_finite": named}


def not_finite_at(checks, server, trainer, policy):
    taken = {"phase": "committed", "n_non_finite": 0, "non_finite": []}
    checks.same(trainer.ask(push_not_finite, server.url), taken, f"{policy}: finite weights")
    for i, (name, dtype, _) in enumerate(FINITE):
        if dtype == "uint8":
            continue
        for k, value in enumerate((float("nan"), float("inf"), float("-inf"))):
            found = trainer.ask(push_not_finite, server.url, name, value, last=k % 2 == 0)
            said = found.pop("message", name)
            checks.same(found, expected_answer(policy, i, name), f"{policy}: {value} in {name}")
            checks.that(name in said, f"{policy}: the answer names {name}", said)
    if policy == "refuse":
        wrong = world.differing(server.url, dict(make_mixed(specs=FINITE)))
        checks.same(wrong, [], "what is served is still what it was")
        found = trainer.ask(push_not_finite, server.url, "a.bf16", float("nan"), proven=False)
        checks.same(found, taken, "without checksums nothing is read, and nothing seen")


def not_finite(checks, args, torch):
    """NaN and infinity of each dtype, seen in the pass that makes checksums."""
    with tempfile.TemporaryDirectory() as folder, world.Worker() as trainer:
        manifest = world.write_manifest(folder, FINITE)
        serve = ("--engine", "none", "--manifest", manifest, "--device", "cuda:0")
        for policy in ("refuse", "warn", "allow"):
            with world.Server(args.baton, *serve, "--non-finite", policy) as server:
                not_finite_at(checks, server, trainer, policy)


# --- no growth


def push_many(state, url, steps, n):
    """n updates, in all forms and with all checkpoints by turns; what was ever wrong."""
    wrong = []
    for i in range(n):
        load_once(state, steps[i % len(steps)])
        name, (push, options) = list(FORMS.items())[i % len(FORMS)]
        answer = push(state, url, f"many-{i}", **options)
        left = answer["update"].get("mappings", {}).get("still_mapped")
        if answer["update"]["phase"] != "committed" or any(answer["counters"]) or left:
            wrong.append((i, name, answer["update"]["phase"], left))
    return wrong[:8]


def load_once(state, step):
    loaded = state.__dict__.setdefault("loaded", {})
    if step not in loaded:
        load(state, step)
        loaded[step] = state.named
    state.named = loaded[step]


def reserved(_state):
    import torch

    torch.cuda.ipc_collect()
    return {"allocated": torch.cuda.memory_allocated(0), "reserved": torch.cuda.memory_reserved(0)}


def usage(server, trainer, torch):
    found = dict(server.usage(), **trainer.ask(reserved))
    free, total = torch.cuda.mem_get_info(0)
    found["gpu_used"] = total - free
    found["mapped"] = server.mapped()
    return found


def growth(checks, args, torch):
    """A thousand updates later, everything is as large as before."""
    steps = ["step-00000", "step-00100", "step-01500"]
    with checks.section(f"{args.updates} updates"), serve_model(
        args
    ) as server, world.Worker() as trainer:
        warm = 6 * len(FORMS)
        checks.same(trainer.ask(push_many, server.url, steps, warm), [], f"{warm} to warm up")
        before = usage(server, trainer, torch)
        checks.same(trainer.ask(push_many, server.url, steps, args.updates), [], "all of them")
        world.until(lambda: server.usage()["fds"] <= before["fds"], "closed connections are gone", 30)
        after = usage(server, trainer, torch)
        print(f"    before {before}\n    after  {after}")
        slacks = {"fds": 0, "mapped": 0, "allocated": 0, "reserved": 0, "maps": 8}
        slacks.update(rss=16 << 20, gpu_used=8 << 20)
        for name, slack in slacks.items():
            checks.that(
                after[name] - before[name] <= slack,
                name,
                f"{before[name]} -> {after[name]}, {slack} more are allowed",
            )
        last = steps[(args.updates - 1) % len(steps)]
        check_served(checks, server, last, f"many-{args.updates - 1}")


# --- attach


def look(_state, url):
    """Another process that maps the weights: a checksum of each, made on the GPU."""
    with baton.attach(url, lease_s=30) as served:
        tensors = served.tensors
        sums = baton.gpu_checksums([world.raw_of(t) for t in tensors.values()])
        return served.weight_version, dict(zip(tensors, sums))


def attaching(checks, args, torch):
    with serve_model(
        args, "--pin-timeout", "500"
    ) as server, world.Worker() as trainer, world.Worker() as reader:
        with checks.section("attach"):
            trainer.ask(load, "step-00100")
            label, sums = reader.ask(look, server.url)
            served = {t["name"]: t["checksum"] for t in server.get("/v1/weights")["tensors"]}
            checks.same((label, sums), ("step-0", served), "a second process sees what is served")
            held, began = baton.attach(server.url, lease_s=1), time.monotonic()
            old = expected_on_gpu("step-00000")
            trainer.ask(push_vllm_packed, server.url, "next")
            wrong = [n for n, t in old.items() if not world.same_bytes(held.tensors[n], t)]
            checks.same(wrong, [], "a commit leaves what is held as it is")
            checks.same(held.renew()["served"], False, "renew says that another version serves")
            world.until(lambda: time.monotonic() > began + 2.5, "two and a half leases")
            wrong = [n for n, t in old.items() if not world.same_bytes(held.tensors[n], t)]
            checks.same(wrong, [], "a lease is renewed by itself")
            held.close()
        with checks.section("leases"):
            lost_leases(checks, server, trainer)


def lost_leases(checks, server, trainer):
    first = server.get("/v1/weights/handles?lease_s=3")
    trainer.ask(push_vllm_packed, server.url, "another")
    alive = lambda: server.status()["weights"]["versions_alive"]  # noqa: E731
    checks.same(alive(), 2, "versions alive while one is leased and another served")
    world.until(lambda: alive() == 1, "the version goes with its lease")
    checks.refused(
        lambda: server.post("/v1/weights/handles/renew", {"lease_id": first["lease_id"]}),
        "it cannot be renewed then",
        status=404,
    )
    held = baton.attach(server.url, lease_s=1)
    baton.request(server.url, "DELETE", f"/v1/weights/handles/{held.lease_id}")
    world.until(lambda: held._lost, "the reader notices that its lease is lost")
    checks.refused(lambda: held.tensors, "a reader without a lease is told", words=("lease",))
    held.close()
    checks.that(
        world.differing(server.url, expected_on_gpu("step-00100")) == [],
        "and what is served is what it was",
    )


SECTIONS = {
    "forms": forms,
    "mixed": mixed,
    "not_finite": not_finite,
    "attach": attaching,
    "preflight": ipc_faults.preflight,
    "refused": ipc_faults.refused,
    "expandable": ipc_faults.expandable,
    "killed": ipc_faults.killed,
    "gpus": ipc_gpus.several,
    "growth": growth,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--baton", required=True, help="the program to test")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, by commas")
    parser.add_argument("--updates", type=int, default=1000, help="of the section growth")
    args = parser.parse_args()
    torch = world.need_gpus()
    torch.cuda.init()
    print(
        f"torch {torch.__version__}, {torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    )
    checks = world.Checks()
    for name in args.only.split(","):
        with checks.section(name):
            SECTIONS[name](checks, args, torch)
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
