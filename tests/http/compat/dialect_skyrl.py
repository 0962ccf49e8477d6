"""One training step of each of SkyRL's modes, with the requests of its RemoteInferenceClient, against a real
server over the fakes; after each, generation must match the pushed checkpoint.
Usage: dialect_skyrl.py BATON MODEL CLIENT_DIR FAKECUDA FAKENCCL TRAINERS_FAKECUDA TRAINERS_FAKENCCL
[SEED]"""

import asyncio
import faulthandler
import json
import os
import shutil
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[3])

from ipc_world import Server  # noqa: E402
from skyrl_world import (GIB, SkyRL, ask, broadcast, chunks_of, client_of, columns_of,  # noqa: E402
                         cut_vllm, export_of, must, refused)

GIVE_UP_S = 280
N_CROWD = 512
N_CROWD_TOKENS = 6
ADAPTER = "skyrl-lora"
EXPERTS = "tiny-qwen3-moe"
RPC = "/collective_rpc"


def ipc_info(trainer, rows, devices):
    return columns_of(rows, sizes=[s.numel for s, _ in rows],
                      ipc_handles_pickled=export_of(trainer, rows, devices))


async def push_ipc(world, client, trainer, step, devices):
    await client.start_weight_update()
    for rows in chunks_of(world.weights(step), 300_000):
        await client.update_weights_ipc(ipc_info(trainer, rows, devices))
        trainer.settle()
    must(not any(trainer.counters()), f"{step}: an export is still held: {trainer.counters()}")
    await client.finish_weight_update()


async def colocated(world, n_gpus):
    """Full weights by CUDA IPC; trainer and server take turns with the GPU."""
    devices = [f"cuda:{i}" for i in range(n_gpus)]
    with world.serving("step-00000", ",".join(devices), str(n_gpus)) as server, \
            world.trainer(server) as trainer:
        async with client_of(server) as client:
            await client.sleep(2)
            must((await client.get_world_size())[0] == n_gpus, "another world size")
            await client.init_weight_transfer({})
            for step in ("step-00100", "step-01500"):
                await client.wake_up(["weights"])
                await push_ipc(world, client, trainer, step, range(n_gpus))
                await client.reset_prefix_cache()
                await client.wake_up(["kv_cache"])
                await world.serves(client, step, session_id="t-1", salt=f"p@{step}")
                must(await client.finish_session("t-1") == 200, "finish_session")
                await client.sleep(2)
            found = server.post(200, RPC, {"method": "skyrl_wake_for_weight_sync",
                                           "kwargs": {"tags": ["weights"]}})
            must(found == {"results": [None] * n_gpus}, f"{found}")
            await client.sleep(1)


async def restarted(world):
    """A trainer dies within its update; the next one is not kept from beginning anew."""
    with world.serving() as server, world.trainer(server) as trainer:
        async with client_of(server) as client:
            await client.init_weight_transfer({})
            await client.start_weight_update()
            await client.update_weights_ipc(
                ipc_info(trainer, chunks_of(world.weights("step-00100"), 300_000)[0], [0]))
            await client.init_weight_transfer({})
            await push_ipc(world, client, trainer, "step-01500", [0])
            await world.serves(client, "step-01500")
            await client.start_weight_update()  # and nothing more: a new start takes its place
            await push_ipc(world, client, trainer, "step-00100", [0])
            await world.serves(client, "step-00100")
            await client.start_weight_update()
            await client.update_weights_ipc(
                ipc_info(trainer, chunks_of(world.weights("step-01500"), 300_000)[0], [0]))
            await refused(409, ["is open"], client.start_weight_update())  # its tensors could be mixed
            await client.init_weight_transfer({})
            named = server.post(200, "/v1/update_weights/start", {})["update_id"]
            await client.init_weight_transfer({})
            must(server.ask("GET", f"/v1/update_weights/{named}").body["phase"] == "open",
                 "one that is named was ended by a request that does not name it")


# By NCCL

async def join(client, trainer, n_servers=1):
    port = await ask(trainer, "open_store")
    trainer.begin("stateless", 1 + n_servers)
    await client.init_weight_transfer({"master_address": "127.0.0.1", "master_port": port,
                                       "rank_offset": 1, "world_size": 1 + n_servers})
    await asyncio.to_thread(trainer.result)


async def push_nccl(world, client, trainer, step):
    rows = world.weights(step)
    blobs = cut_vllm([s for s, _ in rows], {s.name: d for s, d in rows}, GIB)
    await client.start_weight_update()
    await broadcast(trainer, blobs, client.update_weights_nccl(columns_of(rows, packed=True)))
    await client.finish_weight_update()


async def frozen(world, client, server, step):
    """A generation that a pause holds, and what ends it."""
    case = world.golden[step][0]
    waiting = asyncio.ensure_future(client.generate(**world.case_of(case)))
    while True:
        found = server.ask("GET", "/v1/status").body["admission"]["generate"]
        if found["running"] + found["waiting"] > 0:
            return waiting, case
        await asyncio.sleep(0)


async def by_nccl(world):
    """Trainer and server have GPUs of their own: two servers, one push."""
    with world.serving() as one, world.serving() as two, world.nccl_trainer() as trainer:
        async with client_of(one, two) as client:
            must(await client.get_world_size() == (2, {u: 1 for u in client.urls}), "world size")
            await join(client, trainer, 2)
            for step in ("step-00100", "step-01500"):
                client.proxy_url = client.urls[0]
                await client.pause()
                waiting, case = await frozen(world, client, one, step)
                await push_nccl(world, client, trainer, step)
                await client.reset_prefix_cache()
                must(not waiting.done(), "it was to wait for resume")
                await client.resume()
                must((await waiting)[0] == case["greedy_token_ids"], "it was to wait for weights")
                for url in client.urls:
                    client.proxy_url = url
                    await world.serves(client, step)
            await offloaded(world, client, trainer)


async def offloaded(world, client, trainer):
    """The server's GPU memory is let go for the sync: frozen by the caller, and by a sleep."""
    for step, offload_kv in (("step-00000", True), ("step-00100", False)):
        await client.pause()
        await client.sleep_for_weight_sync(offload_kv)
        await client.wake_for_weight_sync(["weights"])
        await push_nccl(world, client, trainer, step)
        await client.reset_prefix_cache()
        await client.wake_for_weight_sync(["kv_cache"])
        await client.resume()
        await world.serves(client, step)
    await client.sleep(2)
    await client.wake_up(["weights"])
    await push_nccl(world, client, trainer, "step-01500")
    await client.reset_prefix_cache()
    await client.wake_up(["kv_cache"])
    await world.serves(client, "step-01500")


# Adapters

def write_adapter(world, kind, folder):
    """Into the same directory at every step, as SkyRL does."""
    shutil.copytree(f"{world.model}/adapters/{kind}", folder, dirs_exist_ok=True)
    with open(f"{folder}/golden.json", encoding="utf-8") as f:
        return json.load(f)["cases"]


async def adapters(world, colocated_too):
    folder = os.path.join(world.folder, f"lora-{colocated_too}")
    with world.serving("step-01500", "cuda:0", "1", "--allow-path", world.folder) as server:
        async with client_of(server) as client:
            if colocated_too:
                await client.sleep(1)
            must((await client.get_world_size())[0] == 1, "world size")
            await client.init_weight_transfer({})
            numbers = set()
            for kind in ("shout", "rslora", "shout"):
                cases = write_adapter(world, kind, folder)
                if colocated_too:
                    await client.wake_up(["weights"])
                told = json.loads(await client.load_lora_adapter(ADAPTER, folder))
                numbers.add(told["lora_int_id"])
                must(told == {"status": "ok", "lora_name": ADAPTER,
                              "lora_int_id": told["lora_int_id"]}, f"{told}")
                await client.reset_prefix_cache()
                if colocated_too:
                    await client.wake_up(["kv_cache"])
                await world.generates(client, cases, kind, model=ADAPTER)
                await world.serves(client, "step-01500")
                if colocated_too:
                    await client.sleep(1)
            must(len(numbers) == 1 and numbers.pop() > 0, "the number of a name changes")
            if colocated_too:
                await client.wake_up()
            await client.unload_lora_adapter(ADAPTER)
            await refused(404, [ADAPTER], client.generate([5], {}, model=ADAPTER))
            await refused(400, ["lora_path"], client.call("/skyrl/v1/load_lora_adapter",
                                                          {"lora_name": "x"}))
            await refused(403, ["--allow-path"], client.load_lora_adapter("x", "/etc"))


# What else is promised

async def routed(world, client):
    """/skyrl/v1/generate: exactly one choice, and what is in it. Its client calls it for routed
    experts, and fails on null."""
    route = "/skyrl/v1/generate"
    await refused(400, ["no experts"], client.post(route, {"token_ids": [5]}))
    folder = os.path.join(os.path.dirname(world.model), EXPERTS)
    with open(f"{folder}/golden.json", encoding="utf-8") as f:
        cases = json.load(f)["cases"]
    with Server(world, "--model", folder) as server:
        async with client_of(server) as experts:
            await world.generates(experts, cases, EXPERTS, endpoint=route, model=EXPERTS)
            found = await experts.post(route, {"token_ids": [5, 6], "sampling_params": {"max_tokens": 2}})
            choice = found["choices"][0]
            must(list(found) == ["choices"] and len(found["choices"]) == 1, f"{found}")
            must(list(choice) == ["token_ids", "finish_reason", "logprobs", "routed_experts"], f"{choice}")
            must(choice["logprobs"] is None, f"{choice}")
            must(list(choice["routed_experts"]) == ["data", "shape", "dtype"] and
                 choice["routed_experts"]["shape"] == [3, 3, 2], f"{choice}")
            found = await experts.post(route, {"token_ids": [5]})
            must(len(found["choices"][0]["token_ids"]) > 0, "{}")
    await refused(400, ["exactly one"], client.post(
        route, {"token_ids": [5], "sampling_params": {"n": 2}}))
    await refused(404, ["nobody"], client.post(route, {"token_ids": [5], "model": "nobody"}))


async def refusals(client):
    for body, words in (
            ({"method": "update_weights_from_ipc", "args": [{"GPU-0": "ipc:///x"}],
              "timeout": 300.0}, ["GPU-0", "UUID"]),
            ({"method": "get_model"}, ["'get_model'"]), ({"method": 5}, ["method"]),
            ({"kwargs": {"method": "skyrl_start_weight_update"}}, ["method is missing"]),
            ({"method": "update_weights_ipc"}, ["update_info"]),
            ({"method": "update_weights_ipc", "kwargs": {}}, ["update_info"]),
            ({"method": "update_weights_nccl", "kwargs": {"update_info": []}}, ["update_info"]),
            ({"method": "skyrl_start_weight_update", "args": [True]}, ["by position"]),
            ({"method": "skyrl_start_weight_update", "kwargs": {"is_checkpoint_format": False}},
             ["is_checkpoint_format"])):
        await refused(400, words, client.call(RPC, body))
    await refused(400, ["target_version"], client.call("/fetch_weights", {}))
    await refused(400, ["delta"], client.call("/fetch_weights", {"target_version": 3}))
    info = {"names": ["x"], "dtype_names": ["bfloat16"], "shapes": [[1]], "packed": True}
    for call in (client.finish_weight_update(), client.update_weights_nccl(info)):
        await refused(409, [], call)


async def repeated(world, client, server):
    """Control calls that come twice, or when there is nothing to do; and one update at a time."""
    for _ in range(2):
        await client.pause()
        await client.pause()
        await client.resume()
        await client.resume()
        await client.sleep(1)
        await client.sleep(1)
        await client.wake_up()
        await client.wake_up(["weights", "kv_cache"])
        await client.reset_prefix_cache()
    for _ in range(2):  # nothing came of the first one
        await client.start_weight_update()
    update_id = server.ask("GET", "/v1/status").body["update"]["update_id"]
    await refused(422, ["missing"], client.finish_weight_update())
    must(server.ask("GET", f"/v1/update_weights/{update_id}").body["phase"] == "aborted", "ended")
    await world.serves(client, "step-00000")


async def crowd(world, client):
    """As many at once as one server's semaphore lets through, and as many waiting behind it."""
    case, before = world.case_of(world.golden["step-00000"][0]), client.n_attempts
    wanted = world.golden["step-00000"][0]["greedy_token_ids"][:N_CROWD_TOKENS]
    case["sampling"]["max_tokens"] = N_CROWD_TOKENS
    found = await asyncio.gather(*(client.generate(**case) for _ in range(2 * N_CROWD)))
    must(all(ids == wanted for ids, _, _ in found), "one of many differs")
    must(client.n_attempts - before == 2 * N_CROWD, f"{client.n_attempts - before} attempts")


async def gone(client, server):
    """A request whose connection is closed frees its slot; the pause sees to it that it has one."""
    await client.pause()
    waiting = [asyncio.ensure_future(client.generate([5], {"max_tokens": 100})) for _ in range(20)]

    def admitted():
        found = server.ask("GET", "/v1/status").body["admission"]["generate"]
        return found["running"] + found["waiting"]

    while admitted() < len(waiting):
        await asyncio.sleep(0)
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    while admitted() > 0:
        await asyncio.sleep(0)
    must(server.ask("GET", "/v1/status").body["pause"] is not None, "it is paused still")
    await client.resume()


async def everything_else(world):
    with world.serving() as server:
        async with client_of(server) as client:
            await routed(world, client)
            await refusals(client)
            await repeated(world, client, server)
            await crowd(world, client)
            await gone(client, server)
            await world.serves(client, "step-00000")


async def run(world):
    await restarted(world)
    await colocated(world, 1)
    await colocated(world, 2)
    await by_nccl(world)
    await adapters(world, True)
    await adapters(world, False)
    await everything_else(world)


def main():
    faulthandler.dump_traceback_later(GIVE_UP_S, exit=True)
    world = SkyRL(*sys.argv[1:8], seed=sys.argv[8] if len(sys.argv) > 8 else os.urandom(4).hex())
    try:
        asyncio.run(run(world))
    finally:
        shutil.rmtree(world.folder)
    print(f"ok: {must.n} checks")


if __name__ == "__main__":
    main()
