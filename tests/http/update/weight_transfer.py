"""Weights by NCCL: trainers that are other processes form a group with the server in each of the
three forms, broadcast in each of the three ways, and die, stall and send wrong data in all of
them. Parts that mostly wait for deadlines run at the same time, each with a server of its own.
Usage: weight_transfer.py BATON MODEL CLIENT_DIR FAKECUDA FAKENCCL TRAINERS_FAKECUDA TRAINERS_FAKENCCL
[SEED]"""

import base64
import concurrent.futures
import faulthandler
import os
import shutil
import socket
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[3] if len(sys.argv) > 3 else "")

import forked  # noqa: E402
from ipc_world import WAIT_S, must  # noqa: E402
from transfer_world import (GIB, GROUP, INIT, UPDATE, Groups, Requests,  # noqa: E402
                            TrainerError, by_id, by_store, by_torch, cut_each, cut_vllm, cut_whole,
                            digest, group, hanging_post, join, push, refuse, wire)

import baton  # noqa: E402

N_KILLS = 9
N_AT_ONCE = 4  # parts
GIVE_UP_S = 280
START, FINISH = "/v1/update_weights/start", "/v1/update_weights/finish"
VAIN_S = 3  # timeout of a join that cannot succeed: long enough to reach the step at which it waits
UPDATE_S = 3  # --update-timeout of the server that is made to wait in vain
LATE_S = 20  # how much later than a deadline the answer may come, on the busiest machine


def until(true, what):
    """Asks again until it is so."""
    end = time.monotonic() + WAIT_S
    while not true():
        must(time.monotonic() < end, what)
        time.sleep(0.01)


def one_update(world, server, trainer, label):
    """Does the group work?"""
    data = world.data()
    push(server, trainer, wire(world.specs, packed=True, weight_version=label),
         cut_vllm(world.specs, data, GIB), data, label)


def rejoin(world, server, label, form=by_id):
    """After whatever happened: the next init works, and so does an update."""
    with world.nccl_trainer() as trainer:
        join(server, trainer, form)
        one_update(world, server, trainer, label)
    server.check(label)


def sent(trainer):
    """The end of a broadcast that may never end: its trainer is given up."""
    trainer.kill()


# What works

def each_way(world, server, trainer, what):
    specs, data = world.specs, world.data()
    total = sum(s.nbytes for s in specs)
    push(server, trainer, wire(specs, packed=True, sizes=[s.numel for s in specs],
                               weight_version=f"{what} whole"), cut_whole(specs, data), data, what)
    for bound in (1, 1000, total // 3, total - 1, total):
        data = world.data()
        blobs = cut_vllm(specs, data, bound)
        member = world.rng.choice(["bucket_nbytes", "packed_buffer_size_bytes"])
        found = push(server, trainer, wire(specs, packed=True, weight_version=f"{what} {bound}",
                                           **{member: bound}), blobs, data, f"{what} {bound}")
        must(found["nbytes_done"] == total, f"{found}")
    data = world.data()
    push(server, trainer, wire(specs, packed=True, weight_version=f"{what} vllm"),
         cut_vllm(specs, data, GIB), data, f"{what} vllm")
    for packed in ({}, {"packed": False}):
        data = world.data()
        push(server, trainer, wire(specs, weight_version=f"{what} each", **packed),
             cut_each(specs, data), data, f"{what} each")
    data = world.data()
    sums = [baton.checksum(data[s.name]) for s in specs]
    push(server, trainer, wire(specs, packed=True, weight_version=f"{what} sums", checksums=sums,
                               expected_digest=digest(specs).upper()),
         cut_vllm(specs, data, GIB), data, f"{what} sums")
    shuffled = world.rng.sample(specs, len(specs))
    data = world.data()
    push(server, trainer, wire(shuffled, packed=True, bucket_nbytes=5000,
                               weight_version=f"{what} shuffled"),
         cut_vllm(shuffled, data, 5000), data, f"{what} shuffled")


def packed_by_group(world, server):
    """What was said at the join holds for updates that do not say it; what they say is so."""
    specs, bound = world.specs, 1000
    with world.nccl_trainer() as trainer:
        join(server, trainer, by_id, packed=True, bucket_nbytes=bound, packed_num_buffers=3)
        for says, cut in (({}, cut_vllm), ({"packed": True}, cut_vllm), ({"packed": False}, None)):
            data = world.data()
            push(server, trainer, wire(specs, **says), cut(specs, data, bound) if cut else cut_each(specs, data),
                 data, f"packed by the group, {says}")
        data = world.data()
        push(server, trainer, wire(specs, packed=True, bucket_nbytes=3000), cut_vllm(specs, data, 3000), data,
             "another bound")
        sizes = [s.numel for s in specs]
        refuse(server, wire(specs, sizes=sizes), 400, "bad_request", "the group", param="/sizes", path=UPDATE)
        rejoin(world, server, "after sizes")
    with world.nccl_trainer() as trainer:
        join(server, trainer, by_id, packed=True)
        data = world.data()
        push(server, trainer, wire(specs, packed=True, sizes=sizes), cut_whole(specs, data), data, "whole")
        server.post(200, INIT, {"transport": "ipc", "packed": True})  # which is no group, and leaves this
        data = world.data()
        push(server, trainer, wire(specs), cut_vllm(specs, data, GIB), data, "as by default")
    with world.nccl_trainer() as trainer:
        join(server, trainer, by_id)  # and nothing of the last one's
        data = world.data()
        push(server, trainer, wire(specs), cut_each(specs, data), data, "each")


def by_session(world, server, trainer):
    """Buckets in requests of their own, by plan or by name; then what was proven is served."""
    data, half = world.data(), len(world.specs) // 2
    parts = world.specs[:half], world.specs[half:]
    plan_id = server.post(200, "/v1/weights/plans", wire_plan(parts[0]))["plan_id"]
    must(plan_id == digest(parts[0]), f"a plan's id is its digest: {plan_id}")
    update_id = server.post(200, START, {"weight_version": "session"})["update_id"]
    for body, part in (({"transport": "nccl", "plan_id": plan_id}, parts[0]),
                       (wire(parts[1]), parts[1])):
        trainer.begin("send", cut_whole(part, data))
        server.post(200, UPDATE, {**body, "update_id": update_id, "packed": True,
                                  "bucket_nbytes": GIB, "expected_digest": digest(part)})
        trainer.result()
    found = server.post(200, FINISH, {"update_id": update_id})
    server.serve(data, found)
    server.check("session")


def wire_plan(specs):
    return {k: v for k, v in wire(specs).items() if k != "transport"}


def forms(world, server):
    for form in (by_id, by_store, by_torch):
        what = form.__name__
        with world.nccl_trainer() as trainer:
            found = join(server, trainer, form)
            if form is by_torch:
                until(lambda: group(server)["state"] == "joined", "it was never joined")
                trainer.result()
                found = group(server)
            must(found["world_size"] == 2 and found["rank_offset"] == 1 and
                 [(r["rank"], r["place"]) for r in found["ranks"]] == [(1, "cuda:0")], f"{found}")
            must(found["trainer_nccl_version"] == "2.28.9" and
                 found["bootstrap"].startswith("127.0.0.1:"), f"{found}")
            must((found["master"] is None) == (form is by_id), f"{found}")
            must(found["group_name"] == ("slime-pp_0" if form is by_torch else None), f"{found}")
            each_way(world, server, trainer, what)
            by_session(world, server, trainer)
            found = group(server)
            must(found["state"] == "joined" and found["n_broadcasts"] > 30 and
                 found["nbytes_received"] > 10 * sum(s.nbytes for s in world.specs), f"{found}")
            if form is not by_id:
                must(trainer.ask("counted") == 2, "counted in twice")
    status = server.ask("GET", "/v1/status").body["nccl"]
    must(status["available"] and status["version"] == "2.28.9" and status["reason"] is None and
         status["group"]["world_size"] == 2, f"{status}")
    must(server.metric("baton_nccl_joins_total") == 3, "joins are counted")
    must(server.metric('baton_nccl_broadcasts_total') > 90, "broadcasts are counted")


def replaced(world, server):
    """A second init leaves the first group, whose trainer may still live."""
    with world.nccl_trainer() as first, world.nccl_trainer() as second:
        join(server, first)
        one_update(world, server, first, "first")
        join(server, second, by_store)
        one_update(world, server, second, "second")
        left = server.ask("DELETE", GROUP)
        must(left.status == 200 and left.body["state"] == "none", f"{left}")
        must(group(server)["state"] == "none", "it was left")
        again = server.ask("DELETE", GROUP)
        must(again.status == 200 and again.body["state"] == "none", f"{again}")
        refuse(server, wire(world.specs), 409, "conflict", "init", param="/transport", path=UPDATE)


def torch_waits(world, server):
    """The update is there before the trainer's first collective: it joins first."""
    with world.nccl_trainer() as trainer, Requests(server) as requests:
        invitation = by_torch(server, trainer, group_name="G")
        found = server.post(200, INIT, invitation)
        must(found["state"] == "joining" and found["bootstrap"] is None, f"{found}")
        data = world.data()
        answer = requests.post(UPDATE, wire(world.specs, weight_version="torch"))
        until(lambda: (server.ask("GET", "/v1/status").body["update"] or {}).get("phase") ==
              "receiving", "the update never began")
        must(group(server)["state"] == "joining" and not answer.done(), "it did not wait")
        refuse(server, invitation, 409, "conflict", "receives by the")
        trainer.ask("first_collective", "G", 2)
        trainer.ask("send", cut_each(world.specs, data))
        found = answer.result()
        must(found.status == 200, f"{found}")
        server.serve(data, found.body)
    server.check("torch")


# What is refused

def bad_inits(_world, server):
    none = group(server)
    good = base64.b64encode(bytes(128)).decode()
    at = {"transport": "nccl", "world_size": 2}
    store = {**at, "master_address": "127.0.0.1", "master_port": 1}
    for body, param, *words in (
            ({}, "/transport"), ({"transport": "shm", "world_size": 2}, "/transport", "'shm'"),
            ({"transport": "ipc", "world_size": 2}, "/world_size"),
            ({"transport": "nccl"}, "/world_size"), ({**at}, None, "nccl_unique_id"),
            ({**at, "world_size": 1, "nccl_unique_id": good}, "/world_size", "expected 2 to 128"),
            ({**at, "world_size": 129, "nccl_unique_id": good}, "/world_size", "expected 2 to 128"),
            ({**at, "rank_offset": 0, "nccl_unique_id": good}, "/rank_offset"),
            ({**at, "rank_offset": 2, "nccl_unique_id": good}, "/rank_offset", "ranks 2 to 2"),
            ({**at, "nccl_unique_id": good[:-4]}, "/nccl_unique_id"),
            ({**at, "nccl_unique_id": good[:-1] + "!"}, "/nccl_unique_id"),
            ({**at, "nccl_unique_id": ""}, "/nccl_unique_id"),
            ({**store, "nccl_unique_id": good}, "/master_address", "send one"),
            ({**at, "nccl_unique_id": good, "group_name": "g"}, "/group_name", "send one"),
            ({**at, "master_address": "127.0.0.1"}, "/master_port", "together"),
            ({**at, "master_port": 1}, "/master_address", "together"),
            ({**store, "master_port": 0}, "/master_port"),
            ({**store, "master_port": 65536}, "/master_port"),
            ({**store, "master_address": ""}, "/master_address"),
            ({**store, "master_address": "x" * 256}, "/master_address", "255"),
            ({**store, "group_name": ""}, "/group_name"),
            ({**store, "group_name": "a\nb"}, "/group_name", "control"),
            ({**store, "group_name": "g" * 257}, "/group_name", "256"),
            ({**store, "timeout_s": 0}, "/timeout_s"),
            ({**store, "timeout_s": 86401}, "/timeout_s"),
            ({**store, "warm_up": 1}, "/warm_up"),
            ({**store, "packed": 1}, "/packed"),
            ({**store, "bucket_nbytes": 5}, "/bucket_nbytes", "packed"),
            ({**store, "packed": False, "packed_buffer_size_bytes": 5}, "/packed_buffer_size_bytes"),
            ({**store, "packed": True, "bucket_nbytes": 0}, "/bucket_nbytes"),
            ({**store, "packed": True, "packed_num_buffers": 0}, "/packed_num_buffers"),
            ({"transport": "ipc", "packed": 1}, "/packed"),
            ({"transport": "ipc", "packed": True, "bucket_nbytes": 5}, "/bucket_nbytes"),
            ({**store, "worldsize": 2}, "/worldsize", "world_size"),
            ({**store, "master_address": "no!host", "timeout_s": 20},  # none, and no DNS is asked
             "/master_address", "no!host")):
        refuse(server, body, 400, "bad_request", *words, param=param)
    must(none["state"] == "none" and none["world_size"] is None and none["ranks"] == [] and
         none["nccl_version"] == "2.28.9" and none["error"] is None, f"{none}")
    must(group(server)["state"] == "failed", "something was joined")


def bad_updates(world, server):
    specs = world.specs
    for body, param, *words in (
            ({**wire(specs), "transport": "ipc"}, "/transport", "'ipc'"),
            (wire(specs, path="/x"), "/transport", "exactly one"),
            (wire(specs, bucket_nbytes=5), "/bucket_nbytes", "packed"),
            (wire(specs, packed=True, bucket_nbytes=0), "/bucket_nbytes"),
            (wire(specs, packed=True, bucket_nbytes=5, packed_buffer_size_bytes=5),
             "/packed_buffer_size_bytes", "one member"),
            (wire(specs, packed=True, bucket_nbytes=5, sizes=[s.numel for s in specs]), "/sizes"),
            (wire(specs, expected_digest="00"), "/expected_digest", "64"),
            (wire(specs, expected_digest="g" * 64), "/expected_digest", "64"),
            (wire(specs, tensor_sizes=[1]), "/tensor_sizes"),
            (wire(specs, per_gpu={}), "/per_gpu"),
            (wire(specs, checksums=["0"]), "/checksums"),
            ({"transport": "nccl"}, "/names"),
            ({"path": "/x", "expected_digest": "0" * 64}, "/expected_digest", "transport"),
            ({"path": "/x", "bucket_nbytes": 1}, "/bucket_nbytes", "transport")):
        refuse(server, body, 400, "bad_request", *words, param=param, path=UPDATE)
    refuse(server, wire(specs, expected_digest="0" * 64), 409, "precondition_failed", digest(specs),
           param="/expected_digest", path=UPDATE)
    refuse(server, {"transport": "nccl", "plan_id": "0" * 64}, 404, "not_found", path=UPDATE)


def in_doubt(world, server):
    """A refused update's broadcast may be on its way: it must not be taken for the next one's."""
    specs = world.specs
    with world.nccl_trainer() as trainer:
        join(server, trainer)
        bad_updates(world, server)
        refuse(server, wire(specs, packed=True), 409, "conflict", "expected_digest", path=UPDATE)
        data = world.data()
        push(server, trainer, wire(specs, packed=True, expected_digest=digest(specs),
                                   weight_version="sure"), cut_vllm(specs, data, GIB), data, "sure")
        server.check("sure")
    with world.nccl_trainer() as trainer:
        join(server, trainer)
        stale = world.data()
        trainer.begin("send", cut_whole(specs, stale))
        refuse(server, wire(specs[1:], packed=True), 422, "incomplete_update", path=UPDATE)
        refuse(server, wire(specs, packed=True), 409, "conflict", "its bytes arrive next", path=UPDATE)
        server.check("stale bytes")
    rejoin(world, server, "after doubt")


def unable(world):
    """Without a GPU, without NCCL: judged first, then told."""
    good = {"transport": "nccl", "world_size": 2,
            "nccl_unique_id": base64.b64encode(bytes(128)).decode()}
    with world.store("cpu") as server:
        refuse(server, {**good, "nccl_unique_id": "x"}, 400, "bad_request")
        refuse(server, good, 409, "no_gpu", "--device")
        refuse(server, wire(world.specs), 409, "no_gpu", path=UPDATE)
        must(group(server)["state"] == "none", "none")
        status = server.ask("GET", "/v1/status").body["nccl"]
        must(not status["available"] and "not looked for" in status["reason"], f"{status}")
    with world.store("cuda:0", "1", "--nccl-library", "/nowhere/libnccl.so.2") as server:
        refuse(server, {**good, "nccl_unique_id": "x"}, 400, "bad_request")
        refuse(server, good, 409, "no_nccl", "could not be loaded", "--nccl-library")
        refuse(server, wire(world.specs), 409, "no_nccl", path=UPDATE)
        status = server.ask("GET", "/v1/status").body["nccl"]
        must(not status["available"] and "could not be loaded" in status["reason"], f"{status}")


def allowed(world):
    """Whom --nccl-allow-cidr leaves out is not connected to, neither as a store nor by an id."""
    with world.serve("--nccl-allow-cidr", "10.0.0.0/8", "--nccl-allow-cidr", "192.0.2.7") as server, \
            world.nccl_trainer() as trainer:
        body = by_id(server, trainer)
        refuse(server, body, 403, "forbidden", "127.0.0.1", param="/nccl_unique_id")
        refuse(server, {**body, "nccl_unique_id": base64.b64encode(bytes(128)).decode()}, 403,
               "forbidden", param="/nccl_unique_id")
    with world.serve("--nccl-allow-cidr", "10.0.0.0/8") as server, world.nccl_trainer() as trainer:
        body = by_store(server, trainer)
        refuse(server, body, 403, "forbidden", "127.0.0.1", param="/master_address")
        must(trainer.process.is_alive(), "it was counted in")
        must(group(server)["state"] == "failed", f"{group(server)}")
    with world.serve("--nccl-allow-cidr", "127.0.0.0/8") as server, world.nccl_trainer() as trainer:
        join(server, trainer, by_store)
        one_update(world, server, trainer, "allowed")


# Who does not come

def timed(ask, seconds, what):
    began = time.monotonic()
    answer = ask()
    took = time.monotonic() - began
    must(took <= seconds + LATE_S, f"{what}: the answer took {took:.2f} s")
    return answer


def nobody_joins(world, server):
    with world.nccl_trainer() as trainer:
        unique_id = base64.b64encode(trainer.ask("mint")).decode()
        body = {"transport": "nccl", "world_size": 2, "nccl_unique_id": unique_id,
                "timeout_s": VAIN_S}
        e = timed(lambda: refuse(server, body, 408, "timeout", "NCCL_CUMEM_ENABLE", "2.28.9"), VAIN_S,
                  "nobody joins")
        must(e["retryable"], f"{e}")
        found = group(server)
        must(found["state"] == "failed" and found["error"]["code"] == "timeout" and
             found["bootstrap"].startswith("127.0.0.1:"), f"{found}")
        refuse(server, wire(world.specs), 409, "conflict", "has failed", path=UPDATE)
    with socket.socket() as closed:  # a port that is taken, and not listened at
        closed.bind(("127.0.0.1", 0))
        body = {"transport": "nccl", "world_size": 2, "master_address": "127.0.0.1",
                "master_port": closed.getsockname()[1], "timeout_s": VAIN_S}
        timed(lambda: refuse(server, body, 408, "timeout", "nobody listened"), VAIN_S, "nobody")
    rejoin(world, server, "after nobody")


def no_unique_id(world, server):
    """The server is counted in, and then no id comes."""
    with world.nccl_trainer() as trainer:
        port = trainer.ask("open_store")
        body = {"transport": "nccl", "world_size": 2, "master_address": "127.0.0.1",
                "master_port": port, "timeout_s": VAIN_S}
        timed(lambda: refuse(server, body, 408, "timeout", "broadcast_from/0/0"), VAIN_S, "no id")
        body["group_name"] = "late"
        server.post(200, INIT, body)
        until(lambda: group(server)["state"] == "failed", "the torch group waits for ever")
        must("first collective" in group(server)["error"]["message"], f"{group(server)}")
    rejoin(world, server, "after no id")


def wrong_world(world, server):
    """One of the two expects three: NCCL says nothing, ever."""
    for theirs, ours in ((3, 2), (2, 3)):
        with world.nccl_trainer() as trainer:
            body = by_id(server, trainer, theirs, timeout_s=VAIN_S)
            timed(lambda: refuse(server, {**body, "world_size": ours}, 408, "timeout",
                                 "world_size"), VAIN_S, "another world")
    rejoin(world, server, "after another world")


def wrong_version(world, server):
    with world.nccl_trainer(FAKENCCL_VERSION="22803") as trainer:
        refuse(server, by_id(server, trainer), 500, "nccl_error", "2.28.9", "2.28.3")
        must(group(server)["trainer_nccl_version"] == "2.28.3", f"{group(server)}")
    rejoin(world, server, "after another version")


def bad_stores(world, server):
    """Garbage, lengths of gigabytes, hanging up, silence: an answer, and soon."""
    def lie(script, timeout_s):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            def serve():
                try:
                    peer, _ = listener.accept()
                    with peer:
                        script(peer)
                except OSError:
                    pass

            thread = threading.Thread(target=serve)
            thread.start()
            body = {"transport": "nccl", "world_size": 2, "master_address": "127.0.0.1",
                    "master_port": listener.getsockname()[1], "timeout_s": timeout_s}
            answer = timed(lambda: server.ask("POST", INIT, body), timeout_s, "a bad store")
            thread.join()
            return answer

    def silence(peer):
        while peer.recv(1000):
            pass

    def hand_shake(peer):
        peer.recv(5, socket.MSG_WAITALL)
        peer.sendall(peer.recv(5, socket.MSG_WAITALL)[1:])

    def gigabytes(peer):
        hand_shake(peer)
        peer.recv(100)
        peer.sendall((2).to_bytes(8, "little"))
        peer.recv(100)
        peer.sendall(b"\x00")
        peer.recv(100)
        peer.sendall((1 << 62).to_bytes(8, "little"))

    def no_pickle(peer):
        hand_shake(peer)
        peer.recv(100)
        peer.sendall((2).to_bytes(8, "little"))
        peer.recv(100)
        peer.sendall(b"\x00")
        peer.recv(100)
        peer.sendall((200).to_bytes(8, "little") + b"c" * 200)
        peer.recv(1)

    for script, status in ((lambda p: p.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), 422),
                           (lambda p: None, 422), (silence, 408), (gigabytes, 422),
                           (no_pickle, 422)):
        answer = lie(script, 1 if status == 408 else 60)
        must(answer.status == status, f"{answer}")
        must(group(server)["state"] == "failed", f"{group(server)}")
    rejoin(world, server, "after bad stores", by_store)


# Who goes, stalls, or sends too little

def broken(world, server, what, form=by_id, deadline_s=UPDATE_S, **environment):
    """An update whose trainer does not bring it to its end: answered in time, nothing is taken."""
    before = server.served
    with world.nccl_trainer(**environment) as trainer, Requests(server) as requests:
        join(server, trainer, form)
        data = world.data()
        began = time.monotonic()
        answer = requests.post(UPDATE, wire(world.specs, weight_version=what))
        trainer.begin("send", cut_each(world.specs, data))
        answer = answer.result()
        took = time.monotonic() - began
        must(took <= deadline_s + LATE_S, f"{what}: the answer took {took:.2f} s")
        must(answer.status >= 400, f"{what}: {answer}")
        message = answer.body["error"]["message"]
        must("the group has failed" in message, f"{what}: {message}")
        found = group(server)
        must(found["state"] == "failed" and found["error"] is not None, f"{what}: {found}")
        must(server.served is before, what)
        server.check(what)
        refuse(server, wire(world.specs), 409, "conflict", "has failed", path=UPDATE)
    return answer.body["error"]


def first(world, server):
    rejoin(world, server, "first")


def dies(world, server):
    total = sum(s.nbytes for s in world.specs)
    e = broken(world, server, "dies", FAKENCCL_DIE_AFTER_BYTES=str(total // 2))
    must(e["code"] == "timeout", f"{e}")
    rejoin(world, server, "after death")
    e = broken(world, server, "dies with its store", by_store, deadline_s=1.0,
               FAKENCCL_DIE_AFTER_BYTES=str(total // 2))
    must(e["code"] == "source_unreadable" and "closed the connection" in e["message"], f"{e}")
    rejoin(world, server, "after its store")


def stalls(world, server):
    total = sum(s.nbytes for s in world.specs)
    e = broken(world, server, "stalls", FAKENCCL_STALL_AFTER_BYTES=str(total // 3))
    must(e["code"] == "timeout", f"{e}")
    rejoin(world, server, "after a stall", by_store)
    e = broken(world, server, "short", FAKENCCL_SHORT="1")
    must(e["code"] == "timeout", f"{e}")
    rejoin(world, server, "after too little")


def hung_inits(world, server):
    with world.nccl_trainer(FAKENCCL_REFUSE_JOIN="1") as trainer:
        body = by_id(server, trainer, timeout_s=VAIN_S)
        timed(lambda: refuse(server, body, 408, "timeout"), VAIN_S, "a trainer that cannot join")
    with world.nccl_trainer(FAKENCCL_HANG_INIT="1") as trainer:
        body = by_id(server, trainer, timeout_s=VAIN_S)
        timed(lambda: refuse(server, body, 408, "timeout", "NCCL_CUMEM_ENABLE"), VAIN_S,
              "a hung init")
    rejoin(world, server, "after hung inits")


def never_sends(world, server):
    """An update without a broadcast; meanwhile all other requests are answered."""
    with world.nccl_trainer() as trainer, Requests(server) as requests:
        join(server, trainer)
        answer = requests.post(UPDATE, wire(world.specs, packed=True))
        until(lambda: (server.ask("GET", "/v1/status").body["update"] or {}).get("phase") ==
              "receiving", "the update never began")
        found = server.ask("GET", "/v1/status").body["update"]
        must(found["nbytes_done"] == 0 and found["deadline_left_s"] <= UPDATE_S, f"{found}")
        refuse(server, {**by_store(server, trainer), "timeout_s": 1}, 409, "conflict",
               "receives by the")
        found = answer.result()
        must(found.status == 408, f"{found}")
    rejoin(world, server, "after silence")


def progress(world, server):
    """The received bytes are reported while the rest is awaited."""
    half = sum(s.nbytes for s in world.specs[:len(world.specs) // 2])
    with world.nccl_trainer(FAKENCCL_STALL_AFTER_BYTES=str(half + 1)) as trainer, \
            Requests(server) as requests:
        join(server, trainer)
        update_id = server.post(200, START, {})["update_id"]
        answer = requests.post(UPDATE, wire(world.specs, update_id=update_id))
        trainer.begin("send", cut_each(world.specs, world.data()))
        until(lambda: server.ask("GET", f"{UPDATE}/{update_id}").body["nbytes_done"] >= half,
              "no progress is told")
        found = server.ask("GET", f"{UPDATE}/{update_id}").body
        must(found["tensor"] in [s.name for s in world.specs], f"{found}")
        server.post(200, f"{UPDATE}/abort", {"update_id": update_id})
        found = timed(answer.result, 0.5, "an abort")
        must(found.status == 409, f"{found}")
    rejoin(world, server, "after an abort")


def deleted(world, server):
    """DELETE while an update is receiving; and while an init waits."""
    with world.nccl_trainer() as trainer, Requests(server) as requests:
        join(server, trainer)
        answer = requests.post(UPDATE, wire(world.specs, packed=True))
        until(lambda: (server.ask("GET", "/v1/status").body["update"] or {}).get("phase") ==
              "receiving", "the update never began")
        left = timed(lambda: server.ask("DELETE", GROUP), 0.5, "a DELETE")
        must(left.status == 200 and left.body["state"] == "none", f"{left}")
        found = answer.result()
        must(found.status == 409 and "left" in found.body["error"]["message"], f"{found}")
    with world.nccl_trainer() as trainer, Requests(server) as requests:
        body = {**by_id(server, trainer, 3)}
        answer = requests.post(INIT, body)
        until(lambda: group(server)["state"] == "joining", "the init never began")
        server.ask("DELETE", GROUP)
        found = timed(answer.result, 0.5, "an init that was left")
        must(found.status == 409 and "left" in found.body["error"]["message"], f"{found}")
    with world.nccl_trainer() as trainer, Requests(server) as requests:
        answer = requests.post(INIT, by_id(server, trainer, 3))
        until(lambda: group(server)["state"] == "joining", "the init never began")
        rejoin(world, server, "in its place")
        found = answer.result()
        must(found.status == 409 and "place" in found.body["error"]["message"], f"{found}")


def clients_go(world, server):
    """A trainer's HTTP connection ends while its update, or its init, is under way."""
    with world.nccl_trainer() as trainer:
        join(server, trainer)
        with hanging_post(server, UPDATE, wire(world.specs, packed=True)):
            until(lambda: (server.ask("GET", "/v1/status").body["update"] or {}).get("phase") ==
                  "receiving", "the update never began")
        timed(lambda: until(lambda: group(server)["state"] == "failed", "it waits on"), 0.5,
              "a client that went")
        must(group(server)["error"]["code"] == "client_gone", f"{group(server)}")
    with world.nccl_trainer() as trainer:
        with hanging_post(server, INIT, by_id(server, trainer, 3)):
            until(lambda: group(server)["state"] == "joining", "the init never began")
        timed(lambda: until(lambda: group(server)["state"] == "failed", "it waits on"), 0.5,
              "an inviter that went")
        must(group(server)["error"]["code"] == "client_gone", f"{group(server)}")
    rejoin(world, server, "after clients went", by_torch)


def killed(world, server):
    """SIGKILL at any moment of a join or an update: an answer, and the next one works."""
    before = None
    for i in range(N_KILLS):
        form, update = (by_id, by_store, by_torch)[i % 3], None
        data = world.data()
        with world.nccl_trainer() as trainer, Requests(server) as requests:
            kill = threading.Timer(world.rng.random() * 0.06, trainer.kill)
            kill.start()
            try:
                answer = requests.post(INIT, form(server, trainer, timeout_s=2)).result()
                if answer.status == 200:
                    if form is by_torch:
                        trainer.begin("first_collective", "slime-pp_0", 2)
                    update = requests.post(UPDATE, wire(world.specs, weight_version=f"killed {i}"))
                    trainer.begin("send", cut_each(world.specs, data))
            except (TrainerError, EOFError, OSError):
                pass  # it died before it sent its parameters, or before it was ordered to send
            if update is not None and update.result().status == 200:
                server.serve(data, update.result().body)
            kill.join()
        server.check(f"killed {i}", world.rng.sample(sorted(data), 5) if server.served else None)
        rejoin(world, server, f"after kill {i}", (by_store, by_torch, by_id)[i % 3])
        if i == 3:
            before = server.descriptors()
    server.ask("DELETE", GROUP)
    until(lambda: server.descriptors() <= before, "descriptors are left behind")


# Others

def two_gpus(world):
    with world.serve(devices="cuda:0,cuda:1", n_devices="2") as server:
        for form in (by_id, by_store, by_torch):
            with world.nccl_trainer() as trainer:
                found = join(server, trainer, form, 3)
                must([r["rank"] for r in found["ranks"]] == [1, 2], f"{found}")
                if form is by_torch:
                    trainer.result()
                each_way(world, server, trainer, f"two {form.__name__}")
                with world.trainer(server) as reader:
                    server.check_gpus(reader, [server.served] * 2, form.__name__)
        with world.nccl_trainer() as trainer:
            refuse(server, by_id(server, trainer, 2), 400, "bad_request", param="/world_size")


def ranks_by_turns(world, server):
    """One group at a time: the ranks of a trainer form theirs one after the other, in one session. Both send some
    tensors, of which a GPU receives the second copy, compares it and drops it."""
    half = len(world.specs) // 2
    parts = [world.specs[:half + 5], [*reversed(world.specs[half:]), world.specs[1]]]
    for wrong in (None, parts[1][-3]):
        data = world.data()
        update_id = server.post(200, START, {"trainer_ranks": 2})["update_id"]
        for rank, part in enumerate(parts):
            with world.nccl_trainer() as trainer:
                join(server, trainer)
                body = wire(part, packed=True, update_id=update_id, trainer_rank=rank)
                if rank == 1 and wrong is not None:
                    other = {**data, wrong.name: bytes([data[wrong.name][0] ^ 1]) + data[wrong.name][1:]}
                    trainer.begin("send", cut_vllm(part, other, 1000))
                    refuse(server, {**body, "bucket_nbytes": 1000}, 422, "manifest_mismatch", wrong.name,
                           "trainer rank 0", param=f"/names/{part.index(wrong)}", path=UPDATE)
                    trainer.result()  # the group outlives it
                trainer.begin("send", cut_vllm(part, data, 1000))
                found = server.post(200, UPDATE, {**body, "bucket_nbytes": 1000}, f"rank {rank}")
                trainer.result()
                server.ask("DELETE", GROUP)
        must([(x["trainer_rank"], x["n_tensors"]) for x in found["senders"]] ==
             [(rank, len(part)) for rank, part in enumerate(parts)], f"{found['senders']}")
        server.serve(data, server.post(200, FINISH, {"update_id": update_id}))
        server.check("ranks by turns")


def on_one_server(*steps, options=()):
    def part(world):
        with world.serve(*options) as server:
            for step in steps:
                step(world, server)
    return part


def impatient(*steps):
    return on_one_server(first, *steps, options=("--update-timeout", str(int(UPDATE_S * 1000))))


PARTS = (on_one_server(bad_inits, forms, packed_by_group, replaced, torch_waits, in_doubt, wrong_version, bad_stores,
                       progress, ranks_by_turns, deleted, clients_go),
         on_one_server(nobody_joins), on_one_server(no_unique_id), on_one_server(wrong_world), impatient(dies),
         impatient(stalls), impatient(hung_inits), impatient(never_sends), impatient(killed), two_gpus, unable, allowed)


def run(part, seed):
    world = Groups(*sys.argv[1:8], seed=seed)
    try:
        part(world)
    finally:
        shutil.rmtree(world.folder)


def main():
    faulthandler.dump_traceback_later(GIVE_UP_S, exit=True)  # where it hangs, rather than that it does
    seed = sys.argv[8] if len(sys.argv) > 8 else os.urandom(4).hex()
    forked.context()  # before there are threads
    with concurrent.futures.ThreadPoolExecutor(N_AT_ONCE) as pool:
        running = [pool.submit(run, part, f"{seed} {i}") for i, part in enumerate(PARTS)]
        for part in running:
            part.result()
    print(f"ok: {must.n} checks")


if __name__ == "__main__":
    main()
