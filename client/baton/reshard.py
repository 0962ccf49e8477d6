"""Which part of which tensor each parameter of a trainer's rank has, for trainers that shard: FSDP of
PyTorch, and Megatron-core. Nothing is moved and nothing is asked: the same arguments give the same
plan on every rank, so that the shards of all ranks tile each tensor exactly once without a word
between them.

    shards = baton.reshard.fsdp2(model.state_dict())                             # of DTensors
    shards = baton.reshard.megatron(model.named_parameters(), hf_config,
                                    baton.reshard.MegatronMesh.current())
    table = baton.reshard.shard_table(shards, dict(model.named_parameters()), agent.name, metadata)

Tensors are named and shaped as a checkpoint on Hugging Face has them. Where several ranks have the
same bytes, one of them is the owner, and only the owner's plan has the shard: the parameter goes to
the replica that owns the fewest elements, the largest parameters first. What is not known, as a
parameter of another architecture, is an InputError: a plan with a hole is none.
"""

from __future__ import annotations

import base64
import math
import re
import sys
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple, Union

from .errors import InputError
from .replay import split_layers

Place = Tuple[int, int]  # the rank in a dimension of the mesh, and the dimension's size
Shape = Tuple[int, ...]
WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")
LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
EXPERT = re.compile(r"mlp\.experts\.(?:local_experts\.(\d+)\.)?linear_fc([12])\.weight(\d+)?")
# model_type -> the module of a layer that has its experts, and their gate, up and down projections
EXPERTS = {"mixtral": ("block_sparse_moe", ("w1", "w3", "w2")),
           "qwen3_moe": ("mlp", ("gate_proj", "up_proj", "down_proj"))}
DENSE = ("llama", "mistral", "qwen2", "qwen3")


class Shard(NamedTuple):
    """A box of a tensor, which lies dense and row-major in one parameter of this rank.

    name          of the tensor, as a checkpoint has it
    full_shape    of the tensor
    shard_offset  of the box in it, elements in each dimension
    shape         of the box
    parameter     of this rank, whose memory has it
    start         where the box begins there, in elements
    """
    name: str
    full_shape: Shape
    shard_offset: Shape
    shape: Shape
    parameter: str
    start: int

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def ranges(self) -> List[Tuple[int, int, int]]:
        """The box as flat ranges of the tensor: (offset, numel, start) of each, in elements. One if
        the box is rows of the tensor; one a row if it is columns."""
        inner = len(self.shape)  # the dimensions from here on are whole
        while inner > 0 and self.shape[inner - 1] == self.full_shape[inner - 1]:
            inner -= 1
        inner = max(inner - 1, 0)
        numel, out = math.prod(self.shape[inner:]), []
        for i in range(math.prod(self.shape[:inner])):
            offset, left, stride = 0, i, math.prod(self.full_shape[inner:])
            for at in reversed(range(inner)):
                left, index = divmod(left, self.shape[at])
                offset += (self.shard_offset[at] + index) * stride
                stride *= self.full_shape[at]
            offset += sum(self.shard_offset[at] * math.prod(self.full_shape[at + 1:])
                          for at in range(inner, len(self.shape)))
            out.append((offset, numel, self.start + i * numel))
        return out


class Placed(NamedTuple):
    """What a DTensor says of itself, for trainers without one.

    shape       of the tensor
    mesh        sizes of the mesh's dimensions
    coordinate  of this rank in it; None: it is outside of the mesh
    placements  for each dimension of the mesh: the tensor's dimension that it cuts, None if it
                replicates; or torch's Shard and Replicate
    """
    shape: Shape
    mesh: Shape
    coordinate: Optional[Shape]
    placements: Tuple[Any, ...]


class MegatronMesh(NamedTuple):
    """Where a rank is in Megatron's mesh: (rank, size) in each dimension.

    tp, pp  tensor and pipeline parallel
    ep      expert parallel
    etp     tensor parallel of the experts, which is tp unless Megatron was told otherwise
    dp      data parallel with context parallel: ranks with the same dense parameters
    edp     ranks with the same experts
    """
    tp: Place = (0, 1)
    pp: Place = (0, 1)
    ep: Place = (0, 1)
    etp: Place = (0, 1)
    dp: Place = (0, 1)
    edp: Place = (0, 1)

    @classmethod
    def current(cls) -> "MegatronMesh":
        """As this process has initialized Megatron-core."""
        from megatron.core import parallel_state as at

        return cls((at.get_tensor_model_parallel_rank(), at.get_tensor_model_parallel_world_size()),
                   (at.get_pipeline_model_parallel_rank(), at.get_pipeline_model_parallel_world_size()),
                   (at.get_expert_model_parallel_rank(), at.get_expert_model_parallel_world_size()),
                   (at.get_expert_tensor_parallel_rank(), at.get_expert_tensor_parallel_world_size()),
                   (at.get_data_parallel_rank(with_context_parallel=True),
                    at.get_data_parallel_world_size(with_context_parallel=True)),
                   (at.get_expert_data_parallel_rank(), at.get_expert_data_parallel_world_size()))

    @classmethod
    def of_rank(cls, rank: int, world_size: int, tp: int = 1, pp: int = 1, ep: int = 1,
                etp: Optional[int] = None) -> "MegatronMesh":
        """Of one rank in Megatron's own order, tp-cp-ep-dp-pp. etp None: tp, as in Megatron."""
        etp = tp if etp is None else etp
        if min(tp, pp, ep, etp) < 1 or world_size % (tp * pp) or world_size % (etp * ep * pp) \
                or not 0 <= rank < world_size:
            raise InputError(f"rank {rank} of {world_size} has no place in a mesh of tp {tp}, pp {pp}, "
                             f"ep {ep}, etp {etp}")
        stage, rest = divmod(rank, world_size // pp)
        dp, edp = world_size // pp // tp, world_size // pp // (etp * ep)
        return cls((rest % tp, tp), (stage, pp), (rest // etp % ep, ep), (rest % etp, etp),
                   (rest // tp, dp), (rest // (etp * ep), edp))


class _Owners:
    """Chooses among replicas. What is offered must be the same on all of them."""

    def __init__(self):
        self._classes: Dict[Any, List[Tuple[str, List[Shard]]]] = {}

    def offer(self, replica: Place, group: Any, parameter: str, shards: List[Shard]):
        """group  what tells apart parameters that are replicated over different ranks"""
        if not 0 <= replica[0] < replica[1]:
            raise InputError(f"rank {replica[0]} is not one of {replica[1]} replicas")
        self._classes.setdefault((replica, group), []).append((parameter, shards))

    def mine(self) -> List[Shard]:
        out = []
        for ((rank, size), _), offered in self._classes.items():
            owned = [0] * size
            for numel, name, shards in sorted((-sum(s.numel for s in shards), name, shards)
                                              for name, shards in offered):
                owner = owned.index(min(owned))
                owned[owner] -= numel
                if owner == rank:
                    out += shards
        return out


def _pack(parameter: str, boxes: Iterable[Tuple[str, Shape, Shape, Shape]]) -> List[Shard]:
    """Boxes that lie in a parameter one after another; those without an element are left out."""
    out, start = [], 0
    for name, full_shape, offset, shape in boxes:
        shard = Shard(name, tuple(full_shape), tuple(offset), tuple(shape), parameter, start)
        if shard.numel:
            out.append(shard)
            start += shard.numel
    return out


def _shape_of(value) -> Shape:
    return tuple(int(n) for n in getattr(value, "shape", value))


def shard_table(shards: Iterable[Shard], parameters: Mapping[str, Any], agent: str,
                metadata: bytes) -> Dict[str, Any]:
    """The table of one rank, as ModelExpress writes it: an update by NIXL has those of all ranks in
    `shard_table`.

    parameters  name -> torch tensor or DTensor, in memory that this rank's agent has registered; of
                FSDP1 the local shard of the flat parameter
    agent       the agent's name
    metadata    what its get_agent_metadata() returned after that

    Raises InputError for a parameter that is missing, is not contiguous or ends before its shard.
    """
    tensors: Dict[str, Dict[str, Any]] = {}
    for s in shards:
        local = parameters.get(s.parameter)
        local = getattr(local, "_local_tensor", local)
        if local is None or not local.is_contiguous() or s.start + s.numel > local.numel():
            raise InputError(f"{s.parameter} is no contiguous tensor of {s.start + s.numel} elements or more")
        size, on_gpu = local.element_size(), local.device.type == "cuda"
        tensor = tensors.setdefault(s.name, {"name": s.name, "dtype": str(local.dtype), "elsize": size,
                                             "full_shape": list(s.full_shape), "shards": []})
        tensor["shards"].append({"agent_name": agent, "mem": "VRAM" if on_gpu else "DRAM",
                                 "device_id": local.device.index if on_gpu else 0,
                                 "addr": local.data_ptr() + s.start * size,
                                 "shard_offset": list(s.shard_offset), "shape": list(s.shape)})
    return {"schema": "mx.reshard.shard_table.v1", "agent_name": agent,
            "agent_meta_b64": base64.b64encode(metadata).decode(), "tensors": list(tensors.values())}


# ---- FSDP ----

def _clean(name):
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _tensor_dim(name, placement) -> Tuple[Optional[int], Optional[int]]:
    """The dimension that a placement cuts, and the split_factor of torch's _StridedShard."""
    if placement is None or hasattr(placement, "__index__"):
        return placement, None
    if placement.is_replicate():
        return None, None
    if type(placement).__name__ not in ("Shard", "_StridedShard"):
        raise InputError(f"{name} has placement {placement}, expected Shard or Replicate")
    return placement.dim, getattr(placement, "split_factor", None)


def _order(name, cuts):
    """The order in which the dimensions of a mesh cut one dimension of a tensor: a strided one, as
    FSDP in front of tensor parallelism, cuts what the later ones have left."""
    if not cuts:
        return []
    first, rest = cuts[0], _order(name, cuts[1:])
    place, factor = first
    if factor is None:
        return [place] + rest
    if factor != math.prod(size for _, size in rest):
        raise InputError(f"{name} is cut with stride {factor}, and the mesh's later dimensions cut it "
                         f"into {math.prod(size for _, size in rest)}: its shards are no boxes")
    return rest + [place]


def _cut(begin, end, place):
    """As torch.chunk: the last ranks may have less, or nothing."""
    rank, size = place
    each = -(-(end - begin) // size)
    return min(begin + rank * each, end), min(begin + (rank + 1) * each, end)


def _box_of(name, placed: Placed) -> Tuple[Shape, Shape]:
    cuts: Dict[int, List[Any]] = {}
    for place, placement in zip(zip(placed.coordinate, placed.mesh), placed.placements):
        dim, factor = _tensor_dim(name, placement)
        if dim is not None:
            if not -len(placed.shape) <= dim < len(placed.shape):
                raise InputError(f"{name} of shape {list(placed.shape)} is cut in dimension {dim}")
            cuts.setdefault(dim % len(placed.shape), []).append((place, factor))
    offset, shape = [], []
    for dim, n in enumerate(placed.shape):
        begin, end = 0, n
        for place in _order(name, cuts.get(dim, [])):
            begin, end = _cut(begin, end, place)
        offset.append(begin)
        shape.append(end - begin)
    return tuple(offset), tuple(shape)


def _placed(name, value) -> Placed:
    if isinstance(value, Placed):
        placed = value
    elif hasattr(value, "placements") and hasattr(value, "device_mesh"):
        mesh = value.device_mesh
        at = mesh.get_coordinate()
        placed = Placed(_shape_of(value), tuple(mesh.mesh.shape), at if at is None else tuple(at),
                        tuple(value.placements))
    else:
        raise InputError(f"{name} is a {type(value).__name__}, not a DTensor: which ranks have it is not "
                         "known; give a baton.reshard.Placed")
    at = placed.mesh if placed.coordinate is None else placed.coordinate
    if not len(placed.mesh) == len(placed.placements) == len(at):
        raise InputError(f"{name} has {len(placed.placements)} placements and {len(at)} coordinates in a "
                         f"mesh of {len(placed.mesh)} dimensions")
    return placed


def _check_local(name, value, box):
    local = value._local_tensor if hasattr(value, "_local_tensor") else None
    if local is None:
        return
    if tuple(local.shape) != box[1] and not local.numel() == math.prod(box[1]) == 0:
        raise InputError(f"{name} has a local shard of shape {list(local.shape)}, and its placements "
                         f"make it {list(box[1])}")
    if not local.is_contiguous():
        raise InputError(f"the local shard of {name} is not contiguous")


def _copies(name, sub, whole) -> List[Place]:
    """Where this rank is in the dimensions of the whole mesh in which its parameter's mesh is one of
    several that have the same."""
    ranks, at = {int(rank) for rank in sub.mesh.reshape(-1)}, whole.get_coordinate()
    if at is None:
        raise InputError(f"this rank has {name} and is outside of the trainer's mesh")
    out = []
    for dim, n in enumerate(whole.mesh.shape):
        line = {int(whole.mesh[tuple(at[:dim]) + (i,) + tuple(at[dim + 1:])]) for i in range(n)}
        if not line <= ranks:
            out.append((at[dim], n))
    if len(ranks) * math.prod(n for _, n in out) != math.prod(whole.mesh.shape):
        raise InputError(f"the mesh of {name}, ranks {sorted(ranks)}, is not made of dimensions of the "
                         "trainer's mesh")
    return out


def _check_world(name, value):
    """Without the whole mesh it is that of each parameter."""
    distributed = sys.modules.get("torch.distributed")
    n = math.prod(value.device_mesh.mesh.shape)
    if distributed is not None and distributed.is_initialized() and distributed.get_world_size() != n:
        raise InputError(f"the mesh of {name} has {n} of {distributed.get_world_size()} ranks: pass mesh, "
                         "that of all ranks which have parts of these tensors")


def fsdp2(parameters: Union[Mapping[str, Any], Iterable[Tuple[str, Any]]],
          mesh: Any = None) -> List[Shard]:
    """The shards that this rank gives, of parameters that FSDP2 or tensor parallelism of PyTorch has
    placed: Shard in one dimension or several, uneven ones too, and Replicate.

    parameters  name -> DTensor, or Placed; or pairs. All ranks of a mesh give the same names.
                Wrappers of FSDP, of activation checkpoints and of torch.compile are left out of
                the tensors' names
    mesh        the trainer's DeviceMesh, of all ranks that have parts of these tensors, if that of
                a parameter is smaller, as FSDP's under tensor parallelism for what that does not
                cut: the ranks of the other dimensions have the same. None: each parameter's mesh
                has all ranks

    Raises InputError for a tensor without placements, a Partial, shards that are no boxes or are not
    contiguous, and a mesh that is smaller than the world, or not a part of the given one.
    """
    owners = _Owners()
    for name, value in parameters.items() if hasattr(parameters, "items") else parameters:
        placed, copies = _placed(name, value), []
        if placed.coordinate is None:
            continue
        if value is not placed and mesh is None:
            _check_world(name, value)
        elif value is not placed:
            copies = _copies(name, value.device_mesh, mesh)
        box = _box_of(name, placed)
        _check_local(name, value, box)
        cut = [_tensor_dim(name, placement)[0] is not None for placement in placed.placements]
        copies += [place for place, cuts in zip(zip(placed.coordinate, placed.mesh), cut) if not cuts]
        rank, size = 0, 1
        for at, n in copies:
            rank, size = rank * n + at, size * n
        owners.offer((rank, size), (placed.mesh, tuple(cut)), name,
                     _pack(name, [(_clean(name), placed.shape) + box]))
    return owners.mine()


def _flat_boxes(shape, begin, end):
    """Elements [begin, end) of a tensor as boxes, in their order: at most 2 * ndim - 1."""
    if len(shape) < 2 or begin >= end:
        return [((begin,), (end - begin,))] if shape else [((), ())] * (end - begin)
    inner = math.prod(shape[1:])
    first, last = -(-begin // inner), end // inner  # the whole rows

    def of_row(row, low, high):
        return [((row,) + offset, (1,) + size)
                for offset, size in _flat_boxes(shape[1:], low - row * inner, high - row * inner)]

    if first > last:
        return of_row(last, begin, end)
    out = of_row(first - 1, begin, first * inner) if begin < first * inner else []
    if first < last:
        out.append(((first,) + (0,) * (len(shape) - 1), (last - first,) + tuple(shape[1:])))
    return out + (of_row(last, last * inner, end) if last * inner < end else [])


def fsdp1(units: Mapping[str, Iterable[Tuple[str, Any]]], shard: Place, replica: Place = (0, 1),
          align: int = 1) -> List[Shard]:
    """The shards that this rank gives, of the flat parameters of FSDP1 (FullyShardedDataParallel).

    units    name of each flat parameter -> (name, tensor or shape) of what it was made of, in
             order; with `start` a shard is found in the flat parameter's local shard
    shard    (rank, size) of the group that shards
    replica  of the group that replicates (HYBRID_SHARD)
    align    elements to which FSDP aligns each tensor: 16 bytes if use_orig_params, else 1
    """
    owners, (rank, size) = _Owners(), shard
    if not 0 <= rank < size or align < 1:
        raise InputError(f"rank {rank} of {size}, aligned to {align}: expected a rank of the group, "
                         "and an alignment of 1 or more")
    for unit, tensors in units.items():
        spans, end = [], 0
        for name, value in tensors:
            shape, begin = _shape_of(value), -(-end // align) * align
            end = begin + math.prod(shape)
            spans.append((name, shape, begin, end))
        low, high = _cut(0, -(-end // size) * size, shard)
        out = []
        for name, shape, begin, end in spans:
            if low < end and begin < high:
                boxes = _flat_boxes(shape, max(low, begin) - begin, min(high, end) - begin)
                out += [s._replace(start=s.start + max(begin - low, 0))
                        for s in _pack(unit, [(_clean(name), shape) + box for box in boxes])]
        owners.offer(replica, None, unit, out)
    return owners.mine()


# ---- Megatron-core ----

class _Model:
    """The sizes of a model, of its config.json."""

    def __init__(self, config):
        def get(*names):
            for name in names:
                value = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
                if value is not None:
                    return value
            return None

        def number(*names):
            value = get(*names)
            if not hasattr(value, "__index__") or value < 1:
                raise InputError(f"the model's config has {names[0]} {value!r}, expected a number")
            return int(value)

        self.type = get("model_type")
        if self.type not in DENSE and self.type not in EXPERTS:
            raise InputError(f"model_type {self.type!r} is not one of {', '.join(DENSE + tuple(EXPERTS))}")
        self.layers, self.hidden = number("num_hidden_layers"), number("hidden_size")
        self.heads = number("num_attention_heads")
        self.groups = number("num_key_value_heads") if get("num_key_value_heads") else self.heads
        self.head_dim = number("head_dim") if get("head_dim") else self.hidden // self.heads
        self.vocab, self.tied = number("vocab_size"), bool(get("tie_word_embeddings"))
        self.ffn = number("intermediate_size") if self.type != "qwen3_moe" or get("intermediate_size") else 0
        if self.type in EXPERTS:
            self.n_experts = number("num_experts", "num_local_experts")
            self.expert_ffn = number("moe_intermediate_size") if self.type == "qwen3_moe" else self.ffn


def _rows(name, n, rest, place) -> List[Any]:
    """Rows of a column parallel linear, or elements of its bias: a box."""
    rank, size = place
    if n % size:
        raise InputError(f"{name} has {n} rows, which {size} tensor parallel ranks do not share evenly")
    return [(name, (n,) + rest, (rank * (n // size),) + (0,) * len(rest), (n // size,) + rest)]


def _columns(name, rows, n, place):
    """Of a row parallel linear."""
    (_, _, begin, width), = _rows(name, n, (), place)
    return [(name, (rows, n), (0,) + begin, (rows,) + width)]


def _vocabulary(name, m, local, place):
    """Megatron pads the vocabulary for its ranks to be even; the padding is in no checkpoint."""
    if len(local) != 2 or local[1] != m.hidden or local[0] * place[1] < m.vocab:
        raise InputError(f"{name}: {place[1]} tensor parallel ranks with {list(local)} each do not make "
                         f"{[m.vocab, m.hidden]}")
    begin, end = (min((place[0] + i) * local[0], m.vocab) for i in (0, 1))
    return [(name, (m.vocab, m.hidden), (begin, 0), (end - begin, m.hidden))]


def _qkv(at, kind, m, rest, place):
    """Query, key and value are interleaved by groups, and the ranks share the rows of the whole: where
    there are more ranks than groups, a rank has a part of a group."""
    per_q = m.heads // m.groups * m.head_dim
    unit = per_q + 2 * m.head_dim
    (_, _, (begin,), (n,)), = _rows(f"{at}.linear_qkv", m.groups * unit, (), place)
    parts = (("q", per_q, 0), ("k", m.head_dim, per_q), ("v", m.head_dim, per_q + m.head_dim))
    out = []
    for group in range(begin // unit, -(-(begin + n) // unit)):
        for part, rows, first in parts:
            low, high = (min(max(edge - group * unit - first, 0), rows) for edge in (begin, begin + n))
            out.append((f"{at}.{part}_proj.{kind}", (m.groups * rows,) + rest,
                        (group * rows + low,) + (0,) * len(rest), (high - low,) + rest))
    return out


def _expert(name, m, layer, found, mesh):
    if m.type not in EXPERTS:
        raise InputError(f"{name}: model_type {m.type} has no experts")
    one, fc, grouped = found.groups()
    local = int(one if one is not None else grouped)
    (rank, size), (module, (gate, up, down)) = mesh.ep, EXPERTS[m.type]
    if m.n_experts % size or local >= m.n_experts // size:
        raise InputError(f"{name} is not one of {m.n_experts} experts on {size} ranks")
    at = f"{layer}.{module}.experts.{rank * (m.n_experts // size) + local}"
    if fc == "2":
        return _columns(f"{at}.{down}.weight", m.hidden, m.expert_ffn, mesh.etp)
    return [box for part in (gate, up)
            for box in _rows(f"{at}.{part}.weight", m.expert_ffn, (m.hidden,), mesh.etp)]


def _split_of_layer(name, rest, m, layer, mesh):
    """The boxes of a parameter that is split; None: it is none of these."""
    kind = rest.rpartition(".")[2]
    tail = (m.hidden,) if kind == "weight" else ()
    if rest in ("self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias"):
        return _qkv(f"{layer}.self_attn", kind, m, tail, mesh.tp)
    if rest == "self_attention.linear_proj.weight":
        return _columns(f"{layer}.self_attn.o_proj.weight", m.hidden, m.heads * m.head_dim, mesh.tp)
    if rest in ("mlp.linear_fc1.weight", "mlp.linear_fc1.bias"):  # gate and up, each rank's halves
        return [box for part in ("gate", "up")
                for box in _rows(f"{layer}.mlp.{part}_proj.{kind}", m.ffn, tail, mesh.tp)]
    if rest == "mlp.linear_fc2.weight":
        return _columns(f"{layer}.mlp.down_proj.weight", m.hidden, m.ffn, mesh.tp)
    return None


def _whole_of_layer(rest, m, layer):
    """The box of a parameter that every tensor parallel rank has; None: it is none of these."""
    names = {"input_layernorm.weight": ("input_layernorm.weight", m.hidden),
             "self_attention.linear_qkv.layer_norm_weight": ("input_layernorm.weight", m.hidden),
             "pre_mlp_layernorm.weight": ("post_attention_layernorm.weight", m.hidden),
             "mlp.linear_fc1.layer_norm_weight": ("post_attention_layernorm.weight", m.hidden),
             "self_attention.q_layernorm.weight": ("self_attn.q_norm.weight", m.head_dim),
             "self_attention.k_layernorm.weight": ("self_attn.k_norm.weight", m.head_dim),
             "self_attention.linear_proj.bias": ("self_attn.o_proj.bias", m.hidden),
             "mlp.linear_fc2.bias": ("mlp.down_proj.bias", m.hidden)}
    if rest == "mlp.router.weight" and m.type in EXPERTS:
        shape = (m.n_experts, m.hidden)
        return [(f"{layer}.{EXPERTS[m.type][0]}.gate.weight", shape, (0, 0), shape)]
    if rest not in names:
        return None
    tensor, n = names[rest]
    return [(f"{layer}.{tensor}", (n,), (0,), (n,))]


def _layer_boxes(name, found, m, mesh, numbers):
    """A parameter of a layer: its boxes, and which ranks have the same."""
    local, rest = int(found[1]), found[2]
    if local >= len(numbers):
        raise InputError(f"{name} is layer {local} of a stage with {len(numbers)}")
    layer, expert = f"model.layers.{numbers[local]}", EXPERT.fullmatch(rest)
    if expert and (expert[1] is None) != (expert[3] is None):
        return _expert(name, m, layer, expert, mesh), "edp"
    split = _split_of_layer(name, rest, m, layer, mesh)
    if split is not None:
        return split, "dp"
    return _whole_of_layer(rest, m, layer), "all"


def _boxes(name, local, m, mesh, numbers):
    if name == "embedding.word_embeddings.weight":
        return _vocabulary("model.embed_tokens.weight", m, local, mesh.tp), "dp"
    if name == "output_layer.weight":  # of a tied model: the first stage's embedding once more
        return ([] if m.tied else _vocabulary("lm_head.weight", m, local, mesh.tp)), "dp"
    if name == "decoder.final_layernorm.weight":
        return [("model.norm.weight", (m.hidden,), (0,), (m.hidden,))], "all"
    found = LAYER.fullmatch(name)
    return _layer_boxes(name, found, m, mesh, numbers) if found else (None, "")


def _check_shape(name, local, boxes):
    """The boxes lie one after another, or the parameter is other than was thought. A vocabulary was
    checked with its padding."""
    if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        return
    expected = (sum(box[3][0] for box in boxes),) + boxes[0][3][1:]
    if local != expected:
        raise InputError(f"{name} has shape {list(local)}, and the model's config and the mesh make it "
                         f"{list(expected)}")


def megatron(parameters: Union[Mapping[str, Any], Iterable[Tuple[str, Any]]], config: Any,
             mesh: MegatronMesh, layers: Optional[Iterable[int]] = None) -> List[Shard]:
    """The shards that this rank gives, of a GPTModel of Megatron-core: fused QKV with grouped queries,
    gated linear units, experts one by one or grouped (TEGroupedMLP), a padded vocabulary, tied
    embeddings; with Megatron's own layers or those of Transformer Engine.

    parameters  name -> parameter, or its shape, as named_parameters() of the model has them on this
                rank; or pairs
    config      config.json of the model on Hugging Face, as a dict, or as transformers loads it;
                llama, mistral, qwen2, qwen3, qwen3_moe or mixtral
    mesh        where this rank is
    layers      numbers, from 0 in the whole model, of the layers that `parameters` have. None:
                stages of the same number. Megatron's layers know it: [layer.layer_number - 1 for
                layer in model.decoder.layers]. With virtual stages call it for each model chunk

    Raises InputError for a parameter that is unknown or has another shape than the config and the mesh
    give, for sizes that the mesh does not divide, and for another model_type.
    """
    m = _Model(config)
    for dim, (rank, size) in mesh._asdict().items():
        if not 0 <= rank < size:
            raise InputError(f"{dim} has rank {rank} of {size}")
    if layers is None:
        if m.layers % mesh.pp[1]:
            raise InputError(f"{m.layers} layers on {mesh.pp[1]} stages are not of the same number: pass "
                             "layers")
        numbers = list(range(*split_layers(mesh.pp[1], 0, 0, m.layers)[mesh.pp[0]]))
    else:
        numbers = [int(i) for i in layers]
    (tp, tp_size), (dp, dp_size) = mesh.tp, mesh.dp
    replicas = {"dp": mesh.dp, "edp": mesh.edp, "all": (dp * tp_size + tp, dp_size * tp_size)}
    owners = _Owners()
    for full_name, value in parameters.items() if hasattr(parameters, "items") else parameters:
        name = re.sub(r"^(module\.)+", "", full_name)
        if name.endswith("_extra_state"):  # of a state_dict, and no weight
            continue
        local = _shape_of(value)
        boxes, copies = _boxes(name, local, m, mesh, numbers)
        if boxes is None:
            raise InputError(f"{full_name} is no parameter that is known of a {m.type} of Megatron-core")
        if boxes:
            _check_shape(name, local, boxes)
            owners.offer(replicas[copies], copies, full_name, _pack(full_name, boxes))
    return owners.mine()
