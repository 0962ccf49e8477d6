"""SkyRL's RemoteInferenceClient and its senders, unmodified, from a checkout in SKYRL_SRC, against baton.
Usage: test_skyrl.py --baton PROGRAM [--record DIR]"""

import asyncio
import json
import os
import sys

import real_world
from real_world import CHAT, MODEL, SAYS, world

sys.path[:0] = [os.environ["SKYRL_SRC"], os.path.join(os.environ["SKYRL_SRC"], "skyrl-gym")]

import skyrl_senders  # noqa: E402
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (  # noqa: E402
    RemoteInferenceClient,
)

N, TOLERANCE = 8, 1e-3
PARAMS = {"temperature": 0.0, "max_tokens": N, "logprobs": 0}
SEQUENCE = {"max_tokens": 4, "temperature": 1.0, "seed": 3, "top_k": 20, "top_p": 0.9}


def case(step="step-00100"):
    golden = json.loads((world.MODEL / "golden.json").read_text())["checkpoints"][step]["cases"][0]
    return golden["prompt_token_ids"], golden["greedy_token_ids"], golden["greedy_logprobs"]


async def rollout(client, **more):
    prompt, _, _ = case()
    batch = {"prompt_token_ids": [prompt, prompt], "sampling_params": dict(PARAMS)}
    return await client.generate({**batch, "session_ids": ["a", "b"], "cache_salt": "s"}, **more)


async def data(checks, client):
    prompt, ids, logprobs = case()
    checks.same(await client.get_world_size(), (1, 1), "the world size")
    made = await rollout(client)
    checks.same(made["response_ids"], [ids[:N]] * 2, "generate")
    off = max(abs(a - b) for a, b in zip(made["response_logprobs"][0], logprobs))
    checks.that(off < TOLERANCE, "and its logprobs", f"{off:.1e} off")
    checks.same(made["stop_reasons"], ["length"] * 2, "and why it stopped")
    body = {"prompt": {"chunks": [{"tokens": prompt}]}, "num_samples": 2, "session_id": "a"}
    body.update(sampling_params=SEQUENCE, include_prompt_logprobs=True, topk_prompt_logprobs=3)
    made = await client.sample({"json": body})
    lengths = [(len(s["tokens"]), len(s["logprobs"])) for s in made["sequences"]]
    checks.same(lengths, [(4, 4)] * 2, "sample")
    checks.same(len(made["prompt_logprobs"]), len(prompt), "a prompt's logprobs")
    checks.same({len(t) for t in made["topk_prompt_logprobs"][1:]} <= {3, 4}, True, "and the best")
    said = {"max_tokens": 6, "temperature": 0}
    made = await client.chat_completion({"json": {"messages": CHAT, **said}})
    checks.same(made["choices"][0]["message"]["content"], SAYS, "chat")
    made = await client.render_chat_completion({"json": {"messages": CHAT}})
    checks.same(made["token_ids"], prompt, "render")
    made = await client.completion({"json": {"prompt": "In the beginning", **said}})
    checks.same(made["choices"][0]["text"], SAYS, "completion")
    checks.same(await client.tokenize(["In the beginning"]), [prompt], "tokenize")
    checks.same(await client.detokenize([prompt]), ["In the beginning"], "detokenize")
    await client.finish_session("a")


async def control(checks, client):
    _, ids, _ = case()
    for mode in ("keep", "abort", "wait"):
        await client.pause(mode)
        await client.pause(mode)
        later = asyncio.create_task(rollout(client))
        done, _ = await asyncio.wait({later}, timeout=0.3)
        checks.same(done, set(), f"{mode}: held while it is paused")
        await client.resume()
        checks.same((await later)["response_ids"], [ids[:N]] * 2, f"{mode}: answered after it")
    await client.reset_prefix_cache(reset_running_requests=True)
    await client.sleep(level=1)
    await client.wake_up(tags=["weights"])
    await client.wake_up(tags=["kv_cache"])
    checks.same((await rollout(client))["response_ids"], [ids[:N]] * 2, "after a sleep of level 1")


async def adapters(checks, client):
    """Over the checkpoint that it is not of: it is another model, and gone when unloaded."""
    _, ids, _ = case()
    folder = str(world.MODEL / "adapters" / "shout")
    for _ in range(2):
        await client.load_lora_adapter("shout", folder)
    made = await rollout(client, model="shout")
    checks.that(made["response_ids"] != [ids[:N]] * 2, "the adapter answers")
    await client.unload_lora_adapter("shout")
    try:
        await rollout(client, model="shout")
        checks.that(False, "unloaded", "it answers still")
    except Exception as e:  # noqa: BLE001
        checks.that("404" in str(e), "unloaded", str(e)[:120])


async def refusals(checks, client):
    """What baton does not do, it says."""
    try:
        await client.fetch_weights(target_version=3)
        checks.that(False, "fetch_weights", "it was taken")
    except Exception as e:  # noqa: BLE001
        checks.that("delta" in str(e), "fetch_weights is refused by name", str(e)[:160])
    await client.sleep(level=2)
    await client.wake_up()
    try:
        await rollout(client)
        checks.that(False, "weights dropped by a sleep of level 2", "it generates")
    except Exception as e:  # noqa: BLE001
        checks.that("503" in str(e), "dropped weights are not served", str(e)[:120])


async def routed(checks, url, cases):
    """Router replay: its client calls /skyrl/v1/generate, and fails on a reply without routes."""
    client = RemoteInferenceClient(
        proxy_url=url,
        server_urls=[url],
        data_parallel_size=1,
        model_name=MODEL,
        enable_return_routed_experts=True,
    )
    for i, case in enumerate(cases):
        prompt, ids = case["prompt_token_ids"], case["greedy_token_ids"]
        params = {"temperature": 0.0, "max_tokens": len(ids), "ignore_eos": True}
        made = await client.generate({"prompt_token_ids": [prompt], "sampling_params": params})
        checks.same(made["response_ids"], [ids], f"tokens of case {i}")
        (found,) = made["rollout_expert_indices"]
        wanted = real_world.routes_of_all_layers(case)
        checks.same((found.dtype.name, found.tolist()), ("uint8", wanted), "and their experts")
    await client.teardown()


async def play(checks, url):
    client = RemoteInferenceClient(
        proxy_url=url, server_urls=[url], data_parallel_size=1, model_name=MODEL
    )
    for part in (data, control, adapters, refusals):
        with checks.section(f"SkyRL, {part.__name__}"):
            await part(checks, client)
    await client.teardown()


def main():
    args = real_world.options()
    checks = world.Checks()
    with (
        real_world.embedded(args) as server,
        real_world.recorded(args, server, "skyrl-to-baton") as url,
    ):
        asyncio.run(play(checks, url))
    experts, cases = real_world.with_experts(args)
    with experts as server, checks.section("SkyRL, routed experts"):
        asyncio.run(routed(checks, server.url, cases))
    skyrl_senders.senders(args, checks, sys.modules[__name__])
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
