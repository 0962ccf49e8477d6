"""Adapters whose tensors are in GPU memory: CUDA IPC handles in every form, and broadcasts of a trainer's group;
over the fakes, with trainers that are other processes.
Usage: lora_sources.py BATON MODEL CLIENT_DIR FAKECUDA FAKENCCL TRAINERS_FAKECUDA TRAINERS_FAKENCCL
[SEED]"""

import concurrent.futures
import faulthandler
import json
import os
import shutil
import struct
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[3] if len(sys.argv) > 3 else "")

import baton  # noqa: E402
from ipc_trainer import pickled_dict, pickled_list  # noqa: E402
from ipc_world import WAIT_S, Spec, bucket, columns, fill, must, packed  # noqa: E402
from transfer_world import (GIB, Ended, Groups, Requests, Server, by_id, by_store,  # noqa: E402
                            by_torch, cut_each, cut_vllm, cut_whole, digest, group, hanging_post,
                            join, wire)

GIVE_UP_S = 280
LOAD, UNLOAD, LIST = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/lora_adapters"
UPDATE = "/v1/update_weights"
LATE_S = 20  # how much later than a deadline the answer may come, on the busiest machine


class Adapter:
    """One of the fixture's, as a trainer has it in memory."""

    def __init__(self, model, kind):
        folder = f"{model}/adapters/{kind}"
        with open(f"{folder}/adapter_model.safetensors", "rb") as f:
            raw = f.read()
        with open(f"{folder}/adapter_config.json", encoding="utf-8") as f:
            self.config = json.load(f)
        with open(f"{folder}/golden.json", encoding="utf-8") as f:
            self.case = json.load(f)["cases"][0]
        (n,) = struct.unpack("<Q", raw[:8])
        head = json.loads(raw[8:8 + n])
        head.pop("__metadata__", None)
        self.kind, self.folder = kind, folder
        self.specs = [Spec(name, v["dtype"], v["shape"]) for name, v in head.items()]
        self.data = {name: raw[8 + n:][slice(*v["data_offsets"])] for name, v in head.items()}
        self.sums = [baton.checksum(self.data[s.name]) for s in self.specs]


def until(true, what):
    """Asks again until it is so; each time is a request of its own, so nothing spins."""
    end = time.monotonic() + WAIT_S
    while not true():
        must(time.monotonic() < end, what)


def totals(server):
    return server.ask("GET", LIST).body["totals"]


def idle(server, what):
    """Nothing is held for a load that has ended."""
    found = totals(server)
    must(found["loading"] == found["nbytes_reserved"] == 0, f"{what}: {found}")
    must(server.metric("baton_ipc_mapped") == 0, f"{what}: memory of trainers is mapped")


def serves(server, name, adapter, revision, what):
    """It generates what that adapter does, and says which it is."""
    case = adapter.case
    found = server.post(200, "/v1/generate", {
        "model": name, "token_ids": case["prompt_token_ids"],
        "sampling_params": {"max_tokens": len(case["greedy_token_ids"]), "temperature": 0,
                            "ignore_eos": True}}, what)
    must(found["adapter"] == {"name": name, "revision": revision}, f"{what}: {found['adapter']}")
    must(found["choices"][0]["token_ids"] == case["greedy_token_ids"], f"{what}: other tokens")


def load(server, name, adapter, body, what, **more):
    found = server.post(200, LOAD, {"lora_name": name, "adapter_config": adapter.config, **body,
                                    **more}, what)
    must(found["n_matched"] == len(adapter.specs) and found["missing"] == [], f"{what}: {found}")
    idle(server, what)
    return found


def refuse(server, body, status, code, param, *words, what=""):
    found = server.post(status, LOAD, {"lora_name": "no", **body}, what or f"{param}")["error"]
    must(found["code"] == code, f"{what}: {found}")
    must(param is None or (found["param"] or "") == param, f"{what}: {found}")
    for word in words:
        must(word in found["message"], f"{what}: '{word}' is not in {found['message']}")
    must("no" not in [a["lora_name"] for a in server.ask("GET", LIST).body["adapters"]], what)
    idle(server, what)
    return found


def spent(trainer, what):
    must(trainer.counters() and not any(trainer.counters()), f"{what}: {trainer.counters()}")


def deltas_of(adapter):
    """Two deltas, each as specs and bytes: another first element of the first tensor, and the adapter's own again."""
    s, out = adapter.specs[0], []
    own = adapter.data[s.name][:s.nbytes // s.numel]
    specs = [Spec(f"{s.name}#index", "I64", [1]), Spec(f"{s.name}#value", s.dtype, [1])]
    for value in (bytes([own[0] ^ 1]) + own[1:], own):
        out.append((specs, {specs[0].name: bytes(8), specs[1].name: value}))
    return out


def cut(specs, n):
    edges = [len(specs) * i // n for i in range(n + 1)]
    return [specs[a:b] for a, b in zip(edges, edges[1:])]


# Handles

def handles(world, server):
    """Each form brings the same adapter as the directory; every export is given back."""
    shout, rslora = world.shout, world.rslora
    by_file = server.post(200, LOAD, {"lora_name": "file", "lora_path": shout.folder})["digest"]
    with world.trainer(server) as t:
        content = packed(shout.specs, shout.data)
        address = fill(t, 0, content, front=257)  # an odd start
        x = t.export(address, 257, len(content))
        found = load(server, "a", shout, columns(shout.specs, ipc_handles={x.uuid: x.plain}), "plain")
        must(found["revision"] == 1 and found["digest"] == by_file, f"{found}")
        serves(server, "a", shout, 1, "plain")
        must(any(t.counters()), "plain handles name no counter")

    def one(t, name, adapter, body, revision, what):
        must(load(server, name, adapter, body, what)["revision"] == revision, what)
        spent(t, what)
        serves(server, name, adapter, revision, what)

    with world.trainer(server) as t:
        _, body = bucket(t, 0, rslora.specs, rslora.data, checksums=rslora.sums)
        one(t, "a", rslora, body, 2, "pickled")
    with world.trainer(server) as t:
        parts = [bucket(t, 0, specs, shout.data)[1] for specs in cut(shout.specs, 7)]
        one(t, "a", shout, {"buckets": parts}, 3, "buckets")
    for pair in (False, True):
        with world.trainer(server) as t:
            one(t, f"list {pair}", shout, vllm_list(t, shout, pair), 1, f"list {pair}")
    with world.trainer(server) as t:
        _, body = bucket(t, 0, shout.specs, shout.data)
        found = load(server, "a", shout, body, "again")
        must(found["unchanged"] and found["revision"] == 3, f"{found}")
        spent(t, "again")
    for k, (specs, data) in enumerate(deltas_of(shout)):
        with world.trainer(server) as t:
            _, body = bucket(t, 0, specs, data)
            found = load(server, "a", shout, body, "delta", delta=True, if_digest=found["digest"])
            must(found["revision"] == 4 + k and (found["digest"] == by_file) == (k == 1), f"{found}")
            spent(t, "delta")
    must(server.served is None, "an adapter is no weight")


def vllm_list(t, adapter, pair):
    """One handle for each tensor, all in one allocation."""
    content, offsets = bytearray(), []
    for s in adapter.specs:
        content += bytes(-len(content) % 512)
        offsets.append(len(content))
        content += adapter.data[s.name]
    address = fill(t, 0, bytes(content))
    dicts = []
    for s, offset in zip(adapter.specs, offsets):
        x = t.export(address, offset, s.nbytes, s.shape,
                     {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}[s.dtype])
        dicts.append({x.uuid: x})
    return columns(adapter.specs, packed=False, ipc_handles_pickled=pickled_list(dicts, pair))


def handles_refused(world, server):
    """Where it stands in the request; what was read is given back, what was not is left alone."""
    shout = world.shout
    good = {"adapter_config": shout.config}
    with world.trainer(server) as t:
        x, body = bucket(t, 0, shout.specs, shout.data)
        good.update(body)
        opened = server.metric("baton_ipc_mappings_opened_total")
        for body, param, *words in (
                ({**good, "lora_path": shout.folder}, "/ipc_handles_pickled", "exactly one"),
                ({**good, "shm": {"name": "/x", "nbytes": 1}}, "/ipc_handles_pickled", "exactly"),
                ({k: v for k, v in good.items() if k != "adapter_config"}, "/adapter_config"),
                ({**good, "adapter_config": {**shout.config, "use_dora": True}}, None, "dora"),
                ({**good, "expected_digest": "0" * 64}, "/expected_digest", "transport: nccl"),
                ({**good, "bucket_nbytes": 1}, "/bucket_nbytes", "transport: nccl"),
                ({**good, "group_name": "g"}, "/group_name", "transport: nccl"),
                ({**good, "tensor_sizes": [1]}, "/tensor_sizes"),
                ({**good, "checksums": ["x"]}, "/checksums"),
                ({**good, "ipc_handles_pickled": "gAROLg=="}, "/ipc_handles_pickled"),
                ({"lora_path": shout.folder, "per_gpu": {}}, "/per_gpu", "ipc_handles"),
                ({"lora_path": shout.folder, "names": []}, "/names", "directory"),
                ({**good, "buckets": []}, "/buckets", "exactly one"),
                ({"adapter_config": shout.config, "buckets": []}, "/buckets", "1 to 4096")):
            refuse(server, body, 400, "bad_request", param, *words)
        must(server.metric("baton_ipc_mappings_opened_total") == opened, "something was opened")
        must(t.counters() == [1], "an export that was never read was counted down")

        wrong = [None] * len(shout.sums)
        wrong[5] = "0" * 32
        refuse(server, {**good, "checksums": wrong}, 422, "checksum_mismatch", "/checksums/5",
               shout.specs[5].name)
        must(t.counters() == [0], "an export that was read was not counted down")
    with world.trainer(server) as t:
        parts = [bucket(t, 0, specs, shout.data)[1] for specs in cut(shout.specs, 4)]
        parts[2]["checksums"] = ["0" * 32] + [None] * (len(parts[2]["names"]) - 1)
        refuse(server, {"adapter_config": shout.config, "buckets": parts}, 422,
               "checksum_mismatch", "/buckets/2/checksums/0", parts[2]["names"][0])
        spent(t, "a sum of the third bucket")
    with world.trainer(server) as t:
        x, body = bucket(t, 0, shout.specs, shout.data)
        short = columns(shout.specs, adapter_config=shout.config,
                        ipc_handles={x.uuid: {**x.plain, "offset": 1 << 24}})
        refuse(server, short, 400, "bad_request", None, "memory has", what="beyond its allocation")
        parts = [bucket(t, 0, specs, shout.data)[1] for specs in cut(shout.specs, 3)]
        names = parts[1]["names"]
        at = next(i for i, n in enumerate(names[:-1]) if "lora_A" in n)
        names[at] = names[at].replace(".layers.", ".layers.9")
        found = refuse(server, {"adapter_config": shout.config, "buckets": parts}, 422,
                       "manifest_mismatch", f"/buckets/1/names/{at + 1}", "has no lora_A",
                       what="half a pair")
        must(names[at + 1] in found["message"], f"{found}")
        must(all(t.counters()[1:]), "exports that were never read were counted down")


def waits_for_the_event(world, server):
    """The bytes are written after the export: the answer waits, an update does not wait for it."""
    shout = world.shout
    with world.trainer(server) as t, Requests(server) as requests:
        content = packed(shout.specs, shout.data)
        address = t.alloc(0, len(content))
        t.hold(True)
        t.write(address, 0, content)
        x = t.export(address, 0, len(content))
        answer = requests.post(LOAD, {"lora_name": "late", "adapter_config": shout.config,
                                      **columns(shout.specs,
                                                ipc_handles_pickled=pickled_dict({x.uuid: x}))})
        until(lambda: totals(server)["loading"] == 1, "it never began")
        server.post(200, UPDATE, {"path": world.checkpoint, "weight_version": "meanwhile"})
        must(t.counters() == [1] and not answer.done(), "it did not wait for the event")
        t.hold(False)
        must(answer.result().status == 200, f"{answer.result()}")
        spent(t, "late")
    serves(server, "late", shout, 1, "late")
    idle(server, "late")


def stuck_trainers(world, server):
    """An event that never comes, a client that goes, a trainer that dies: an answer, and nothing
    is held; what served serves."""
    shout = world.shout
    with world.trainer(server) as t:
        t.hold(True)
        _, body = bucket(t, 0, shout.specs, shout.data)
        body = {**body, "adapter_config": shout.config}
        began = time.monotonic()
        refuse(server, {**body, "timeout_s": 1}, 408, "timeout", None, what="no event")
        must(time.monotonic() - began < 1 + LATE_S, "the deadline is not the load's")
        with hanging_post(server, LOAD, {**body, "lora_name": "no", "timeout_s": 600}):
            until(lambda: totals(server)["loading"] == 1, "it never began")
        until(lambda: totals(server)["loading"] == 0, "it waits on for a client that went")
        idle(server, "a client that went")
        with Requests(server) as requests:
            answer = requests.post(LOAD, {**body, "lora_name": "no", "timeout_s": 600})
            until(lambda: totals(server)["loading"] == 1, "it never began")
            t.kill()
            found = answer.result()
        must(found.status >= 400 and found.body["error"]["code"] in
             ("client_gone", "source_unreadable"), f"{found}")  # it may not have been opened yet
        idle(server, "a trainer that died")
    with world.trainer(server) as t:
        _, body = bucket(t, 0, shout.specs, shout.data)
        must(load(server, "late", shout, body, "after all")["unchanged"], "after all")


def at_once(world, server):
    """Loads of several names from one allocation follow each other: nothing is opened twice."""
    shout, rslora = world.shout, world.rslora
    contents = [packed(a.specs, a.data) for a in (shout, rslora)]
    with world.trainer(server) as t, concurrent.futures.ThreadPoolExecutor(8) as pool:
        at = (len(contents[0]) + 511) // 512 * 512
        address = fill(t, 0, contents[0] + bytes(at - len(contents[0])) + contents[1])
        bodies = []
        for i in range(8):
            a = (shout, rslora)[i % 2]
            x = t.export(address, (0, at)[i % 2], len(contents[i % 2]))
            bodies.append({"lora_name": f"n{i}", "adapter_config": a.config,
                           **columns(a.specs, ipc_handles_pickled=pickled_dict({x.uuid: x}))})
        for found in pool.map(lambda b: server.post(200, LOAD, b, "at once"), bodies):
            must(found["revision"] == 1, f"{found}")
        spent(t, "at once")
    for i in range(8):
        serves(server, f"n{i}", (shout, rslora)[i % 2], 1, "at once")
        server.post(200, UNLOAD, {"lora_name": f"n{i}"})
    idle(server, "at once")


def two_gpus(world):
    """The adapter is what the first GPU of the server is sent; the others' exports are given back."""
    shout = world.shout
    with world.engine("cuda:0,cuda:1", "2") as server:
        server.post(200, UPDATE, {"path": world.checkpoint, "weight_version": "base"})
        with world.trainer(server) as t:
            exports = [bucket(t, d, shout.specs, shout.data)[0] for d in range(2)]
            body = columns(shout.specs, checksums=shout.sums, ipc_handles_pickled=pickled_dict(
                {x.uuid: x for x in exports}))
            load(server, "two", shout, body, "two")
            serves(server, "two", shout, 1, "two")
            spent(t, "two")
        with world.trainer(server) as t:
            orders = [shout.specs, list(reversed(shout.specs))]
            exports = [bucket(t, d, orders[d], shout.data)[0] for d in range(2)]
            body = {"per_gpu": {x.uuid: columns(o) for x, o in zip(exports, orders)},
                    "ipc_handles_pickled": pickled_dict({x.uuid: x for x in exports})}
            must(load(server, "two", shout, body, "per GPU")["unchanged"], "per GPU")
            spent(t, "per GPU")
            wrong = {u: dict(c, checksums=["0" * 32] + [None] * (len(shout.specs) - 1))
                     for u, c in body["per_gpu"].items()}
        with world.trainer(server) as t:
            exports = [bucket(t, d, orders[d], shout.data)[0] for d in range(2)]
            body = {"adapter_config": shout.config, "per_gpu": wrong,
                    "ipc_handles_pickled": pickled_dict({x.uuid: x for x in exports})}
            refuse(server, body, 422, "checksum_mismatch",
                   f"/per_gpu/{exports[0].uuid}/checksums/0", shout.specs[0].name)
            one = columns(shout.specs, rank=1, ipc_handles_pickled=body["ipc_handles_pickled"])
            refuse(server, {"adapter_config": shout.config, "buckets": [one]}, 400, "bad_request",
                   "/buckets", "rank 0 gets no tensors")


# Groups

def push(server, trainer, name, adapter, body, blobs, what):
    """The trainer broadcasts while its request is under way, as trainers do."""
    trainer.begin("send", blobs)
    found = load(server, name, adapter, body, what)
    trainer.result()
    return found


def broadcasts(world, server):
    """Each way to cut, each way to join."""
    revision, adapters = 0, (world.shout, world.rslora)
    for form in (by_id, by_store, by_torch):
        with world.nccl_trainer() as trainer:
            join(server, trainer, form)
            if form is by_torch:
                trainer.result()
            for i in range(8):
                a = adapters[i % 2]
                total, what = sum(s.nbytes for s in a.specs), f"{form.__name__} {i}"
                more, blobs = (
                    ({"packed": True, "sizes": [s.numel for s in a.specs]},
                     cut_whole(a.specs, a.data)),
                    ({}, cut_each(a.specs, a.data)),
                    ({"packed": True, "bucket_nbytes": 1000}, cut_vllm(a.specs, a.data, 1000)),
                    ({"packed": True, "packed_buffer_size_bytes": total // 3},
                     cut_vllm(a.specs, a.data, total // 3)),
                    ({"packed": True}, cut_vllm(a.specs, a.data, GIB)),
                    ({"packed": False, "checksums": a.sums}, cut_each(a.specs, a.data)),
                    ({"packed": True, "expected_digest": digest(a.specs)},
                     cut_vllm(a.specs, a.data, GIB)),
                    ({"packed": True, "bucket_nbytes": 1}, cut_vllm(a.specs, a.data, 1)),
                )[i]
                found = push(server, trainer, "x", a, wire(a.specs, **more), blobs, what)
                revision += 1
                must(found["revision"] == revision, f"{what}: {found}")
            again = found
            for specs, data in deltas_of(adapters[1]):
                body = wire(specs, delta=True, if_digest=again["digest"])
                revision += 1
                again = push(server, trainer, "x", adapters[1], body, cut_each(specs, data), f"{form.__name__}: delta")
            must(again["revision"] == revision and again["digest"] == found["digest"], f"{again}")
            serves(server, "x", adapters[1], revision, form.__name__)
            one_update(world, server, trainer, form.__name__)
    must(server.metric("baton_nccl_broadcasts_total") > 100, "broadcasts are counted")
    idle(server, "broadcasts")


def one_update(world, server, trainer, what):
    """Weights and adapters share the group, one after the other. The list of an adapter is not the update's last."""
    repeated = {"transport": "nccl", "plan_id": "last", "packed": True, "weight_version": f"{what} again"}
    a = world.shout
    update_id = server.post(200, f"{UPDATE}/start", {})["update_id"]
    trainer.begin("send", cut_whole(world.base, world.base_data))
    server.post(200, UPDATE, wire(world.base, packed=True, update_id=update_id))
    trainer.result()
    push(server, trainer, "y", a, wire(a.specs), cut_each(a.specs, a.data), "an adapter in its midst")
    server.post(200, f"{UPDATE}/finish", {"update_id": update_id})
    for body in repeated, wire(world.base, packed=True, weight_version=what), repeated:
        trainer.begin("send", cut_whole(world.base, world.base_data))
        found = server.post(200, UPDATE, body)
        must(found["phase"] == "committed" and found["n_tensors_done"] == len(world.base), f"{found}")
        must([a["valid"] for a in found["adapters"]].count(True) == len(found["adapters"]) > 0,
             f"{found}")
        trainer.result()
        push(server, trainer, "y", a, wire(a.specs), cut_each(a.specs, a.data), "an adapter after it")


def wrong_bytes(world, server):
    """Bytes that are not what they should be are received to the end: the group lives on."""
    a = world.shout
    with world.nccl_trainer() as trainer:
        join(server, trainer)
        sums = list(a.sums)
        sums[0] = "0" * 32
        trainer.begin("send", cut_each(a.specs, a.data))
        refuse(server, {"adapter_config": a.config, **wire(a.specs, checksums=sums)}, 422,
               "checksum_mismatch", "/checksums/0", a.specs[0].name)
        trainer.result()
        must(group(server)["state"] == "joined", "the group did not live on")
        push(server, trainer, "w", a, wire(a.specs), cut_each(a.specs, a.data), "then right")
        serves(server, "w", a, 1, "then right")


def in_doubt(world, server):
    """A refused load's broadcast may be on its way: it is not taken for the next one's."""
    a = world.shout
    good = {"adapter_config": a.config, **wire(a.specs)}
    no_layer = [Spec(a.specs[0].name.replace("layers.0", "layers.99"), a.specs[0].dtype,
                     a.specs[0].shape), *a.specs[1:]]
    for what, body, status in (
            ("no config", wire(a.specs), 400),
            ("a wrong word", {**good, "packed": 7}, 400),
            ("an unknown member", {**good, "lora_nmae": "x"}, 400),
            ("no such layer", {**good, **wire(no_layer)}, 422),
            ("a revision", {**good, "if_revision": 99}, 409),
            ("a path too", {**good, "lora_path": a.folder}, 400)):
        with world.nccl_trainer() as trainer:
            join(server, trainer)
            found = server.post(status, LOAD, {"lora_name": "no", **body}, what)["error"]
            must(found["message"] != "", f"{found}")
            late = server.post(409, LOAD, {"lora_name": "no", **good}, what)["error"]
            must("its bytes arrive next" in late["message"], f"{what}: {late}")
            late = server.post(409, UPDATE, wire(world.base), what)["error"]
            must("its bytes arrive next" in late["message"], f"{what}: {late}")
            push(server, trainer, "sure", a, wire(a.specs, expected_digest=digest(a.specs)),
                 cut_each(a.specs, a.data), what)
    idle(server, "in doubt")


def never_sends(world, server):
    """Nobody sends, the client goes, the trainer dies, the group is left: an answer, and soon."""
    a = world.shout
    good = {"lora_name": "no", "adapter_config": a.config, **wire(a.specs)}
    with world.nccl_trainer() as trainer:
        join(server, trainer)
        began = time.monotonic()
        refuse(server, {**good, "timeout_s": 1}, 408, "timeout", None, what="nobody sends")
        must(time.monotonic() - began < 1 + LATE_S, "the deadline is not the load's")
        must(group(server)["state"] == "failed", f"{group(server)}")
    with world.nccl_trainer() as trainer:
        join(server, trainer)
        with hanging_post(server, LOAD, {**good, "timeout_s": 600}):
            until(lambda: totals(server)["loading"] == 1, "it never began")
        until(lambda: group(server)["state"] == "failed", "it waits on for a client that went")
        until(lambda: totals(server)["loading"] == 0, "its place is held")
    for how in ("kill", "leave"):  # a store shows that its trainer ended
        with world.nccl_trainer() as trainer, Requests(server) as requests:
            join(server, trainer, by_store)
            answer = requests.post(LOAD, {**good, "timeout_s": 600})
            until(lambda: totals(server)["loading"] == 1, "it never began")
            busy = server.post(409, UPDATE, wire(world.base))["error"]
            must("another request receives" in busy["message"], f"{busy}")
            if how == "kill":
                trainer.kill()
            else:
                server.ask("DELETE", "/v1/weight_transfer")
            must(answer.result().status >= 400, f"{how}: {answer.result()}")
        idle(server, how)
    with world.nccl_trainer() as trainer:
        join(server, trainer)
        push(server, trainer, "then", a, wire(a.specs), cut_each(a.specs, a.data), "then")
        serves(server, "then", a, 1, "then")


def apart(world, server):
    """A load by the group does not stand behind one by handles whose trainer is stuck."""
    a = world.shout
    with world.trainer(server) as t, world.nccl_trainer() as trainer, Requests(server) as requests:
        t.hold(True)
        _, body = bucket(t, 0, world.rslora.specs, world.rslora.data)
        answer = requests.post(LOAD, {"lora_name": "slow", "adapter_config": world.rslora.config,
                                      **body, "timeout_s": 600})
        until(lambda: totals(server)["loading"] == 1, "it never began")
        join(server, trainer)
        trainer.begin("send", cut_each(a.specs, a.data))
        server.post(200, LOAD, {"lora_name": "fast", "adapter_config": a.config, **wire(a.specs)})
        trainer.result()
        must(not answer.done() and totals(server)["loading"] == 1, "it did not wait")
        t.hold(False)
        must(answer.result().status == 200, f"{answer.result()}")
        spent(t, "apart")
    serves(server, "fast", a, 1, "apart")
    serves(server, "slow", world.rslora, 1, "apart")
    idle(server, "apart")


def unable(world):
    """Without a GPU, or without NCCL: judged first, then told as an update is told."""
    a = world.shout
    with world.engine("cpu", "1") as server:
        good = {"adapter_config": a.config, **wire(a.specs)}
        refuse(server, {**good, "packed": 7}, 400, "bad_request", "/packed")
        refuse(server, good, 409, "no_gpu", None, "--device")
        with world.trainer(server) as t:
            x, body = bucket(t, 0, a.specs, a.data)
            refuse(server, {"adapter_config": a.config, **body}, 409, "no_gpu",
                   "/ipc_handles_pickled", "--device")
            must(t.counters() == [1], "an export that was never read was counted down")
    with world.engine("cuda:0", "1", "--nccl-library", "/nowhere/libnccl.so.2") as server:
        refuse(server, good, 409, "no_nccl", None, "--nccl-library")


def ends(world):
    """The end of the server ends a load that waits, with an answer."""
    a = world.shout
    with world.engine("cuda:0", "1") as server, world.trainer(server) as t, \
            Requests(server) as requests:
        t.hold(True)
        _, body = bucket(t, 0, a.specs, a.data)
        answer = requests.post(LOAD, {"lora_name": "no", "adapter_config": a.config, **body,
                                      "timeout_s": 600})
        until(lambda: totals(server)["loading"] == 1, "it never began")
        server.process.terminate()
        found = answer.result()
        must(found.status == 409 and "stopped" in found.body["error"]["message"], f"{found}")
        must(server.process.wait(WAIT_S) == 3, f"its drain was not cut: {server.tail()}")
        must(t.counters() == [0], "its export was not given back")
        server.stop = lambda: None  # it has


class Sources(Groups):
    """A model with an embedded engine, its adapters, and its weights as a trainer has them."""

    def __init__(self, *args, seed):
        super().__init__(*args, seed=seed)
        self.shout, self.rslora = Adapter(self.model, "shout"), Adapter(self.model, "rslora")
        self.checkpoint = f"{self.model}/checkpoints/step-01500.safetensors"
        with open(self.checkpoint, "rb") as f:
            raw = f.read()
        (n,) = struct.unpack("<Q", raw[:8])
        head = json.loads(raw[8:8 + n])
        head.pop("__metadata__", None)
        self.base = [Spec(name, v["dtype"], v["shape"]) for name, v in head.items()]
        self.base_data = {name: raw[8 + n:][slice(*v["data_offsets"])] for name, v in head.items()}

    def engine(self, devices, n_devices, *options, **environment):
        return Server(self, "--model", self.model, "--weights", "none", "--device", devices,
                      "--allow-path", self.model, "--drain-timeout", "200", *options,
                      devices=n_devices, **environment)

    def grouped(self):
        self.n_reports += 1
        report = os.path.join(self.folder, f"nccl-{self.n_reports}")
        return Ended(self.engine("cuda:0", "1", "--nccl-library", self.nccl,
                                 FAKENCCL_REPORT=report), report)


def main():
    faulthandler.dump_traceback_later(GIVE_UP_S, exit=True)  # where it hangs, rather than that it does
    world = Sources(*sys.argv[1:8], seed=sys.argv[8] if len(sys.argv) > 8 else os.urandom(4).hex())
    try:
        run(world)
    finally:
        shutil.rmtree(world.folder)


def run(world):
    with world.engine("cuda:0", "1") as server:
        server.post(200, UPDATE, {"path": world.checkpoint, "weight_version": "base"})
        for step in (handles, handles_refused, waits_for_the_event, stuck_trainers, at_once):
            step(world, server)
    two_gpus(world)
    with world.grouped() as server:
        server.post(200, UPDATE, {"path": world.checkpoint, "weight_version": "base"})
        for step in (broadcasts, wrong_bytes, in_doubt, never_sends, apart):
            step(world, server)
    unable(world)
    ends(world)
    print(f"ok: {must.n} checks")


if __name__ == "__main__":
    main()
