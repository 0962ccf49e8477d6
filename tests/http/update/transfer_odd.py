"""NCCL groups and updates by them in odd orders and at the same time: repeated, refused, finished,
aborted and drained while the server waits for a broadcast; and with every option of other updates.
Usage: transfer_odd.py BATON MODEL CLIENT_DIR FAKECUDA FAKENCCL TRAINERS_FAKECUDA TRAINERS_FAKENCCL
[SEED]"""

import faulthandler
import json
import os
import shutil
import struct
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[3] if len(sys.argv) > 3 else "")

from ipc_world import TORCH, WAIT_S, Spec, must  # noqa: E402
from transfer_world import (GIB, GROUP, INIT, UPDATE, Ended, Groups, Requests, Server,  # noqa: E402
                            TrainerError, by_id, by_store, by_torch, cut_vllm, cut_whole, digest,
                            group, join, push, refuse, wire)

import baton  # noqa: E402

GIVE_UP_S = 280
START, FINISH = "/v1/update_weights/start", "/v1/update_weights/finish"


def until(true, what):
    end = time.monotonic() + WAIT_S
    while not true():
        must(time.monotonic() < end, what)


def await_receiving(server):
    """Until its first broadcast is waited for: then a trainer may send."""
    def is_so():
        update = server.ask("GET", "/v1/status").body["update"]
        return update is not None and update["phase"] == "receiving" and update["tensor"]

    until(is_so, "the update never began")


def sure(specs, **more):
    return wire(specs, packed=True, expected_digest=digest(specs), **more)


def send(server, trainer, body, specs, data, status=200):
    """A request whose broadcast is on its way before it; not judged further."""
    trainer.begin("send", cut_vllm(specs, data, GIB))
    found = server.post(status, UPDATE, body)
    trainer.result()
    return found


def works(world, server, trainer, label):
    data = world.data()
    push(server, trainer, sure(world.specs, weight_version=label),
         cut_vllm(world.specs, data, GIB), data, label)


# At the same time

def two_updates(world, server, trainer):
    """The second is refused: the order of their broadcasts would be unknown. The first is served."""
    data, specs = world.data(), world.specs
    with Requests(server) as requests:
        first = requests.post(UPDATE, wire(specs, packed=True, weight_version="first of two"))
        await_receiving(server)
        for second in (wire(specs, packed=True, weight_version="second"), sure(specs, partial=True)):
            refuse(server, second, 409, "conflict", "receives by the", path=UPDATE)
        trainer.ask("send", cut_vllm(specs, data, GIB))
        found = first.result()
        must(found.status == 200, f"{found}")
        server.serve(data, found.body)
    server.check("first of two")
    refuse(server, wire(specs, packed=True), 409, "conflict", "expected_digest", path=UPDATE)
    works(world, server, trainer, "after two")


def two_requests_of_a_session(world, server, trainer):
    data, half = world.data(), len(world.specs) // 2
    parts = world.specs[:half], world.specs[half:]
    update_id = server.post(200, START, {})["update_id"]
    with Requests(server) as requests:
        first = requests.post(UPDATE, sure(parts[0], update_id=update_id, chunk_id="0"))
        await_receiving(server)
        refuse(server, sure(parts[1], update_id=update_id, chunk_id="1"), 409, "conflict",
               "receives by the", path=UPDATE)
        refuse(server, sure(parts[0], update_id=update_id, chunk_id="0"), 409, "conflict",
               path=UPDATE)
        trainer.ask("send", cut_vllm(parts[0], data, GIB))
        must(first.result().status == 200, f"{first.result()}")
        send(server, trainer, sure(parts[1], update_id=update_id, chunk_id="1"), parts[1], data)
    server.serve(data, server.post(200, FINISH, {"update_id": update_id}))
    server.check("two requests")


def repeated(world, server, trainer):
    """Whose answer was lost: the first one again, and no broadcast is waited for."""
    data, half = world.data(), len(world.specs) // 2
    parts = world.specs[:half], world.specs[half:]
    update_id = server.post(200, START, {})["update_id"]
    for i, part in enumerate(parts):
        body = sure(part, update_id=update_id, chunk_id=f"c{i}")
        first = send(server, trainer, body, part, data)
        n_broadcasts = group(server)["n_broadcasts"]
        for _ in range(2):
            again = server.post(200, UPDATE, body)
            must(again["n_tensors_done"] == first["n_tensors_done"] and
                 again["nbytes_done"] == first["nbytes_done"], f"{first} {again}")
        refuse(server, sure(part[1:], update_id=update_id, chunk_id=f"c{i}"), 409, "precondition_failed",
               "another tensor list", path=UPDATE)
        must(group(server)["n_broadcasts"] == n_broadcasts, "something was received")
    server.serve(data, server.post(200, FINISH, {"update_id": update_id}))
    server.check("repeated")
    data = world.data()
    body = sure(world.specs, weight_version="whole again", chunk_id="whole")
    found = push(server, trainer, body, cut_vllm(world.specs, data, GIB), data, "whole again")
    again = server.post(200, UPDATE, body)
    must(again["phase"] == "committed" and again["serial"] == found["serial"], f"{again}")
    works(world, server, trainer, "after repeats")


def finish_while_receiving(world, server, trainer):
    """Too early: refused, and it changes nothing. With something missing: the group goes on."""
    data, specs = world.data(), world.specs
    with Requests(server) as requests:
        update_id = server.post(200, START, {"weight_version": "finished"})["update_id"]
        chunk = requests.post(UPDATE, sure(specs, update_id=update_id))
        await_receiving(server)
        refuse(server, {"update_id": update_id}, 409, "conflict", "still being received",
               path=FINISH)
        refuse(server, {}, 409, "conflict", update_id, path=START)
        trainer.ask("send", cut_vllm(specs, data, GIB))
        must(chunk.result().status == 200, f"{chunk.result()}")
        server.serve(data, server.post(200, FINISH, {"update_id": update_id}))
        server.check("finished")
    update_id = server.post(200, START, {})["update_id"]
    send(server, trainer, sure(specs[1:], update_id=update_id), specs[1:], data)
    refuse(server, {"update_id": update_id}, 422, "incomplete_update", path=FINISH)
    server.check("something is missing")
    must(group(server)["state"] == "joined", f"{group(server)}")
    works(world, server, trainer, "after finishes")


def refused_unread(world, server):
    """What is refused before its body is understood may be on its way by the group all the same."""
    body = wire(world.specs, packed=True, weight_version="unread")
    large = {**body, "weight_version": "x" * (1 << 20)}
    for path, sent, status in ((f"{UPDATE}?weight_version=x", body, 400), (UPDATE, large, 413)):
        with world.nccl_trainer() as trainer:
            join(server, trainer)
            data = world.data()
            push(server, trainer, body, cut_vllm(world.specs, data, GIB), data, "not in doubt")
            server.post(status, path, sent)
            refuse(server, body, 409, "conflict", "its bytes arrive next", path=UPDATE)
            works(world, server, trainer, "unread")


def during_init(world, server):
    """An update while the group is being joined; inits at the same time: one of them is the group."""
    with world.nccl_trainer() as trainer, Requests(server) as requests:
        answer = requests.post(INIT, by_id(server, trainer, 3))
        until(lambda: group(server)["state"] == "joining", "the init never began")
        refuse(server, sure(world.specs), 409, "conflict", "still being joined", path=UPDATE)
        server.ask("DELETE", GROUP)
        must(answer.result().status == 409, f"{answer.result()}")
    trainers = [world.nccl_trainer() for _ in range(3)]
    try:
        bodies = [form(server, t) for form, t in zip((by_id, by_store, by_id), trainers)]
        with Requests(server) as requests:
            answers = [a.result() for a in [requests.post(INIT, b) for b in bodies]]
        must(sorted({a.status for a in answers}) in ([200], [200, 409]), f"{[str(a) for a in answers]}")
        found = group(server)
        must(found["state"] == "joined", f"{found}")
        winner = [i for i, a in enumerate(answers) if a.status == 200 and
                  a.body["bootstrap"] == found["bootstrap"]]
        must(len(winner) == 1, f"{found} {[str(a) for a in answers]}")
        trainer = trainers[winner[0]]
        trainer.result()
        works(world, server, trainer, "the last init")
    finally:
        for trainer in trainers:
            trainer.__exit__()


def told_to_send_and_given_up(world, server):
    """An abort that meets a trainer which sends all the same: the bytes must not be the next's."""
    with world.nccl_trainer() as trainer, Requests(server) as requests:
        join(server, trainer)
        update_id = server.post(200, START, {})["update_id"]
        answer = requests.post(UPDATE, sure(world.specs, update_id=update_id))
        await_receiving(server)
        server.post(200, f"{UPDATE}/abort", {"update_id": update_id})
        must(answer.result().status == 409, f"{answer.result()}")
        trainer.begin("send", cut_whole(world.specs, world.data()))
        refuse(server, sure(world.specs), 409, "conflict", "has failed", path=UPDATE)
    with world.nccl_trainer() as trainer, Requests(server) as requests:  # not even joined
        server.post(200, INIT, by_torch(server, trainer, group_name="G"))
        update_id = server.post(200, START, {})["update_id"]
        answer = requests.post(UPDATE, sure(world.specs, update_id=update_id))
        await_receiving(server)
        server.post(200, f"{UPDATE}/abort", {"update_id": update_id})
        must(answer.result().status == 409, f"{answer.result()}")
        until(lambda: group(server)["state"] == "failed", "the trainer may send what was given up")
        refuse(server, sure(world.specs), 409, "conflict", "has failed", path=UPDATE)
    server.check("given up")


# In every way

def kinds(world, server, trainer):
    """Partial, in place, proven by checksums, converted; what is wrong costs the update alone."""
    specs, data = world.specs, world.data()
    part = world.rng.sample(specs, len(specs) // 3)
    some = {s.name: data[s.name] for s in part}
    found = send(server, trainer, sure(part, partial=True, weight_version="partial"), part, data)
    server.serve({**server.served, **some}, found)
    server.check("partial")

    sums = [baton.checksum(data[s.name]) for s in specs]
    wrong = list(sums)
    wrong[7] = "0" * 32
    e = send(server, trainer, sure(specs, checksums=wrong), specs, data, 422)["error"]
    must(e["code"] == "checksum_mismatch" and e["param"] == "/checksums/7", f"{e}")
    server.check("a wrong checksum")
    found = push(server, trainer, sure(specs, checksums=sums, weight_version="proven"),
                 cut_vllm(specs, data, GIB), data, "proven")
    must(found["checksums_on"] == "gpu", f"{found}")

    data = world.data()
    update_id = server.post(200, START, {})["update_id"]
    shuffled = world.rng.sample(specs, len(specs))
    for part in (shuffled[:20], shuffled[20:]):
        send(server, trainer, sure(part, update_id=update_id), part, data)
    found = server.post(200, FINISH, {"update_id": update_id})
    server.serve(data, found)
    server.check("shuffled, in two parts")

    wide, sent, kept = widened(world)
    refuse(server, sure(wide), 422, "manifest_mismatch", path=UPDATE)
    found = send(server, trainer, sure(wide, convert=True, weight_version="wide"), wide, sent)
    server.serve(kept, found)
    server.check("converted")


def widened(world):
    """bfloat16 tensors sent as float32 whose lower halves are zero; all others as they are."""
    kept, sent, wide = world.data(), {}, []
    for s in world.specs:
        sent[s.name] = kept[s.name]
        wide.append(s)
        if s.dtype != "BF16":
            continue
        words = [w & 0x7f7f for w in struct.unpack(f"<{s.numel}H", kept[s.name])]  # no NaN
        kept[s.name] = struct.pack(f"<{s.numel}H", *words)
        sent[s.name] = struct.pack(f"<{s.numel}I", *(w << 16 for w in words))
        wide[-1] = Spec(s.name, "F32", s.shape)
    return wide, sent, kept


def progress_has_a_rate(world, server, trainer):
    with Requests(server) as requests:
        answer = requests.post(UPDATE, wire(world.specs))
        await_receiving(server)
        data = world.data()
        first = world.specs[0]
        trainer.ask("send", [data[first.name]])
        seen = {}

        def has_come():
            seen.update(server.ask("GET", "/v1/status").body["update"])
            return seen["n_tensors_done"] > 0

        until(has_come, "no progress is told")
        must(seen["nbytes_done"] == first.nbytes and seen["n_tensors_done"] == 1 and
             seen["nbytes_per_s"] > 0 and seen["tensor"] == world.specs[1].name, f"{seen}")
        trainer.ask("send", [data[s.name] for s in world.specs[1:]])
        found = answer.result()
        must(found.status == 200 and found.body["nbytes_per_s"] > 0, f"{found}")
        server.serve(data, found.body)
    server.check("progress")


def sharded(world):
    """A broadcast brings everything to every rank."""
    with world.serve(devices="cuda:0,cuda:1", n_devices="2") as server, \
            world.nccl_trainer() as trainer:
        join(server, trainer, by_id, 3)
        refuse(server, sure(world.specs, placement="sharded"), 409, "precondition_failed", "sharded",
               param="/placement", path=UPDATE)
        update_id = server.post(200, START, {"placement": "sharded"})["update_id"]
        refuse(server, sure(world.specs, update_id=update_id), 409, "precondition_failed", "sharded",
               param="/placement", path=UPDATE)
        server.ask("DELETE", f"{UPDATE}/{update_id}")
        works(world, server, trainer, "not sharded")


def mirrored(world):
    """With an engine, which generates from the host's copy: of what came by the group."""
    report = os.path.join(world.folder, "nccl-mirror")
    server = Server(world, "--model", world.model, "--weights", "none", "--device", "cuda:0",
                    "--nccl-library", world.nccl, devices="1", FAKENCCL_REPORT=report)
    with Ended(server, report), world.nccl_trainer() as trainer:
        join(server, trainer, by_store)
        for label, bound in (("step-00100", GIB), ("step-01500", 100000)):
            tensors = baton.load_file(f"{world.model}/checkpoints/{label}.safetensors")
            specs = [Spec(n, x.dtype, x.shape) for n, x in tensors.items()]
            data = {n: bytes(x.data) for n, x in tensors.items()}
            trainer.begin("send", cut_vllm(specs, data, bound))
            server.post(200, UPDATE, sure(specs, bucket_nbytes=bound, weight_version=label), label)
            trainer.result()
            with open(f"{world.model}/golden.json", encoding="utf-8") as f:
                golden = json.load(f)["checkpoints"][label]["cases"][0]["greedy_text"]
            made = server.post(200, "/v1/completions", {"prompt": "In the beginning",
                                                        "max_tokens": 24, "temperature": 0})
            must(made["choices"][0]["text"] == golden, f"{label}: {made}")


def drained(world):
    """SIGTERM while a broadcast, or a trainer, is waited for: an answer, and a good end."""
    for what in ("receiving", "joining", "counted"):
        with world.serve("--drain-timeout", "200") as server, world.nccl_trainer() as trainer, \
                Requests(server) as requests:
            if what == "receiving":
                join(server, trainer)
                answer = requests.post(UPDATE, wire(world.specs))
                await_receiving(server)
            elif what == "joining":
                answer = requests.post(INIT, by_id(server, trainer, 3))
                until(lambda: group(server)["state"] == "joining", "the init never began")
            else:
                server.post(200, INIT, by_torch(server, trainer, group_name="G"))
                answer = requests.post(UPDATE, wire(world.specs))
                await_receiving(server)
            server.process.terminate()
            found = answer.result()
            must(found.status == 503 and found.body["error"]["code"] == "draining", f"{found}")
            must(server.process.wait(WAIT_S) == 3, f"its drain was not cut: {server.tail()}")
            server.stop = lambda: None  # it has


def stuck(world):
    """An abort that does not return: it is reported, the server is not live and joins no other group, but it
    can stop."""
    server = world.serve("--update-timeout", "500", FAKENCCL_ABORT_STICKS="1").server
    try:
        must(server.ask("GET", "/health/live").status == 200, "live")
        with world.nccl_trainer() as trainer:
            join(server, trainer)
            answer = server.ask("POST", UPDATE, wire(world.specs, packed=True))
            must(answer.status == 500, f"{answer}")
            until(lambda: server.ask("GET", "/health/live").status == 500, "it still says live")
            found = group(server)
            must(found["state"] == "stuck", f"{found}")
            status = server.ask("GET", "/v1/status").body
            must(status["live"] is False and status["ready"] is False, f"{status}")
            refuse(server, by_id(server, trainer), 500, "nccl_error", "restarted")
        server.process.terminate()
        must(server.process.wait(60) == 0, f"it ended badly: {server.tail()}")
    finally:
        server.process.kill()
        server.process.wait()


def main():
    faulthandler.dump_traceback_later(GIVE_UP_S, exit=True)
    world = Groups(*sys.argv[1:8], seed=sys.argv[8] if len(sys.argv) > 8 else os.urandom(4).hex())
    try:
        run(world)
    finally:
        shutil.rmtree(world.folder)


def run(world):
    with world.serve("--json-body-max", str(1 << 19)) as server:
        for step in (refused_unread, during_init, told_to_send_and_given_up):
            step(world, server)
        with world.nccl_trainer() as trainer:
            join(server, trainer)
            for step in (progress_has_a_rate, two_updates, two_requests_of_a_session, repeated,
                         finish_while_receiving, kinds):
                step(world, server, trainer)
    sharded(world)
    mirrored(world)
    drained(world)
    stuck(world)
    print(f"ok: {must.n} checks")


if __name__ == "__main__":
    main()
