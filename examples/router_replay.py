#!/usr/bin/env python3
"""Router replay: a trainer computes each token with the experts with which baton sampled it.

    build/release/baton serve --model tests/fixtures/tiny-qwen3-moe &
    python3 examples/router_replay.py http://127.0.0.1:8700 tests/fixtures/tiny-qwen3-moe

In a mixture of experts a router sends each token to a few experts. A trainer whose router differs by
a rounding error chooses others for some tokens; then it differentiates another network than the one
that sampled, and its logprobs jump. With `return_routed_experts` baton returns the choice, and the
trainer forces it; the weights of the chosen experts stay those of its own router, so that the router
is trained too.

The layout below is a pipeline of one stage for each layer, to show where each stage gets its part.
Prints how far the logprobs of the output are from baton's; the exit status is 77 without torch and
transformers.
"""

import argparse
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "client"))
import baton  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(description="Router replay: a trainer computes each token with the "
                                     "experts with which baton sampled it.")
    parser.add_argument("url", metavar="URL", help="of a baton that serves the model")
    parser.add_argument("folder", metavar="MODEL_FOLDER", help="the same model, for transformers")
    args = parser.parse_args()
    if not os.path.isfile(os.path.join(args.folder, "config.json")):
        parser.error(f"{args.folder} has no config.json: give the folder of the model that baton serves")
    return args


if __name__ == "__main__":
    ARGS = arguments()  # before the seconds that torch takes

try:
    import torch
    import transformers
except ImportError:
    print("router_replay.py needs torch and transformers: pip install torch transformers numpy")
    sys.exit(77)  # ctest counts 77 as skipped

PROMPT = [17, 402, 9, 333, 128, 5]
MAX_TOKENS = 200
DRIFT = 2 ** -8  # of the trainer's router: bfloat16 rounds to 8 bits


def force(model, block):
    """The routers of a block's layers take its experts. Returns handles; remove() ends it."""
    def forced(router, _, output, chosen):
        logits = output[0].float()
        softmax = not hasattr(router, "e_score_correction_bias")  # DeepSeek's is a sigmoid
        weights = (logits.softmax(-1) if softmax else logits.sigmoid()).gather(1, chosen)
        if getattr(router, "norm_topk_prob", True):
            weights = weights / weights.sum(-1, keepdim=True)
        return output[0], weights * getattr(router, "routed_scaling_factor", 1.0), chosen

    routes = torch.from_numpy(baton.decode_routed_experts(block)).long()
    return [model.model.layers[layer].mlp.gate.register_forward_hook(
                lambda *args, chosen=routes[:, i]: forced(*args, chosen))
            for i, layer in enumerate(block["layers"])]


def logprobs_of(model, ids, n_prompt, blocks=()):
    """Of each output token; blocks: computed with these experts."""
    handles = [handle for block in blocks for handle in force(model, block)]
    rows = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    for handle in handles:
        handle.remove()
    return rows[n_prompt - 1:-1].gather(1, torch.tensor(ids[n_prompt:])[:, None])[:, 0]


def load(path):
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    model.set_attn_implementation("eager")
    return model


def drift(model):
    """The routers' weights, each off by up to one rounding of bfloat16."""
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if name.endswith(".gate.weight"):
            weight.mul_(1 + DRIFT * (2 * torch.rand_like(weight) - 1))


def sample(url, n_stages):
    """-> token ids of prompt and output, baton's logprobs of the output, the stages' blocks."""
    choice = baton.request(url, "POST", "/v1/generate", {
        "token_ids": PROMPT, "return_routed_experts": True,
        "replay_layout": {"pipeline_parallel_size": n_stages, "context_parallel_size": 1},
        "sampling_params": {"max_tokens": MAX_TOKENS, "ignore_eos": True, "logprobs": 0, "seed": 1},
    })["choices"][0]
    logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    return PROMPT + choice["token_ids"], torch.tensor(logprobs), choice["replay_blocks"]


@torch.no_grad()
def main(url, path):
    baton.request(url, "GET", "/v1/status")  # fails before a large model is loaded
    model = load(path)
    ids, sampled, blocks = sample(url, model.config.num_hidden_layers)

    def show(what, blocks):
        off = (logprobs_of(model, ids, len(PROMPT), blocks) - sampled).abs()
        print(f"{what:45} {off.max():.1e} at most, {off.mean():.1e} on average")

    print("logprobs of the trainer against those of baton:")
    show("the same weights, its own experts", ())
    show("the same weights, baton's experts", blocks)
    drift(model)
    show("a drifted router, its own experts", ())
    show("a drifted router, baton's experts", blocks)


if __name__ == "__main__":
    try:
        main(ARGS.url, ARGS.folder)
    except (baton.BatonError, OSError) as e:
        sys.exit(f"router_replay.py: {e}")
