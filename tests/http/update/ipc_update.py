"""Weights by CUDA IPC handles, from trainers that are other processes: every form in which they
come, on one GPU and on two, and what happens when a trainer dies, sends
wrong data or waits.
Usage: ipc_update.py BATON MODEL CLIENT_DIR FAKECUDA FAKECUDA_OF_TRAINERS [SEED]"""

import base64
import concurrent.futures
import faulthandler
import json
import os
import shutil
import sys
import threading
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, sys.argv[3] if len(sys.argv) > 3 else "")

import baton  # noqa: E402
import ipc_trainer  # noqa: E402
from ipc_trainer import pickled_dict, pickled_list  # noqa: E402
from ipc_world import NBYTES, TORCH, Spec, World, bucket, columns, fill, must, packed  # noqa: E402

N_KILLS = 30  # each of five moments with each of three cuts, twice
GIVE_UP_S = 280
UPDATE, START, FINISH = "/v1/update_weights", "/v1/update_weights/start", "/v1/update_weights/finish"


def cut(specs, n):
    """Into n runs."""
    edges = [len(specs) * i // n for i in range(n + 1)]
    return [specs[a:b] for a, b in zip(edges, edges[1:])]


def start(server, **members):
    return server.post(200, START, members)["update_id"]


def finish(server, update_id, data, what):
    found = server.post(200, FINISH, {"update_id": update_id}, what)
    server.released(found, what)
    server.serve(data, found)
    return found


def spent(trainer, what):
    """Every export has been counted down once: not once too few, and not once too often."""
    must(trainer.counters() and not any(trainer.counters()), f"{what}: {trainer.counters()}")


# One GPU

def the_fixture(_world):
    """The stand-ins make the very bytes that torch makes."""
    with open(os.path.join(HERE, "../../fixtures/torch-ipc/skyrl_packed_1gpu.json"), encoding="utf-8") as f:
        j = json.load(f)
    (uuid, x), = j["expect"]["handles"].items()
    export = ipc_trainer.Export(
        uuid, bytes.fromhex(x["storage_handle_hex"])[2:], x["storage_offset_bytes"],
        x["storage_size_bytes"], x["ref_counter_handle"].encode(), x["ref_counter_offset"],
        bytes.fromhex(x["event_handle_hex"]), x["size"], x["dtype"])
    must(pickled_dict({uuid: export}) ==
         j["requests"][0]["kwargs"]["update_info"]["ipc_handles_pickled"], "another pickle")


def plain(world, server):
    data = world.data()
    with world.trainer(server) as t:
        address = fill(t, 0, packed(world.specs, data), front=256 + 1)  # an odd start
        x = t.export(address, 257, sum(s.nbytes for s in world.specs))
        body = columns(world.specs, weight_version="plain")
        found = server.update({**body, "ipc_handles": {"GPU-" + x.uuid.upper(): x.plain}}, data,
                              "plain")
        must(found["checksums_on"] in ("gpu", "host"), f"{found}")
        must(found["placement"] == "replicated" and found["n_missing"] == 0, f"{found}")
        must(any(t.counters()), "plain handles name no counter")
    server.check("plain")


def skyrl(world, server):
    """A session; a bucket of one dtype in each request, its storage seen as that dtype."""
    data, update_id = world.data(), start(server, weight_version="skyrl")
    with world.trainer(server) as t:
        for dtype in sorted({s.dtype for s in world.specs}):
            specs = [s for s in world.specs if s.dtype == dtype]
            _, body = bucket(t, 0, specs, data, dtype=TORCH[dtype],
                             sizes=[s.numel for s in specs], update_id=update_id)
            body["dtype_names"] = body.pop("dtypes")
            server.post(200, UPDATE, body, f"skyrl {dtype}")
        finish(server, update_id, data, "skyrl")
        spent(t, "skyrl")
    server.check("skyrl")


def vllm_list(world, server, pair):
    """One handle for each tensor, hundreds of them in one allocation."""
    data = world.data()
    with world.trainer(server) as t:
        content, offsets = bytearray(), []
        for s in world.specs:
            content += bytes(-len(content) % 512)
            offsets.append(len(content))
            content += data[s.name]
        address = fill(t, 0, bytes(content) or b"\0")
        dicts = []
        for s, offset in zip(world.specs, offsets):
            x = t.export(address, offset, s.nbytes, s.shape, TORCH[s.dtype])
            dicts.append({x.uuid: x})
        found = server.update(columns(world.specs, packed=False, weight_version=f"list {pair}",
                                      ipc_handles_pickled=pickled_list(dicts, pair)), data, "list")
        must(found["mappings"]["opened"] == 1, f"one allocation, mapped {found['mappings']}")
        spent(t, "list")
    server.check("list")


def vllm_packed(world, server):
    """One export, refilled for each request: counted down once, at the end."""
    data, update_id = world.data(), start(server, weight_version="packed")
    parts = cut(world.specs, 5)
    capacity = max(sum(s.nbytes for s in p) for p in parts) + 1000
    with world.trainer(server) as t:
        address = t.alloc(0, capacity)
        x = t.export(address, 0, capacity)
        for i, specs in enumerate(parts):
            t.write(address, 0, packed(specs, data))
            t.settle()
            found = server.post(200, UPDATE, columns(
                specs, update_id=update_id, tensor_sizes=[s.nbytes for s in specs],
                ipc_handles_pickled=pickled_dict({x.uuid: x}, pair=False)), f"packed {i}")
            must(found["mappings"]["opened"] == 1, f"one buffer, mapped {found['mappings']}")
            t.write(address, 0, world.rng.randbytes(capacity))  # the next step's, or none's
            t.settle()
        finish(server, update_id, data, "packed")
        spent(t, "packed")
        must(t.counters() == [0], f"one export, {t.counters()}")
    server.check("packed")


def several_buckets(world, server):
    data = world.data()
    parts = cut(world.specs, 9)
    with world.trainer(server) as t:
        buckets = [bucket(t, 0, specs, data)[1] for specs in parts]
        sums = [[baton.checksum(data[s.name]) for s in specs] for specs in parts]
        for b, s in zip(buckets, sums):
            b["checksums"] = s
        server.update({"buckets": buckets, "weight_version": "buckets"}, data, "buckets")
        spent(t, "buckets")
        server.check("buckets")

        again = [bucket(t, 0, specs, data)[1] for specs in parts]
        again[4]["checksums"] = [None] * len(parts[4])
        again[4]["checksums"][2] = "0" * 32
        server.refuse({"buckets": again}, "checksum_mismatch", "/buckets/4/checksums/2",
                      parts[4][2].name, status=422, what="a sum of the fifth bucket")
        spent(t, "a sum of the fifth bucket")  # a failure too ends with every export given back

        k, i, bad = next((k, i, s) for k, part in enumerate(parts) for i, s in enumerate(part)
                         if "F" in s.dtype and s.nbytes >= 8)
        of_nan = {**data, bad.name: data[bad.name][:-8] + b"\xff" * 8}
        again = [bucket(t, 0, specs, of_nan)[1] for specs in parts]
        again[k]["checksums"] = [baton.checksum(of_nan[s.name]) for s in parts[k]]
        server.refuse({"buckets": again}, "non_finite_weights", f"/buckets/{k}/names/{i}",
                      bad.name, "NaN", status=422, what="NaN in a bucket")
        spent(t, "NaN in a bucket")

    refused_buckets(world, server, data, parts)


def refused_buckets(world, server, data, parts):
    """Errors in a list of buckets name the member; nothing has been opened by then."""
    with world.trainer(server) as t:
        made = [bucket(t, 0, specs, data)[1] for specs in parts]
        opened = server.metric("baton_ipc_mappings_opened_total")

        def refuse(change, param, *words, code="bad_request", status=400, top=None):
            buckets = [dict(b) for b in made]
            change(buckets)
            server.refuse({"buckets": buckets, **(top or {})}, code, param, *words, status=status,
                          what=f"buckets at {param}")

        def twice(b):
            b[3] = dict(b[1])

        def long(b):
            b[2]["shapes"] = [s if i else [10**6] for i, s in enumerate(b[2]["shapes"])]

        name = parts[1][0].name
        refuse(twice, "/buckets/3/names/0", "named twice, at /buckets/1/names/0 and at "
               "/buckets/3/names/0", name)
        refuse(long, "/buckets/2/ipc_handles_pickled", "the bucket has")
        refuse(lambda b: b[5].update(names=b[5]["names"][1:]), "/buckets/5/dtypes", "entries")
        refuse(lambda b: b[5].update(names=b[5]["names"][:-1] + [7]),
               f"/buckets/5/names/{len(parts[5]) - 1}")
        refuse(lambda b: b[5].update(names=b[5]["names"][:-1] + ["nobody's"]),
               f"/buckets/5/names/{len(parts[5]) - 1}", "nobody's", code="manifest_mismatch",
               status=422)
        refuse(lambda b: b[6].update(dtypes=["bf17"] + b[6]["dtypes"][1:]), "/buckets/6/dtypes/0",
               "bf17")
        refuse(lambda b: b[6].update(shapes=[[-1]] + b[6]["shapes"][1:]), "/buckets/6/shapes/0")
        refuse(lambda b: b[6].update(sizes=[parts[6][0].numel + 1] + [None] * (len(parts[6]) - 1)),
               "/buckets/6/sizes/0")
        refuse(lambda b: b[7].update(ipc_handles_pickled="gAROLg=="),
               "/buckets/7/ipc_handles_pickled")
        refuse(lambda b: b[7].pop("ipc_handles_pickled"), "/buckets/7", "neither")
        refuse(lambda b: b[7].update(ipc_handles={}), "/buckets/7", "both")
        refuse(lambda b: b[8].update(packed=False), "/buckets/8/packed")
        refuse(lambda b: b[8].update(tensor_sizes=[1]), "/buckets/8/tensor_sizes")
        refuse(lambda b: b[8].update(nmaes=[]), "/buckets/8/nmaes", "did you mean 'names'")
        refuse(lambda b: b[8].update(plan_id="x"), "/buckets/8/plan_id", "'names' was sent too")
        refuse(lambda b: b.insert(0, "x"), "/buckets/0", "a bucket is an object")
        refuse(lambda b: b.clear(), "/buckets", "1 to 4096")
        refuse(lambda b: b.extend([b[0]] * 4096), "/buckets", "1 to 4096")
        refuse(lambda b: None, "/names", "in each of them", top={"names": []})
        refuse(lambda b: None, "/buckets", "exactly one source", top={"ipc_handles": {}})
        refuse(lambda b: b.pop(), "/buckets", "are missing", code="incomplete_update", status=422)
        must(server.metric("baton_ipc_mappings_opened_total") == opened, "something was opened")
        must(all(t.counters()), "an export that was never read was counted down")


def by_plan(world, server):
    """Names sent once; then only their plan's id, for one bucket or several."""
    parts = cut(world.specs, 3)
    ids = [server.post(200, "/v1/weights/plans", columns(specs))["plan_id"] for specs in parts]
    whole = server.post(200, "/v1/weights/plans", columns(world.specs))["plan_id"]
    with world.trainer(server) as t:
        data = world.data()
        x, _ = bucket(t, 0, world.specs, data)
        server.update({"plan_id": whole, "ipc_handles_pickled": pickled_dict({x.uuid: x}),
                       "weight_version": "plan"}, data, "plan")
        server.check("plan")
        pairs = list(zip(parts, ids))
        for what, pairs in (("plans", pairs), ("again", pairs), ("turned round", pairs[::-1]),
                            ("and back", pairs)):
            data, buckets = world.data(), []
            for specs, plan_id in pairs:
                x, _ = bucket(t, 0, specs, data)
                buckets.append({"plan_id": plan_id,
                                "ipc_handles_pickled": pickled_dict({x.uuid: x})})
            server.update({"buckets": buckets, "weight_version": what}, data, what)
            server.check(what)
        short = [*buckets[:2], {**buckets[2], "packed": False}]
        server.refuse({"buckets": short}, "bad_request", "/buckets/2/packed")
        server.refuse({"buckets": buckets + buckets[:1]}, "bad_request", "/buckets/3/names/0",
                      "named twice, at /buckets/0/names/0")
        spent(t, "plans")


def partial(world, server):
    some = world.rng.sample(world.specs, 5)
    data = world.data(some)
    with world.trainer(server) as t:
        _, body = bucket(t, 0, some, data, partial=True, weight_version="partial")
        server.update(body, data, "partial")
        spent(t, "partial")
    server.check("partial")


def waits_for_the_event(world, server):
    """The bytes are written after the export, and the answer waits for them."""
    data = world.data()
    with world.trainer(server) as t, concurrent.futures.ThreadPoolExecutor(1) as pool:
        content = packed(world.specs, data)
        address = t.alloc(0, len(content))
        t.hold(True)
        t.write(address, 0, content)
        x = t.export(address, 0, len(content))
        body = columns(world.specs, ipc_handles_pickled=pickled_dict({x.uuid: x}),
                       weight_version="late")
        answer = pool.submit(server.post, 200, UPDATE, body, "late")
        until(lambda: (server.ask("GET", "/v1/status").body["update"] or {}).get("phase") ==
              "receiving", "it never began")
        must(t.counters() == [1] and not answer.done(), "it did not wait for the event")
        t.hold(False)
        found = answer.result()
        server.serve(data, found)
        spent(t, "late")
    server.check("late")


def until(true, what):
    """Asks again until it is so; each time is a request of its own, so nothing spins."""
    end = time.monotonic() + 60
    while not true():
        must(time.monotonic() < end, what)


def aborted_while_it_waits(world, server):
    """An event that never comes: the abort is answered, and so is the chunk."""
    update_id = start(server)
    with world.trainer(server) as t, concurrent.futures.ThreadPoolExecutor(1) as pool:
        t.hold(True)
        _, body = bucket(t, 0, world.specs, world.data(), update_id=update_id)
        answer = pool.submit(server.ask, "POST", UPDATE, body)
        until(lambda: server.ask("GET", f"{UPDATE}/{update_id}").body["phase"] == "receiving",
              "it never began")
        found = server.post(200, f"{UPDATE}/abort", {"update_id": update_id})
        must(found["phase"] == "aborted", f"{found}")
        must(answer.result().status == 409, f"the chunk of an aborted update: {answer.result()}")
        t.hold(False)
        until(lambda: t.counters() == [0], "the export was not given back")
        until(lambda: server.metric("baton_ipc_mapped") == 0, "still mapped")
    server.check("aborted")


def pipelined(world, server):
    """Requests on several connections, none waiting for the one before."""
    data, update_id = world.data(), start(server, weight_version="pipelined")
    with world.trainer(server) as t, concurrent.futures.ThreadPoolExecutor(6) as pool:
        bodies = [bucket(t, 0, specs, data, update_id=update_id, chunk_id=f"c{i}")[1]
                  for i, specs in enumerate(cut(world.specs, 20))]
        for answer in pool.map(lambda b: server.post(200, UPDATE, b, "pipelined"), bodies):
            must(answer["update_id"] == update_id, f"{answer}")
        repeated = server.post(200, UPDATE, bodies[3], "repeated")  # its first answer was lost
        must(repeated["n_tensors_done"] == len(world.specs), f"{repeated}")
        finish(server, update_id, data, "pipelined")
        spent(t, "pipelined")
    server.check("pipelined")


def room_is_told(world, server):
    found = server.post(200, START, {})
    need = sum(s.nbytes for s in world.specs)
    must([r["place"] for r in found["staging"]] == ["cuda:0"], f"{found['staging']}")
    must(all(r["needed"] >= need and r["available"] > 0 for r in found["staging"]), f"{found}")
    must(found["placement"] == "replicated" and found["checksums_on"] is None, f"{found}")
    must(found["mappings"] == {"opened": 0, "closed": 0, "still_mapped": 0}, f"{found}")
    server.ask("DELETE", f"{UPDATE}/{found['update_id']}")
    status = server.ask("GET", "/v1/status").body["cuda"]["ranks"]
    must([(r["rank"], r["place"]) for r in status] == [(0, "cuda:0")], f"{status}")


def refused(world, server):
    """Bad handles of a live trainer: each is refused, the old version serves."""
    data = world.data()
    other = "deadbeef-0000-4000-8000-000000000000"
    with world.trainer(server) as t:
        own = t.uuid(0)
        x, good = bucket(t, 0, world.specs, data)
        handle = x.plain
        server.refuse({**good, "ipc_handles_pickled": pickled_dict({other: x})}, "bad_request",
                      "/ipc_handles_pickled", own, other, what="an unknown UUID")
        length = handle["nbytes"]
        short = {**columns(world.specs), "ipc_handles": {own: {**handle, "offset": 1 << 20}}}
        server.refuse(short, "bad_request", None, own, "memory has", str(length), str(1 << 20),
                      what="a bucket beyond its allocation")
        server.refuse({**short, "ipc_handles": {own: {**handle, "nbytes": length - 1}}},
                      "bad_request", "/ipc_handles", str(length - 1), str(length))
        server.refuse({**short, "ipc_handles": {own: {**handle, "nbytes": length + 1}}},
                      "bad_request", "/ipc_handles", "make only")
        noise = base64.b64encode(world.rng.randbytes(64)).decode()
        server.refuse({**short, "ipc_handles": {own: {**handle, "handle": noise}}},
                      "source_unreadable", None, status=422, what="a handle of nobody's")
        server.refuse({**good, "placement": "somewhere"}, "bad_request", "/placement")
        server.refuse({**good, "per_gpu": {}, "metadata_by_gpu": {}}, "bad_request",
                      "/metadata_by_gpu")
        served = server.ask("GET", "/v1/weights/handles?lease_s=60").body
        ours = {**handle, "handle": served["devices"][0]["slabs"][0]["handle"], "offset": 0}
        server.refuse({**short, "ipc_handles": {own: ours}}, "source_unreadable", None,
                      status=422, what="a handle that the server itself exported")
        server.ask("DELETE", f"/v1/weights/handles/{served['lease_id']}")

        update_id = start(server)
        for member, value in (("placement", "sharded"), ("partial", True)):
            server.refuse({**good, "update_id": update_id, member: value}, "bad_request",
                          f"/{member}", "may only be set at")
        server.ask("DELETE", f"{UPDATE}/{update_id}")
        must(server.metric("baton_ipc_mapped") == 0, "a refused request left a mapping")
        server.update({**good, "weight_version": "after all"}, data, "after all")
        spent(t, "after all")
    server.check("after all")


def restarted(world, server):
    """A trainer that died; its handles are nothing any more, and its successor's are."""
    with world.trainer(server) as first:
        _, old = bucket(first, 0, world.specs, world.data())
        first.kill()
        answer = server.ask("POST", UPDATE, old)
        must(answer.status >= 400, f"the handle of a dead process: {answer}")
        server.check("a dead trainer")
    update_id, data = start(server, weight_version="restarted"), world.data()
    parts = cut(world.specs, 2)
    with world.trainer(server) as first:
        server.post(200, UPDATE, bucket(first, 0, parts[0], data, update_id=update_id)[1])
        first.kill()
    with world.trainer(server) as second:
        server.post(200, UPDATE, bucket(second, 0, parts[1], data, update_id=update_id)[1])
        finish(server, update_id, data, "restarted")
        spent(second, "restarted")
    server.check("restarted")


def killed(world, server):
    """SIGKILL at any moment: an answer, never another's bytes, and the next update works."""
    before, n_taken = None, 0
    for i in range(N_KILLS):
        data, how = world.data(), i % 5
        with world.trainer(server) as t, concurrent.futures.ThreadPoolExecutor(1) as pool:
            if how == 4:
                t.hold(True)  # dies with its event still to come
            parts = [bucket(t, 0, specs, data)[1] for specs in cut(world.specs, 1 + 3 * (i % 3))]
            body = {"buckets": parts, "weight_version": f"killed {i}"}
            answer = pool.submit(server.ask, "POST", UPDATE, body)
            if how > 0:
                threading.Event().wait(world.rng.random() * 0.004 * how)  # any moment
            t.kill()
            found = answer.result()
        if found.status == 200:
            n_taken += 1
            server.serve(data, found.body)
        server.check(f"killed {i}", world.rng.sample(sorted(data), 6))
        with world.trainer(server) as t:
            data = world.data()
            _, body = bucket(t, 0, world.specs, data, weight_version=f"good {i}")
            server.update(body, data, f"after kill {i}")
            spent(t, f"after kill {i}")
        server.check(f"after kill {i}", world.rng.sample(sorted(data), 6))
        if i == 9:
            before = server.descriptors()
    server.check("after all kills")
    must(server.descriptors() <= before, f"descriptors: {server.descriptors()} of {before}")
    must(server.metric("baton_ipc_mapped") == 0, "still mapped")
    return n_taken


# Two GPUs

def two_buckets(t, specs, data, uuids, front=0):
    """The same bucket on both GPUs: their exports."""
    content = packed(specs, data)
    return {uuids[d]: t.export(fill(t, d, content, front=front), front, len(content))
            for d in (0, 1)}


def replicated(world, server, t, uuids):
    data = world.data()
    server.update(columns(world.specs, weight_version="both", ipc_handles_pickled=pickled_dict(
        two_buckets(t, world.specs, data, uuids))), data, "both")
    server.check("both")
    server.check_gpus(t, [data, data], "both")
    spent(t, "both")

    data = world.data()  # the second GPU's handles alone: the first reads them by peer copy
    x = two_buckets(t, world.specs, data, uuids)[uuids[1]]
    n = len(t.counters())
    server.update(columns(world.specs, weight_version="peer",
                          ipc_handles_pickled=pickled_dict({x.uuid: x})), data, "peer")
    server.check("peer")
    server.check_gpus(t, [data, data], "peer")
    must(t.counters()[n - 1] == 0 and t.counters()[n - 2] == 1,
         f"the export that was not sent was counted down: {t.counters()[-2:]}")


def lists(specs, **more):
    return {uuid: columns(s, **more) for uuid, s in specs.items()}


def per_gpu(world, server, t, uuids):
    """Each GPU's bucket has its own order; the list beside them is right for neither."""
    orders = {uuids[0]: list(world.specs), uuids[1]: list(reversed(world.specs))}
    orders[uuids[1]].append(orders[uuids[1]].pop(3))
    for member, beside in (("per_gpu", {}), ("metadata_by_gpu", columns(world.specs[:2]))):
        data = world.data()
        exports = {u: t.export(fill(t, d, packed(orders[u], data)), 0,
                               sum(s.nbytes for s in world.specs)) for d, u in enumerate(uuids)}
        body = {**beside, member: lists(orders), "ipc_handles_pickled": pickled_dict(exports)}
        server.update({**body, "weight_version": member}, data, member)
        server.check(member)
        server.check_gpus(t, [data, data], member)

    short, rest = world.specs[:-1], world.specs[-1:]
    data = world.data()
    exports = {u: t.export(fill(t, d, packed(s, data)), 0, sum(x.nbytes for x in s))
               for d, (u, s) in enumerate(zip(uuids, (short, rest)))}
    pickled = pickled_dict(exports)
    right = {uuids[0]: short, uuids[1]: rest}
    swapped = {uuids[0]: rest, uuids[1]: short}
    shard = {"placement": "sharded", "ipc_handles_pickled": pickled}
    server.refuse({**shard, "per_gpu": lists(swapped)}, "bad_request", "/ipc_handles_pickled",
                  uuids[0], what="one rank's list for the other's bytes")
    seen = {u: x.seen_as((x.storage_nbytes,), "float8_e4m3fn") for u, x in exports.items()}
    server.refuse({**shard, "per_gpu": lists(right), "ipc_handles_pickled": pickled_dict(seen)},
                  "bad_request", "/ipc_handles_pickled", "F8_E4M3")
    longer = max(short, rest, key=lambda specs: sum(s.nbytes for s in specs))
    server.refuse({**shard, **columns(longer)}, "bad_request", "/ipc_handles_pickled", "per_gpu",
                  what="one list for both")
    for gone in uuids:
        some = {u: s for u, s in right.items() if u != gone}
        server.refuse({**shard, **columns(short), "per_gpu": lists(some)}, "bad_request",
                      "/per_gpu", gone, *some, what="no list of an own GPU, and no fallback")
    server.refuse({**shard, "per_gpu": {**lists(right), uuids[0]: [1]}}, "bad_request",
                  f"/per_gpu/{uuids[0]}")
    server.refuse({**shard, "per_gpu": {**lists(right), "GPU-" + uuids[0]: columns(short)}},
                  "bad_request", f"/per_gpu/GPU-{uuids[0]}", "twice")
    server.refuse({**shard, "per_gpu": {**lists(right), "7": columns(short)}}, "bad_request",
                  "/per_gpu", "'7' is not the UUID")
    server.refuse({**shard, "per_gpu": lists(right), "checksums": []}, "bad_request", "/checksums")
    server.refuse({**shard, "per_gpu": lists(right), "tensor_sizes": []}, "bad_request",
                  "/tensor_sizes")
    server.refuse({**shard, "per_gpu": lists(right), "plan_id": "x"}, "bad_request", "/plan_id")
    stranger = "deadbeef-0000-4000-8000-000000000000"
    server.refuse({**shard, "per_gpu": {**lists(right), stranger: {**columns(short), "sizes": [1]}}},
                  "bad_request", f"/per_gpu/{stranger}/sizes", what="what is not ours is well formed")
    wrong = lists(right)
    wrong[uuids[1]]["checksums"] = ["0" * 32]
    server.refuse({**shard, "per_gpu": wrong}, "checksum_mismatch",
                  f"/per_gpu/{uuids[1]}/checksums/0", rest[0].name, status=422)
    server.refuse({"ipc_handles_pickled": pickled, "per_gpu": lists(right)}, "incomplete_update",
                  "/per_gpu", status=422, what="replicated means complete on each")


def sharded(world, server, t, uuids):
    for n in (1, 4):  # halves in one bucket, or in several whose GPUs differ
        data = world.data()
        halves = {u: world.specs[d::2] for d, u in enumerate(uuids)}
        buckets = []
        for u, specs in halves.items():
            for part in cut(specs, n):
                d = uuids.index(u)
                x = t.export(fill(t, d, packed(part, data)), 0, sum(s.nbytes for s in part))
                buckets.append(columns(part, ipc_handles_pickled=pickled_dict({u: x}),
                                       checksums=[baton.checksum(data[s.name]) for s in part]))
        world.rng.shuffle(buckets)
        found = server.update({"buckets": buckets, "placement": "sharded",
                               "weight_version": f"sharded {n}"}, data, "sharded")
        must(found["placement"] == "sharded", f"{found}")
        server.check("sharded")
        server.check_gpus(t, [{s.name: data[s.name] for s in halves[u]} for u in uuids], "sharded")

    data, update_id = world.data(), start(server, placement="sharded", weight_version="session")
    for d, u in enumerate(uuids):
        specs = world.specs[d::2]
        x = t.export(fill(t, d, packed(specs, data)), 0, sum(s.nbytes for s in specs))
        server.post(200, UPDATE, columns(specs, update_id=update_id,
                                         ipc_handles_pickled=pickled_dict({u: x})), "a shard")
    finish(server, update_id, data, "a sharded session")
    server.check("a sharded session")

    half = world.specs[0::2]
    x = t.export(fill(t, 0, packed(half, data)), 0, sum(s.nbytes for s in half))
    server.refuse(columns(half, placement="sharded", ipc_handles_pickled=pickled_dict({x.uuid: x})),
                  "incomplete_update", "/names", "missing", status=422, what="half of the shards")


def kjv(world, server, t, uuids, label, device=None):
    """A real model: what is generated after it is what the checkpoint generates."""
    tensors = baton.load_file(f"{world.model}/checkpoints/{label}.safetensors")
    specs = [Spec(n, x.dtype, x.shape) for n, x in tensors.items() if n != "lm_head.weight"]
    data = {n: bytes(x.data) for n, x in tensors.items()}
    content = packed(specs, data)
    exports = {u: t.export(fill(t, d, content), 0, len(content)).seen_as(
        (len(content) // NBYTES[specs[0].dtype],), TORCH[specs[0].dtype])
        for d, u in enumerate(uuids) if device in (None, d)}
    body = columns(specs, sizes=[s.numel for s in specs], weight_version=label,
                   ipc_handles_pickled=pickled_dict(exports))
    found = server.post(200, UPDATE, body, label)
    server.released(found, label)
    spent(t, label)
    with open(f"{world.model}/golden.json", encoding="utf-8") as f:
        golden = json.load(f)["checkpoints"][label]["cases"][0]["greedy_text"]
    made = server.post(200, "/v1/completions",
                       {"prompt": "In the beginning", "max_tokens": 24, "temperature": 0})
    text = made["choices"][0]["text"]
    must(text == golden, f"{label}: generated {text!r}, wanted {golden!r}")


def main():
    faulthandler.dump_traceback_later(GIVE_UP_S, exit=True)  # where it hangs, rather than that it does
    world = World(*sys.argv[1:6], seed=sys.argv[6] if len(sys.argv) > 6 else os.urandom(4).hex())
    try:
        run(world)
    finally:
        shutil.rmtree(world.folder)


def run(world):
    the_fixture(world)
    with world.store() as server:
        for step in (plain, skyrl, lambda w, s: vllm_list(w, s, True),
                     lambda w, s: vllm_list(w, s, False), vllm_packed, several_buckets, by_plan,
                     partial, waits_for_the_event, aborted_while_it_waits, pipelined,
                     room_is_told, refused, restarted):
            step(world, server)
        n_taken = killed(world, server)
    with world.store("cuda:0,cuda:1", "2") as server, world.trainer(server) as t:
        uuids = [t.uuid(0), t.uuid(1)]
        for step in (replicated, per_gpu, sharded):
            step(world, server, t, uuids)
    for device, n, feeds in (("cuda:0", "1", None), ("cuda:1", "2", 0), ("cuda:0,cuda:1", "2", None)):
        with world.engine(device, n) as server, world.trainer(server) as t:
            uuids = [t.uuid(d) for d in range(int(n))]
            for label in ("step-00100", "step-01500", "step-00000"):
                kjv(world, server, t, uuids, label, feeds)
    print(f"ok: {must.n} checks; {n_taken} of {N_KILLS} killed trainers were too late to matter")


if __name__ == "__main__":
    main()
