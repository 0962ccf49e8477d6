"""slime, Miles and SkyRL with deltas in directories: what their own publishers wrote, pulled while the server
generates, and served by the reload that follows. After each version every tensor is compared with what the trainer had.
Usage: pull.py BATON MODEL DELTAS FOLDER FAKECUDA"""

import json
import os
import shutil
import threading

from fleet_world import Server, until
from pull_world import (BATON, DELTAS, EXPECTED, FAKECUDA, FOLDER, LOCAL, PROMPT, SOURCE, STEPS, SkyRL, Trainer, World,
                        base, checks, has, refused, same, whole)


def runs():
    """Each set, one version after the other; a pull alone changes nothing."""
    with World() as server:
        for made_by, n in (("slime/overwrite-blake3", 4), ("slime/xor-adler32", 2), ("slime/two-ranks", 2)):
            t = Trainer(server, made_by)
            t.begin()
            for version in range(1, n + 1):
                t.publish(version)
                t.pull(version)
                server.serves(version - 1, "base" if version == 1 else None)
                t.reload(version)
                server.serves(version)
            assert not os.path.exists(LOCAL), "nothing is written there"
            whole(server)


def on_a_gpu():
    """The base is read from there."""
    with World("--device", "cuda:0", "--cuda-library", FAKECUDA) as server:
        t = Trainer(server, "slime/overwrite-blake3")
        t.begin()
        for version in range(1, 5):
            t.publish(version)
        for version in 1, 4:
            t.pull(version)
            t.reload(version)
            server.serves(version)
            t.pull(version)


def catches_up():
    """All versions at once; then an update by other means, after which nothing is known."""
    with World() as server:
        t = Trainer(server, "miles/xor-xxh3")
        refused("version 0", t.pull, 1) if os.path.isdir(SOURCE) else None
        t.begin()
        for version in range(1, 5):
            t.publish(version)
        t.pull(2)
        t.pull(4)  # instead of 2
        refused("version 4 is pulled", t.reload, 2)
        t.reload(4)
        server.serves(4)
        refused("no version is pulled", t.reload, 4)
        refused("beyond version 3", t.pull, 3)
        t.pull(4)  # it is served: proven, and nothing to do
        whole(server)
        refused("begin with version 0", t.pull, 4)
        refused("after version 4 another update was committed", t.pull, 4)
        server.serves(0, "base")
        t.begin()
        t.update(1)
        server.serves(1)


def committed_by_another():
    """Who finishes a pull's update by its id gives it another name: the trainer is told, and repeats its step."""
    with World() as server:
        t = Trainer(server, "slime/xor-adler32")
        t.begin()
        t.publish(1)
        t.pull(1)
        update_id = server.ask("GET", "/v1/status")[1]["update"]["update_id"]
        status, said = server.post("/v1/update_weights/finish", {"update_id": update_id, "weight_version": "theirs"})
        same(status, 200, said)
        refused("another client committed it as 'theirs'", t.reload, 1)
        server.serves(1, "theirs")
        t.pull(1)
        t.reload(1)
        server.serves(1)


def faults():
    with World() as server:
        t = Trainer(server, "slime/xor-adler32")
        index, payload = "model.safetensors.index.json", "model-00000-of-00001.safetensors"
        t.begin()
        refused("weight_v000001", t.pull, 1)
        place = t.publish(1)
        os.rename(os.path.join(place, index), os.path.join(place, index + ".tmp"))
        refused("no model.safetensors.index.json yet", t.pull, 1)
        os.rename(os.path.join(place, index + ".tmp"), os.path.join(place, index))
        with open(os.path.join(place, payload), "r+b") as f:
            f.seek(-40, os.SEEK_END)
            byte = f.read(1)[0]
            f.seek(-40, os.SEEK_END)
            f.write(bytes([byte ^ 1]))
        refused("version 1: ", t.pull, 1)
        refused("no version is pulled", t.reload, 1)
        server.serves(0, "base")
        t.update(1)  # the right one, under the same name
        server.serves(1)
        other = Trainer(server, "slime/two-ranks")  # another run, whose version 1 is the same
        other.publish(1)
        other.pull(1)
        shutil.copytree(os.path.join(DELTAS, "slime/xor-adler32/weight_v000002"), os.path.join(SOURCE, "weight_v000002"))
        t.pull(2)
        t.reload(2)
        server.serves(2)
        for name in (index, payload):  # version 2 of a run in which it was something else
            with open(os.path.join(DELTAS, "slime/xor-adler32/weight_v000001", name), "rb") as f:
                data = f.read()
            with open(os.path.join(SOURCE, "weight_v000002", name), "wb") as f:
                f.write(data.replace(b'"000001"', b'"000002"').replace(b'"000000"', b'"000001"'))
        refused("another run", t.pull, 2)
        refused("is not the base model's", t.begin)
        for source, word in (("/etc", "allow"), ("gs://bucket/run", "beneath no --fetch-prefix"), ("", "source_dir"),
                             (os.path.join(FOLDER, "nothing"), "nothing")):
            refused(word, t.pull, 1, source)
        refused("", t.reload, 3, os.path.join(FOLDER, "elsewhere"))
        server.serves(2)


def whole_versions():
    """slime's full mode: a checkpoint without an index."""
    with World() as server:
        t = Trainer(server, "slime/xor-adler32")
        shutil.rmtree(SOURCE, ignore_errors=True)
        os.makedirs(os.path.join(SOURCE, "weight_v000007"))
        shutil.copy(os.path.join(STEPS, "step-00000.safetensors"),
                    os.path.join(SOURCE, "weight_v000007", "model.safetensors"))
        t.pull(7)  # no run was begun: a whole one needs no base
        t.reload(7)
        server.serves(0, "7")
    with World("--state-dir", os.path.join(FOLDER, "state"), weights="step-00100") as server:
        t = Trainer(server, "slime/xor-adler32")
        os.makedirs(os.path.join(SOURCE, "weight_v000008"))
        shutil.copy(os.path.join(STEPS, "step-01500.safetensors"),
                    os.path.join(SOURCE, "weight_v000008", "model.safetensors"))
        t.pull(0)
        t.pull(8)
        t.reload(8)
        t.pull(8)  # the same bytes
        same(server.label(), "8", "label")


def skyrl():
    with World() as server:
        t = SkyRL(server, "skyrl/many-files")
        t.begin()
        refused("delta-00000001", t.pull, 1)
        for version in range(1, 5):
            t.publish(version)
            t.pull(version)
            server.serves(version - 1, "base" if version == 1 else None)
            t.reload(version)
            server.serves(version)
        t.pull(4)
        refused("is not the base model's", t.begin)  # a new run
        whole(server)
        t.begin()
        for version in range(1, 5):
            t.publish(version)
        manifest = os.path.join(SOURCE, "delta-00000002", "manifest.json")
        with open(manifest, encoding="utf-8") as f:
            right = f.read()
        with open(manifest, "w", encoding="utf-8") as f:
            f.write(right.replace('"base_version": 1', '"base_version": 0'))
        refused("version 2: manifest.json: it builds on version 0", t.pull, 4)
        with open(manifest, "w", encoding="utf-8") as f:
            f.write(right)  # republished under the same name
        t.pull(3)
        refused("version 3 is pulled", t.reload, 2)
        refused("version 3 is fetched, but was not committed", t.post, "/collective_rpc",
                {"method": "skyrl_finish_weight_update"})
        t.reload(3)
        server.serves(3)
        refused("no version was fetched", t.post, "/update_weights",
                {"update_info": {"target_version": 4, "sync_dir": "/elsewhere"}})
        for source in "gs://bucket/run", "s3://bucket/run":
            refused("beneath no --fetch-prefix", t.pull, 4, source)
        refused("sync_dir", t.post, "/fetch_weights", {"target_version": 4, "sync_dir": SOURCE, "uri": "/x/delta-00000004"})
        refused("target_version", t.post, "/fetch_weights", {"sync_dir": SOURCE})
        t.post("/fetch_weights", {"target_version": 4, "uri": f"{SOURCE}/delta-00000004/"})
        t.reload(4)
        server.serves(4)
        # tensors by vLLM's own routes are as they were
        refused("master_address", t.post, "/init_weight_transfer_engine", {"init_info": {"master_port": 1, "world_size": 2}})
        refused("delta", t.post, "/update_weights", {"update_info": {"target_version": 1, "uri": "x"}})


def whole_in(directory, version):
    """A whole checkpoint, the base, as a version."""
    place = os.path.join(directory, f"weight_v{version:06d}")
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place)
    shutil.copy(os.path.join(STEPS, "step-00000.safetensors"), os.path.join(place, "model.safetensors"))
    return place


def only_the_name():
    """The commit takes no other member, and aborts no generation unless it begins."""
    with World() as server:
        t = Trainer(server, "slime/xor-adler32")
        t.begin()
        t.publish(1)
        t.pull(1)
        for member in ({"partial": True}, {"partial": False}, {"delta": True}, {"base_version": "base"}, {"convert": True},
                       {"chunk_id": "x"}, {"update_id": "upd-x"}, {"names": ["x"]}, {"checksums": ["0" * 32]}):
            status, said = server.post("/v1/update_weights", {"path": LOCAL, "weight_version": "1", **member})
            same((status, said["error"]["param"]), (400, "/" + next(iter(member))), f"{member}: {said}")
        server.serves(0, "base")
        for version, reason in (2, "length"), (1, "abort"):
            found = []
            t.post("/pause_generation", {})
            client = threading.Thread(target=lambda: found.append(server.post("/v1/completions", PROMPT)))
            client.start()
            until("the generation is there", lambda: server.status()["admission"]["generate"]["waiting"] == 1)
            status, said = server.post("/update_weights_from_disk", {
                "model_path": LOCAL, "weight_version": str(version), "abort_all_requests": True})
            same(said["success"], version == 1, f"reload: {said}")
            t.post("/continue_generation", {})
            client.join()
            same(found[0][1]["choices"][0]["finish_reason"], reason, f"the generation: {found}")
        server.serves(1)


def refused_and_retried():
    """A refusal changes nothing that is known; what is sent again for a lost answer is taken."""
    other, full = os.path.join(FOLDER, "other"), os.path.join(FOLDER, "full")
    with World() as server:
        t = Trainer(server, "slime/xor-adler32")
        t.begin()
        os.mkdir(full)
        shutil.copy(os.path.join(STEPS, "step-00000.safetensors"), os.path.join(full, "model.safetensors"))
        said = server.post("/pull_weights", {"local_checkpoint_dir": full, "source_dir": SOURCE, "target_version": 9})[1]
        same(said["success"], False, f"version 9: {said}")
        status, said = server.post("/v1/update_weights", {"path": full, "weight_version": "full"})
        same(status, 200, f"the name of a refused pull is a path: {said}")
        t.begin()
        t.publish(1)
        t.pull(1)
        refused("weight_v000003", t.pull, 3)
        t.reload(1)  # what was pulled before the refusal
        server.serves(1)
        serial = server.status()["weights"]["serial"]
        t.pull(1)
        t.reload(1)  # both again
        same(server.status()["weights"]["serial"], serial, "serial")
        server.serves(1)
        refused("is not the base model's", t.pull, 0)
        t.publish(2)
        t.pull(2, SOURCE + "/")  # version 1 is still known
        refused("version 2 is pulled", t.reload, 1)
        t.reload(2)
        server.serves(2)
        t.pull(2)
        whole(server)
        refused("", t.reload, 2)
        server.serves(0, "base")
        t.begin()
        t.update(1)
        t.publish(2)
        for name in os.listdir(SOURCE):
            shutil.copytree(os.path.join(SOURCE, name), os.path.join(other, name))
        refused("another directory", t.pull, 2, other)
        whole_in(other, 2)
        t.pull(2, other)
        t.pull(2)  # instead: version 1 of this one is served
        t.reload(2)
        server.serves(2)
        has(t.pull(2, other)["message"], "Version 2 is proven", "the same number elsewhere")
        t.reload(2)
        server.serves(0, "2")
        refused("another directory is served", t.pull, 2)
        refused("another directory is served", t.pull, 4)
        place = whole_in(other, 3)
        for version, word in ("000002", "unlike its directory"), ("3.0", "is not a number"):
            with open(os.path.join(place, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
                json.dump({"metadata": {"version": version}, "weight_map": {n: "model.safetensors" for n in base()}}, f)
            refused(word, t.pull, 3, other)
        server.serves(0, "2")


def sessions():
    """Only SkyRL's own start and finish go around what was fetched, and only while it waits."""
    rpc = {"method": "skyrl_start_weight_update", "kwargs": {"is_checkpoint_format": True}}
    with World() as server:
        t = SkyRL(server, "skyrl/many-files")

        def end():
            same(server.post("/v1/update_weights/abort", {"update_id": server.status()["update"]["update_id"]})[0], 200, "abort")

        t.begin()
        t.publish(1)
        t.pull(1)
        t.post("/collective_rpc", rpc)
        end()  # as its lease would
        refused("pull the version again", t.post, "/update_weights", {"update_info": t.info(1)})
        refused("not committed", t.post, "/collective_rpc", {"method": "skyrl_finish_weight_update"})
        server.serves(0, "base")
        for path, body, finish in (("/start_weight_update", {"is_checkpoint_format": True}, "/finish_weight_update"),
                                   ("/begin_weight_update", {}, "/end_weight_update"), ("/collective_rpc", rpc, None)):
            t.pull(1)
            t.post("/collective_rpc", rpc)
            same(server.post(path, body)[0] == 200, finish is None, f"{path} beside what waits")
            end()
            t.post(path, body)
            same(server.status()["update"]["phase"], "open", f"{path} opens an update")
            status, said = server.post(finish or "/collective_rpc", {} if finish else {"method": "skyrl_finish_weight_update"})
            same(status == 200 and said.get("success", True), False, f"nothing was sent: {said}")
            if server.status()["update"] is not None:
                end()
        t.pull(1)
        t.reload(1)
        server.serves(1)
        t.pull(1)
        same(server.post("/start_weight_update", {"is_checkpoint_format": True})[0], 200, "beside what is served")
        same(server.status()["update"]["phase"], "open", "an update is open")
        end()
        t.reload(1)
        server.serves(1)


def the_trainers_base():
    """SkyRL's base_model_path: compared with what is served if it can be read here, and the answer says which it was."""
    bases = {step: os.path.join(FOLDER, "base-" + step) for step in ("step-00000", "step-00100")}
    for step, place in bases.items():
        os.mkdir(place)
        shutil.copy(os.path.join(STEPS, step + ".safetensors"), os.path.join(place, "model.safetensors"))
    right, wrong = bases["step-00000"], bases["step-00100"]
    with World() as server:
        t = SkyRL(server, "skyrl/many-files")
        for base, said in ((right, "base_model_path is what is served"), ("org/model", "cannot be read here"),
                           (STEPS, "cannot be read here"), (os.path.join(FOLDER, "gone"), "cannot be read here")):
            answer = t.begin(base)
            has(answer["message"], said, base)
            same(answer["base"], "checked", base)
        refused("is not the base model's", t.begin, wrong)
        os.truncate(os.path.join(wrong, "model.safetensors"), 1000)
        refused("model.safetensors", t.begin, wrong)
        refused("base_model_path", t.begin, 5)
        t.begin(right)
        t.update(1)
        server.serves(1)
    with World(weights="step-00100") as server:
        t = SkyRL(server, "skyrl/many-files")
        whole(server)  # another model than the server started with, and the trainer's
        refused("is not the base model's", t.begin)
        t.begin(right)
        t.update(1)
        server.serves(1)


def unchecked():
    """Started without weights, it cannot compare what it serves with a base model: every reply of the run says so."""
    options = ("--engine", "none", "--manifest", os.path.join(STEPS, "step-00000.safetensors"), "--weights", "none", "--allow-path", FOLDER)
    with Server(BATON, os.path.join(FOLDER, "log"), *options) as server:
        server.post = lambda path, body: server.ask("POST", path, body)[:2]
        whole(server)
        t = Trainer(server, "slime/xor-adler32")
        shutil.rmtree(SOURCE, ignore_errors=True)
        os.makedirs(os.path.join(SOURCE, "weight_v000002"))
        has(t.pull(0)["message"], "base is unchecked", "version 0")
        t.publish(1)
        has(t.pull(1)["message"], "base is unchecked", "version 1")
        t.post("/update_weights_from_disk", {"model_path": LOCAL, "weight_version": "1"})
        found = server.post("/v1/weights/check", {"action": "checksum"})[1]["checksums"]
        same({n: found[n] for n in EXPECTED[1]}, EXPECTED[1], "version 1")
        shutil.copy(os.path.join(STEPS, "step-00000.safetensors"), os.path.join(SOURCE, "weight_v000002", "model.safetensors"))
        same("unchecked" in t.pull(2)["message"], False, "a whole version needs no base")
        t.post("/update_weights_from_disk", {"model_path": LOCAL, "weight_version": "2"})
        same("unchecked" in t.pull(2)["message"], False, "the run goes on from it")
        skyrl = SkyRL(server, "skyrl/many-files")
        has(skyrl.begin()["message"], "the base is unchecked", "SkyRL's")
        skyrl.publish(1)
        same(skyrl.post("/fetch_weights", skyrl.info(1))["base"], "unchecked", "SkyRL's")
        skyrl.begin(os.path.join(FOLDER, "base-step-00000"))
        skyrl.publish(1)
        same(skyrl.post("/fetch_weights", skyrl.info(1))["base"], "checked", "its base was read")


catches_up()
runs()
on_a_gpu()
committed_by_another()
faults()
whole_versions()
skyrl()
only_the_name()
refused_and_retried()
sessions()
the_trainers_base()
unchecked()
print(f"ok: {checks[0]} checks")
