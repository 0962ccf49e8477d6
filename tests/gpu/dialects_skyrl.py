"""SkyRL's steps against a server that it takes for its own: through its client, from torch, beside
it on the same GPU and apart from it. Sections of test_dialects_torch.py."""

import asyncio
import sys

import dialects_trainer as trainer_side
import gpu_world as world
import nccl_torch
import nccl_world as nccl
from dialects_world import (
    CHUNK_NBYTES,
    MODEL,
    NCCL_SLACK,
    SLACKS,
    Stage,
    cases_of,
    serve,
    specs_of,
    wire,
)

sys.path.insert(0, str(world.ROOT / "tests" / "http" / "compat"))

PLAY_S = 90  # longest that one play may take
N_BIG = 8  # tensors of the model whose memory is measured


def client_of(server):
    """aiohttp is needed here alone, and not in trainers."""
    from remote_client import RemoteClient

    return RemoteClient([server.url], MODEL)


def play(coroutine):
    """On an event loop of its own, as its client."""

    async def bounded():
        return await asyncio.wait_for(coroutine, PLAY_S)

    return asyncio.run(bounded())


async def ask(st, function, *args):
    """The trainer, without keeping the loop from its requests."""
    return await asyncio.to_thread(st.trainer.ask, function, *args)


def sampling_of(case):
    """As SkyRL sends it."""
    return {
        **{"max_tokens": len(case["greedy_token_ids"]), "min_tokens": 1, "temperature": 0.0},
        **{"top_p": 1.0, "top_k": -1, "min_p": 0.0, "logprobs": 1, "stop": None},
        **{"skip_special_tokens": True, "include_stop_str_in_output": True, "ignore_eos": True},
    }


async def serves(st, client, step, what):
    """All prompts at once, as one trajectory's."""
    found = await asyncio.gather(
        *(
            client.generate(case["prompt_token_ids"], sampling_of(case), session_id=what)
            for case in cases_of(step)
        )
    )
    st.judge([(ids, logprobs) for ids, _, logprobs in found], step, what)
    st.checks.same(await client.finish_session(what), 200, f"{what}: its session is finished")
    await asyncio.to_thread(st.holds, step, what)


# --- beside the trainer, by CUDA IPC


async def push_ipc(st, client, n_chunks, what):
    """Each buffer is let go of as soon as its request is answered."""
    await client.start_weight_update()
    for i in range(n_chunks):
        await client.update_weights_ipc(await ask(st, trainer_side.skyrl_chunk, i))
        await asyncio.to_thread(st.let_go, f"{what}, chunk {i}")
    await client.finish_weight_update()


async def begins(st):
    """Asleep from the start on."""
    async with client_of(st.server) as client:
        await client.sleep(2)
        st.checks.same((await client.get_world_size())[0], 1, "its world size")
        await client.init_weight_transfer({})


async def colocated(st, steps):
    async with client_of(st.server) as client:
        for i, step in enumerate(steps):
            what = f"round {i}"
            _, n_chunks = await ask(st, trainer_side.load, step, CHUNK_NBYTES, True)
            await client.wake_up(["weights"])
            await push_ipc(st, client, n_chunks, what)
            await client.reset_prefix_cache()
            await client.wake_up(["kv_cache"])
            await serves(st, client, step, what)
            await client.sleep(2)
            weights = (await asyncio.to_thread(st.server.status))["weights"]
            st.checks.same(weights["versions_alive"], 0, f"{what}: versions alive while asleep")


def by_ipc(checks, args, trainer):
    with serve(args, 0) as server:
        st = Stage(checks, args, trainer, server)
        play(begins(st))
        st.no_growth(lambda steps: play(colocated(st, steps)))


# --- memory, of a size that matters, without an engine


async def turns(st, specs, seeds):
    """[GPU memory in use while it is awake, and while it sleeps]"""
    total, seen = nccl.total_of(specs), []
    async with client_of(st.server) as client:
        await client.init_weight_transfer({})
        for seed in seeds:
            n_chunks = await ask(st, trainer_side.make, specs, seed, total // 4)
            await client.wake_up(["weights"])
            await push_ipc(st, client, n_chunks, f"seed {seed}")
            await client.wake_up(["kv_cache"])
            wrong = await asyncio.to_thread(nccl.wrong, st.args, st.server, specs, seed)
            st.checks.same(wrong, [], f"seed {seed}: its bytes")
            await ask(st, trainer_side.shrink)
            awake = await asyncio.to_thread(st.gpu_used)
            await client.sleep(2)
            seen.append((awake, await asyncio.to_thread(st.gpu_used)))
    return seen


def memory(checks, args, trainer):
    """A server that sleeps has given back the weights' memory; awake it has them once."""
    numel = (1 << 15) if args.fakes else (64 << 20)
    specs = [nccl.Spec(f"layers.{i}.weight", "bfloat16", (numel,)) for i in range(N_BIG)]
    with nccl.store(args, specs, devices=[0]) as server:
        seen = play(turns(Stage(checks, args, trainer, server), specs, range(1, 5)))
    if args.fakes:
        checks.skip("what a sleep gives back", "the fakes know no other process's memory")
        return
    total = nccl.total_of(specs)
    for i, (awake, asleep) in enumerate(seen):
        freed = awake - asleep
        checks.that(
            0.95 * total <= freed <= 1.1 * total,
            f"sleep {i} gives the weights' memory back",
            f"{freed >> 20} MiB of {total >> 20}",
        )
    first, last = seen[1], seen[-1]
    checks.that(
        all(b - a <= SLACKS["gpu_used"] for a, b in zip(first, last)),
        "no growth of GPU memory, awake and asleep",
        f"{first} -> {last}",
    )


# --- apart from the trainer, by NCCL


async def joins(st):
    """vLLM's StatelessProcessGroup: torch's store, the id in it, the warm-up."""
    async with client_of(st.server) as client:
        n, _ = await client.get_world_size()
        port = await ask(st, nccl_torch.listen)
        st.trainer.tell(nccl_torch.stateless, port, 1 + n)
        info = {"master_address": "127.0.0.1", "master_port": port}
        await client.init_weight_transfer({**info, "rank_offset": 1, "world_size": 1 + n})
        summed = await asyncio.to_thread(st.trainer.hear)
        st.checks.same(summed, 0.0, "the warm-up's sum")


async def push_nccl(st, client, step):
    columns, _ = await ask(st, trainer_side.load, step, CHUNK_NBYTES, True)
    await client.start_weight_update()
    st.trainer.tell(trainer_side.send_packed, nccl.cut_vllm(specs_of(columns), nccl.GIB))
    await client.update_weights_nccl(wire(columns, packed=True))
    await asyncio.to_thread(st.trainer.hear)
    await client.finish_weight_update()


async def frozen(st, client, step):
    """A generation that a pause holds, and what it must come to with the new weights."""
    case = cases_of(step)[0]
    waiting = asyncio.ensure_future(client.generate(case["prompt_token_ids"], sampling_of(case)))

    def admitted():
        found = st.server.status()["admission"]["generate"]
        return found["running"] + found["waiting"] > 0

    await asyncio.to_thread(world.until, admitted, "a generation is admitted", nccl.ANSWER_S)
    return waiting, case["greedy_token_ids"]


async def paused(st, client, step, what):
    await client.pause()
    waiting, wanted = await frozen(st, client, step)
    await push_nccl(st, client, step)
    await client.reset_prefix_cache()
    st.checks.that(not waiting.done(), f"{what}: what is paused waits for resume")
    await client.resume()
    st.checks.same((await waiting)[0], wanted, f"{what}: and is made of the new weights")


async def offloaded(st, client, step, offload_kv):
    """Memory is let go of for the sync, by SkyRL's own calls beneath a pause."""
    await client.pause()
    await client.sleep_for_weight_sync(offload_kv)
    await client.wake_for_weight_sync(["weights"])
    await push_nccl(st, client, step)
    await client.reset_prefix_cache()
    await client.wake_for_weight_sync(["kv_cache"])
    await client.resume()


async def slept(st, client, step):
    """The same of a synchronous trainer: nothing runs, and nobody resumes."""
    await client.sleep(2)
    await client.wake_up(["weights"])
    await push_nccl(st, client, step)
    await client.reset_prefix_cache()
    await client.wake_up(["kv_cache"])


async def apart(st, steps):
    async with client_of(st.server) as client:
        for i, step in enumerate(steps):
            way = ("paused", "offloaded", "slept", "offloaded with KV")[i % 4]
            what = f"round {i}, {way}"
            if way == "paused":
                await paused(st, client, step, what)
            elif way == "slept":
                await slept(st, client, step)
            else:
                await offloaded(st, client, step, "KV" in way)
            await serves(st, client, step, what)


def by_nccl(checks, args, trainer):
    with serve(args, 1) as server:
        st = Stage(checks, args, trainer, server)
        play(joins(st))
        st.no_growth(lambda steps: play(apart(st, steps)), warm=4, gpu_used=NCCL_SLACK)
