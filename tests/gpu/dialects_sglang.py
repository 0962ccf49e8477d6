"""Trainers that speak SGLang, from torch: its pickles of tensors on the same GPU, in the forms of
slime and verl, and a torch process group. Sections of test_dialects_torch.py."""

import itertools
import time

import dialects_trainer as trainer_side
import nccl_torch
import nccl_world as nccl
import test_ipc_torch as ipc
from dialects_world import NCCL_SLACK, Stage, by_sglang, must_answer, serve, specs_of, wire

TENSOR, STRINGS = "/update_weights_from_tensor", "serialized_named_tensors"
DISTRIBUTED, GROUP = "/update_weights_from_distributed", "slime-pp_0"
LEAVE_S = 30  # torch's own patience ends later
FORMS = {  # the trainer's, and what it calls its format
    "slime, flattened": ("bucket", "flattened_bucket"),
    "slime, of one dtype": ("elements", "flattened_bucket"),
    "verl": ("verl", None),
    "list": ("list", "direct"),
    "list, torch not patched": ("index", None),
}


# --- tensors


def makes_room(st, form):
    """verl lets go of everything first; slime pauses."""
    if form == "verl":
        st.say("/flush_cache", method="GET")
        st.say("/release_memory_occupation", {"tags": ["kv_cache", "weights"]})
        st.say("/resume_memory_occupation", {"tags": ["weights"]})
    else:
        st.say("/pause_generation", {})
        st.say("/flush_cache", method="GET")


def goes_on(st, form):
    if form == "verl":
        st.say("/resume_memory_occupation", {"tags": ["kv_cache"]})
        st.say("/flush_cache", method="GET")
    else:
        st.say("/continue_generation", {})


def push_tensors(st, n_chunks, form, load_format, label):
    """Without a start or a finish; the last of the answers names the version."""
    for i in range(n_chunks):
        string = st.trainer.ask(trainer_side.sglang, i, form)
        body = {STRINGS: [string], "load_format": load_format, "flush_cache": False}
        found = st.say(TENSOR, {**body, "weight_version": label})
        st.let_go(f"{form}, chunk {i}")
    st.checks.that(label in found["message"], f"{label}: it is committed", found["message"])


def tensor_round(st, step, what, label):
    form, load_format = FORMS[what]
    _, n_chunks = st.load(step, tied=form in ("list", "verl"))
    makes_room(st, form)
    push_tensors(st, n_chunks, form, load_format, label)
    goes_on(st, form)
    st.serves(step, what, by_sglang, label)


def by_tensor(checks, args, trainer):
    with serve(args, 0) as server:
        st = Stage(checks, args, trainer, server)

        def rounds(steps):
            for i, (step, what) in enumerate(zip(steps, itertools.cycle(FORMS))):
                tensor_round(st, step, what, f"{i}/{what}")

        st.no_growth(rounds, warm=len(FORMS))


def mixed(checks, args, trainer):
    """Every dtype, odd sizes, nothing at all: in one buffer, and one by one."""
    specs = [nccl.Spec(*row) for row in ipc.MIXED]
    rows = itertools.product(("bucket", "list", "verl"), (nccl.GIB, 100_000))
    with nccl.store(args, specs, devices=[0]) as server:
        st = Stage(checks, args, trainer, server)
        for seed, (form, nbytes_max) in enumerate(rows, 1):
            n_chunks = trainer.ask(trainer_side.make, specs, seed, nbytes_max)
            load_format = "flattened_bucket" if form == "bucket" else None
            push_tensors(st, n_chunks, form, load_format, f"mixed-{seed}")
            what = f"{form}, {n_chunks} requests"
            checks.same(nccl.wrong(args, server, specs, seed), [], f"{what}: bytes")
            checks.same(server.mapped(), 0, f"{what}: mappings left")


# --- a torch process group


def joins(st, name=GROUP, port_as=int):
    port = st.trainer.ask(nccl_torch.free_port)
    body = {"master_address": "127.0.0.1", "master_port": port_as(port), "rank_offset": 1}
    body.update(world_size=2, group_name=name, backend="nccl")
    pending = nccl.Pending(st.server, "/init_weights_update_group", body)
    st.trainer.tell(nccl_torch.form_group, port, 2, name)
    must_answer(pending.answer(), f"{name}: the init")
    st.trainer.hear()


def leaves(st, name=GROUP):
    """slime's engines and its own rank leave at the same time."""
    began = time.monotonic()
    path, body = "/destroy_weights_update_group", {"group_name": name}
    st.meanwhile(path, body, trainer_side.leave_group)
    took_s = time.monotonic() - began
    st.checks.that(took_s < LEAVE_S, f"{name}: both leave the group", f"{took_s:.2f} s")


def push_part(st, columns, first, last, flat, **members):
    """Tensors first to last: each by itself, or all of them in one broadcast."""
    part = columns[first:last]
    body = wire(part, "dtypes", flush_cache=False, **members)
    if not flat:
        return st.meanwhile(DISTRIBUTED, body, trainer_side.send_each, first, last)
    body["load_format"] = "flattened_bucket"
    cuts = nccl.cut_whole(specs_of(part))
    return st.meanwhile(DISTRIBUTED, body, trainer_side.send_packed, cuts, first)


def group_round(st, step, label, flat, name=GROUP):
    columns, _ = st.load(step)
    what = f"{label}, {'flattened' if flat else 'each tensor'}"
    st.say("/pause_generation", {"mode": "retract" if flat else "in_place"})
    st.say("/flush_cache", method="GET")
    for first, last in itertools.pairwise((0, 7, 30, len(columns))):
        said = push_part(st, columns, first, last, flat, group_name=name, weight_version=label)
    st.checks.that(label in said["message"], f"{what}: it is committed", said["message"])
    st.say("/continue_generation", {})
    st.serves(step, what, by_sglang, label)


def by_group(checks, args, trainer):
    with serve(args, 1) as server:
        st = Stage(checks, args, trainer, server)
        joins(st)

        def rounds(steps):
            for i, step in enumerate(steps):
                group_round(st, step, f"v{i}", i % 2 == 1)

        st.no_growth(rounds, gpu_used=NCCL_SLACK)
        leaves(st)
        joins(st, "another", str)  # AReaL sends the port as text
        group_round(st, "step-00100", "again", False, "another")
        leaves(st, "another")
