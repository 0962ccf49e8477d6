"""A vLLM with --enable-lora gets the names that its release takes, or is refused before a byte is sent.

The doubles take and refuse what 0.24 and 0.32 do. Usage: as fleet_control.py.
"""

import json

from fleet_control import COLUMNS, LABELS, RANKS, WORK, Fleet, model_dir, refused, told

NAMES = ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.q_proj.bias",
         "model.layers.0.self_attn.q_norm.weight", "model.layers.0.mlp.down_proj.weight", "lm_head.weight"]
WRAPPED = ["model.embed_tokens.base_layer.weight", "model.layers.0.self_attn.q_proj.base_layer.weight",
           "model.layers.0.self_attn.q_proj.base_layer.bias", "model.layers.0.self_attn.q_norm.weight",
           "model.layers.0.mlp.down_proj.base_layer.weight", "lm_head.weight"]
TENSORS = {"names": NAMES, "dtype_names": COLUMNS["dtypes"][:1] * len(NAMES), "shapes": COLUMNS["shapes"][:1] * len(NAMES)}
PICKLED = dict(TENSORS, ipc_handles_pickled="gASVAAAAAAAAAAB9lC4=")


def engine(release, architecture="Qwen3ForCausalLM", lora=True, **of_lora):
    """@architecture  None: its model is named as on a hub"""
    model = model_dir(architecture) if architecture else "Qwen/Qwen3-0.6B"
    config = {"model_config": {"model": model}, "weight_transfer_config": {"backend": "nccl"},
              "lora_config": dict({"max_loras": 1, "target_modules": None}, **of_lora) if lora else None}
    return ("vllm", "--vllm-version", release, "--vllm-config", json.dumps(config), *(["--enable-lora"] if lora else []))


def join(f):
    f.front.post("/init_weight_transfer_engine", {"init_info": {
        "master_address": "10.0.0.1", "master_port": 29500, "rank_offset": 1, "world_size": 1 + len(f.doubles) * RANKS}})


def names_sent(d):
    return json.loads(d.journal("update")[-1]["body"])["update_info"]["names"]


def step(f, *infos):
    label = next(LABELS)
    f.front.post("/start_weight_update")
    for info in infos:
        f.front.post("/update_weights", {"update_info": info})
    f.front.post("/finish_weight_update", {"weight_version": label})
    assert f.versions() == [label] * len(f.doubles), f.versions()
    f.wait(*["serving"] * len(f.doubles))


def renamed():
    """Each its own: by a group and by handles, while an adapter is loaded."""
    with Fleet(engine("0.24.0"), engine("0.32.0"), engine("0.24.0", lora=False),
               engine("0.27.1", "LlamaForCausalLM"), patient=True) as f:
        join(f)
        for i in range(3):
            step(f, TENSORS)
            assert [names_sent(d) for d in f.doubles] == [WRAPPED, NAMES, NAMES, WRAPPED]
            f.front.post("/v1/load_lora_adapter", {"lora_name": f"a{i}", "lora_path": WORK})
        f.front.post("/init_weight_transfer_engine", {"init_info": {}})
        step(f, PICKLED)
        assert [names_sent(d) for d in f.doubles] == [WRAPPED, NAMES, NAMES, WRAPPED]
    info = {m: column[1:] for m, column in TENSORS.items()}
    for names in NAMES[1:], WRAPPED[1:]:  # also of a trainer that knows them
        with Fleet(engine("0.24.0", "Qwen2ForCausalLM"), patient=True) as f:
            join(f)
            step(f, dict(info, names=names))
            assert names_sent(f.doubles[0]) == WRAPPED[1:]


def unknown():
    """It serves on with its weights, and says why."""
    for kind, words in ((engine("0.24.0", "Qwen3MoeForCausalLM"), ("Qwen3MoeForCausalLM", "without --enable-lora")),
                        (engine("0.24.0", target_modules=["q_proj"]), ("target_modules",)),
                        (engine("0.24.0", None), ("architecture", "--model DIR"))):
        with Fleet(kind, patient=True) as f:
            join(f)
            for _ in range(2):
                f.clean()
                f.front.post("/start_weight_update")
                found, error = f.front.ask("POST", "/update_weights", {"update_info": TENSORS})
                assert found == 409 and all(w in error["error"]["message"] for w in words), (found, error)
                refused(f, 409, "POST", "/finish_weight_update", {})
                assert f.doubles[0].journal("update") == [] == f.doubles[0].journal("pause")
            f.wait("serving")
    # beside one that takes it
    with Fleet(engine("0.24.0", "Qwen3MoeForCausalLM"), engine("0.32.0"), min_ready=1, patient=True) as f:
        join(f)
        label = next(LABELS)
        f.front.post("/start_weight_update")
        f.front.post("/update_weights", {"update_info": TENSORS})
        f.front.post("/finish_weight_update", {"weight_version": label})
        assert f.doubles[0].journal("update") == [] and f.versions()[1] == label


def main():
    told("renamed", renamed)
    told("unknown", unknown)


if __name__ == "__main__":
    main()
