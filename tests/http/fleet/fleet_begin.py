"""Tensors for an SGLang are sent between begin and end, where its version has them, and a missing end is sent
later.

Usage: as fleet_control.py, with sglang.
"""

import json
import os

from fake_engine_world import PROMPT, expected, ids_of
from fleet_control import BROADCAST, COLUMNS, FILE, JOIN, LABELS, RANKS, Fleet, mend, model_dir, ok_of, reboot, refused, told

OLD = ("--weight-version", "step-0", "--sglang-version", "0.5.16")
OLDEST = ("--weight-version", "step-0", "--sglang-version", "0.5.2")


def serves_now(f, label):
    status, said = f.front.ask("POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 3})
    assert status == 200 and ids_of(said["choices"][0]["text"]) == expected(PROMPT, label, 0, 3), (label, said)


def bodies(d, op):
    return [json.loads(r["body"]) for r in d.journal(op)]


def group(f):
    f.front.post("/init_weights_update_group", dict(JOIN, rank_offset=1, world_size=1 + RANKS * len(f.doubles),
                                                    group_name="weights", backend="nccl"))


def trainer(f):
    """As Miles does it: begin, tensors, end; what was sent is served under the name that it has then."""
    label = next(LABELS)
    f.front.post("/pause_generation", {"mode": "retract"})
    f.front.post("/flush_cache")
    f.clean()
    assert f.front.post("/begin_weight_update", {"selector": "target"})["success"]
    for i in range(2):
        one = {m: column[i:i + 1] for m, column in COLUMNS.items()}
        said = f.front.post("/update_weights_from_distributed",
                            dict(one, group_name="weights", weight_version=label, selector="target"))
        assert said["success"], said
    assert f.front.post("/end_weight_update")["success"]
    f.front.post("/continue_generation")
    for i, d in enumerate(f.doubles):
        f.did(i, ["mark", "start", "update", "update", ("end", "reset_cache"), ("finish", "reset_storage"), "resume"])
        assert bodies(d, "start") == [{"selector": "target"}], bodies(d, "start")
        assert [b["selector"] for b in bodies(d, "update")] == ["target"] * 2
    assert f.versions() == [label] * len(f.doubles)
    serves_now(f, label)
    f.label = label


def drafts(f):
    """Never taken for the model's, whichever route they come by."""
    before = f.versions()
    f.clean()
    draft = {"selector": "draft"}
    for path, body in (("/begin_weight_update", draft),
                       ("/update_weights_from_distributed", dict(COLUMNS, group_name="weights", **draft)),
                       ("/update_weights_from_tensor", dict(draft, serialized_named_tensors=["a"] * RANKS))):
        said = refused(f, 400, "POST", path, body)
        assert "drafter" in json.dumps(said), said
    for path, body in ("/start_draft_weight_update", {}), ("/start_weight_update", {"include_draft": True}):
        said = refused(f, 400, "POST", path, body)
        assert "the engines behind it keep the drafters" in json.dumps(said), said
    said = refused(f, 400, "POST", "/v1/update_weights/start", draft, "bad_request")
    assert said["error"]["param"] == "/selector", said
    refused(f, 400, "POST", "/begin_weight_update", {"selector": "odd"})
    assert f.versions() == before and f.came("start") == [] and f.came("update") == []
    group(f)  # the refusal ended it


def files(f):
    """Those need neither, and are not taken where tensors have come before."""
    label = next(LABELS)
    f.clean()
    f.front.post("/v1/update_weights", {"path": FILE, "weight_version": label})
    assert f.came("start") == f.came("end") == [] and f.versions() == [label] * len(f.doubles)
    mine = {"update_id": f.front.post("/v1/update_weights/start", {})["update_id"]}
    f.front.post("/v1/update_weights", dict(BROADCAST, **mine))
    said = refused(f, 400, "POST", "/v1/update_weights", dict(mine, path=FILE), "bad_request")
    assert said["error"]["param"] == "/path", said
    f.front.post("/v1/update_weights/finish", mine)
    mine = {"update_id": f.front.post("/v1/update_weights/start", {})["update_id"]}
    f.clean()
    f.front.post("/v1/update_weights", dict(mine, path=FILE))
    assert f.came("start") == []
    f.front.post("/v1/update_weights", dict(BROADCAST, **mine))
    assert len(f.came("start")) == len(f.doubles)
    f.front.post("/v1/update_weights/finish", mine)


def failed(f):
    """Whatever failed, what began is ended, or is before the next one begins: files, too."""
    n, bad = len(f.doubles), 1
    d = f.doubles[bad]
    for op, fault, more in (("update", "status", {"status": 400}), ("update", "hang", {}), ("end", "status", {}),
                            ("end", "hang", {}), ("start", "hang", {"acts": True}), ("finish", "close_before", {})):
        for again in ("tensors", "file"):
            f.clean()
            d.order(op, fault, **more)
            step, status, said = f.update(next(LABELS))
            assert step is None and ok_of(said) == [i != bad for i in range(n)], (op, fault, step, said)
            state = "unsynced" if op == "start" else "fenced"  # nothing has come there
            f.wait(*[state if i == bad else "serving" for i in range(n)])
            f.clean()
            if again == "file":
                label = next(LABELS)
                f.front.post("/v1/update_weights", {"path": FILE, "weight_version": label})
                assert f.versions() == [label] * n and d.state()["update"] != "open", (op, fault, d.state())
            f.update_all()
            f.wait(*["serving"] * n)
            serves_now(f, f.label)


def partial(f):
    """A part is for the version that it was made from: an engine that loses that after the start gets none of it."""
    n, bad = len(f.doubles), 1
    d, one = f.doubles[bad], {m: column[:1] for m, column in BROADCAST.items() if m != "transport"}
    for restarts in True, False:
        f.update_all()
        label = next(LABELS)
        mine = {"update_id": f.front.post("/v1/update_weights/start", {"weight_version": label, "partial": True})["update_id"]}
        if restarts:
            reboot(d, 200)
            f.wait(*["unsynced" if i == bad else "serving" for i in range(n)])
            f.init()
        else:
            d.post("/update_weight_version", {"new_version": "other", "abort_all_requests": False})
        f.clean()
        for said in (f.front.post("/v1/update_weights", dict(one, transport="nccl", **mine)), f.front.post("/v1/update_weights/finish", mine)):
            why = said["upstreams"][bad]["error"]  # the second one if a probe has seen it first
            assert ok_of(said) == [i != bad for i in range(n)], said
            assert "a partial update cannot bring it there" in why or "no longer in the group" in why, said
        assert d.journal("update") == d.journal("mark") == [] and f.versions() == [d.state()["version"] if i == bad else label for i in range(n)]
        f.wait(*["unsynced" if i == bad else "serving" for i in range(n)])
    f.update_all()


def rest_kept():
    """A part is not for an engine whose end of an update may process what did not come once more."""
    quantized_by_file = model_dir("Qwen3ForCausalLM", "by_file")
    with open(os.path.join(quantized_by_file, "hf_quant_config.json"), "w", encoding="utf-8") as f:
        f.write("{}")
    plain, moe = model_dir("Qwen3ForCausalLM"), model_dir("Qwen3MoeForCausalLM")
    fp8 = model_dir("Qwen3ForCausalLM", "fp8", quantization_config={"quant_method": "fp8"})
    cases = [({"model_path": plain, "quantization": "fp8"}, "its quantization is fp8"),
             ({"model_path": plain, "device": "cpu"}, "its device is cpu"),
             ({"model_path": plain, "device": None}, "its device is unknown"),
             ({"model_path": fp8}, "its quantization_config"), ({"model_path": quantized_by_file}, "config.json"),
             ({"model_path": moe}, "its architecture is Qwen3MoeForCausalLM"), ({"model_path": "Qwen/Qwen3-0.6B"}, "config.json")]
    old = ("--sglang-version", "0.5.17")
    engines = [("sglang",), *(("sglang", "--sglang-config", json.dumps(config)) for config, _ in cases),
               ("sglang", "--sglang-config", json.dumps(cases[0][0]), *old)]
    takes = [True] + [False] * len(cases) + [True]
    with Fleet(*engines, min_ready=1) as f:
        f.init()
        for by_path in False, True:
            f.update_all()
            label, base = next(LABELS), f.label
            f.clean()
            mine = {"update_id": f.front.post("/v1/update_weights/start", {"weight_version": label, "partial": True})["update_id"]}
            takes[-1] = not by_path  # which processes all of it too
            one = {"path": FILE} if by_path else dict({m: c[:1] for m, c in BROADCAST.items() if m != "transport"}, transport="nccl")
            for said in f.front.post("/v1/update_weights", dict(one, **mine)), f.front.post("/v1/update_weights/finish", mine):
                assert ok_of(said) == takes, said
                for (_, why), u in zip(cases, said["upstreams"][1:]):
                    assert why in u["error"] and "send all tensors" in u["error"], u
            assert [bool(d.journal("update")) for d in f.doubles] == takes and f.versions() == [label if t else base for t in takes]
            for d, t in zip(f.doubles, takes):
                assert t or d.journal("start") == d.journal("mark") == d.journal("pause") == [], d.journal()
            f.wait(*["serving" if t else "unsynced" for t in takes])
        f.update_all()
    with Fleet(("sglang", "--sglang-config", json.dumps(cases[-1][0]))) as f:
        f.update_all()
        said = refused(f, 409, "POST", "/v1/update_weights", dict(BROADCAST, partial=True, weight_version=next(LABELS)))
        assert "send all tensors" in said["error"]["message"], said
        f.wait("serving")


def begun_by_another(f):
    """An engine in rotation that another client updates is not touched."""
    n, bad = len(f.doubles), 1
    d = f.doubles[bad]
    d.post("/begin_weight_update")
    f.clean()
    step, _, said = f.update(next(LABELS))
    assert step is None and ok_of(said) == [i != bad for i in range(n)], (step, said)
    assert "already open" in json.dumps(said) and f.ops(bad).count("end") == 0, (said, f.ops(bad))
    reboot(d)
    f.wait(*["unsynced" if i == bad else "serving" for i in range(n)])
    mend(f)


def aborted(f):
    """Given up after its first byte."""
    n = len(f.doubles)
    mine = {"update_id": f.front.post("/v1/update_weights/start", {})["update_id"]}
    f.front.post("/v1/update_weights", dict(f.part(0), **mine))
    f.front.post("/v1/update_weights/abort", mine)
    assert len(f.came("end")) >= n and f.states() == ["fenced"] * n
    f.update_all()
    f.wait(*["serving"] * n)


def old():
    """Of before 0.5.21: no begin, no end, and another word for selector target."""
    for engine in (OLD, OLDEST):
        with Fleet(*["sglang"] * 2, engine=engine) as g:
            g.update_all()
            g.clean()
            g.update_all()
            g.did(0, ["init", "pause", "mark", "start", "update", ("finish", "reset_cache"), "reset_storage", "resume"])
            assert [(r["status"], r["executed"]) for r in g.doubles[0].journal("start")] == [(404, False)]
            asked = {(r["status"], r["path"]) for r in g.doubles[0].journal("who")}
            assert (404, "/model_info") in asked if engine is OLDEST else asked == {(200, "/model_info")}, asked
            serves_now(g, g.label)
            step, _, said = g.update(next(LABELS), dict(BROADCAST, selector="target"))  # which it always means
            assert step is None, said
            for body in {"selector": "target"}, {"disable_draft_model": True}:
                g.clean()
                g.front.post("/update_weights_from_tensor", dict(body, serialized_named_tensors=["a"] * RANKS))
                assert [b["disable_draft_model"] for b in bodies(g.doubles[0], "update")] == [True]
                g.front.post("/continue_generation")
            g.update_all()


def arguments(f):
    """What slime compares with its own is what the engines say."""
    for path in "/server_info", "/get_server_info":
        said = f.front.get(path)
        assert (said["enable_memory_saver"], said["enable_return_routed_experts"], said["dtype"]) == (True, False, "auto"), said
        same = dict(nnodes=1, node_rank=0, gpu_id_step=1, base_gpu_id=4, ep_size=2, enable_lora=True, max_lora_rank=16)
        assert {k: said[k] for k in same} == same, said
        assert (said["host"], said["port"], said["max_loras_per_batch"]) == ("127.0.0.1", f.front.port, 8), said
    experts = ("sglang", "--experts", "vllm")
    for engines, found in ([experts, experts], True), ([experts, "sglang"], None):
        with Fleet(*engines) as g:
            assert g.front.get("/server_info").get("enable_return_routed_experts") is found, engines


def main():
    with open(FILE, "wb") as out:  # whose names cannot be read here
        out.write(b"weights")
    told("old", old)
    told("rest_kept", rest_kept)
    with Fleet(*["sglang"] * 3, min_ready=2) as f:
        f.update_all()
        group(f)
        for p in (arguments, trainer, drafts, files, failed, partial, begun_by_another, aborted):
            told(p.__name__, p, f)


main()
