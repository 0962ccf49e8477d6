"""Weights from the ranks of a trainer that spreads experts: each brings the experts that it holds, under their
own names, and the router and the dense tensors come from one rank or from all.
Usage: update_experts.py BATON MODEL CLIENT_DIR FAKECUDA FAKECUDA_OF_TRAINERS [SEED]"""

import faulthandler
import http.client
import json
import os
import shutil
import struct
import sys
from multiprocessing import shared_memory

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[3] if len(sys.argv) > 3 else "")

import baton  # noqa: E402
from ipc_trainer import pickled_dict, pickled_list  # noqa: E402
from ipc_world import TORCH, WAIT_S, Answer, Server, Spec, World, columns, fill, must, packed  # noqa: E402

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
    def rpc(method, **kwargs):
        return vllm(server, 200, "/collective_rpc", {"method": method, "kwargs": kwargs}, method)

    for beside in ({}, wire(world.specs[:2])):
        what, data = f"metadata_by_gpu {bool(beside)}", world.data()
        skyrl = not beside  # today's SkyRL calls these methods of its workers
        if skyrl:
            rpc("skyrl_start_weight_update", is_checkpoint_format=True)
        else:
            vllm(server, 200, "/start_weight_update", {}, what)
        parts = [part_of(world.specs, r) for r in range(N_RANKS)]
        exports = [export(t, r, p, data) for r, p in enumerate(parts)]
        info = {**beside, "metadata_by_gpu": {x.uuid: columns(p) for x, p in zip(exports, parts)},
                "ipc_handles_pickled": pickled_dict({x.uuid: x for x in exports})}
        if skyrl:
            rpc("update_weights_ipc", update_info=info)
            rpc("skyrl_finish_weight_update")
        else:
            vllm(server, 200, "/update_weights", {"update_info": info}, what)
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


# A session in which each rank of the trainer sends its part

class Senders:
    """The ways in which a rank's tensors reach the server."""

    def __init__(self, world, server, t):
        self.world, self.server, self.t, self.n = world, server, t, 0
        self.segments = []

    def shm(self, specs, data, **members):
        content = packed(specs, data)
        segment = shared_memory.SharedMemory(create=True, size=max(len(content), 1))
        self.segments.append(segment)
        segment.buf[:len(content)] = content
        return self.server.ask("POST", UPDATE, columns(specs, **members, shm={
            "name": "/" + segment.name.lstrip("/"), "offset": 0, "nbytes": len(content)}))

    def path(self, specs, data, **members):
        self.n += 1
        path = os.path.join(self.world.folder, f"part-{self.n}.safetensors")
        with open(path, "wb") as f:
            f.write(in_safetensors(specs, data, members.pop("checksums", None)))
        return self.server.ask("POST", UPDATE, {"path": path, **members})

    def body(self, specs, data, **members):
        content = in_safetensors(specs, data, members.pop("checksums", None))
        query = "&".join(f"{k}={v}" for k, v in members.items())
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=WAIT_S)
        connection.request("POST", f"{UPDATE}?{query}", content,
                           {"Content-Type": "application/vnd.safetensors"})
        reply = connection.getresponse()
        return Answer(reply.status, reply.getheader("Content-Type"), reply.read())

    def ipc(self, specs, data, **members):
        x = export(self.t, 0, specs, data)
        return self.server.ask("POST", UPDATE, columns(
            specs, ipc_handles_pickled=pickled_dict({x.uuid: x}), **members))

    def close(self):
        for segment in self.segments:
            segment.close()
            segment.unlink()


def in_safetensors(specs, data, sums=None):
    head, at = {}, 0
    for s in specs:
        head[s.name] = {"dtype": s.dtype, "shape": s.shape, "data_offsets": [at, at + s.nbytes]}
        at += s.nbytes
    if sums:
        head["__metadata__"] = {f"baton.checksum.{s.name}": v for s, v in zip(specs, sums)}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + packed(specs, data)


def start(server, **members):
    return server.post(200, START, members)["update_id"]


def finish(server, update_id, data, what):
    found = server.post(200, FINISH, {"update_id": update_id}, what)
    server.serve(data, found)
    server.check(what)
    return found


def taken(answer, what):
    must(answer.status == 200, f"{what}: {answer}")
    return answer.body


def refused(answer, status, code, param, *words):
    must(answer.status == status, f"wanted {status}: {answer}")
    error = answer.body["error"]
    must((error["code"], error["param"] or "") == (code, param), f"{error}")
    for word in words:
        must(word in error["message"], f"'{word}' is not in {error}")
    return error


def sent_by(found):
    """trainer_rank -> (tensors, bytes, why its last request was refused)"""
    return {x["trainer_rank"]: (x["n_tensors"], x["nbytes"], x["refused"]) for x in found["senders"]}


def wanted_of(parts, **refusals):
    return {r: (len(p), sum(s.nbytes for s in p), refusals.get(f"r{r}")) for r, p in enumerate(parts)}


def each_way(world, server, t):
    """Each rank sends its part in its own way; the reply says what each has brought."""
    parts = [part_of(world.specs, r, r == 3) for r in range(N_RANKS)]
    for declared in ({}, {"trainer_ranks": N_RANKS}):
        data, ways = world.data(), Senders(world, server, t)
        what = update_id = start(server, **declared)
        for r, way in enumerate((ways.shm, ways.path, ways.body, ways.ipc)):
            for half in (parts[r][0::2], parts[r][1::2]):
                found = taken(way(half, data, update_id=update_id, trainer_rank=r), what)
        must(sent_by(found) == wanted_of(parts), f"{found['senders']}")
        found = finish(server, update_id, data, what)
        must(sent_by(found) == wanted_of(parts), f"{found['senders']}")
        must(all(x["place"] is None and x["gpu"] is None for x in found["senders"]), f"{found}")
        ways.close()


def a_rank_is_missing(world, server, t):
    """A finish without a rank's part names the rank, whether the number of ranks was declared or not."""
    data, ways = world.data(), Senders(world, server, t)
    parts = [part_of(world.specs, r, r == 0) for r in range(N_RANKS)]
    lost = [part[0].name for part in parts]
    for declared, said in (({"trainer_ranks": N_RANKS}, "trainer rank 2 has sent no tensors"),
                           ({}, "trainer rank 2 brought it in the last update")):
        update_id = start(server)
        for r, part in enumerate(parts):
            taken(ways.shm(part, data, update_id=update_id, trainer_rank=r), "before")
        finish(server, update_id, data, "before")
        update_id = start(server, **declared)
        for r, part in enumerate(parts):
            if r != 2:
                taken(ways.shm(part, data, update_id=update_id, trainer_rank=r), "without rank 2")
        error = refused(server.ask("POST", FINISH, {"update_id": update_id}), 422, "incomplete_update", "",
                        f"{len(parts[2])} of {len(world.specs)} tensors are missing", lost[2], said)
        must(error["details"]["missing"][0] == lost[2], f"{error}")
        must({r for r, x in sent_by(error["details"]).items() if x[0] == 0} ==
             ({2} if declared else set()), f"{error}")
        server.check("a rank is missing")
    update_id = start(server, trainer_ranks=N_RANKS + 2)  # all tensors came, and two ranks did not
    for r, part in enumerate(parts):
        taken(ways.shm(part, data, update_id=update_id, trainer_rank=r), "two more")
    refused(server.ask("POST", FINISH, {"update_id": update_id}), 422, "incomplete_update", "",
            "trainer ranks 4, 5 have sent no tensors", f"{N_RANKS + 2} ranks")
    server.check("two ranks sent nothing")
    ways.close()


def a_rank_is_refused(world, server, t):
    """What a rank sent is refused: the session shows it, and so does the finish if it is not sent again."""
    data, ways = world.data(), Senders(world, server, t)
    parts = [part_of(world.specs, r, r == 0) for r in range(N_RANKS)]
    sums = [[baton.checksum(data[s.name]) for s in p] for p in parts]
    for again in (True, False):
        update_id = start(server)
        for r, part in enumerate(parts[:3]):
            taken(ways.shm(part, data, update_id=update_id, trainer_rank=r, checksums=sums[r]), "sums")
        wrong = [*sums[3][:1], "0" * 32, *sums[3][2:]]
        error = refused(ways.shm(parts[3], data, update_id=update_id, trainer_rank=3, checksums=wrong),
                        422, "checksum_mismatch", "/checksums/1", parts[3][1].name)
        shown = server.ask("GET", f"{UPDATE}/{update_id}").body
        must(sent_by(error["details"]) == sent_by(shown) ==
             {**wanted_of(parts[:3]), 3: (0, 0, "checksum_mismatch")}, f"{shown}")
        if again:
            taken(ways.shm(parts[3], data, update_id=update_id, trainer_rank=3, checksums=sums[3]), "again")
            must(sent_by(finish(server, update_id, data, "again")) == wanted_of(parts), "again")
            continue
        refused(server.ask("POST", FINISH, {"update_id": update_id}), 422, "incomplete_update", "",
                "the last request of trainer rank 3 was refused", parts[3][1].name)
    update_id = start(server)
    unknown = [*parts[0], Spec("model.layers.0.mlp.experts.99.up_proj.weight", "BF16", [5, 9])]
    refused(ways.shm(unknown, {**data, unknown[-1].name: bytes(90)}, update_id=update_id, trainer_rank=1),
            422, "manifest_mismatch", f"/names/{len(parts[0])}", "experts.99")
    shown = server.ask("GET", f"{UPDATE}/{update_id}").body
    must(sent_by(shown) == {1: (0, 0, "manifest_mismatch")}, f"{shown}")
    server.ask("DELETE", f"{UPDATE}/{update_id}")
    ways.close()


def a_rank_comes_twice(world, server, t):
    """A part that is sent again with its chunk_id is answered again; ranks number their chunks each by itself."""
    data, ways = world.data(), Senders(world, server, t)
    parts = [part_of(world.specs, r, r == 0) for r in range(N_RANKS)]
    update_id = start(server, trainer_ranks=N_RANKS)
    for r, part in enumerate(parts):
        for _ in range(2):
            found = taken(ways.shm(part, data, update_id=update_id, trainer_rank=r, chunk_id="0"), "twice")
    must(sent_by(found) == wanted_of(parts), f"{found}")
    refused(ways.shm(parts[1], data, update_id=update_id, trainer_rank=1), 409, "precondition_failed", "/names/0",
            parts[1][0].name, "already arrived")
    must(sent_by(finish(server, update_id, data, "twice"))[0] == wanted_of(parts)[0], "twice")
    for members, param, words in (
            ({"trainer_rank": 4}, "/trainer_rank", ("4 ranks", "0 to 3")),
            ({}, "/trainer_rank", ("4 ranks",)),
            ({"trainer_rank": 256}, "/trainer_rank", ("256",)),
            ({"trainer_rank": -1}, "/trainer_rank", ("-1",)),
            ({"trainer_rank": "1"}, "/trainer_rank", ())):
        update_id = start(server, trainer_ranks=N_RANKS)
        refused(ways.shm(parts[1], data, update_id=update_id, **members), 400, "bad_request", param, *words)
        server.ask("DELETE", f"{UPDATE}/{update_id}")
    refused(ways.shm(parts[1], data, trainer_rank=1, partial=True), 400, "bad_request", "/trainer_rank",
            "update_id")
    refused(server.ask("POST", START, {"trainer_ranks": 257}), 400, "bad_request", "/trainer_ranks")
    server.check("twice")
    ways.close()


def replicated_tensors(world, server, t):
    """Dense tensors from every rank: equal bytes are compared and dropped, other bytes are refused by name."""
    parts, ways = [part_of(world.specs, r) for r in range(N_RANKS)], Senders(world, server, t)
    orders = [parts[0], *([*reversed(p)] for p in parts[1:])]
    every = (ways.shm, ways.path, ways.body, ways.ipc)
    for turn in range(len(every)):
        data = world.data()
        update_id = start(server, trainer_ranks=N_RANKS)
        for r in range(N_RANKS):
            found = taken(every[(r + turn) % 4](orders[r], data, update_id=update_id, trainer_rank=r), "equal")
        must(sent_by(found) == wanted_of(parts), f"{found['senders']}")
        finish(server, update_id, data, "equal bytes")
    for i, way in enumerate(every):
        data = world.data()
        name = [s.name for s in part_of(world.specs, N_RANKS)][i]  # a dense one; the fifth is float32
        other = {**data, name: bytes([data[name][0] ^ 1]) + data[name][1:]}
        update_id = start(server)
        taken(ways.shm(orders[0], data, update_id=update_id, trainer_rank=0), "other bytes")
        place = [s.name for s in orders[1]].index(name)
        error = refused(way(orders[1], other, update_id=update_id, trainer_rank=1), 422, "manifest_mismatch",
                        f"/names/{place}", name, "trainer rank 0")
        must(sent_by(error["details"])[1] == (0, 0, "manifest_mismatch"), f"{error}")
        taken(way(orders[1], data, update_id=update_id, trainer_rank=1), "the right bytes")
        for r in (2, 3):
            taken(way(parts[r], data, update_id=update_id, trainer_rank=r), "the right bytes")
        finish(server, update_id, data, "the right bytes")
    data, update_id = world.data(), start(server)
    dense = part_of(world.specs, N_RANKS)
    wrong = ["0" * 32] * len(dense)
    refused(ways.shm(dense, data, update_id=update_id, trainer_rank=0, checksums=wrong), 422,
            "checksum_mismatch", "/checksums/0")
    for r in (1, 0):  # what rank 0 did not bring is not taken for brought
        taken(ways.shm(parts[r], data, update_id=update_id, trainer_rank=r), "rank 0 again")
    refused(ways.shm(dense, data, update_id=update_id), 409, "precondition_failed", "/names/0",
            "already arrived")
    refused(ways.shm(parts[2] * 2, data, update_id=update_id, trainer_rank=2), 400, "bad_request",
            f"/names/{len(parts[2])}")
    server.ask("DELETE", f"{UPDATE}/{update_id}")
    server.check("replicated")
    ways.close()


def gpus_in_a_session(world, server, t):
    """Each GPU's part is a request of its own: a finish names the GPU whose part did not come, or was refused."""
    data = world.data()
    parts = [part_of(world.specs, r, r == 0) for r in range(N_RANKS)]

    def send(rank, **members):
        x = export(t, rank, parts[rank], data)
        return server.ask("POST", UPDATE, columns(parts[rank], update_id=update_id,
                                                  ipc_handles_pickled=pickled_dict({x.uuid: x}), **members))

    for refusal in (False, True):
        update_id = start(server, placement="sharded")
        for rank in (0, 1, 3):
            found = taken(send(rank), "a GPU's part")
        must([(x["place"], x["n_tensors"]) for x in found["senders"]] ==
             [(f"cuda:{r}", len(parts[r])) for r in (0, 1, 3)], f"{found['senders']}")
        words = ["no tensors came for cuda:2", t.uuid(2)]
        if refusal:
            refused(send(2, checksums=["0" * 32] * len(parts[2])), 422, "checksum_mismatch", "/checksums/0")
            words = ["the last request of cuda:2", t.uuid(2), parts[2][0].name, "was refused"]
        error = server.post(422, FINISH, {"update_id": update_id}, "a GPU is missing")["error"]
        for word in words:
            must(word in error["message"], f"'{word}' is not in {error}")
        server.check("a GPU is missing")


def by_the_client(world, server, _t):
    """Each rank pushes what it holds, with the Python client."""
    url, data = f"http://127.0.0.1:{server.port}", world.data()
    parts = [part_of(world.specs, r) for r in range(N_RANKS)]
    update_id = start(server, trainer_ranks=N_RANKS)
    for r, part in enumerate(parts):
        tensors = {s.name: baton.Tensor(s.dtype, s.shape, data[s.name]) for s in part}
        found = baton.push(tensors, url, via=("shm", "body")[r % 2], update_id=update_id, trainer_rank=r)
    must(sent_by(found) == wanted_of(parts), f"{found['senders']}")
    finish(server, update_id, data, "the client")
    try:
        baton.push({}, url, trainer_rank=0)
        must(False, "a trainer_rank without a session")
    except baton.InputError as e:
        must("update_id" in str(e), f"{e}")


# Experts in one tensor, as transformers 5 holds them

def widened(data):
    """bfloat16 as float32."""
    return b"".join(b"\0\0" + data[k:k + 2] for k in range(0, len(data), 2))


class Checkpoint:
    """A model with experts, and its tensors by layer: separate, or those of a layer in two tensors."""

    def __init__(self, folder):
        self.folder = folder
        tensors = baton.load_file(f"{folder}/model.safetensors")
        self.specs = {n: Spec(n, t.dtype, t.shape) for n, t in tensors.items()}
        self.data = {n: bytes(t.data) for n, t in tensors.items()}
        for n in [n.replace("e_score_correction_bias", "weight") for n in tensors if "e_score" in n]:
            # the model has these routers in float32
            self.specs[n] = Spec(n, "F32", self.specs[n].shape)
            self.data[n] = widened(self.data[n])
        self.layers = sorted({n.split(".mlp.experts.")[0] for n in tensors if ".mlp.experts." in n})

    def new_bytes(self, world):
        self.data = world.data(self.specs.values())

    def separate(self, layer):
        return [n for n in self.specs if n.startswith(f"{layer}.mlp.experts.")]

    def dense(self):
        return [n for n in self.specs if ".mlp.experts." not in n]

    def fused(self, layer):
        """[(spec, bytes)] of gate_up_proj and down_proj."""
        at = f"{layer}.mlp.experts"
        n = len(self.separate(layer)) // 3
        rows, columns_ = self.specs[f"{at}.0.gate_proj.weight"].shape
        dtype = self.specs[f"{at}.0.gate_proj.weight"].dtype
        gate_up = b"".join(self.data[f"{at}.{e}.{kind}_proj.weight"] for e in range(n) for kind in ("gate", "up"))
        down = b"".join(self.data[f"{at}.{e}.down_proj.weight"] for e in range(n))
        return [(Spec(f"{at}.gate_up_proj", dtype, [n, 2 * rows, columns_]), gate_up),
                (Spec(f"{at}.down_proj", dtype, [n, columns_, rows]), down)]

    def both(self, names, fused=()):
        """The specs and bytes of tensors by name, and of fused ones."""
        specs = [self.specs[n] for n in names] + [spec for spec, _ in fused]
        return specs, {**{n: self.data[n] for n in names}, **{spec.name: x for spec, x in fused}}


def fused_and_separate(world, server, checkpoint):
    """One layer's experts fused and another's separate, in one update from several ranks and in one request."""
    with world.trainer(server) as t:
        ways, (first, *others) = Senders(world, server, t), checkpoint.layers
        rest = [n for layer in others for n in checkpoint.separate(layer)]
        for way in (ways.shm, ways.body, ways.ipc):
            checkpoint.new_bytes(world)
            update_id = start(server, trainer_ranks=3)
            specs, data = checkpoint.both(checkpoint.dense(), checkpoint.fused(first)[:1])
            taken(way(specs, data, update_id=update_id, trainer_rank=0), "dense and fused")
            taken(way(*checkpoint.both(rest), update_id=update_id, trainer_rank=1), "separate")
            taken(way(*checkpoint.both([], checkpoint.fused(first)), update_id=update_id, trainer_rank=2),
                  "fused, one of them again")
            finish(server, update_id, checkpoint.data, "mixed")
        checkpoint.new_bytes(world)
        specs, data = checkpoint.both([*checkpoint.dense(), *rest], checkpoint.fused(first))
        world.rng.shuffle(specs)
        found = taken(ways.shm(specs, data), "one request")
        server.serve(checkpoint.data, found)
        server.check("one request")

        twice, data = checkpoint.both(checkpoint.specs, checkpoint.fused(first)[1:])
        refused(ways.shm(twice, data), 400, "bad_request", f"/names/{len(twice) - 1}", "a second time",
                f"{first}.mlp.experts.down_proj")
        update_id = start(server)
        taken(ways.shm(*checkpoint.both([], checkpoint.fused(first)), update_id=update_id, trainer_rank=0), "fused")
        expert = f"{first}.mlp.experts.1.up_proj.weight"
        refused(ways.shm(*checkpoint.both([expert]), update_id=update_id, trainer_rank=0), 409,
                "precondition_failed", "/names/0", expert, "already arrived")
        other = {expert: bytes([checkpoint.data[expert][0] ^ 1]) + checkpoint.data[expert][1:]}
        refused(ways.shm([checkpoint.specs[expert]], other, update_id=update_id, trainer_rank=1), 422,
                "manifest_mismatch", "/names/0", expert, "trainer rank 0")
        taken(ways.shm(*checkpoint.both([expert]), update_id=update_id, trainer_rank=1), "equal")
        server.ask("DELETE", f"{UPDATE}/{update_id}")
        server.check("in both forms")
        ways.close()


def fused_on_one_gpu(world, checkpoint):
    """A layer's experts fused for one GPU and separate for the other: the same bytes, or refused by name."""
    with Server(world, "--model", checkpoint.folder, "--weights", "none", "--device", "cuda:0,cuda:1",
                devices="2") as server, world.trainer(server) as t:
        layer, n_refused = checkpoint.layers[0], 0
        expert = f"{layer}.mlp.experts.1.down_proj.weight"
        for change in (None, expert, f"{layer}.mlp.experts.0.gate_proj.weight"):
            checkpoint.new_bytes(world)
            rest = [n for n in checkpoint.specs if n not in checkpoint.separate(layer)]
            buckets = [checkpoint.both(rest, checkpoint.fused(layer)), checkpoint.both(checkpoint.specs)]
            if change:
                buckets[1][1][change] = bytes([buckets[1][1][change][0] ^ 1]) + buckets[1][1][change][1:]
            exports = [export(t, r, *bucket) for r, bucket in enumerate(buckets)]
            body = {"per_gpu": {x.uuid: columns(specs) for x, (specs, _) in zip(exports, buckets)},
                    "ipc_handles_pickled": pickled_dict({x.uuid: x for x in exports})}
            if change:
                server.refuse(body, "manifest_mismatch", "", change, "cuda:0", "cuda:1", status=422, what="other bytes")
                n_refused += 1
            else:
                server.update(body, checkpoint.data, "fused on one GPU")
                server.check("fused on one GPU")
        must(n_refused == 2, "both kinds")


def float32_routers(world, server, checkpoint):
    """The router is float32 in a bfloat16 model: bfloat16 is widened, with convert and without."""
    routers = [n for n, s in checkpoint.specs.items() if s.dtype == "F32"]
    must({n.rsplit(".", 1)[1] for n in routers} == {"e_score_correction_bias", "weight"}, f"{routers}")
    with world.trainer(server) as t:
        ways = Senders(world, server, t)
        for way in (ways.shm, ways.body, ways.path, ways.ipc):
            checkpoint.new_bytes(world)
            specs = list(checkpoint.specs.values())
            world.rng.shuffle(specs)
            server.serve(checkpoint.data, taken(way(specs, checkpoint.data), "float32"))
            server.check("float32")
            half = [Spec(s.name, "BF16" if s.dtype == "F32" else s.dtype, s.shape) for s in specs]
            short = {n: world.data([Spec(n, "BF16", checkpoint.specs[n].shape)])[n] for n in routers}
            found = taken(way(half, {**checkpoint.data, **short}), "bfloat16")
            server.serve({**checkpoint.data, **{n: widened(x) for n, x in short.items()}}, found)
            server.check("bfloat16")
        found = taken(ways.shm(specs, checkpoint.data, convert=True), "convert")
        server.serve(checkpoint.data, found)
        server.check("convert narrows nothing")
        expert = checkpoint.separate(checkpoint.layers[0])[0]
        other = [Spec(s.name, "F16" if s.name == expert else s.dtype, s.shape) for s in specs]
        i = [s.name for s in other].index(expert)
        refused(ways.shm(other, checkpoint.data), 422, "manifest_mismatch", f"/dtypes/{i}", expert)
        ways.close()


def gpus_without_list(world, server, t):
    """Parts that are addressed to GPUs: the reply says what each GPU brought, and which one nothing came for."""
    data = world.data()
    parts = [part_of(world.specs, r) for r in range(N_RANKS)]

    def body(ranks, **members):
        exports = {r: export(t, r, parts[r], data) for r in ranks}
        return {"per_gpu": {exports[r].uuid: columns(parts[r]) for r in ranks}, "placement": "sharded",
                "ipc_handles_pickled": pickled_dict({x.uuid: x for x in exports.values()}), **members}

    found = server.update(body(range(N_RANKS), weight_version="all"), data, "all GPUs")
    must([(x["place"], x["gpu"].endswith(t.uuid(r)), x["n_tensors"], x["nbytes"], x["trainer_rank"])
          for r, x in enumerate(found["senders"])] ==
         [(f"cuda:{r}", True, len(p), sum(s.nbytes for s in p), None) for r, p in enumerate(parts)],
         f"{found['senders']}")
    server.refuse(body((0, 1, 3)), "incomplete_update", "/per_gpu", "no tensors came for cuda:2", t.uuid(2),
                  "cuda:2", "brought it in the last update", part_of(world.specs, 2, False)[0].name,
                  status=422, what="a GPU without a list")
    other = {**data, "model.embed_tokens.weight": world.data(world.specs[:1])["model.embed_tokens.weight"]}
    exports = {r: export(t, r, parts[r], other if r == 1 else data) for r in range(N_RANKS)}
    server.refuse({"per_gpu": {x.uuid: columns(parts[r]) for r, x in exports.items()},
                   "ipc_handles_pickled": pickled_dict({x.uuid: x for x in exports.values()}),
                   "placement": "sharded"}, "manifest_mismatch", "", "model.embed_tokens.weight",
                  "cuda:1", "cuda:0", status=422, what="two ranks with other bytes for one tensor")


def run(world):
    with world.store(",".join(f"cuda:{i}" for i in range(N_RANKS)), str(N_RANKS)) as server, \
            world.trainer(server) as t:
        for step in (vllm_lists, by_gpu, vllm_refused, buckets_by_rank, gpus_without_list,
                     gpus_in_a_session):
            step(world, server, t)
    with world.store("cuda:0", "1", "--allow-path", world.folder) as server, world.trainer(server) as t:
        for step in (each_way, a_rank_is_missing, a_rank_is_refused, a_rank_comes_twice,
                     replicated_tensors, by_the_client):
            step(world, server, t)
    fixtures = os.path.dirname(world.model)
    for name, steps in (("tiny-qwen3-moe", (fused_and_separate,)),
                        ("tiny-deepseek", (fused_and_separate, float32_routers))):
        checkpoint = Checkpoint(f"{fixtures}/{name}")
        with Server(world, "--model", checkpoint.folder, "--weights", "none", "--device", "cuda:0",
                    "--allow-path", world.folder) as server:
            for step in steps:
                step(world, server, checkpoint)
        fused_on_one_gpu(world, checkpoint)
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
