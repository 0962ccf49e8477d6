"""Miles' handle of an external engine, unmodified, from a checkout in MILES_SRC: its start, which
compares this server's arguments with its own, and what follows it in a step, against baton as an
SGLang. What it sends by NCCL and CUDA IPC needs a GPU.
Usage: test_miles.py --baton PROGRAM [--record DIR]"""

import os
import sys
from argparse import Namespace

import real_world
from real_world import world

sys.path.insert(0, os.environ["MILES_SRC"])

from miles.backends.sglang_utils import sglang_engine  # noqa: E402
from miles.backends.sglang_utils.sglang_engine import SGLangEngine  # noqa: E402

OLD, NEW = "step-00100", "step-01500"


def engine_of(url, **more):
    """As its rollout starts an external one; arguments at their defaults."""
    host, port = url.removeprefix("http://").split(":")
    given = {
        **dict(rollout_external=True, env_report=None, sglang_router_ip="", sglang_router_port=0),
        **dict(hf_checkpoint=str(real_world.untied(OLD)), seed=1, offload_rollout=False),
        **dict(sglang_pp_size=1, sglang_dp_size=1, sglang_ep_size=1, num_gpus_per_node=8),
        **dict(rollout_num_gpus_per_engine=1, use_rollout_routing_replay=False, fp16=False),
        **dict(use_rollout_indexer_replay=False, colocate=False, debug_rollout_only=False),
        **dict(actor_num_gpus_per_node=4, actor_num_nodes=1),
    }
    sglang_engine.is_multi_lora_enabled = sglang_engine.lora_rollout_enabled = lambda args: False
    engine = SGLangEngine(Namespace(**{**given, **more}), 0)
    engine.init(f"{host}:{port}", int(port), None, host=host)
    return engine


def starts(checks, server, url):
    engine = engine_of(url)
    checks.that(engine.health_generate(), "what it compares is alike")
    for given in ({"offload_rollout": True}, {"fp16": True}, {"actor_num_gpus_per_node": 2}):
        try:
            engine_of(url, **given)
            checks.that(False, f"{given} differs from the server", "it was taken")
        except AssertionError as e:
            checks.that("expect_value" in str(e), f"{given} differs from the server")


def step(checks, server, url):
    engine = engine_of(url)
    engine.pause_generation(mode="in_place")
    engine.flush_cache()
    engine.update_weights_from_disk(str(real_world.untied(NEW)), weight_version="1")
    engine.continue_generation()
    checks.same(engine.get_weight_version(), "1", "the version's name")
    engine.begin_weight_update()
    engine.begin_weight_update()  # a trainer that began and was started again
    checks.that(True, "a start of which nothing came is taken over")
    server.post("/v1/update_weights/abort", {"update_id": server.status()["update"]["update_id"]})
    engine.release_memory_occupation()
    engine.resume_memory_occupation()


def main():
    args = real_world.options()
    checks = world.Checks()
    with (
        real_world.embedded(args, "--sglang-base-gpu-id", "4") as server,
        real_world.recorded(args, server, "miles-to-baton") as url,
    ):
        for part in (starts, step):
            with checks.section(f"Miles, {part.__name__}"):
                part(checks, server, url)
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
