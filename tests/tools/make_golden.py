#!/usr/bin/env python3
"""Make a tiny random model with experts, and what transformers computes with it.

Usage: make_golden.py mixtral|deepseek|deepseek-flat OUT_DIR    (needs torch and transformers 5)

Writes config.json, model.safetensors and golden.json: for each prompt the logprobs of its tokens, a
greedy continuation with logprobs, and the experts that each forwarded token was routed to, best
first. Computed in float32 over the stored weights. Prompts are drawn until every choice in them, of
a token and of an expert, is decided by more than MARGIN and ROUTE_MARGIN.
"""
import json
import pathlib
import sys

import torch
import transformers

N_CASES, N_PROMPT, N_GREEDY = 5, (5, 16), 16
MARGIN, ROUTE_MARGIN = 2e-3, 2e-4
VOCAB = 1024  # that of tests/fixtures/tiny-qwen2/tokenizer.json

MODELS = {
    "mixtral": (
        transformers.MixtralConfig,
        transformers.MixtralForCausalLM,
        dict(
            vocab_size=VOCAB, hidden_size=48, intermediate_size=40, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, num_local_experts=6,
            num_experts_per_tok=3, max_position_embeddings=1024,
        ),
    ),
    "deepseek": (
        transformers.DeepseekV3Config,
        transformers.DeepseekV3ForCausalLM,
        dict(
            vocab_size=VOCAB, hidden_size=48, intermediate_size=72, moe_intermediate_size=24,
            num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, n_routed_experts=16,
            n_group=4, topk_group=2, num_experts_per_tok=4, first_k_dense_replace=1,
            kv_lora_rank=16, q_lora_rank=24, qk_rope_head_dim=8, qk_nope_head_dim=16,
            v_head_dim=12, n_shared_experts=2, max_position_embeddings=1024,
            norm_topk_prob=True, routed_scaling_factor=2.5,
            rope_parameters=dict(
                rope_type="yarn", rope_theta=1000.0, factor=8.0, beta_fast=4.0, beta_slow=1.0,
                mscale=0.6, mscale_all_dim=1.0, original_max_position_embeddings=128,
            ),
        ),
    ),
    # Queries without latents, one group, angles of halves, values wider than keys, every layer sparse;
    # routers in float32, as transformers holds and saves them since 5.24 (the other has them as DeepSeek
    # publishes them).
    "deepseek-flat": (
        transformers.DeepseekV3Config,
        transformers.DeepseekV3ForCausalLM,
        dict(
            vocab_size=VOCAB, hidden_size=40, intermediate_size=72, moe_intermediate_size=20,
            num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3, n_routed_experts=8,
            n_group=1, topk_group=1, num_experts_per_tok=3, first_k_dense_replace=0,
            kv_lora_rank=12, q_lora_rank=None, qk_rope_head_dim=6, qk_nope_head_dim=10,
            v_head_dim=20, n_shared_experts=1, max_position_embeddings=1024,
            norm_topk_prob=False, routed_scaling_factor=0.8, rope_interleave=False,
            rms_norm_eps=1e-2,
        ),
    ),
}  # fmt: skip


def make_model(name):
    config_class, model_class, members = MODELS[name]
    torch.set_num_threads(1)
    torch.manual_seed(20261123)
    model = model_class(config_class(eos_token_id=0, bos_token_id=0, **members))
    for key, value in model.state_dict().items():
        if value.dim() == 1:
            value.uniform_(0.5, 1.5)  # norms
        elif key.endswith("gate.weight"):
            value.normal_(0, 0.3)
        else:
            value.normal_(0, 0.12)
    routers = [m for m in model.modules() if hasattr(m, "e_score_correction_bias")]
    gates = [m.weight.clone() for m in routers]
    model = model.to(torch.bfloat16)
    for module, gate in zip(routers, gates):  # stays float32, as DeepSeek publishes it
        bias = torch.empty_like(module.e_score_correction_bias, dtype=torch.float32)
        module.e_score_correction_bias = bias.uniform_(-0.2, 0.2)
        if name == "deepseek-flat":
            module.weight = torch.nn.Parameter(gate)
    return model


class Routes:
    """Records the choice of every router, best first, and the smallest margin of a choice."""

    def __init__(self, model):
        self.layers, self.margin = [], float("inf")
        for module in model.modules():
            if type(module).__name__.endswith(("TopKRouter", "TopkRouter")):
                module.register_forward_hook(self.hook)

    def hook(self, router, _, output):
        logits, _, chosen = output
        if hasattr(router, "e_score_correction_bias"):
            scores = logits.sigmoid() + router.e_score_correction_bias
            groups = scores.view(len(scores), router.num_group, -1).topk(2)[0].sum(-1)
            order = groups.sort(descending=True)[0]
            self.note(order, router.topk_group)
            kept = groups >= order[:, router.topk_group - 1 : router.topk_group]
            per_group = scores.shape[1] // router.num_group
            scores = scores.masked_fill(~kept.repeat_interleave(per_group, 1), -1e30)
        else:
            scores = logits
        order, ids = scores.sort(descending=True)
        k = chosen.shape[1]
        for i in range(k):
            self.note(order, i + 1)
        ids = ids[:, :k]
        assert torch.equal(ids.sort()[0], chosen.sort()[0])
        self.layers.append(ids.tolist())

    def note(self, order, at):
        if at < order.shape[1]:
            self.margin = min(self.margin, (order[:, at - 1] - order[:, at]).min().item())

    def take(self):
        routes = [list(of_token) for of_token in zip(*self.layers)]
        margin, self.layers, self.margin = self.margin, [], float("inf")
        return routes, margin


def run_case(model, routes, prompt):
    ids, greedy, logprobs, margin = list(prompt), [], [], float("inf")
    for _ in range(N_GREEDY):
        routes.take()
        row = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        best = row.topk(2)
        margin = min(margin, (best.values[0] - best.values[1]).item())
        greedy.append(best.indices[0].item())
        logprobs.append(best.values[0].item())
        ids.append(greedy[-1])
    routes.take()
    whole = model(torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
    chosen, route_margin = routes.take()
    if margin < MARGIN or route_margin < ROUTE_MARGIN:
        return None
    return {
        "prompt_token_ids": prompt,
        "prompt_logprobs": [None]
        + [whole[i - 1, prompt[i]].item() for i in range(1, len(prompt))],
        "greedy_token_ids": greedy,
        "greedy_logprobs": logprobs,
        "min_top2_margin": margin,
        "min_route_margin": route_margin,
        "routed_experts": chosen,
        "routed_experts_shape": "tokens x moe_layers x top_k",
    }


@torch.no_grad()
def main():
    name, out = sys.argv[1], pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    model = make_model(name)
    model.save_pretrained(out)
    # not model.float(): bfloat16 has rounded the frequencies of the angles too
    model = type(model).from_pretrained(out, dtype=torch.float32).eval()
    model.set_attn_implementation("eager")
    routes, cases = Routes(model), []
    while len(cases) < N_CASES:
        n = int(torch.randint(*N_PROMPT, (1,)))
        case = run_case(model, routes, torch.randint(1, VOCAB, (n,)).tolist())
        cases += [case] if case else []
    source = f"transformers {transformers.__version__}, float32 compute over torch.bfloat16 weights"
    (out / "golden.json").write_text(json.dumps({"source": source, "cases": cases}) + "\n")
    print(name, [c["min_route_margin"] for c in cases])


main()
