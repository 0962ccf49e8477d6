"""Weights from the ranks of a trainer that spreads experts: each brings the experts that it holds, under their
own names, and the router and the dense tensors come from one rank or from all.
Usage: update_experts.py BATON MODEL CLIENT_DIR FAKECUDA FAKECUDA_OF_TRAINERS [SEED]"""

import faulthandler
import os
import shutil
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[3] if len(sys.argv) > 3 else "")

import baton  # noqa: E402
from ipc_trainer import pickled_dict, pickled_list  # noqa: E402
from ipc_world import TORCH, Spec, World, columns, fill, must, packed  # noqa: E402

N_RANKS, N_EXPERTS, N_LAYERS = 4, 8, 2
GIVE_UP_S = 280
UPDATE, START, FINISH = "/v1/update_weights", "/v1/update_weights/start", "/v1/update_weights/finish"


def model():
    """The tensors of a sparse model. The router's bias is float32 behind an odd number of bfloat16 elements: in a
    packed bucket it is not aligned."""
    specs = [Spec("model.embed_tokens.weight", "BF16", [33, 9])]
    for i in range(N_LAYERS):
        at = f"model.layers.{i}.mlp"
        specs.append(Spec(f"{at}.gate.weight", "BF16", [N_EXPERTS, 9]))
        specs.append(Spec(f"{at}.gate.e_score_correction_bias", "F32", [N_EXPERTS]))
        for e in range(N_EXPERTS):
            specs += [Spec(f"{at}.experts.{e}.{kind}_proj.weight", "BF16", shape)
                      for kind, shape in (("gate", [5, 9]), ("up", [5, 9]), ("down", [9, 5]))]
    return specs


def expert_of(spec):
    """The expert that a tensor belongs to, or None."""
    words = spec.name.split(".")
    return int(words[words.index("experts") + 1]) if "experts" in words else None


def part_of(specs, rank, dense=True, n_ranks=N_RANKS):
    """What a rank holds: its experts, and the dense tensors in front of them."""
    return [s for s in specs if (dense if expert_of(s) is None else
                                 expert_of(s) * n_ranks // N_EXPERTS == rank)]


def export(t, device, specs, data):
    """A packed bucket on one GPU, with the tensors in the order of `specs`."""
    content = packed(specs, data)
    return t.export(fill(t, device, content, front=512), 512, len(content))


# vLLM's /update_weights: a list with an entry for each rank

def wire(specs, **more):
    found = columns(specs, **more)
    found["dtype_names"] = found.pop("dtypes")
    return found


def entry(t, device, specs, data, form):
    """What one rank of a trainer sends to its worker: the exports of its own GPU."""
    if form == "packed":
        x = export(t, device, specs, data)
        handles, more = pickled_dict({x.uuid: x}, False), {"tensor_sizes": [s.nbytes for s in specs]}
    else:
        exports = [t.export(fill(t, device, data[s.name]), 0, s.nbytes, s.shape, TORCH[s.dtype])
                   for s in specs]
        handles, more = pickled_list([{x.uuid: x} for x in exports], False), {}
    return wire(specs, ipc_handles_pickled=handles, **more)


def vllm(server, status, path, body, what):
    return server.post(status, path, body, what)


def vllm_lists(world, server, t):
    """Every rank gets its experts; the dense tensors go to all, or to one rank only."""
    empty = {"names": [], "dtype_names": [], "shapes": [],
             "ipc_handles_pickled": pickled_list([], False)}
    for form in ("packed", "list"):
        for dense_to_all in (True, False):
            what, data = f"vllm {form} {dense_to_all}", world.data()
            vllm(server, 200, "/start_weight_update", {}, what)
            parts = [part_of(world.specs, r, dense_to_all or r == 2) for r in range(N_RANKS)]
            cuts = [(p[:len(p) // 2], p[len(p) // 2:]) for p in parts]
            for i in range(2):
                vllm(server, 200, "/update_weights", {"update_info": [
                    entry(t, r, cuts[r][i], data, form) for r in range(N_RANKS)]}, what)
            vllm(server, 200, "/finish_weight_update", {"weight_version": what}, what)
            server.serve(data, server.ask("GET", "/v1/status").body["weights"])
            server.check(what)
            server.check_gpus(t, [{s.name: data[s.name] for s in p} for p in parts], what)

    what, data = "an entry without tensors", world.data()
    vllm(server, 200, "/start_weight_update", {}, what)
    for rank in range(N_RANKS):  # the others have nothing in this request
        vllm(server, 200, "/update_weights", {"update_info": [
            entry(t, rank, part_of(world.specs, r, r == 0), data, "packed") if r == rank else empty
            for r in range(N_RANKS)]}, what)
    vllm(server, 200, "/finish_weight_update", {"weight_version": what}, what)
    server.serve(data, server.ask("GET", "/v1/status").body["weights"])
    server.check(what)


def by_gpu(world, server, t):
    """SkyRL's lists for each GPU in a session of a dialect: nothing says that it is sharded."""
    for beside in ({}, wire(world.specs[:2])):
        what, data = f"metadata_by_gpu {bool(beside)}", world.data()
        vllm(server, 200, "/start_weight_update", {}, what)
        parts = [part_of(world.specs, r) for r in range(N_RANKS)]
        exports = [export(t, r, p, data) for r, p in enumerate(parts)]
        vllm(server, 200, "/update_weights", {"update_info": {
            **beside, "metadata_by_gpu": {x.uuid: columns(p) for x, p in zip(exports, parts)},
            "ipc_handles_pickled": pickled_dict({x.uuid: x for x in exports})}}, what)
        vllm(server, 200, "/finish_weight_update", {"weight_version": what}, what)
        server.serve(data, server.ask("GET", "/v1/status").body["weights"])
        server.check(what)


def vllm_refused(world, server, t):
    data = world.data()
    vllm(server, 200, "/start_weight_update", {}, "refused")
    entries = [entry(t, r, part_of(world.specs, r), data, "packed") for r in range(N_RANKS)]

    def refuse(change, param, *words):
        changed = [dict(x) for x in entries]
        change(changed)
        error = vllm(server, 400, "/update_weights", {"update_info": changed}, param)["error"]
        must(error["param"] == param, f"{param}: {error}")
        for word in words:
            must(word in error["message"], f"'{word}' is not in {error}")

    refuse(lambda x: x.pop(), "update_info", "3 entries", "has 4")
    refuse(lambda x: x[1].update(num_updates_list=[1]), "update_info.1.num_updates_list", "sparse")
    refuse(lambda x: x[2].pop("ipc_handles_pickled"), "update_info.2", "ipc_handles_pickled")
    refuse(lambda x: x[3].update(tensor_sizes=[1] * len(x[3]["names"])), "update_info.3.tensor_sizes.0")
    swapped = [entries[1], entries[0], *entries[2:]]
    error = vllm(server, 400, "/update_weights", {"update_info": swapped}, "swapped")["error"]
    must(error["param"] == "update_info.0.ipc_handles_pickled" and t.uuid(0) in error["message"] and
         t.uuid(1) in error["message"], f"rank 0's entry with the memory of rank 1: {error}")
    entries[3] = entry(t, 3, part_of(world.specs, 3)[:-1] + [Spec("model.odd", "BF16", [45])],
                       {**data, "model.odd": bytes(90)}, "packed")
    error = vllm(server, 422, "/update_weights", {"update_info": entries}, "unknown")["error"]
    last = len(part_of(world.specs, 3)) - 1
    must(error["param"] == f"update_info.3.names.{last}" and "model.odd" in error["message"],
         f"a name that the model does not have: {error}")
    entries[3] = entry(t, 3, part_of(world.specs, 3)[:-1], data, "packed")
    vllm(server, 200, "/update_weights", {"update_info": entries}, "one tensor short")
    error = vllm(server, 422, "/finish_weight_update", {}, "one tensor short")["error"]
    must(error["message"].count(part_of(world.specs, 3)[-1].name) == 1, f"{error}")
    server.check("refused")


def buckets_by_rank(world, server, t):
    """The native form: a bucket names the rank that reads it."""
    data = world.data()
    parts = [part_of(world.specs, r, r == 1) for r in range(N_RANKS)]
    everyone = pickled_dict({x.uuid: x for x in (export(t, r, p, data) for r, p in enumerate(parts))})
    buckets = [columns(p, rank=r, ipc_handles_pickled=everyone) for r, p in enumerate(parts)]
    body = {"buckets": [None, *buckets], "placement": "sharded", "weight_version": "buckets"}
    server.update(body, data, "buckets")
    server.check("buckets")
    server.check_gpus(t, [{s.name: data[s.name] for s in p} for p in parts], "buckets")
    buckets[2]["rank"] = 4
    server.refuse(body, "bad_request", "/buckets/3/rank", "rank 4", "has 4")
    server.refuse({**body, "buckets": [None]}, "bad_request", "/buckets", "null")


def run(world):
    with world.store(",".join(f"cuda:{i}" for i in range(N_RANKS)), str(N_RANKS)) as server, \
            world.trainer(server) as t:
        for step in (vllm_lists, by_gpu, vllm_refused, buckets_by_rank):
            step(world, server, t)
    print(f"ok: {must.n} checks; ranks with parts of their own")


def main():
    faulthandler.dump_traceback_later(GIVE_UP_S, exit=True)
    world = World(*sys.argv[1:6], seed=sys.argv[6] if len(sys.argv) > 6 else os.urandom(4).hex(),
                  specs=model())
    try:
        run(world)
    finally:
        shutil.rmtree(world.folder)


if __name__ == "__main__":
    main()
