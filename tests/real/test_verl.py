"""verl's HttpServerAdapter and AsyncHttpServerAdapter, unmodified, against baton as an SGLang. What
they send of tensors needs a GPU. Usage: test_verl.py --baton PROGRAM [--record DIR]"""

import asyncio
import concurrent.futures
import inspect
import json
import sys

import real_world
from real_world import MODEL, SAYS, ask, world
from verl.workers.rollout.sglang_rollout.http_server_engine import (
    AsyncHttpServerAdapter,
    HttpServerAdapter,
)

N, TOLERANCE = 8, 1e-3
OLD, NEW = "step-00100", "step-01500"
PARAMS = {"temperature": 0.0, "max_new_tokens": N}


LONG = {
    "text": "In the beginning",
    "sampling_params": {"max_new_tokens": 1000, "temperature": 0.0, "ignore_eos": True},
}


def running(url):
    return ask(url, "GET", "/v1/loads?include=core").body["loads"][0]["num_running_reqs"]


def adapter_of(kind, url):
    """Of a server that runs already."""
    host, port = url.removeprefix("http://").split(":")
    model = str(real_world.untied(OLD))
    given = {"host": host, "port": int(port), "model_path": model, "device": "cpu"}
    return kind(launch_server=False, max_attempts=1, **given)


async def call(method, *given, **named):
    """Of either adapter."""
    found = method(*given, **named)
    return await found if inspect.isawaitable(found) else found


async def generates(checks, adapter, step):
    golden = json.loads((world.MODEL / "golden.json").read_text())["checkpoints"][step]["cases"][0]
    made = await call(
        adapter.generate,
        input_ids=golden["prompt_token_ids"],
        sampling_params=dict(PARAMS),
        return_logprob=True,
    )
    rows = made["meta_info"]["output_token_logprobs"]
    checks.same([row[1] for row in rows], golden["greedy_token_ids"][:N], f"tokens of {step}")
    off = max(abs(row[0] - b) for row, b in zip(rows, golden["greedy_logprobs"]))
    checks.that(off < TOLERANCE, "and their logprobs", f"{off:.1e} off")
    checks.same(made["meta_info"]["finish_reason"]["type"], "length", "and why it stopped")


async def play(checks, adapter, url):
    await generates(checks, adapter, OLD)
    params = {**PARAMS, "max_new_tokens": 6}
    made = await call(adapter.generate, prompt="In the beginning", sampling_params=params)
    checks.same(made["text"], SAYS, "of a text")
    await call(adapter.flush_cache)
    await call(adapter.release_memory_occupation, tags=["kv_cache", "weights"])
    await call(adapter.resume_memory_occupation, tags=["weights"])
    body = {"model_path": str(real_world.untied(NEW)), "weight_version": "new"}
    checks.same(ask(url, "POST", "/update_weights_from_disk", body).status, 200, "an update")
    await call(adapter.resume_memory_occupation, tags=["kv_cache"])
    await generates(checks, adapter, NEW)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        later = pool.submit(ask, url, "POST", "/generate", LONG)
        world.until(lambda: running(url) > 0, "a request runs", 20)
        await call(adapter.abort_request, abort_all=True)
        reason = later.result().body["meta_info"]["finish_reason"]["type"]
    checks.same(reason, "abort", "abort_request ends it")
    if isinstance(adapter, AsyncHttpServerAdapter):
        found = await adapter.available_models()
        checks.same(found["data"][0]["id"], MODEL, "available_models")


def main():
    args = real_world.options()
    checks = world.Checks()
    for kind, name in ((HttpServerAdapter, "verl"), (AsyncHttpServerAdapter, "verl-async")):
        with (
            checks.section(f"verl, {kind.__name__}"),
            real_world.embedded(args) as server,
            real_world.recorded(args, server, f"{name}-to-baton") as url,
        ):
            asyncio.run(play(checks, adapter_of(kind, url), url))
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
