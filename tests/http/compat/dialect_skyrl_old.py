"""SkyRL's older forms, which neither start nor finish an update: one tensor in each request, lists
of them, one packed broadcast, CUDA IPC; after each, generation must match the pushed checkpoint.
Usage: as dialect_skyrl.py."""

import asyncio
import faulthandler
import os
import shutil
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[3])

from skyrl_world import (TORCH, SkyRL, ask, broadcast, chunks_of, client_of, columns_of,  # noqa: E402
                         export_of, must, refused, url_of)
from transfer_world import cut_each, cut_whole  # noqa: E402

GIVE_UP_S = 280
GROUP = "skyrl"
OK = {"status": "ok"}
AWAKE, KV_SLEEPS = ({"status": said, "tags": None} for said in ("awake", "sleeping"))


async def call(client, endpoint, body=None, method="POST", want=OK):
    found = (await client.call(endpoint, body, method))[client.urls[0]]
    must(found == want, f"{endpoint}: {found}, wanted {want}")


async def join(client, trainer, endpoint, address, **more):
    """A torch process group: the answer comes when the server's ranks have been counted in."""
    port = await ask(trainer, "open_store")
    await call(client, endpoint, {address: "127.0.0.1", "master_port": port, "rank_offset": 1,
                                  "world_size": 2, "group_name": GROUP, "backend": "nccl", **more})
    await ask(trainer, "await_count", 2)
    trainer.begin("first_collective", GROUP, 2)
    return asyncio.ensure_future(asyncio.to_thread(trainer.result))


def blobs_of(rows, cut):
    return cut([s for s, _ in rows], {s.name: d for s, d in rows})


def list_of(rows, **more):
    """dtypes as the configuration spells them."""
    body = columns_of(rows, "dtypes", **more)
    return {**body, "dtypes": ["torch." + d if i % 2 else d for i, d in enumerate(body["dtypes"])]}


async def batch(client, world, step):
    """The data plane of then: prompts as token ids in one request, choices in their order."""
    cases = world.golden[step]
    found = await client.post("/v1/completions", {
        "model": client.model, "prompt": [c["prompt_token_ids"] for c in cases], "max_tokens": 8,
        "temperature": 0.0, "ignore_eos": True, "return_token_ids": True})
    must([c["index"] for c in found["choices"]] == list(range(len(cases))), "not in order")
    for choice, case in zip(found["choices"], cases):
        must(choice["token_ids"] == case["greedy_token_ids"][:8], f"{step}: {choice}")


# October 2025

async def one_by_one(world):
    with world.serving() as server, world.nccl_trainer() as trainer:
        async with client_of(server) as client:
            await odd_names(client)
            joined = await join(client, trainer, "/init_weight_update_communicator",
                                "master_address", override_existing=False)
            await call(client, "/sleep", {"level": 1}, want={"status": "sleeping", "level": 1})
            await call(client, "/wake_up", {"tags": 1}, want=AWAKE)
            await call(client, "/reset_prefix_cache", want={"success": True, **OK})
            for step in ("step-00100", "step-01500"):
                for spec, data in world.weights(step):
                    body = {"name": spec.name, "dtype": TORCH[spec.dtype], "shape": spec.shape}
                    answer = asyncio.ensure_future(client.call("/update_weights", body))
                    await joined
                    await broadcast(trainer, [data], answer)
                    must(list(answer.result().values()) == [OK], f"{answer.result()}")
                await batch(client, world, step)
                await world.serves(client, step)
            await call(client, "/destroy_weights_update_group")


async def odd_names(client):
    """What is no tensor is refused before anyone waits for a broadcast."""
    for body, status, words in (
            ({"name": "x", "dtype": "bfloat16"}, 400, ["shape"]),
            ({"name": "x", "dtype": "bfloat16", "shape": [2], "names": ["a"], "shapes": [[1]]}, 409,
             ["no group"]),
            ({"name": "x", "dtype": "bf17", "shape": [2]}, 400, ["bf17"]),
            ({"name": 3, "dtype": "bfloat16", "shape": [[0]]}, 400, ["name"]),
            ({"name": "x", "dtype": "bfloat16", "shape": [[0]], "sizes": [1]}, 400, []),
            ({"names": ["x"], "dtypes": ["bfloat16"], "shapes": [[2]], "packed": True}, 400,
             ["sizes"])):
        await refused(status, words, client.call("/update_weights", body))


# December 2025 to March 2026

async def lists(world, endpoint):
    with world.serving() as server, world.nccl_trainer() as trainer:
        async with client_of(server) as client:
            joined = await join(client, trainer, "/init_weight_update_communicator", "master_addr",
                                model_dtype_str="torch.bfloat16", override_existing_receiver=True)
            for step, packed, more in (("step-00100", False, {}), ("step-01500", True, {}),
                                       ("step-00000", False, {"packed": False}),
                                       ("step-00100", True, {"packed": True})):
                for rows in chunks_of(world.weights(step), 400_000):
                    sizes = [s.numel for s, _ in rows] if packed or more else None
                    body = list_of(rows, sizes=sizes, **more)
                    answer = asyncio.ensure_future(client.call(endpoint, body))
                    await joined
                    await broadcast(trainer, blobs_of(rows, cut_whole if packed else cut_each),
                                    answer)
                await client.resume()
                await batch(client, world, step)
                await world.serves(client, step)


# January to March 2026

async def client_of_then(world):
    with world.serving() as server, world.nccl_trainer() as trainer:
        async with client_of(server) as client:
            found = (await client.call("/get_server_info", {}, "GET"))[url_of(server)]
            must(found["world_size"] == 1 and found["url"] == url_of(server) and
                 found["port"] == server.port and found["server_idx"] == 0, f"{found}")
            joined = await join(client, trainer, "/init_weight_transfer", "master_addr",
                                model_dtype_str="bfloat16", override_existing_receiver=False)
            for step in ("step-00100", "step-01500"):
                await call(client, "/pause", {"wait_for_inflight_request": False},
                           want={"status": "paused"})
                for rows in chunks_of(world.weights(step), 600_000):
                    body = list_of(rows, sizes=[s.numel for s, _ in rows])
                    answer = asyncio.ensure_future(client.call("/update_weights_skyrl", body))
                    await joined
                    await broadcast(trainer, blobs_of(rows, cut_whole), answer)
                await call(client, "/finalize_weight_update", {})
                await call(client, "/resume", {}, want={"status": "resumed"})
                await world.serves(client, step)
            await incomplete(world, client, server, trainer)


async def incomplete(world, client, server, trainer):
    """A tensor never came. Whoever finishes the update hears which; what served serves."""
    rows = world.weights("step-00000", tied=False)
    gone = rows.pop(7)[0].name
    for how in ("/resume", "/finalize_weight_update"):
        await call(client, "/pause", {"wait_for_inflight_request": True},
                   want={"status": "paused"})
        body = list_of(rows, sizes=[s.numel for s, _ in rows])
        await broadcast(trainer, blobs_of(rows, cut_whole),
                        client.call("/update_weights_skyrl", body))
        await refused(422, ["missing", gone], client.call(how, {}))
        if how != "/resume":
            await call(client, "/resume", {}, want={"status": "resumed"})
        status = server.ask("GET", "/v1/status").body
        must(status["pause"] is None and status["update"] is None, f"{how}: {status}")
        await world.serves(client, "step-01500")


async def handles(world):
    with world.serving() as server, world.trainer(server) as trainer:
        async with client_of(server) as client:
            await call(client, "/init_weight_transfer",
                       {"model_dtype_str": "bfloat16", "override_existing_receiver": True})
            await refused(400, ["master_addr"], client.call("/init_weight_transfer", {"x": 1}))
            await call(client, "/sleep", {"level": 2}, want={"status": "sleeping", "level": 2})
            for step in ("step-00100", "step-01500"):
                await call(client, "/wake_up", {"tags": ["weights"]}, want=KV_SLEEPS)
                for endpoint, rows in zip(("/update_weights", "/update_weights_skyrl") * 99,
                                          chunks_of(world.weights(step), 300_000)):
                    await call(client, endpoint, list_of(
                        rows, sizes=[s.numel for s, _ in rows],
                        ipc_handles=export_of(trainer, rows, [0])))
                await call(client, "/finalize_weight_update", {})
                must(not any(trainer.counters()), "an export is still held")
                await call(client, "/wake_up", {"tags": ["kv_cache"]}, want=AWAKE)
                await world.serves(client, step)
                await call(client, "/sleep", {"level": 2}, want={"status": "sleeping", "level": 2})


async def another_trainer(world):
    """One trainer ends half-way, the next begins with the other half: of the two no model is made."""
    old, new = (chunks_of(world.weights(s), 10**9)[0] for s in ("step-00100", "step-01500"))
    half = len(old) // 2
    for endpoint, init in (("/init_weight_transfer", {"model_dtype_str": "bfloat16"}),
                           ("/init_weight_transfer_engine", {"init_info": {}})):
        with world.serving() as server, world.trainer(server) as trainer:
            async with client_of(server) as client:
                async def push(rows):
                    await call(client, "/update_weights_skyrl", list_of(
                        rows, sizes=[s.numel for s, _ in rows],
                        ipc_handles=export_of(trainer, rows, [0])))

                await push(old[:half])
                await refused(400, [], client.call(endpoint, {"init_info": 5}))
                must(server.ask("GET", "/v1/status").body["update"]["n_tensors_done"] == half,
                     f"{endpoint}: an init that was none ended an update")
                await client.call(endpoint, init)
                must(server.ask("GET", "/v1/status").body["update"] is None, f"{endpoint}: open")
                await push(new[half:])
                must(server.ask("GET", "/v1/status").body["weights"]["serial"] == 1,
                     f"{endpoint}: halves of two trainers are served as one")
                await push(new[:half])
                await world.serves(client, "step-01500")


async def run(world):
    await another_trainer(world)
    await one_by_one(world)
    await lists(world, "/update_weights")
    await lists(world, "/update_weights_skyrl")
    await client_of_then(world)
    await handles(world)


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
