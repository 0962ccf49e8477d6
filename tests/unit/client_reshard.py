"""The client's plans of shards, without a trainer: a split model written from the layouts that PyTorch and Megatron-core
document, whose bytes are put together again by the plans of all ranks. Each byte must come exactly once, for all
tensor parallel sizes 1 to 8, pipelines of 1 to 4 stages and expert parallel sizes 1 to 8. deploy/test-real.sh reshard
asks PyTorch and Megatron-core themselves."""
import ctypes
import itertools
import math
import pathlib
import sys
import types

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client"))
import baton  # noqa: E402
from baton.reshard import MegatronMesh, Placed, Shard, fsdp1, fsdp2, megatron, shard_table  # noqa: E402

HIDDEN, VOCAB = 3, 11


def must(ok, what):
    if not ok:
        raise AssertionError(what)


def refused(call, *wanted):
    try:
        call()
    except baton.InputError as e:
        must(all(w in e.message for w in wanted), e.message)
        return
    raise AssertionError(f"not refused: {wanted}")


class Whole:
    """What has come of the tensors, and how often."""

    def __init__(self, tensors):
        self.tensors = tensors
        self.came = {name: numpy.zeros_like(t) for name, t in tensors.items()}
        self.times = {name: numpy.zeros(t.shape, numpy.uint8) for name, t in tensors.items()}

    def take(self, shards, memory):
        """memory  parameter -> the flat elements that the rank has of it"""
        for s in shards:
            must(s.full_shape == self.tensors[s.name].shape, s)
            at = tuple(slice(begin, begin + n) for begin, n in zip(s.shard_offset, s.shape))
            flat = memory[s.parameter].reshape(-1)[s.start:s.start + s.numel]
            self.came[s.name][at] = flat.reshape(s.shape)
            self.times[s.name][at] += 1

    def check(self, what):
        for name, wanted in self.tensors.items():
            must((self.times[name] == 1).all(), f"{what}: {name} came {self.times[name].tolist()} times")
            must(self.came[name].tobytes() == wanted.tobytes(), f"{what}: {name} has other bytes")


def numbered(shapes):
    """Tensors in which no two elements are the same."""
    first, out = 0, {}
    for name, shape in shapes.items():
        n = math.prod(shape)
        out[name] = numpy.arange(first, first + n, dtype=numpy.int32).reshape(shape)
        first += n
    return out


# ---- Megatron ----

def config_of(kind, layers, heads, groups, ffn, experts=0, tied=False, head_dim=2):
    return {"model_type": kind, "num_hidden_layers": layers, "hidden_size": HIDDEN, "num_attention_heads": heads,
            "num_key_value_heads": groups, "head_dim": head_dim, "intermediate_size": ffn, "moe_intermediate_size": ffn,
            "num_experts": experts, "num_local_experts": experts, "vocab_size": VOCAB, "tie_word_embeddings": tied}


def tensors_of(c):
    """Of the checkpoint. A qwen2 has biases, a qwen3 norms of queries and keys."""
    kind, ffn = c["model_type"], c["intermediate_size"]
    q, kv = (c[f"num_{part}_heads"] * c["head_dim"] for part in ("attention", "key_value"))
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        shapes.update({at + "input_layernorm.weight": (HIDDEN,), at + "post_attention_layernorm.weight": (HIDDEN,),
                       at + "self_attn.o_proj.weight": (HIDDEN, q)})
        for part, n in (("q", q), ("k", kv), ("v", kv)):
            shapes[f"{at}self_attn.{part}_proj.weight"] = (n, HIDDEN)
            if kind == "qwen2":
                shapes[f"{at}self_attn.{part}_proj.bias"] = (n,)
            elif kind.startswith("qwen3") and part != "v":
                shapes[f"{at}self_attn.{part}_norm.weight"] = (c["head_dim"],)
        module, parts = (("block_sparse_moe", ("w1", "w3", "w2")) if kind == "mixtral" else
                         ("mlp", ("gate_proj", "up_proj", "down_proj")))
        experts = [""]
        if kind in ("mixtral", "qwen3_moe"):
            experts = [f"experts.{e}." for e in range(c["num_experts"])]
            shapes[f"{at}{module}.gate.weight"] = (c["num_experts"], HIDDEN)
        for e, (part, shape) in itertools.product(experts, zip(parts, [(ffn, HIDDEN)] * 2 + [(HIDDEN, ffn)])):
            shapes[f"{at}{module}.{e}{part}.weight"] = shape
    return numbered(shapes)


def cut(tensor, place, axis=0):
    rank, size = place
    n = tensor.shape[axis] // size
    must(n * size == tensor.shape[axis], f"{tensor.shape} on {size} ranks")
    return tensor[(slice(None),) * axis + (slice(rank * n, (rank + 1) * n),)]


def vocabulary(tensor, place):
    rows = -(-VOCAB // (2 * place[1])) * 2
    return cut(numpy.concatenate([tensor, numpy.full((rows * place[1] - VOCAB, HIDDEN), -1, tensor.dtype)]), place)


def qkv(hf, at, c, kind):
    """Of all ranks: query heads, key and value of the first group, those of the second, ..."""
    groups = c["num_key_value_heads"]
    parts = [hf[f"{at}self_attn.{part}_proj.{kind}"] for part in "qkv"]
    return numpy.concatenate([cut(part, (group, groups)) for group in range(groups) for part in parts])


def glu(gate, up, place):
    return numpy.concatenate([cut(gate, place), cut(up, place)])


def layer_of(hf, c, i, local, mesh, te):
    """The parameters of a layer on a rank, as Megatron names them; te: as Transformer Engine's layers do."""
    at, to, kind = f"model.layers.{i}.", f"decoder.layers.{local}.", c["model_type"]
    sparse = kind in ("mixtral", "qwen3_moe")
    out = {to + ("self_attention.linear_qkv.layer_norm_weight" if te else "input_layernorm.weight"):
           hf[at + "input_layernorm.weight"],
           to + ("mlp.linear_fc1.layer_norm_weight" if te and not sparse else "pre_mlp_layernorm.weight"):
           hf[at + "post_attention_layernorm.weight"],
           to + "self_attention.linear_qkv.weight": cut(qkv(hf, at, c, "weight"), mesh.tp),
           to + "self_attention.linear_proj.weight": cut(hf[at + "self_attn.o_proj.weight"], mesh.tp, 1)}
    if kind == "qwen2":
        out[to + "self_attention.linear_qkv.bias"] = cut(qkv(hf, at, c, "bias"), mesh.tp)
    if kind.startswith("qwen3"):
        for part in "qk":
            out[f"{to}self_attention.{part}_layernorm.weight"] = hf[f"{at}self_attn.{part}_norm.weight"]
    if not sparse:
        gate, up, down = (hf[f"{at}mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
        out.update({to + "mlp.linear_fc1.weight": glu(gate, up, mesh.tp),
                    to + "mlp.linear_fc2.weight": cut(down, mesh.tp, 1)})
        return out
    module, parts = (("block_sparse_moe", ("w1", "w3", "w2")) if kind == "mixtral" else
                     ("mlp", ("gate_proj", "up_proj", "down_proj")))
    out[to + "mlp.router.weight"] = hf[f"{at}{module}.gate.weight"]
    n = c["num_experts"] // mesh.ep[1]
    for e in range(n):
        gate, up, down = (hf[f"{at}{module}.experts.{mesh.ep[0] * n + e}.{part}.weight"] for part in parts)
        name = (f"{to}mlp.experts.linear_fc%d.weight{e}" if te else f"{to}mlp.experts.local_experts.{e}.linear_fc%d.weight")
        out.update({name % 1: glu(gate, up, mesh.etp), name % 2: cut(down, mesh.etp, 1)})
    return out


def stage_of(hf, c, mesh, layers, te):
    out, first, last = {}, mesh.pp[0] == 0, mesh.pp[0] == mesh.pp[1] - 1
    tied = c["tie_word_embeddings"]
    if first:
        out["embedding.word_embeddings.weight"] = vocabulary(hf["model.embed_tokens.weight"], mesh.tp)
    for local, i in enumerate(layers):
        out.update(layer_of(hf, c, i, local, mesh, te))
    if last:
        out["decoder.final_layernorm.weight"] = hf["model.norm.weight"]
        if not (tied and first):
            head = hf["model.embed_tokens.weight" if tied else "lm_head.weight"]
            out["output_layer.weight"] = vocabulary(head, mesh.tp)
    return out


def put_together(c, meshes, stages=None, te=False):
    hf = tensors_of(c)
    whole, owned = Whole(hf), []
    for mesh in meshes:
        n = c["num_hidden_layers"] // mesh.pp[1]
        layers = stages[mesh.pp[0]] if stages else range(mesh.pp[0] * n, (mesh.pp[0] + 1) * n)
        memory = stage_of(hf, c, mesh, layers, te)
        shards = megatron(memory, c, mesh, layers if stages else None)
        owned.append(sum(s.numel for s in shards))
        whole.take(shards, memory)
    whole.check(f"{c} on {len(meshes)} ranks")
    return owned


def meshes_of(world, *sizes):
    return [MegatronMesh.of_rank(rank, world, *sizes) for rank in range(world)]


def every_split():
    """With one replica of what fewer ranks share. The number of groups is other than that of the ranks."""
    for tp, pp, ep in itertools.product(range(1, 9), range(1, 5), range(1, 9)):
        c = config_of(("qwen3_moe", "mixtral")[(tp + ep) % 2], pp, 2 * tp, tp, tp, ep * (1 + (pp == 2)), tied=ep % 2 == 0)
        put_together(c, meshes_of(pp * math.lcm(tp, ep), tp, pp, ep, 1), te=pp % 2 == 0)


def dense_splits():
    """Groups that many ranks share, one rank of each, and many on one rank; biases, norms, tied and not; replicas."""
    for kind, tp, pp, dp in itertools.product(("llama", "mistral", "qwen2", "qwen3"), range(1, 9), range(1, 5), (1, 3)):
        groups = (1, tp, 2 * tp)[(tp + pp) % 3]
        heads, head_dim = (tp, tp) if groups < tp else (2 * tp * (1 + (dp == 1)), 2)  # ranks then cut keys and values
        c = config_of(kind, 2 * pp, heads, groups, 2 * tp, tied=dp == 1, head_dim=head_dim)
        put_together(c, meshes_of(tp * pp * dp, tp, pp), te=dp == 3)


def other_splits():
    """Experts that are split too, stages of other numbers of layers, virtual stages."""
    for tp, pp, ep, etp, times in ((2, 2, 2, 2, 1), (4, 1, 2, 2, 2), (2, 2, 4, 1, 2), (1, 2, 2, 4, 1), (2, 1, 1, None, 3)):
        c = config_of("qwen3_moe", pp, 4, 2, 8, 4)
        put_together(c, meshes_of(pp * math.lcm(tp, ep * (etp or tp)) * times, tp, pp, ep, etp))
    c = config_of("llama", 7, 4, 2, 4)
    for stages in ([[0, 1], [2, 3, 4], [5, 6]], [[0, 2, 4], [1], [3, 5, 6]], [[0, 1, 2, 3, 4, 5, 6], [], []]):
        put_together(c, meshes_of(6, 2, 3), stages)


def owners_are_even():
    """What all replicas have goes to them in parts that differ by at most the largest parameter."""
    c = config_of("llama", 24, 4, 2, 16)
    owned = put_together(c, meshes_of(8, 2))
    must(sum(owned) == sum(t.size for t in tensors_of(c).values()), owned)
    must(max(owned) - min(owned) <= 2 * 16 * HIDDEN, owned)


def refusals():
    c, mesh = config_of("llama", 2, 4, 2, 4), MegatronMesh((0, 2))
    qkv_name = "module.module.decoder.layers.0.self_attention.linear_qkv.weight"
    shards = megatron({qkv_name: (8, HIDDEN), "decoder.layers.0.mlp._extra_state": (9,)}, c, mesh)
    must({s.parameter for s in shards} == {qkv_name}, shards)
    for name, shape, wanted in (("decoder.layers.0.mlp.linear_fc3.weight", (4, 3), "no parameter"),
                                ("mtp.layers.0.eh_proj.weight", (4, 3), "no parameter"),
                                ("decoder.layers.2.mlp.linear_fc2.weight", (3, 2), "layer 2"),
                                ("decoder.layers.0.mlp.router.weight", (3, 2), "no parameter"),
                                ("decoder.layers.0.mlp.experts.linear_fc1.weight", (3, 2), "no parameter"),
                                ("decoder.layers.0.mlp.experts.linear_fc1.weight0", (3, 2), "no experts"),
                                (qkv_name, (9, HIDDEN), "[8, 3]"), (qkv_name, (8, HIDDEN + 1), "[8, 3]"),
                                ("output_layer.weight", (5, HIDDEN), "[11, 3]"),
                                ("decoder.layers.0.self_attention.linear_proj.weight", (HIDDEN, 8), "[3, 4]")):
        refused(lambda: megatron({name: shape}, c, mesh), wanted)
    fc2 = {"decoder.layers.0.mlp.linear_fc2.weight": (3, 2)}
    refused(lambda: megatron(fc2, c, MegatronMesh((0, 3))), "3 tensor parallel ranks")
    refused(lambda: megatron(fc2, c, MegatronMesh((0, 2), (0, 4))), "pass layers")
    refused(lambda: megatron(fc2, dict(c, model_type="gemma"), mesh), "gemma")
    refused(lambda: megatron(fc2, dict(c, hidden_size=None), mesh), "hidden_size")
    refused(lambda: megatron(fc2, c, MegatronMesh((2, 2))), "tp has rank 2 of 2")
    refused(lambda: MegatronMesh.of_rank(0, 6, 4), "of 6")
    moe, expert = config_of("mixtral", 1, 4, 2, 4, 6), {"decoder.layers.0.mlp.experts.linear_fc1.weight0": (8, 3)}
    refused(lambda: megatron(expert, moe, MegatronMesh(ep=(0, 4))), "6 experts")


# ---- FSDP ----

def order_of(placements):
    return [(i, p) for i, p in enumerate(placements) if p is not None]


def fsdp2_splits():
    """As torch.chunk cuts: 1 to 5 ranks in each of one to three dimensions, sizes that they do not divide."""
    shapes = {"a": (7, 5), "b": (1,), "c": (4, 3, 2), "d": (0, 3), "model._orig_mod.e": (16,)}
    tensors = {name.replace("_orig_mod.", ""): t for name, t in numbered(shapes).items()}
    meshes = [(n,) for n in range(1, 6)] + [(2, 3), (3, 2), (5, 4), (2, 2, 3)]
    for mesh in meshes:
        for placements in itertools.product((None, 0, 1, -1), repeat=len(mesh)):
            whole, mine = Whole(tensors), {}
            for at in itertools.product(*map(range, mesh)):
                memory, placed = {}, {}
                for name, shape in shapes.items():
                    fits = tuple(0 if p is not None and not -len(shape) <= p < len(shape) else p for p in placements)
                    local = tensors[name.replace("_orig_mod.", "")]
                    for i, dim in order_of(fits):
                        each = -(-local.shape[dim] // mesh[i])
                        local = numpy.take(local, range(min(at[i] * each, local.shape[dim]),
                                                        min((at[i] + 1) * each, local.shape[dim])), dim)
                    memory[name], placed[name] = local, Placed(shape, mesh, at, fits)
                mine[at] = fsdp2(placed)
                whole.take(mine[at], memory)
            whole.check(f"{mesh} {placements}")


class _StridedShard:
    """As torch's placement of that name: the mesh's later dimensions have cut first."""
    dim = 0

    def __init__(self, split_factor):
        self.split_factor = split_factor

    def is_replicate(self):
        return False


def fsdp2_after_tensor_parallel():
    for n, (a, b) in itertools.product((1, 7, 8, 16), ((2, 3), (3, 2), (4, 2), (1, 4))):
        whole = Whole(numbered({"w": (n, 2)}))
        for at in itertools.product(range(a), range(b)):
            local = whole.tensors["w"]
            for rank, size in ((at[1], b), (at[0], a)):
                each = -(-len(local) // size)
                local = local[rank * each:(rank + 1) * each]
            whole.take(fsdp2({"w": Placed((n, 2), (a, b), at, (_StridedShard(b), 0))}), {"w": local})
        whole.check(f"{n} rows on {a} after {b}")
    refused(lambda: fsdp2({"w": Placed((8,), (2, 3), (0, 0), (_StridedShard(2), 0))}), "stride 2", "into 3")


def fsdp1_splits():
    shapes = {"a": (7, 5), "b": (1,), "c": (4, 3, 2), "d": (), "e": (3, 0), "f": (16,)}
    tensors = numbered(shapes)
    for size, replicas, align in itertools.product(range(1, 9), (1, 2, 3), (1, 4, 8)):
        whole, units = Whole(tensors), {"one": ["a", "_fsdp_wrapped_module.b", "c"], "two": ["d", "e", "f"]}
        for rank, replica in itertools.product(range(size), range(replicas)):
            memory, given = {}, {}
            for unit, names in units.items():
                flat = numpy.empty(0, numpy.int32)
                for name in names:
                    flat = numpy.pad(flat, (0, -len(flat) % align), constant_values=-1)
                    flat = numpy.concatenate([flat, tensors[name[-1]].reshape(-1)])
                flat = numpy.pad(flat, (0, -len(flat) % size), constant_values=-1)
                memory[unit] = cut(flat, (rank, size))
                given[unit] = [(name, shapes[name[-1]]) for name in names]
            whole.take(fsdp1(given, (rank, size), (replica, replicas), align), memory)
        whole.check(f"{size} ranks, {replicas} replicas, aligned to {align}")


def ranges():
    """A box as flat ranges, against an index of each element."""
    full = (4, 3, 5)
    index = numpy.arange(math.prod(full)).reshape(full)
    edges = [list(itertools.combinations(range(n + 1), 2)) for n in full]
    for box in itertools.product(*edges):
        offset, shape = tuple(b for b, _ in box), tuple(e - b for b, e in box)
        wanted = index[tuple(slice(b, e) for b, e in box)].reshape(-1)
        found = Shard("t", full, offset, shape, "p", 7).ranges()
        must(all(found[i][2] == 7 + sum(r[1] for r in found[:i]) for i in range(len(found))), found)
        must([x for begin, n, _ in found for x in range(begin, begin + n)] == wanted.tolist(), (box, found))
    must(Shard("t", full, (1, 0, 0), (2, 3, 5), "p", 0).ranges() == [(15, 30, 0)], "rows are one range")
    must(Shard("t", (), (), (), "p", 3).ranges() == [(0, 1, 3)], "a scalar")


class Tensor:
    """As much of a torch tensor as is asked."""
    dtype, device = "torch.int32", types.SimpleNamespace(type="cpu", index=None)

    def __init__(self, array):
        self.array, self.element_size, self.numel = array, lambda: array.itemsize, lambda: array.size
        self.is_contiguous = lambda: array.flags.c_contiguous
        self.data_ptr = lambda: array.ctypes.data


def tables():
    """What lies at the addresses that the ranks' tables name is the checkpoint."""
    c = config_of("qwen2", 2, 4, 2, 4)
    hf = tensors_of(c)
    whole, n_agents = Whole(hf), 0
    for mesh in meshes_of(8, 2, 2):
        memory = {name: numpy.ascontiguousarray(t) for name, t in stage_of(hf, c, mesh, [mesh.pp[0]], False).items()}
        shards = megatron(memory, c, mesh)
        table = shard_table(shards, {name: Tensor(t) for name, t in memory.items()}, f"agent-{n_agents}", b"abc")
        must((table["agent_name"], table["agent_meta_b64"]) == (f"agent-{n_agents}", "YWJj"), table)
        n_agents += 1
        for tensor in table["tensors"]:
            must((tensor["dtype"], tensor["elsize"]) == ("torch.int32", 4), tensor)
            for i, shard in enumerate(tensor["shards"]):
                must((shard["agent_name"], shard["mem"], shard["device_id"]) == (table["agent_name"], "DRAM", 0), shard)
                data = ctypes.string_at(shard["addr"], 4 * math.prod(shard["shape"]))
                whole.take([Shard(tensor["name"], tuple(tensor["full_shape"]), tuple(shard["shard_offset"]),
                                  tuple(shard["shape"]), "at", 0)], {"at": numpy.frombuffer(data, numpy.int32)})
    whole.check("tables")
    short = {"p": Tensor(numpy.zeros(5, numpy.int32))}
    for name, shape, start in (("p", (3,), 3), ("q", (1,), 0)):
        refused(lambda: shard_table([Shard("w", (9,), (0,), shape, name, start)], short, "a", b""), f"{name} is no")


class Mesh:
    """As much of a DeviceMesh as is asked."""

    def __init__(self, ranks, rank):
        self.mesh, self.rank = numpy.array(ranks), rank

    def get_coordinate(self):
        at = numpy.argwhere(self.mesh == self.rank)
        return at[0].tolist() if len(at) else None


class DTensor:
    def __init__(self, shape, mesh, *placements):
        self.shape, self.device_mesh, self.placements = shape, mesh, placements


def fsdp2_in_a_part_of_a_mesh():
    """What tensor parallelism does not cut, FSDP has in a column of the mesh, or in all but one dimension of it, as one
    dimension: one of the ranks that have the same gives it."""
    shapes = {"a": (5, 3), "b": (7,), "c": (4,), "d": (2, 2)}
    tensors = numbered(shapes)
    for whole, part in ((numpy.arange(6).reshape(3, 2), lambda w, at: w[:, at[1]]),
                        (numpy.arange(8).reshape(2, 2, 2), lambda w, at: w[:, :, at[2]].reshape(-1)),
                        (numpy.arange(4).reshape(4, 1), lambda w, at: w.reshape(-1))):
        came, given = Whole(tensors), []
        for rank in range(whole.size):
            at = numpy.argwhere(whole == rank)[0]
            mesh = Mesh(part(whole, at), rank)
            named = {name: DTensor(shape, mesh, 0) for name, shape in shapes.items()}
            (begin,), (n,) = mesh.get_coordinate(), mesh.mesh.shape
            memory = {name: t[-(-len(t) // n) * begin:-(-len(t) // n) * (begin + 1)] for name, t in tensors.items()}
            given.append(fsdp2(named, Mesh(whole, rank)))
            came.take(given[-1], memory)
        came.check(whole.shape)
    odd = {"w": DTensor((4,), Mesh([0, 3], 0), 0)}
    refused(lambda: fsdp2(odd, Mesh([[0, 1], [2, 3]], 0)), "[0, 3]")
    refused(lambda: fsdp2(odd, Mesh([[1, 2], [3, 4]], 0)), "outside")


class Partial:
    def is_replicate(self):
        return False


def refusals_of_fsdp():
    refused(lambda: fsdp2({"w": numpy.zeros(3)}), "w is a ndarray")
    refused(lambda: fsdp2({"w": Placed((4,), (2,), (0,), (Partial(),))}), "placement")
    refused(lambda: fsdp2({"w": Placed((4,), (2,), (0,), (1,))}), "dimension 1")
    refused(lambda: fsdp2({"w": Placed((4,), (2, 2), (0, 0), (0,))}), "1 placements")
    refused(lambda: fsdp2({"w": Placed((4,), (2,), (2,), (None,))}), "2 replicas")
    refused(lambda: fsdp1({}, (2, 2)), "rank 2")
    must(fsdp2({"w": Placed((4,), (2,), None, (0,))}) == [], "a rank outside of the mesh gives nothing")


for test in (ranges, fsdp2_splits, fsdp2_after_tensor_parallel, fsdp2_in_a_part_of_a_mesh, fsdp1_splits, refusals_of_fsdp,
             tables, owners_are_even, refusals, other_splits, dense_splits, every_split):
    test()
    print(f"ok {test.__name__}", flush=True)
