"""prime-rl's InferencePool, unmodified, from a checkout in PRIME_RL_SRC, and the clients of verifiers
that it makes for rollouts, against baton: each of its calls. Then once more against baton in front
of two batons. Its NCCL and NIXL broadcasters are not spoken; what becomes of them is asked too.
Usage: test_prime_rl.py --baton PROGRAM [--record DIR]"""

import asyncio
import binascii
import contextlib
import json
import os
import pathlib
import shutil
import sys
import tempfile

import real_world
from real_world import CHAT, MODEL, SAYS, world

SOURCE = pathlib.Path(os.environ["PRIME_RL_SRC"])
sys.path[:0] = [str(SOURCE / "src"), str(SOURCE / "packages" / "prime-rl-configs" / "src")]

import httpx  # noqa: E402
import numpy as np  # noqa: E402
from prime_rl.configs.shared import ClientConfig  # noqa: E402
from prime_rl.utils import client as prime  # noqa: E402
from renderers.configs import DefaultRendererConfig  # noqa: E402
from verifiers.v1.clients import resolve_client  # noqa: E402
from verifiers.v1.configs.sampling import SamplingConfig  # noqa: E402
from verifiers.v1.dialects import ChatDialect  # noqa: E402
from vllm.entrypoints.scale_out.token_in_token_out import protocol  # noqa: E402

N, TOLERANCE = 8, 1e-3
OLD, NEW = "step-00100", "step-01500"
SALTED = {"cache_salt": "v1", "routed_experts_prompt_start": 4}  # as of a later turn
BODY = {"model": MODEL, "messages": CHAT}


def golden(step):
    found = json.loads((world.MODEL / "golden.json").read_text())
    return found["checkpoints"][step]["cases"][0]


def pool_of(url):
    """As the orchestrator makes that of its policy: tokens in and out, by the renderer."""
    config = ClientConfig(base_url=f"{url}/v1")
    pool = prime.InferencePool(
        config, MODEL, train_client_type="renderer", renderer_config=DefaultRendererConfig()
    )
    pool.train_client.renderer_model_name = str(real_world.untied(OLD))
    return pool


def published(folder, step):
    """As its filesystem broadcast leaves it: weights of a step, and STABLE."""
    into = pathlib.Path(folder) / f"{step}-{len(os.listdir(folder))}"
    shutil.copytree(real_world.untied(step), into)
    (into / "STABLE").touch()
    return into


async def rollout(pool, model=MODEL, max_tokens=N, **more):
    """One turn, as the env server plays it."""
    client = resolve_client(pool.train_client)
    sampling = SamplingConfig(temperature=0.0, max_tokens=max_tokens, **SALTED, **more)
    body = {**BODY, "model": model}
    try:
        return await client.get_response(ChatDialect(), body, sampling, session_id="trace-1")
    finally:
        await client.close()


async def serves(checks, pool, step, what):
    wanted, made = golden(step), (await rollout(pool)).tokens
    checks.same(list(made.prompt_ids), wanted["prompt_token_ids"], f"{what}: the prompt")
    checks.same(list(made.completion_ids), wanted["greedy_token_ids"][:N], f"{what}: tokens")
    off = max(abs(a - b) for a, b in zip(made.completion_logprobs, wanted["greedy_logprobs"]))
    checks.that(off < TOLERANCE, f"{what}: and their logprobs", f"{off:.1e} off")


async def fails(checks, made, words, name):
    """The call must fail, and its error's body must have the words."""
    try:
        await made
        checks.that(False, name, "it was taken")
    except httpx.HTTPStatusError as e:
        said = f"{e.response.status_code} {e.response.text[:200]}"
        checks.that(all(w in said for w in words), name, said)


async def readiness(checks, pool):
    await pool.wait_for_ready(MODEL, timeout=30)
    checks.that(True, "ready")
    try:
        await pool.wait_for_ready("another", timeout=30)
        checks.that(False, "a model that is not there", "it is said to be")
    except ValueError as e:
        checks.that("not found in the inference pool" in str(e), "a model that is not there")


async def rollouts(checks, pool):
    await serves(checks, pool, OLD, "train client")
    made = await rollout(pool, logprobs=3)
    checks.same(made.tokens.top_logprobs.counts.tolist(), [3] * N, "its head of 3 logprobs")
    versions = made.tokens.weight_versions
    spans = [(s.version, s.start, s.end) for s in versions or []]
    checks.same(spans, [(OLD, 0, N)], "and the weights that made them")
    client = resolve_client(pool.eval_client)
    body = {**BODY, "max_tokens": 6, "temperature": 0}
    made = await client.get_response(ChatDialect(), body, SamplingConfig(), session_id="trace-2")
    checks.same(made.message.content, SAYS, "eval client")
    await client.close()
    wanted = golden(OLD)
    ids = wanted["prompt_token_ids"] + wanted["greedy_token_ids"]
    found = await pool.score(ids)
    pairs = zip(found[-len(wanted["greedy_token_ids"]) :], wanted["greedy_logprobs"])
    off = max(abs(a - b) for a, b in pairs)
    checks.that(off < TOLERANCE and len(found) == len(ids), "scores", f"{off:.1e} off")


async def updates(checks, pool, folder):
    for n, step in enumerate((NEW, OLD, OLD)):
        await pool.update_weights(published(folder, step), step=n)
        await serves(checks, pool, step, f"update {n}")
    later = asyncio.create_task(rollout(pool, max_tokens=400, ignore_eos=True))
    await asyncio.sleep(0.05)
    await pool.update_weights(published(folder, NEW), step=3)
    made = await later
    checks.same(len(made.tokens.completion_ids), 400, "an update under a rollout: it ends well")
    await serves(checks, pool, NEW, "and after it")


async def refusals(checks, pool, folder, step):
    """What is refused changes nothing, and generation goes on: its client resumes in any case."""
    await fails(checks, pool.update_weights(None, step=4), ["400", "weight_dir"], "its NCCL update")
    empty = pathlib.Path(folder) / "empty"
    await fails(checks, pool.update_weights(empty, step=5), ["404"], "a step without weights")
    nixl = prime.init_nixl_broadcast(pool.admin_clients, "127.0.0.1", 1, 5, 1, "session")
    await fails(checks, nixl, ["400", "filesystem"], "its NIXL broadcaster")
    await prime.init_nccl_broadcast(pool.admin_clients, "127.0.0.1", 1, 5)
    checks.that(True, "its NCCL broadcaster is refused, and its client does not look")
    await serves(checks, pool, step, "after all of them")


async def adapters(checks, pool, step):
    base = (await rollout(pool)).tokens.completion_ids
    shout, rslora = (world.MODEL / "adapters" / name for name in ("shout", "rslora"))
    made = []
    for path in (shout, rslora, shout):
        await pool.update_weights(path, lora_name="policy")
        made.append(list((await rollout(pool, "policy")).tokens.completion_ids))
    checks.same(made[0], made[2], "an adapter, another and the first again")
    checks.that(made[0] != list(base) and made[0] != made[1], "each answers for itself")
    await serves(checks, pool, step, "the model beside it")
    await prime.unload_lora_adapter(pool.admin_clients, "policy")
    try:
        await rollout(pool, "policy")
        checks.that(False, "unloaded", "it answers still")
    except Exception as e:  # noqa: BLE001
        checks.that("404" in f"{e!r} {getattr(e, 'status_code', '')}", "unloaded", repr(e)[:160])


async def play(checks, name, pool, folder):
    parts = {
        "readiness": lambda: readiness(checks, pool),
        "rollouts": lambda: rollouts(checks, pool),
        "updates": lambda: updates(checks, pool, folder),
        "adapters": lambda: adapters(checks, pool, NEW),
        "refusals": lambda: refusals(checks, pool, folder, NEW),
    }
    for part, run in parts.items():
        with checks.section(f"prime-rl, {name}{part}"):
            await run()
    await pool.stop()


def recorded(args, server, name, folder):
    masks = [(rf"{folder}/(step-\d+)-\d+", r"${models}/\1"), (folder, "${models}")]
    return real_world.recorded(args, server, name, masks)


def alone(args, checks, folder):
    with (
        real_world.embedded(args, "--allow-path", folder) as server,
        recorded(args, server, "prime-rl-to-baton", folder) as url,
    ):
        asyncio.run(play(checks, "", pool_of(url), folder))


def in_front(args, checks, folder):
    with contextlib.ExitStack() as held:
        upstreams = []
        for name in ("baton-to-baton-a", "baton-to-baton-b"):
            engine = held.enter_context(real_world.embedded(args, "--allow-path", folder))
            upstreams.append(held.enter_context(recorded(args, engine, name, folder)) + ",baton")
        front = held.enter_context(real_world.in_front(args, *upstreams))
        asyncio.run(play(checks, "in front of two, ", pool_of(front.url), folder))


async def replays(checks, url, case):
    """Router replay: every reply has the experts of its tokens, from where the turn before ended."""
    prompt, ids = case["prompt_token_ids"], case["greedy_token_ids"]
    pool = pool_of(url)
    tokens = (await rollout(pool, max_tokens=len(ids), ignore_eos=True)).tokens
    checks.same((list(tokens.prompt_ids), list(tokens.completion_ids)), (prompt, ids), "tokens")
    given = tokens.routed_experts
    raw, start = binascii.a2b_base64(given["data"]), SALTED["routed_experts_prompt_start"]
    found = np.frombuffer(raw, given["dtype"]).reshape(given["shape"]).tolist()
    checks.same((given["start"], given["dtype"]), (start, "uint8"), "from where on")
    checks.same(found, real_world.routes_of_all_layers(case)[start:], "their experts")
    await pool.stop()


def with_experts(args, checks, _):
    server, cases = real_world.with_experts(args, "--return-routed-experts", "prime-rl")
    with server, checks.section("prime-rl, routed experts"):
        asyncio.run(replays(checks, server.url, cases[0]))


def main():
    args = real_world.options()
    checks = world.Checks()
    # What prime-rl's scorer reads answers by is a class in vLLM 0.26, which it pins; in 0.32 that
    # name is of a choice between two, of which this is the one for tokens.
    protocol.GenerateResponse = protocol.GenerateTokensResponse
    with tempfile.TemporaryDirectory() as folder:
        for part in (alone, with_experts, in_front):
            part(args, checks, folder)
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
