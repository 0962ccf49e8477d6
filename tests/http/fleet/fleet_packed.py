"""The packing of tensors is sent to each vLLM in the form of its release, whatever the trainer's release.

The doubles take and refuse what 0.24, 0.26, 0.27, 0.32 and 0.33 do, in their words.
Usage: as fleet_control.py.
"""

import json

from fleet_control import COLUMNS, LABELS, RANKS, Fleet, reboot, refused, told

STORE = {"master_address": "10.0.0.1", "master_port": 29500, "rank_offset": 1}
BUFFERS = {"packed": True, "packed_buffer_size_bytes": 4096, "packed_num_buffers": 3}
TENSORS = {"names": COLUMNS["names"], "dtype_names": COLUMNS["dtypes"], "shapes": COLUMNS["shapes"]}
PICKLED = dict(TENSORS, ipc_handles_pickled="gASVAAAAAAAAAAB9lC4=")
BUCKETS = [dict(PICKLED, **{m: column[i:i + 1] for m, column in TENSORS.items()}, tensor_sizes=[n])
           for i, n in enumerate((2, 12))]
OLDER = [dict(bucket, packed=True) for bucket in BUCKETS]


class Releases(Fleet):
    """A vLLM of each release."""

    def __init__(self, *releases):
        self.releases = releases
        super().__init__(*[("vllm", "--vllm-version", release) for release in releases], patient=True)


def said(f, op, member):
    """The last value sent to each engine."""
    return [json.loads(d.journal(op)[-1]["body"])[member] for d in f.doubles]


def join(f, **packing):
    f.front.post("/init_weight_transfer_engine",
                 {"init_info": dict(STORE, world_size=1 + len(f.doubles) * RANKS, **packing)})


def step(f, *infos, init=None):
    """As a trainer of vLLM does it; what it named is served by all."""
    label = next(LABELS)
    if init is not None:
        f.front.post("/init_weight_transfer_engine", {"init_info": init})
    f.front.post("/start_weight_update")
    for info in infos:
        f.front.post("/update_weights", {"update_info": info})
    f.front.post("/finish_weight_update", {"weight_version": label})
    assert f.versions() == [label] * len(f.doubles), f.versions()
    f.wait(*["serving"] * len(f.doubles))


def group_said_at_the_join(f):
    """As trainers say it since 0.28: the older engines hear it with each update."""
    join(f, **BUFFERS)
    for release, info in zip(f.releases, said(f, "init", "init_info")):
        assert {m: info.get(m) for m in BUFFERS} == (BUFFERS if release > "0.28" else dict.fromkeys(BUFFERS)), info
    step(f, TENSORS)
    for release, info in zip(f.releases, said(f, "update", "update_info")):
        assert info == (TENSORS if release > "0.28" else
                        dict(TENSORS, packed=True, packed_buffer_size_bytes=4096)), info
    step(f, [TENSORS])
    step(f, dict(TENSORS, **BUFFERS))  # said twice is said once
    join(f, packed=False, packed_buffer_size_bytes=4096, packed_num_buffers=2)
    step(f, TENSORS)
    for info in said(f, "update", "update_info"):
        assert info == TENSORS, info


def group_said_in_updates(f):
    """As trainers said it before: an engine that had to know at the join cannot be told any more."""
    join(f)
    step(f, dict(TENSORS, packed=False, packed_buffer_size_bytes=4096))
    f.front.post("/start_weight_update")
    late = {"update_info": dict(TENSORS, **BUFFERS)}
    if any(release > "0.28" for release in f.releases):
        error = refused(f, 400, "POST", "/update_weights", late)["error"]["message"]
        assert "when its group is formed" in error, error
        assert all(not d.journal("update") or "packed" not in json.loads(d.journal("update")[-1]["body"])["update_info"]
                   for d in f.doubles)
        join(f)
        f.front.post("/start_weight_update")
        f.front.post("/update_weights", {"update_info": TENSORS})
    else:
        f.front.post("/update_weights", late)
    label = next(LABELS)
    f.front.post("/finish_weight_update", {"weight_version": label})
    assert f.versions() == [label] * len(f.doubles)
    f.wait(*["serving"] * len(f.doubles))


def handles(f):
    """Of either age of trainers; told anew where an engine was started anew, or the form changes."""
    step(f, *BUCKETS, init={"packed": True})
    step(f, *OLDER, init={})
    step(f, PICKLED, init={"packed": False})
    step(f, *OLDER)
    step(f, PICKLED)
    step(f, *BUCKETS, init={"packed": True})
    reboot(f.doubles[-1])
    f.wait(*["serving"] * (len(f.doubles) - 1), "unsynced")
    step(f, *BUCKETS)
    for release, infos in zip(f.releases, [[json.loads(r["body"])["update_info"] for r in d.journal("update")]
                                           for d in f.doubles]):
        assert any("packed" in info for info in infos) == (release < "0.27"), (release, infos)


def shut_down(f):
    """It is sent to each engine that has the member; the others need none."""
    join(f, **BUFFERS)
    for _ in range(2):
        assert f.front.post("/shutdown_weight_transfer_engine") == {"message": "Weight transfer shut down"}
    for release, d in zip(f.releases, f.doubles):
        assert len(d.journal("leave")) == (1 if release >= "0.32" else 0), d.journal("leave")
    assert f.front.get("/v1/weight_transfer")["state"] == "none"
    f.front.post("/start_weight_update")
    refused(f, 409, "POST", "/update_weights", {"update_info": TENSORS})
    f.front.post("/init_weight_transfer_engine", {"init_info": {}})
    f.front.post("/shutdown_weight_transfer_engine")
    assert len(f.doubles[-1].journal("leave")) == (2 if f.releases[-1] >= "0.32" else 0)


def unique_id(f):
    """Of a trainer without torch: engines before 0.30 have no word for it, and nobody is asked then."""
    info = {"rank_offset": 1, "world_size": 1 + len(f.doubles) * RANKS, "nccl_unique_id_b64": 170 * "A" + "A=", **BUFFERS}
    if any(release < "0.30" for release in f.releases):
        refused(f, 400, "POST", "/init_weight_transfer_engine", {"init_info": info})
        assert all(not d.journal("init") for d in f.doubles)
        return
    f.front.post("/init_weight_transfer_engine", {"init_info": info})
    assert said(f, "init", "init_info") == [dict(info, rank_offset=1 + i * RANKS) for i in range(len(f.doubles))]
    step(f, TENSORS)


def unknown(f):
    """What is not known may change what travels: nobody is asked, and the trainer may be in its broadcast."""
    for info in (dict(STORE, world_size=2, schema_version=1), {"trainer_actor_names": ["t"]}):
        refused(f, 400, "POST", "/init_weight_transfer_engine", {"init_info": info})
    for status, more in ((409, {"num_updates_list": [1, 1]}), (409, {"num_updates_list": []}),
                         (400, {"update_kind": "sparse_flat"}), (400, {"schema_version": 1})):
        join(f)
        f.front.post("/start_weight_update")
        n, left = ([len(d.journal(op)) for d in f.doubles] for op in ("update", "leave"))
        refused(f, status, "POST", "/update_weights", {"update_info": dict(TENSORS, **more)})
        assert [len(d.journal("update")) for d in f.doubles] == n
        assert [len(d.journal("leave")) for d in f.doubles] == [
            k + (release >= "0.32") for k, release in zip(left, f.releases)]
        assert f.front.get("/v1/weight_transfer")["state"] == "none"
        refused(f, 409, "POST", "/update_weights", {"update_info": TENSORS})
    join(f)
    step(f, TENSORS)


EMPTY = {"names": [], "dtype_names": [], "shapes": []}


def repeated(f):
    """The trainer of 0.33 sends its lists once. Each engine gets them each time: a restarted one answers empty lists
    with 200, and loads nothing."""
    join(f, **BUFFERS)
    for info in EMPTY, {}, [EMPTY]:
        f.front.post("/start_weight_update")
        refused(f, 400, "POST", "/update_weights", {"update_info": info})  # none came before
        join(f, **BUFFERS)
    step(f, TENSORS)
    for info in EMPTY, {}, [EMPTY, EMPTY]:
        step(f, info)
        for sent in said(f, "update", "update_info"):
            assert {m: sent[m] for m in TENSORS} == TENSORS, sent
    # What was not committed is not what the trainer means.
    f.front.post("/start_weight_update")
    f.front.post("/update_weights", {"update_info": {m: column[:1] for m, column in TENSORS.items()}})
    assert f.front.ask("POST", "/finish_weight_update", {})[0] == 422
    step(f, EMPTY)
    for sent in said(f, "update", "update_info"):
        assert sent["names"] == TENSORS["names"], sent
    n = [len(d.journal("update")) for d in f.doubles]
    f.front.post("/start_weight_update")
    refused(f, 400, "POST", "/update_weights", {"update_info": dict(EMPTY, names=["a"])})
    join(f, **BUFFERS)  # which forgets them
    f.front.post("/start_weight_update")
    refused(f, 400, "POST", "/update_weights", {"update_info": EMPTY})
    status, said_ = f.front.ask("POST", "/finish_weight_update", {})
    assert status in (409, 422), said_
    assert [len(d.journal("update")) for d in f.doubles] == n


def refused_there(f):
    """An engine refuses the tensors, and the trainer is in its broadcast: all leave the group."""
    for which in (f.doubles[:1], f.doubles):
        join(f, **BUFFERS)
        step(f, TENSORS)
        for d in which:
            d.order("update", "status", status=400)
        n = [len(d.journal("leave")) for d in f.doubles]
        f.front.post("/start_weight_update")
        status, said_ = f.front.ask("POST", "/update_weights", {"update_info": EMPTY})
        assert status in (400, 502) and "join a new group" in said_["error"]["message"], said_
        assert [len(d.journal("leave")) for d in f.doubles] == [k + 1 for k in n]
        status, said_ = f.front.ask("POST", "/v1/update_weights", {"transport": "nccl", "names": ["a"], "dtypes": ["bfloat16"],
                                                                   "shapes": [[1]]})
        assert (status, said_["error"]["code"]) == (409, "group_left"), said_
    join(f, **BUFFERS)
    step(f, TENSORS)


def main():
    with Releases(*("0.33.0",) * 2) as f:
        told("refused_there", refused_there, f)
    for releases in (("0.33.0",) * 2, ("0.24.0", "0.33.0")):
        with Releases(*releases) as f:
            told(f"repeated, {' '.join(releases)}", repeated, f)
    for releases in (("0.32.0",) * 2, ("0.24.0",) * 2, ("0.24.0", "0.26.0", "0.27.1", "0.32.0+cpu")):
        for what in (group_said_at_the_join, group_said_in_updates, handles, shut_down, unique_id, unknown):
            with Releases(*releases) as f:
                told(f"{what.__name__}, {' '.join(releases)}", what, f)


if __name__ == "__main__":
    main()
