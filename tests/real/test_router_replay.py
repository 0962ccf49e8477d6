"""Router replay by a real trainer: transformers computes samples of baton with the experts that baton returns.

With the same weights the logprobs are baton's, and with other experts they are not. A trainer whose routers are off by
one rounding of bfloat16 chooses other experts for some tokens, for which its logprobs jump; with baton's experts none
does. Usage: test_router_replay.py --baton PROGRAM"""

import base64
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("examples", "client", "tests/http/lib")]
import baton  # noqa: E402
import router_replay as trainer  # noqa: E402

import torch  # noqa: E402
from fleet_world import Server  # noqa: E402

BATON, FIXTURES = sys.argv[sys.argv.index("--baton") + 1], ROOT / "tests/fixtures"
N, MAX_TOKENS, SEED = 4, 200, 20
SAME = 1e-4  # between logprobs of the same weights and experts; 2e-6 is seen
OTHER_MIN = 0.1  # at the worst token of other experts; 1.7 is seen
DRIFTED = 3e-2  # with drifted routers and baton's experts; 1e-2 is seen


def sample(url, n_stages):
    """[(ids, logprobs, blocks)] of N outputs."""
    choices = baton.request(url, "POST", "/v1/generate", {
        "token_ids": trainer.PROMPT, "return_routed_experts": True,
        "replay_layout": {"pipeline_parallel_size": n_stages, "context_parallel_size": 1},
        "sampling_params": {"max_tokens": MAX_TOKENS, "ignore_eos": True, "logprobs": 0, "seed": SEED, "n": N}})["choices"]
    return [(trainer.PROMPT + c["token_ids"], torch.tensor([t["logprob"] for t in c["logprobs"]["content"]]),
             c["replay_blocks"]) for c in choices]


def rolled(blocks, n_experts):
    """The expert after each one."""
    for block in blocks:
        routes = (baton.decode_routed_experts(block).astype(int) + 1) % n_experts
        data = base64.b64encode(routes.astype(block["dtype"]).tobytes()).decode()
        yield {**block, "data": data}


def worst(model, samples, blocks_of):
    """The largest difference to baton's logprobs, on any token."""
    n_prompt = len(trainer.PROMPT)
    return max((trainer.logprobs_of(model, ids, n_prompt, blocks_of(blocks)) - logprobs).abs().max().item()
               for ids, logprobs, blocks in samples)


def n_other(model, samples):
    """Positions, counted in each layer, for which the model's own routers choose other experts than baton's."""
    n = 0
    for ids, _, blocks in samples:
        routes = {layer: baton.decode_routed_experts(block)[:len(ids) - 1, i]
                  for block in blocks for i, layer in enumerate(block["layers"])}
        chosen = {}
        handles = [model.model.layers[layer].mlp.gate.register_forward_hook(
            lambda router, _, output, layer=layer: chosen.update({layer: output[2]})) for layer in routes]
        model(torch.tensor([ids[:-1]]))
        for handle in handles:
            handle.remove()
        n += sum((chosen[layer].sort()[0] != torch.from_numpy(routes[layer]).long().sort()[0]).any(1).sum().item()
                 for layer in routes)
    return n


@torch.no_grad()
def one_model(name, example):
    with tempfile.NamedTemporaryFile() as log, Server(BATON, log.name, "--model", f"{FIXTURES}/{name}") as server:
        model = trainer.load(f"{FIXTURES}/{name}")
        samples = sample(server.url, model.config.num_hidden_layers)
        if example:
            trainer.main(server.url, f"{FIXTURES}/{name}")
    n_experts = next(gate for gate in (getattr(layer.mlp, "gate", None) for layer in model.model.layers)
                     if hasattr(gate, "num_experts")).num_experts
    same, wrong = worst(model, samples, list), worst(model, samples, lambda b: list(rolled(b, n_experts)))
    n_before = n_other(model, samples)
    trainer.drift(model)
    n, own, replayed = n_other(model, samples), worst(model, samples, lambda _: ()), worst(model, samples, list)
    n_rows = sum((len(ids) - 1) * sum(len(block["layers"]) for block in blocks) for ids, _, blocks in samples)
    print(f"{name}: replayed {same:.1e}, other experts {wrong:.1e}; drifted routers choose others for {n} of {n_rows} rows: "
          f"{own:.1e}, replayed {replayed:.1e}")
    assert same <= SAME and n_before == 0, (same, n_before)
    assert wrong >= OTHER_MIN, wrong
    assert n > 0 and replayed <= DRIFTED and own > 3 * replayed, (n, own, replayed)


torch.set_num_threads(2)
for model_name in ("tiny-qwen3-moe", "tiny-mixtral", "tiny-deepseek"):
    one_model(model_name, example=model_name == "tiny-qwen3-moe")
