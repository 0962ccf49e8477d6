"""Files that people bring, against the programs that write and read them: config.json against transformers, and
adapters against PEFT. A tiny random model is made for each shape of config.json, as the hub spells it and as
transformers saves it; baton serves the directory, and its logprobs must be those of transformers, or the start is
refused by the key that the row names. Usage: test_files.py --baton PROGRAM [--adapters]"""

import copy
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("client", "tests/http/lib")]
import baton  # noqa: E402
import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from fleet_world import Server  # noqa: E402
from peft.tuners.lora.layer import LoraLayer  # noqa: E402

BATON, FIXTURES = sys.argv[sys.argv.index("--baton") + 1], ROOT / "tests/fixtures"
SAME = 1e-4  # between logprobs of one model; 3e-5 is seen
PROMPT = [40, 77, 258, 12, 99, 803, 264, 77, 290, 5, 640, 641, 3, 910, 11, 70] * 4

COMMON = {"vocab_size": 1024, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 0,
          "eos_token_id": 1, "rope_theta": 10000.0, "torch_dtype": "float32"}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 40}
DEEPSEEK = {"num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8, "v_head_dim": 12, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2,
            "topk_group": 1, "n_shared_experts": 1, "moe_intermediate_size": 24, "first_k_dense_replace": 1,
            "routed_scaling_factor": 2.5, "norm_topk_prob": True, "scoring_func": "sigmoid"}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
LINEAR = {"type": "linear", "factor": 2.0}
THETA = {"rope_theta": 1e6}

# The class, its own members, and shapes: {name: (members, the key at which baton refuses them, or None)}
CLASSES = {
    "Llama": ({}, {
        "plain": ({}, None), "one kv head": ({"num_key_value_heads": 1}, None), "theta": (THETA, None),
        "head_dim": ({"head_dim": 24}, None), "tied": ({"tie_word_embeddings": True}, None),
        "biases": ({"attention_bias": True, "mlp_bias": True}, None), "eps": ({"rms_norm_eps": 1e-2}, None),
        "llama3": ({"rope_scaling": LLAMA3}, None), "linear": ({"rope_scaling": LINEAR}, None),
        "llama3 without the original": ({"rope_scaling": {k: v for k, v in LLAMA3.items() if "orig" not in k}}, None),
        "yarn": ({"rope_scaling": YARN}, None), "yarn and theta": ({"rope_scaling": YARN, **THETA}, None),
        "yarn without the original": ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, None),
        "yarn, the original outside": ({"rope_scaling": {"type": "yarn", "factor": 4.0},
                                        "original_max_position_embeddings": 32}, None),
        "yarn, equal betas": ({"rope_scaling": {**YARN, "beta_fast": 1.0, "beta_slow": 1.0}}, None),
        "yarn, betas": ({"rope_scaling": {**YARN, "beta_fast": 8, "beta_slow": 2}}, None),
        "yarn, mscale": ({"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0}}, None),
        "yarn, attention_factor": ({"rope_scaling": {**YARN, "attention_factor": 1.3}}, None),
        "yarn, not truncated": ({"rope_scaling": {**YARN, "truncate": False}}, None),
        "rope_parameters": ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5, **YARN}, "rope_theta": None},
                            None),
        "both that agree": ({"rope_scaling": YARN, "rope_parameters": {**YARN, "rope_theta": 10000.0}}, None),
        "both, one empty": ({"rope_scaling": {}, "rope_parameters": {**YARN, "rope_theta": 10000.0}}, None),
        "both that differ": ({"rope_scaling": YARN, "rope_parameters": {"rope_type": "default"}}, "/rope_scaling"),
        "both, other theta": ({"rope_scaling": YARN, "rope_parameters": {**YARN, **THETA}, "rope_theta": None},
                              "/rope_scaling"),
        "theta twice": ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "/rope_theta"),
        "rope_type and type": ({"rope_scaling": {**LINEAR, "rope_type": "yarn"}}, "/rope_scaling/type"),
        "the original twice": ({"rope_scaling": YARN, "original_max_position_embeddings": 32},
                               "/original_max_position_embeddings"),
        "dynamic": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "/rope_scaling/type"),
        "partial": ({"partial_rotary_factor": 0.5}, "/partial_rotary_factor"),
        "a window": ({"sliding_window": 16}, "/sliding_window"), "both ways": ({"is_causal": False}, "/is_causal"),
        "dtypes": ({"dtype": "bfloat16"}, "/torch_dtype"),
    }),
    "Qwen2": ({}, {
        "plain": ({}, None), "tied": ({"tie_word_embeddings": True}, None), "one kv head": ({"num_key_value_heads": 1}, None),
        "an unused window": ({"sliding_window": 16, "use_sliding_window": False, "max_window_layers": 1}, None),
        "yarn": ({"rope_scaling": YARN, **THETA}, None),
        "a window": ({"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1}, "/use_sliding_window"),
    }),
    "Qwen3": ({"head_dim": 16}, {
        "plain": ({}, None), "tied": ({"tie_word_embeddings": True}, None), "wide": ({"head_dim": 32}, None),
        "no head_dim": ({"head_dim": None}, None), "bias": ({"attention_bias": True}, None),
        "yarn": ({"rope_scaling": YARN, **THETA}, None),
    }),
    "Mistral": ({"sliding_window": None}, {
        "plain": ({}, None), "head_dim": ({"head_dim": 32}, None), "a wide window": ({"sliding_window": 4096}, None),
        "a window": ({"sliding_window": 16}, "/sliding_window"),
    }),
    "Mixtral": ({"num_local_experts": 4, "num_experts_per_tok": 2}, {
        "plain": ({}, None), "top 1": ({"num_experts_per_tok": 1}, None), "no theta": ({"rope_theta": None}, None),
        "two numbers": ({"num_experts": 6}, "/num_experts"),
    }),
    "Qwen3Moe": ({**MOE, "num_experts": 8, "norm_topk_prob": True, "head_dim": 16}, {
        "plain": ({}, None), "not normalized": ({"norm_topk_prob": False}, None), "step": ({"decoder_sparse_step": 2}, None),
        "one dense": ({"mlp_only_layers": [0]}, None), "tied": ({"tie_word_embeddings": True}, None),
        "two numbers": ({"num_local_experts": 4}, "/num_local_experts"),
    }),
    "DeepseekV3": (DEEPSEEK, {
        "plain": ({}, None), "no q_lora": ({"q_lora_rank": None}, None), "all dense": ({"first_k_dense_replace": 9}, None),
        "one group": ({"n_group": 1, "topk_group": 1}, None), "not normalized": ({"norm_topk_prob": False}, None),
        "yarn": ({"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1}}, None),
        "Kimi-K2's yarn": ({"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 1.0,
                                             "beta_slow": 1.0}}, None),
        "halves": ({"rope_interleave": False}, None), "attention_bias": ({"attention_bias": True}, "/attention_bias"),
    }),
}

ADAPTERS = {
    "plain": {}, "alpha": {"lora_alpha": 5}, "rslora": {"use_rslora": True, "r": 6}, "all-linear": {"target_modules": "all-linear"},
    "a regular expression": {"target_modules": r".*\.(0|2)\.self_attn\.[qv]_proj"}, "rank 64": {"r": 64},
    "rank_pattern": {"rank_pattern": {"q_proj": 3, r"^model\.layers\.1\.self_attn\.v_proj": 5}},
    "alpha_pattern": {"alpha_pattern": {"layers.1.self_attn.q_proj": 40, "v_proj": 2}},
    "both patterns": {"rank_pattern": {"v_proj": 2}, "alpha_pattern": {"v_proj": 9}, "use_rslora": True},
    "excluded": {"exclude_modules": ["layers.0.self_attn.q_proj"]}, "layers": {"layers_to_transform": [1, 3]},
    "layers and their list": {"layers_to_transform": 2, "layers_pattern": "layers"},
    "gaussian": {"init_lora_weights": "gaussian"}, "random": {"init_lora_weights": False},
    "orthogonal": {"init_lora_weights": "orthogonal"}, "eva": {"init_lora_weights": "eva"},
    "pissa": {"init_lora_weights": "pissa"}, "pissa_niter": {"init_lora_weights": "pissa_niter_4"},
    "olora": {"init_lora_weights": "OLoRA"}, "mica": {"init_lora_weights": "MICA"},
    "lora_ga": {"init_lora_weights": "lora_ga", "lora_ga_config": peft.LoraGAConfig()},
}


EVERYWHERE = ("plain", "alpha", "rslora", "a regular expression", "rank 64", "rank_pattern", "alpha_pattern", "both patterns",
              "excluded", "layers", "layers and their list", "gaussian")


def logprobs_of(server, model, ids=PROMPT):
    """Of each token of the prompt but the first."""
    answer = baton.request(server.url, "POST", "/v1/generate", {
        "token_ids": ids, **({"model": model} if model else {}),
        "sampling_params": {"max_tokens": 1, "temperature": 0, "logprobs": 0, "prompt_logprobs": 0}})
    return [of[str(ids[i])]["logprob"] for i, of in enumerate(answer["prompt_logprobs"]) if of]


@torch.no_grad()
def expected_of(model, ids=PROMPT):
    rows = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return [rows[i - 1, ids[i]].item() for i in range(1, len(ids))]


def worst(a, b):
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def loaded(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                             attn_implementation="eager").eval()


def weights(name, members, folder):
    """Random ones for what transformers makes of the members, and its own config.json."""
    (folder / "config.json").write_text(json.dumps(members))
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    torch.manual_seed(len(name))
    for key, value in model.state_dict().items():
        value.uniform_(0.5, 1.5) if value.dim() == 1 and "bias" not in key else value.normal_(0, 0.15)
    model.save_pretrained(folder)
    shutil.copy(FIXTURES / "tiny-qwen2/tokenizer.json", folder)


def refusal(folder, key):
    """"" if baton refuses the directory at that key, else what is wrong."""
    done = subprocess.run([BATON, "serve", "--check", "--model", folder], capture_output=True, text=True, check=False)
    good = done.returncode == 2 and re.search(rf": {re.escape(key)}: ", done.stderr)
    return "" if good else f"no refusal at {key}: {done.returncode} {done.stderr.strip()}"


def shape(kind, own, members, key, work):
    """[(spelling, largest difference or what is wrong)]"""
    model_type = getattr(transformers, f"{kind}Config").model_type
    hub = {**COMMON, **own, **members, "model_type": model_type, "architectures": [f"{kind}ForCausalLM"]}
    hub = {k: v for k, v in hub.items() if not (v is None and k in ("rope_theta", "head_dim"))}
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    if key is not None:
        (work / "config.json").write_text(json.dumps(hub))
        shutil.copy(FIXTURES / "tiny-qwen2/tokenizer.json", work)
        yield "hub", refusal(work, key)
        return
    weights(kind, hub, work)
    for spelling in ("saved", "hub"):
        if spelling == "hub":
            (work / "config.json").write_text(json.dumps(hub))
        with Server(BATON, work.parent / "log", "--model", work) as server:
            yield spelling, worst(logprobs_of(server, None), expected_of(loaded(work)))


def configs(work):
    bad, largest, n = [], 0.0, 0
    for kind, (own, shapes) in CLASSES.items():
        for name, (members, key) in shapes.items():
            for spelling, found in shape(kind, own, members, key, work / "model"):
                n += 1
                wrong = found if isinstance(found, str) else "" if found <= SAME else f"logprobs differ by {found:.2g}"
                largest = max(largest, 0.0 if isinstance(found, str) else found)
                if wrong:
                    bad.append(f"{kind}, {name} ({spelling}): {wrong}")
                    print(bad[-1], flush=True)
    print(f"{n} config.json, logprobs differ by at most {largest:.2g}")
    return bad


def attach_gradients(model):
    """What preprocess_loraga leaves at the modules."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module._peft_loraga_grad = torch.randn_like(module.weight)


def adapter(base, name, members, folder):
    """Saves one; returns whether PEFT changed the base for it, and the model with it over the base as it was."""
    torch.manual_seed(len(name))
    mine = copy.deepcopy(base)
    if members.get("init_lora_weights") == "lora_ga":
        attach_gradients(mine)
    given = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **members}
    trained = peft.get_peft_model(mine, peft.LoraConfig(**given))
    before = dict(base.named_parameters())
    changed = any(not torch.equal(p, before[n.replace("base_model.model.", "").replace(".base_layer", "")])
                  for n, p in trained.named_parameters() if ".lora_" not in n)
    for module in trained.modules():
        if isinstance(module, LoraLayer):
            for part in [*module.lora_A.values(), *module.lora_B.values()]:
                part.weight.data.normal_(0, 0.1)
    trained.save_pretrained(folder)
    return changed, peft.PeftModel.from_pretrained(copy.deepcopy(base), folder).eval()


def bases(work):
    """(name, folder, the adapters that it gets): the checkpoint of a trained model, and random models of other kinds."""
    folder, model = work / "base", FIXTURES / "kjv-qwen3-1m"
    folder.mkdir()
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        shutil.copy(model / name, folder)
    shutil.copy(model / "checkpoints/step-01500.safetensors", folder / "model.safetensors")
    yield "Qwen3", folder, ADAPTERS
    for kind, members in (("Llama", {"attention_bias": True, "mlp_bias": True}), ("Mixtral", {}), ("Qwen3Moe", {})):
        shutil.rmtree(folder)
        folder.mkdir()
        weights(kind, {**COMMON, **CLASSES[kind][0], **members, "num_hidden_layers": 4,
                       "model_type": getattr(transformers, f"{kind}Config").model_type,
                       "architectures": [f"{kind}ForCausalLM"]}, folder)
        yield kind, folder, {name: ADAPTERS[name] for name in EVERYWHERE}


def load(server, folder):
    return baton.request(server.url, "POST", "/v1/load_lora_adapter",
                         {"lora_name": "x", "lora_path": str(folder), "load_inplace": True})


def adapters(work):
    bad, largest, n = [], 0.0, 0
    for kind, base_folder, rows in bases(work):
        base = loaded(base_folder)
        with Server(BATON, work / "log", "--model", base_folder, "--allow-path", work, "--max-lora-rank", "64") as server:
            for name, members in rows.items():
                changed, expected = adapter(base, name, members, work / "adapter")
                reply, n = load(server, work / "adapter"), n + 1
                found = worst(logprobs_of(server, "x"), expected_of(expected))
                largest = max(largest, 0.0 if changed else found)  # PEFT changes the base again when it loads some
                if found > SAME and not changed:
                    bad.append(f"adapter of {kind}, {name}: logprobs differ by {found:.2g}")
                if reply["base_changed"] != changed or (reply["warning"] is None) == changed:
                    bad.append(f"adapter of {kind}, {name}: PEFT changes the base: {changed}, baton says {reply['base_changed']}")
                shutil.rmtree(work / "adapter")
            adapter(base, "rank 100", {"r": 100}, work / "adapter")
            try:
                bad.append(f"adapter of {kind}, rank 100: it is loaded: {load(server, work / 'adapter')}")
            except baton.BatonError as e:
                if "100" not in str(e) or "64" not in str(e):
                    bad.append(f"adapter of {kind}, rank 100: {e}")
            shutil.rmtree(work / "adapter")
    print(f"{n} adapters, logprobs differ by at most {largest:.2g}; of rank 100 each is refused")
    return bad


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, peft {peft.__version__}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as work:
        bad = (configs(pathlib.Path(work)) if "--adapters" not in sys.argv else []) + adapters(pathlib.Path(work))
    for line in bad:
        print("FAIL", line)
    sys.exit(1 if bad else 0)


main()
