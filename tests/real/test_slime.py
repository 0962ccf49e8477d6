"""slime's external rollout, unmodified, from a checkout in SLIME_SRC: its engine handle's calls, the
checks of --rollout-external, --check-weight-update, and its rollout, all against baton as an
SGLang. What it sends by NCCL and CUDA IPC needs a GPU.
Usage: test_slime.py --baton PROGRAM [--record DIR]"""

import asyncio
import os
import sys
from argparse import Namespace

import real_world
from real_world import world

sys.path.insert(0, os.environ["SLIME_SRC"])

import requests  # noqa: E402
from slime.backends.sglang_utils import external  # noqa: E402
from slime.backends.sglang_utils.server_control import abort_servers_until_idle  # noqa: E402
from slime.backends.sglang_utils.sglang_engine import SGLangEngine  # noqa: E402
from slime.observability.rollout_data_utils import (  # noqa: E402
    validate_rollout_routed_experts_for_replay,
)
from slime.rollout import sglang_rollout  # noqa: E402
from slime.utils import accelerator  # noqa: E402
from slime.utils.accelerator.cuda import CUDAAccelerator  # noqa: E402
from slime.utils.http_utils import init_http_client  # noqa: E402
from slime.utils.types import Sample  # noqa: E402

N, TOLERANCE = 8, 1e-3
OLD, NEW = "step-00100", "step-01500"


class NoGpu(CUDAAccelerator):
    """It numbers its engines' GPUs, also of engines that are not its own."""

    def is_available(self):
        return True


def arguments(url, **more):
    """Those of train.py that this much of it reads, at their defaults."""
    host, port = url.removeprefix("http://").split(":")
    given = {
        **dict(rollout_external=True, rollout_external_engine_addrs=[url], fp16=False),
        **dict(hf_checkpoint=str(real_world.untied(OLD)), seed=1, offload_rollout=False),
        **dict(sglang_pp_size=1, sglang_dp_size=1, sglang_ep_size=1, num_gpus_per_node=8),
        **dict(rollout_num_gpus_per_engine=1, use_rollout_routing_replay=False),
        **dict(colocate=False, debug_rollout_only=True, sglang_server_concurrency=64),
        **dict(sglang_router_ip=host, sglang_router_port=int(port), ci_test=False),
        **dict(rollout_temperature=0.0, rollout_top_p=1.0, rollout_top_k=-1, rollout_seed=1),
        **dict(rollout_max_response_len=N, rollout_stop=None, rollout_stop_token_ids=None),
        **dict(rollout_skip_special_tokens=False, use_distributed_post=False),
        **dict(n_samples_per_prompt=1, sglang_speculative_algorithm=None),
    }
    return Namespace(**{**given, **more})


def engine_of(url, **more):
    """As start_external_rollout_servers makes it, but for ray and a router's registration."""
    args = arguments(url, **more)
    external.apply_external_engine_info_to_args(args)
    (info,) = external.external_engine_infos_from_args(args)
    engine = SGLangEngine(args, 0, worker_type=info.worker_type, base_gpu_id=0)
    engine.init(**external.external_engine_init_kwargs(info), router_ip="", router_port=0)
    return engine


def discovery(checks, url):
    """What --rollout-external finds and compares before training."""
    (info,) = external.discover_external_engines([url])
    checks.same(info.worker_type, "regular", "a regular worker")
    checks.same(info.parallel_config["tp_size"], 1, "of one rank")
    checks.that(engine_of(url).health_generate(), "what it compares is alike")
    for given in ({"offload_rollout": True}, {"fp16": True}):
        try:
            engine_of(url, **given)
            checks.that(False, f"{given} differs from the server", "it was taken")
        except AssertionError as e:
            checks.that("expect_value" in str(e), f"{given} differs from the server")


def rolls(checks, args, step, what):
    """One sample by its own rollout function."""
    golden = world.json.loads((world.MODEL / "golden.json").read_text())
    golden = golden["checkpoints"][step]["cases"][0]
    state = sglang_rollout.GenerateState(args)
    sample = Sample(index=0, prompt="In the beginning")
    made = asyncio.run(sglang_rollout.generate(args, sample, dict(state.sampling_params)))
    prompt, ids = golden["prompt_token_ids"], golden["greedy_token_ids"][:N]
    checks.same(made.tokens, prompt + ids, f"{what}: tokens of {step}")
    pairs = zip(made.rollout_log_probs, golden["greedy_logprobs"])
    off = max(abs(a - b) for a, b in pairs)
    checks.that(off < TOLERANCE, f"{what}: and their logprobs", f"{off:.1e} off")
    checks.same(made.status, Sample.Status.TRUNCATED, f"{what}: it ends by its length")


def push(engine, step, version):
    """As its disk updates do."""
    engine.pause_generation()
    engine.flush_cache()
    engine.update_weights_from_disk(str(real_world.untied(step)), weight_version=version)
    engine.continue_generation()


def updates(checks, url):
    engine, args = engine_of(url), arguments(url, rollout_num_engines=1, rollout_num_gpus=1)
    init_http_client(args)
    rolls(checks, args, OLD, "before")
    push(engine, NEW, "1")
    checks.same(engine.get_weight_version(), "1", "the version's name")
    rolls(checks, args, NEW, "an update from disk")
    engine.release_memory_occupation()
    engine.resume_memory_occupation(tags=["weights"])
    push(engine, OLD, "2")
    engine.resume_memory_occupation(tags=["kv_cache"])
    rolls(checks, args, OLD, "an update between release and resume")
    asyncio.run(abort_servers_until_idle([url]))
    checks.that(True, "abort until idle")


def compared(checks, url):
    """--check-weight-update: what is pushed first has to be what was loaded."""
    engine, args = engine_of(url), arguments(url, rollout_num_engines=1, rollout_num_gpus=1)
    engine.check_weights("snapshot")
    engine.check_weights("reset_tensors")
    push(engine, OLD, "3")
    engine.check_weights("compare")
    rolls(checks, args, OLD, "compared")
    push(engine, NEW, "4")
    try:
        engine.check_weights("compare")
        checks.that(False, "another checkpoint differs", "it was taken for the same")
    except requests.HTTPError as e:
        checks.same(e.response.status_code, 400, "another checkpoint differs")


def replayed(checks, url, cases):
    """--use-rollout-routing-replay: the argument, and the experts of a sample, as its trainer takes
    them."""
    shape = dict(num_layers=3, moe_router_topk=2, moe_layer_freq=[0, 1, 1])
    replay = dict(use_rollout_routing_replay=True, **shape)
    checks.that(engine_of(url, **replay).health_generate(), "what it compares is alike")
    args = arguments(url, rollout_num_engines=1, rollout_num_gpus=1, **replay)
    init_http_client(args)
    state = sglang_rollout.GenerateState(args)
    for i, case in enumerate(cases):
        sample = Sample(index=i, prompt=case["prompt"])
        length = len(case["greedy_token_ids"])
        given = {**state.sampling_params, "ignore_eos": True, "max_new_tokens": length}
        made = asyncio.run(sglang_rollout.generate(args, sample, given))
        wanted = case["prompt_token_ids"] + case["greedy_token_ids"]
        checks.same(made.tokens, wanted, f"tokens of case {i}")
        found = made.rollout_routed_experts
        checks.same(found.tolist(), real_world.routes_of_all_layers(case), "and their experts")
        validate_rollout_routed_experts_for_replay([found], args)
        checks.that(True, "which its trainer takes")


def main():
    args = real_world.options()
    checks = world.Checks()
    accelerator.set_accelerator(NoGpu())
    with (
        real_world.embedded(args) as server,
        real_world.recorded(args, server, "slime-to-baton") as url,
    ):
        for part in (discovery, updates, compared):
            with checks.section(f"slime, {part.__name__}"):
                part(checks, url)
    with (
        checks.section("slime, --offload-rollout"),
        real_world.embedded(args, "--sglang-memory-saver") as server,
    ):
        checks.that(engine_of(server.url, offload_rollout=True), "what it compares is alike")
        try:
            engine_of(server.url, offload_rollout=True, use_rollout_routing_replay=True)
            checks.that(False, "a model without experts", "it was taken")
        except AssertionError as e:
            checks.that("enable_return_routed_experts" in str(e), "a model without experts")
    experts, cases = real_world.with_experts(args)
    with experts as server, checks.section("slime, --use-rollout-routing-replay"):
        replayed(checks, server.url, cases)
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
