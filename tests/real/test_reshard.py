"""The client's plans of shards against the real trainers' splits, on the CPU. Megatron-core and PyTorch place the
parameters of every rank, with process groups that do not communicate; Megatron's own checkpoint metadata says which part of
the whole a rank has. The bytes that the plans take from all ranks must be those of the checkpoint, each exactly once.
That Megatron computes the same with the layout in which the whole is put together, transformers shows.
Usage: test_reshard.py --baton PROGRAM [--only NAME]"""

import concurrent.futures
import contextlib
import itertools
import logging
import math
import multiprocessing
import os
import sys
import tempfile
import types
import warnings

import real_world
import torch
import torch.distributed as dist
import transformers
from real_world import world
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
transformers.utils.logging.disable_progress_bar()
sys.path.append(str(real_world.ROOT / "client"))
from baton import reshard  # noqa: E402
from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

# Megatron asks for its GPU, moves a tied embedding there, and takes a state of random numbers, which no dropout uses.
torch.cuda.current_device = lambda: "cpu"
torch.Tensor.cuda = lambda self: self
tensor_parallel.get_cuda_rng_tracker = lambda: types.SimpleNamespace(fork=contextlib.nullcontext)
HIDDEN, VOCAB, LENGTH = 8, 51, 6
KINDS = {"llama": transformers.LlamaConfig, "mistral": transformers.MistralConfig, "qwen2": transformers.Qwen2Config,
         "qwen3": transformers.Qwen3Config, "qwen3_moe": transformers.Qwen3MoeConfig, "mixtral": transformers.MixtralConfig}
SPARSE = ("qwen3_moe", "mixtral")


class Whole:
    """What has come of the tensors, and how often."""

    def __init__(self, tensors):
        self.tensors = tensors
        self.came = {name: torch.zeros_like(t) for name, t in tensors.items()}
        self.times = {name: torch.zeros(t.shape, dtype=torch.uint8) for name, t in tensors.items()}

    def take(self, shards, memory):
        """memory  parameter -> the elements that the rank has of it"""
        for s in shards:
            at = tuple(slice(begin, begin + n) for begin, n in zip(s.shard_offset, s.shape))
            flat = memory[s.parameter].reshape(-1)[s.start:s.start + s.numel]
            self.came[s.name][at] = flat.reshape(s.shape)
            self.times[s.name][at] += 1

    def wrong(self):
        return [name for name, wanted in self.tensors.items() if not (self.times[name] == 1).all() or
                self.came[name].numpy().tobytes() != wanted.numpy().tobytes()]


@contextlib.contextmanager
def rank_of(rank, world_size):
    """This process as that rank; collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


# ---- Megatron-core ----

def config_of(kind, layers, heads, groups, ffn, experts=0, tied=False, head_dim=2):
    return types.SimpleNamespace(
        model_type=kind, num_hidden_layers=layers, hidden_size=HIDDEN, num_attention_heads=heads, num_key_value_heads=groups,
        head_dim=head_dim, intermediate_size=ffn, moe_intermediate_size=ffn, num_experts=experts, num_local_experts=experts,
        vocab_size=VOCAB, tie_word_embeddings=tied, num_experts_per_tok=2, norm_topk_prob=True, rope_theta=10000.0,
        rms_norm_eps=1e-6, max_position_embeddings=64, sliding_window=None, use_sliding_window=False)


def tensors_of(c):
    """Of the checkpoint, as transformers shapes them; no two elements are the same."""
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    ffn = c.moe_intermediate_size if c.model_type == "qwen3_moe" else c.intermediate_size
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    if not c.tie_word_embeddings:
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    for i in range(c.num_hidden_layers):
        at = f"model.layers.{i}."
        shapes.update({at + "input_layernorm.weight": (HIDDEN,), at + "post_attention_layernorm.weight": (HIDDEN,),
                       at + "self_attn.o_proj.weight": (HIDDEN, q)})
        for part, n in (("q", q), ("k", kv), ("v", kv)):
            shapes[f"{at}self_attn.{part}_proj.weight"] = (n, HIDDEN)
            if c.model_type == "qwen2":
                shapes[f"{at}self_attn.{part}_proj.bias"] = (n,)
            elif c.model_type.startswith("qwen3") and part != "v":
                shapes[f"{at}self_attn.{part}_norm.weight"] = (c.head_dim,)
        module, parts = names_of(c)
        experts = [""]
        if c.model_type in SPARSE:
            experts = [f"experts.{e}." for e in range(c.num_local_experts)]
            shapes[f"{at}{module}.gate.weight"] = (c.num_local_experts, HIDDEN)
        for e, (part, shape) in itertools.product(experts, zip(parts, [(ffn, HIDDEN)] * 2 + [(HIDDEN, ffn)])):
            shapes[f"{at}{module}.{e}{part}.weight"] = shape
    numels = [math.prod(shape) for shape in shapes.values()]
    values = torch.randperm(sum(numels), generator=torch.Generator().manual_seed(1)).float() / sum(numels) - 0.5
    return {name: t.reshape(shape) for (name, shape), t in zip(shapes.items(), values.split(numels))}


def names_of(c):
    if c.model_type == "mixtral":
        return "block_sparse_moe", ("w1", "w3", "w2")
    return "mlp", ("gate_proj", "up_proj", "down_proj")


def build(c, tp=1, pp=1, ep=1, etp=None, **more):
    """The rank's GPTModel, with Megatron's own layers."""
    parallel_state.initialize_model_parallel(tp, pp, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp,
                                             create_gloo_process_groups=False)
    sparse = c.model_type in SPARSE
    experts = c.num_local_experts if sparse else None
    config = TransformerConfig(
        num_layers=c.num_hidden_layers, hidden_size=HIDDEN, num_attention_heads=c.num_attention_heads,
        num_query_groups=c.num_key_value_heads, kv_channels=c.head_dim, ffn_hidden_size=c.intermediate_size,
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp, use_cpu_initialization=True, perform_initialization=False,
        pipeline_dtype=torch.float32, gated_linear_unit=True, activation_func=torch.nn.functional.silu,
        add_bias_linear=False, add_qkv_bias=c.model_type == "qwen2", normalization="RMSNorm", layernorm_epsilon=1e-6,
        qk_layernorm=c.model_type.startswith("qwen3"), hidden_dropout=0.0, attention_dropout=0.0,
        bias_activation_fusion=False, masked_softmax_fusion=False, gradient_accumulation_fusion=False,
        apply_rope_fusion=False, num_moe_experts=experts, moe_router_load_balancing_type="none",
        moe_token_dispatcher_type="allgather", moe_router_topk=2,
        moe_ffn_hidden_size=getattr(c, "moe_intermediate_size", c.intermediate_size) if sparse else None, **more)
    spec = get_gpt_layer_local_spec(num_experts=experts, moe_grouped_gemm=False, normalization="RMSNorm",
                                    qk_layernorm=c.model_type.startswith("qwen3"))
    padded = -(-VOCAB // (2 * tp)) * 2 * tp
    return GPTModel(config, spec, vocab_size=padded, max_sequence_length=64,
                    pre_process=parallel_state.is_pipeline_first_stage(),
                    post_process=parallel_state.is_pipeline_last_stage(),
                    share_embeddings_and_output_weights=c.tie_word_embeddings, position_embedding_type="rope",
                    rotary_base=10000)


def interleaved(hf, at, groups, kind):
    """Query heads, key and value of the first group, those of the second, ..."""
    parts = [hf[f"{at}self_attn.{part}_proj.{kind}"].chunk(groups) for part in "qkv"]
    return torch.cat([part for group in zip(*parts) for part in group])


def wholes_of(hf, c):
    """key of Megatron's checkpoint -> the whole that all ranks share. The keys are those of Transformer Engine's
    layers; layers, and experts, are dimensions in front."""
    n, (module, (gate, up, down)) = c.num_hidden_layers, names_of(c)
    at = [f"model.layers.{i}." for i in range(n)]

    def layers(make):
        return torch.stack([make(a) for a in at])

    def glu(a):
        return torch.cat([hf[f"{a}{gate}.weight"], hf[f"{a}{up}.weight"]])

    def experts(make):
        return layers(lambda a: torch.stack([make(f"{a}{module}.experts.{e}.") for e in range(c.num_local_experts)]))

    to = "decoder.layers."
    out = {"embedding.word_embeddings.weight": hf["model.embed_tokens.weight"],
           "output_layer.weight": hf.get("lm_head.weight"), "decoder.final_layernorm.weight": hf["model.norm.weight"],
           to + "self_attention.linear_qkv.layer_norm_weight": layers(lambda a: hf[a + "input_layernorm.weight"]),
           to + "mlp.linear_fc1.layer_norm_weight": layers(lambda a: hf[a + "post_attention_layernorm.weight"]),
           to + "self_attention.linear_proj.weight": layers(lambda a: hf[a + "self_attn.o_proj.weight"]),
           to + "self_attention.linear_qkv.weight":
           layers(lambda a: interleaved(hf, a, c.num_key_value_heads, "weight"))}
    if c.model_type == "qwen2":
        out[to + "self_attention.linear_qkv.bias"] = layers(lambda a: interleaved(hf, a, c.num_key_value_heads, "bias"))
    if c.model_type.startswith("qwen3"):
        for part in "qk":
            out[f"{to}self_attention.{part}_layernorm.weight"] = layers(lambda a: hf[f"{a}self_attn.{part}_norm.weight"])
    if c.model_type in SPARSE:
        out[to + "mlp.router.weight"] = layers(lambda a: hf[f"{a}{module}.gate.weight"])
        out[to + "mlp.experts.experts.linear_fc1.weight"] = experts(glu)
        out[to + "mlp.experts.experts.linear_fc2.weight"] = experts(lambda a: hf[f"{a}{down}.weight"])
    else:
        out[to + "mlp.linear_fc1.weight"] = layers(lambda a: glu(f"{a}{module}."))
        out[to + "mlp.linear_fc2.weight"] = layers(lambda a: hf[f"{a}{module}.{down}.weight"])
    return out


def part_of(sharded, wholes):
    """What Megatron's metadata says that the rank has of the whole. A padded vocabulary has another number of rows."""
    whole = wholes[sharded.key]
    if whole is None:  # tied: saved as the embedding
        whole = wholes["embedding.word_embeddings.weight"]
    if tuple(whole.shape) != tuple(sharded.global_shape):
        if not sharded.allow_shape_mismatch:
            raise AssertionError(f"{sharded.key} is {list(sharded.global_shape)}, not {list(whole.shape)}")
        whole = torch.cat([whole, torch.zeros(sharded.global_shape[0] - len(whole), *whole.shape[1:])])
    return whole[sharded.global_slice()].reshape(sharded.local_shape)


def memory_of(model, wholes):
    """The rank's parameters, cut by Megatron's own metadata."""
    saved, out = model.sharded_state_dict(), {}
    for name, parameter in model.named_parameters():
        sharded = saved[name]
        if isinstance(sharded, ShardedTensorFactory):  # gate and up
            parts = sharded.build()
            out[name] = torch.cat([part_of(part, wholes) for part in (parts.values() if isinstance(parts, dict) else parts)])
        else:
            out[name] = part_of(sharded, wholes)
        assert out[name].shape == parameter.shape, (name, out[name].shape, parameter.shape)
    return out


def split(what, c, sizes, world_size, stages=None):
    """The bytes of all ranks. Returns what is wrong, and how many ranks there were."""
    hf = tensors_of(c)
    wholes, whole, wrong = wholes_of(hf, c), Whole(hf), []
    for rank in range(world_size):
        with rank_of(rank, world_size):
            try:
                model = build(c, *sizes, **(stages or {}))
                mesh = reshard.MegatronMesh.current()
                if mesh != reshard.MegatronMesh.of_rank(rank, world_size, *sizes):
                    wrong.append(f"rank {rank} is {mesh}")
                memory = memory_of(model, wholes)
                numbers = [layer.layer_number - 1 for layer in model.decoder.layers]
                shards = reshard.megatron(model.named_parameters(), c, mesh, numbers)
                if not stages and shards != reshard.megatron(memory, vars(c), mesh):
                    wrong.append(f"rank {rank} has layers {numbers}")
            finally:
                parallel_state.destroy_model_parallel()
        whole.take(shards, memory)
    return what, wrong + whole.wrong(), world_size


def every_split():
    for tp, pp, ep in itertools.product(range(1, 9), range(1, 5), range(1, 9)):
        c = config_of(SPARSE[(tp + ep) % 2], pp, 2 * tp, tp, tp, ep, tied=ep % 2 == 0)
        yield (f"tp {tp}", (f"tp {tp}, pp {pp}, ep {ep}", c, (tp, pp, ep, 1), pp * math.lcm(tp, ep)))


def other_splits():
    """Dense models with replicas, fewer groups than ranks, experts that are split too, uneven stages."""
    for kind, (tp, pp, dp) in itertools.product(("llama", "mistral", "qwen2", "qwen3"),
                                                ((1, 1, 3), (2, 2, 2), (4, 1, 1), (3, 4, 1), (8, 2, 1), (5, 1, 2))):
        c = config_of(kind, 2 * pp, 2 * tp, 2 * tp if dp > 1 else tp, 2 * tp, tied=dp == 2)
        yield "dense", (f"{kind}, tp {tp}, pp {pp}, dp {dp}", c, (tp, pp), tp * pp * dp)
    for kind, groups, tp in (("llama", 1, 4), ("qwen2", 2, 4), ("qwen3", 2, 8), ("qwen2", 1, 2), ("llama", 1, 8)):
        c = config_of(kind, 1, tp, groups, tp, head_dim=tp)  # ranks cut keys and values
        yield "fewer groups than ranks", (f"{kind}, {groups} groups, tp {tp}", c, (tp,), tp)
    for tp, pp, ep, etp, times in ((2, 2, 2, 2, 1), (4, 1, 2, 2, 2), (2, 2, 4, 1, 2), (1, 2, 2, 4, 1)):
        c = config_of("qwen3_moe", pp, 8, 4, 8, 4)
        yield "split experts", (f"tp {tp}, pp {pp}, ep {ep}, etp {etp}", c, (tp, pp, ep, etp),
                                pp * math.lcm(tp, ep * etp) * times)
    for layers, pp, first, last in ((5, 2, 2, None), (7, 3, None, 1), (8, 3, 1, 1), (6, 4, 1, 1)):
        given = {"num_layers_in_first_pipeline_stage": first, "num_layers_in_last_pipeline_stage": last}
        stages = {name: n for name, n in given.items() if n}
        yield "uneven stages", (f"{layers} layers, {stages}", config_of("llama", layers, 4, 2, 4), (2, pp), 2 * pp, stages)


def megatron_splits(checks, splits):
    """By processes, since each rank takes some 50 ms to build."""
    torch.set_num_threads(1)
    groups = {}
    spawn = multiprocessing.get_context("spawn")  # torch refuses to look for a GPU after a fork
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), spawn) as pool:
        for group, given in splits:
            groups.setdefault(group, []).append(pool.submit(split, *given))
        for group, running in groups.items():
            done = [each.result() for each in running]
            wrong = [(what, found[:8]) for what, found, _ in done if found]
            checks.that(not wrong, f"{group}: {len(done)} splits, {sum(n for _, _, n in done)} ranks", wrong[:4])


def logits_of(c, hf):
    """As transformers computes them, and as Megatron does with the bytes that the plan gives."""
    tokens = torch.tensor([[5, 9, 50, 0, 17, 3]])
    with rank_of(0, 1):
        try:
            model = build(c).eval()
            named = dict(model.named_parameters())
            with torch.no_grad():
                for parameter in named.values():
                    parameter.zero_()
                for s in reshard.megatron(named, c, reshard.MegatronMesh.current()):
                    at = tuple(slice(begin, begin + n) for begin, n in zip(s.shard_offset, s.shape))
                    named[s.parameter].view(-1)[s.start:s.start + s.numel] = hf[s.name][at].reshape(-1)
                mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).triu(1)
                found = model(tokens, torch.arange(LENGTH)[None], mask)[0, :, :VOCAB]
        finally:
            parallel_state.destroy_model_parallel()
    with torch.no_grad():
        return transformers_of(c, hf)(tokens).logits[0], found


def transformers_of(c, hf):
    """Loaded from a checkpoint of these names."""
    config = KINDS[c.model_type](**{k: v for k, v in vars(c).items() if c.model_type in SPARSE or "experts" not in k})
    with tempfile.TemporaryDirectory() as folder:
        save_file({name: t.contiguous() for name, t in hf.items()}, os.path.join(folder, "model.safetensors"),
                  {"format": "pt"})
        config.save_pretrained(folder)
        load = transformers.AutoModelForCausalLM.from_pretrained
        return load(folder, dtype=torch.float32, attn_implementation="eager").eval()


def layouts(checks):
    for kind, tied in itertools.product(KINDS, (False, True)):
        c = config_of(kind, 2, 4, 2, 12, 4, tied)
        wanted, found = logits_of(c, tensors_of(c))
        apart = (wanted - found).abs().max().item()
        checks.that(apart < 1e-4 and wanted.std() > 1e-2, f"{kind}, {'tied' if tied else 'not tied'}",
                    f"logits differ by {apart}, and vary by {wanted.std()}")


# ---- PyTorch ----

def network():
    """Sizes that few numbers of ranks divide. Every rank makes the same."""
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 3, bias=False),
                               torch.nn.Linear(3, 16), torch.nn.Conv2d(16, 4, 3))


def put_together(wanted, world_size, give):
    """give(rank) -> the shards, and the memory of the parameters"""
    whole = Whole(wanted)
    for rank in range(world_size):
        with rank_of(rank, world_size), torch.no_grad():
            shards, memory = give(rank)
        whole.take(shards, memory)
    return whole.wrong()


def of_dtensors(named, mesh=None):
    return reshard.fsdp2(named, mesh), {name: t._local_tensor.detach().clone() for name, t in named.items()}


def fsdp2(checks):
    wanted = {name: t.clone() for name, t in network().state_dict().items()}

    def sharded(rank, sizes, parallel):
        names = [f"{name}{rank}" for name in ("a", "b")[-len(sizes):]]  # torch takes an equal mesh of another rank for this
        mesh, model = init_device_mesh("cpu", sizes, mesh_dim_names=names), network()
        over = mesh
        if parallel:  # tensor parallel first, FSDP on what it leaves: torch's _StridedShard
            parallelize_module(model, mesh[names[1]], {"0": ColwiseParallel(), "2": RowwiseParallel(), "3": ColwiseParallel()},
                               src_data_rank=None)
            over = mesh[names[0]]
        for unit in (model[0], model[3], model):
            fully_shard(unit, mesh=over)
        return of_dtensors(model.state_dict(), mesh if parallel else None)

    for n in range(1, 9):
        wrong = put_together(wanted, n, lambda rank: sharded(rank, (n,), False))
        checks.that(not wrong, f"fully_shard on {n} ranks", wrong)
    for sizes, parallel in itertools.product(((2, 2), (2, 3), (3, 2), (4, 2), (3, 3)), (False, True)):
        wrong = put_together(wanted, math.prod(sizes), lambda rank: sharded(rank, sizes, parallel))
        checks.that(not wrong, f"{sizes}, {'tensor parallel' if parallel else 'hybrid'}", wrong)


def dtensors(checks):
    tensors = {"a": torch.randn(7, 5), "b": torch.randn(11, 3, 4), "c": torch.randn(2, 2)}
    for sizes in ((3,), (5,), (2, 3), (3, 2), (2, 2, 2)):
        wrong, n = [], 0
        for placements in itertools.product((Replicate(), Shard(0), Shard(1)), repeat=len(sizes)):
            def give(rank):
                mesh = init_device_mesh("cpu", sizes)
                return of_dtensors({name: distribute_tensor(t, mesh, placements, src_data_rank=None)
                                    for name, t in tensors.items()})

            n += 1
            found = put_together(tensors, math.prod(sizes), give)
            wrong += [(placements, found)] if found else []
        checks.that(not wrong, f"distribute_tensor on {sizes}, {n} placements", wrong)


def fsdp1(checks):
    wanted = {name: t.clone() for name, t in network().state_dict().items()}

    def give(rank, n, replicas, orig):
        strategy = ShardingStrategy.HYBRID_SHARD if replicas > 1 else ShardingStrategy.FULL_SHARD
        mesh = init_device_mesh("cpu", (replicas, n) if replicas > 1 else (n,))
        options = {"device_id": torch.device("cpu"), "use_orig_params": orig, "sharding_strategy": strategy,
                   "device_mesh": mesh}
        model = network()
        model[3] = FullyShardedDataParallel(model[3], **options)
        model = FullyShardedDataParallel(model, **options)
        units, memory = {}, {}
        for prefix, module in model.named_modules():
            if isinstance(module, FullyShardedDataParallel) and module._handle is not None:
                flat = module._handle.flat_param
                at = prefix + "." if prefix else ""
                units[prefix] = [(at + name, shape) for name, shape in zip(flat._fqns, flat._shapes)]
                memory[prefix] = flat.detach().clone()
        shards = reshard.fsdp1(units, (rank % n, n), (rank // n, replicas), 4 if orig else 1)
        return shards, memory

    for n, replicas, orig in itertools.product((1, 2, 3, 5, 8), (1, 2), (False, True)):
        if n * replicas > 1:
            wrong = put_together(wanted, n * replicas, lambda rank: give(rank, n, replicas, orig))
            checks.that(not wrong, f"{n} ranks, {replicas} replicas, use_orig_params {orig}", wrong)


def main():
    args = real_world.options()
    checks = world.Checks()
    for name, run in (("FSDP2", fsdp2), ("DTensor", dtensors), ("FSDP1", fsdp1),
                      ("Megatron, the same logits as transformers", layouts),
                      ("Megatron, every split of experts", lambda c: megatron_splits(c, every_split())),
                      ("Megatron, other splits", lambda c: megatron_splits(c, other_splits()))):
        if args.only in name:
            with checks.section(name):
                run(checks)
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
