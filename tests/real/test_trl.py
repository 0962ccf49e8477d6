"""TRL's VLLMClient, unmodified, against baton. Its weight updates need a GPU: those are what
tests/gpu/test_vllm_real.py makes. Usage: test_trl.py --baton PROGRAM [--record DIR]"""

import sys

import real_world
from real_world import CHAT, MODEL, world
from trl.generation.vllm_client import VLLMClient

TOLERANCE = 1e-3


def case():
    golden = world.json.loads((world.MODEL / "golden.json").read_text())
    return golden["checkpoints"]["step-00100"]["cases"][0]


def before_training(checks, client):
    """What its trainers ask for before the first step."""
    checks.same(client.model, MODEL, "the model's name")
    checks.same(client.get_world_size(), 1, "the world size")
    info = client.get_server_info()
    checks.same(info["weight_transfer_config"], None, "no weight-transfer engine without a GPU")
    model = info["model_config"]
    checks.same(model["dtype"], "torch.bfloat16", "dtype")
    checks.same(model["logprobs_mode"], "raw_logprobs", "logprobs_mode")
    checks.same(info["parallel_config"]["data_parallel_size"], 1, "data_parallel_size")
    checks.that("lora_config" in info, "lora_config")


def generation(checks, client):
    golden, n = case(), 8
    ids = golden["greedy_token_ids"][:n]
    made = client.generate(["In the beginning"], n=2, temperature=0.0, max_tokens=n)
    checks.same(made["completion_ids"], [ids, ids], "generate")
    checks.same(made["prompt_ids"], [golden["prompt_token_ids"]], "the prompt's tokens")
    off = max(abs(a[0] - b) for a, b in zip(made["logprobs"][0], golden["greedy_logprobs"]))
    checks.that(off < TOLERANCE, "logprobs", f"{off:.1e} off")
    more = client.generate(["In the beginning"], temperature=0.0, max_tokens=2, logprobs=100)
    checks.same(len(more["logprobs"][0][0]), 100, "100 logprobs a token")
    made = client.chat([CHAT], temperature=0.0, max_tokens=n)
    checks.same(made["completion_ids"], [ids], "chat")


def scoring(checks, client):
    """As a teacher of its distillation."""
    golden = case()
    prompt, ids = golden["prompt_token_ids"], golden["greedy_token_ids"]
    made = client.get_sequence_logprobs([prompt + ids], [len(prompt)])
    found = [x[0] for x in made["actual_logprobs"][0]]
    off = max(abs(a - b) for a, b in zip(found, golden["greedy_logprobs"]))
    checks.that(off < TOLERANCE and len(found) == len(ids), "logprobs", f"{off:.1e} off")
    checks.same({len(row) for row in made["logprobs"][0]}, {100}, "its default of 100 a token")


def update_frame(checks, client):
    """What stands around an update; and that an update without a tensor is refused."""
    client.reset_prefix_cache()
    checks.that(True, "reset_prefix_cache")
    try:
        client._start_weight_update()
        client._finish_weight_update()
        checks.that(False, "an update of nothing", "it was taken")
    except Exception as e:  # noqa: BLE001
        checks.that("422" in str(e), "an update of nothing is refused", str(e)[:200])
    client.session.post(f"{client.base_url}/resume")


def main():
    args = real_world.options()
    checks = world.Checks()
    with (
        real_world.embedded(args) as server,
        real_world.recorded(args, server, "trl-to-baton") as url,
    ):
        client = VLLMClient(base_url=url)
        for part in (before_training, generation, scoring, update_frame):
            with checks.section(f"TRL, {part.__name__}"):
                part(checks, client)
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
