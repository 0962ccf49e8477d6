"""Megatron-LM's own functions, unmodified, on the CPU: which layers a pipeline stage builds and which positions a
context rank gets. The blocks of the Python client and of baton's replay_layout have these, for every split that
Megatron accepts, and it refuses those that they refuse.
Usage: test_megatron.py --baton PROGRAM"""

import itertools
import sys

import real_world
import torch
from megatron.core import utils
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from real_world import world

sys.path.append(str(real_world.ROOT / "client"))
import baton  # noqa: E402
import numpy  # noqa: E402

PP, CP, MULTIPLE = "pipeline_parallel_size", "context_parallel_size", "sequence_multiple"
FIRST, LAST = "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"
GIVEN = (None, 1, 2, 3, 4)
K = 2


def stages_of(num_layers, pp, first, last):
    """The layers of each of Megatron's stages; None if it refuses the split, or builds a layer twice."""
    try:
        config = TransformerConfig(
            num_layers=num_layers, hidden_size=8, num_attention_heads=1, pipeline_dtype=torch.float32,
            pipeline_model_parallel_size=pp, num_layers_in_first_pipeline_stage=first,
            num_layers_in_last_pipeline_stage=last)
        begins = [get_transformer_layer_offset(config, pp_rank=rank) for rank in range(pp)]
        sizes = [get_num_layers_to_build(config, pp_rank=rank) for rank in range(pp)]
    except (ValueError, AssertionError, ZeroDivisionError):
        return None
    stages = [list(range(begin, begin + size)) for begin, size in zip(begins, sizes)]
    return stages if sum(stages, []) == list(range(num_layers)) else None


class Ranks:
    """Stands in for a process group: Megatron asks torch for its size and rank."""

    def __init__(self, size, rank):
        self.size, self.rank = size, rank


def positions_of(length, cp, rank):
    torch.distributed.get_world_size = lambda group: group.size
    torch.distributed.get_rank = lambda group: group.rank
    batch = {"tokens": torch.arange(length)[None], "cu_seqlens": None}
    return utils.get_batch_on_this_cp_rank(batch, False, Ranks(cp, rank))["tokens"][0].tolist()


def routes_of(rows, layers):
    first = numpy.arange(rows * layers).reshape(rows, layers, 1) * 7
    return (first + numpy.arange(K) * 3) % 200


def padded(routes, length):
    whole = numpy.tile(numpy.arange(routes.shape[2]), (length, routes.shape[1], 1))
    whole[:len(routes)] = routes
    return whole


def cut_stages(num_layers, layout):
    try:
        return [list(b.layers) for b in baton.cut_routed_experts(routes_of(3, num_layers), layout, num_layers)]
    except baton.InputError:
        return None


def layers(checks):
    for num_layers in range(2, 17):
        other, n_accepted = [], 0
        for pp, first, last in itertools.product(range(2, min(num_layers, 8) + 1), GIVEN, GIVEN):
            layout = {PP: pp, CP: 1, FIRST: first, LAST: last}
            wanted, found = stages_of(num_layers, pp, first, last), cut_stages(num_layers, layout)
            n_accepted += wanted is not None
            if found != wanted:
                other.append((layout, found, wanted))
        checks.that(n_accepted and not other, f"{num_layers} layers, {n_accepted} splits", other)


def positions(checks):
    for cp, times in itertools.product(range(1, 9), (1, 2, 3)):
        multiple, other, lengths = times * 2 * cp, [], range(1, 6 * times * cp, 3)
        for length in lengths:
            routes = routes_of(length - 1, 1)
            blocks = baton.cut_routed_experts(routes, {PP: 1, CP: cp, MULTIPLE: multiple}, 1, length=length)
            whole = padded(routes, -(-length // multiple) * multiple)
            other += [(length, b) for b in blocks
                      if (b.routes != whole[positions_of(len(whole), cp, b.context_rank)]).any()]
        checks.that(not other, f"{cp} ranks, a multiple of {multiple}, {len(lengths)} lengths", other)


def server(checks, args):
    """A model of 3 layers, the first of them dense."""
    with real_world.with_experts(args)[0] as served:
        for pp, first, last, cp in itertools.product((1, 2, 3), (None, 1, 2), (None, 1, 2), (1, 2, 3)):
            stages = stages_of(3, pp, first, last)
            if stages is None or pp == 1 and (first or last):
                continue
            layout = {PP: pp, CP: cp, FIRST: first, LAST: last}
            choice = served.post("/v1/generate", {
                "token_ids": [5, 9, 400], "return_routed_experts": True, "replay_layout": layout,
                "sampling_params": {"max_tokens": 5, "ignore_eos": True}})["choices"][0]
            sparse = choice["routed_experts"]["layers"]
            length = 8 if cp == 1 else -(-8 // (2 * cp)) * 2 * cp
            whole = padded(baton.decode_routed_experts(choice["routed_experts"]), length)
            found, wanted = [], []
            for block in choice["replay_blocks"]:
                mine = [i for i in stages[block["pipeline_rank"]] if i in sparse]
                rows = positions_of(length, cp, block["context_rank"])
                found.append((block["layers"], baton.decode_routed_experts(block).tolist()))
                wanted.append((mine, whole[rows][:, [sparse.index(i) for i in mine]].tolist()))
            checks.that(found == wanted, f"{pp} stages, {first} and {last} layers, {cp} ranks", "" if found == wanted else f"{found}, {wanted}")


def main():
    args = real_world.options()
    checks = world.Checks()
    with checks.section("Megatron, layers of the stages"):
        layers(checks)
    with checks.section("Megatron, positions of the context ranks"):
        positions(checks)
    with checks.section("Megatron, blocks of a server"):
        server(checks, args)
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
