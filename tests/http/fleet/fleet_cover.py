"""Part of a model is never a version: the tensors of an update must cover the model, if its tensors are known.

Usage: as fleet_control.py, with vllm, sglang or mixed; then MODEL, a directory with checkpoints in it.
"""

import json
import os
import subprocess
import sys
import threading

import fleet_control
from fleet_control import LABELS, VLLM_JOIN, WHICH, WORK, Fleet, ok_of, reboot, refused, told
from fleet_world import until
from ipc_trainer import Export
from sglang_pickles import Pickles

MODEL = sys.argv[7]
CHECKPOINT = os.path.join(MODEL, "checkpoints", "step-01500.safetensors")
ENGINE = "vllm" if WHICH == "mixed" else WHICH
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def read_header(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    return {name: t["shape"] for name, t in header.items()}


SHAPES = read_header(CHECKPOINT)
ALL = list(SHAPES)
HALF = ALL[:len(ALL) // 2]
REST = ALL[len(ALL) // 2:]


def columns(names, shapes=None, dtypes="dtypes"):
    shapes = {**SHAPES, **(shapes or {})}
    return {"names": names, dtypes: ["float32"] * len(names), "shapes": [shapes[n] for n in names]}


def body_of(names, shapes=None):
    if ENGINE == "sglang":
        return dict(columns(names, shapes), transport="nccl")
    return dict(columns(names, shapes), ipc_handles_pickled="gASVAAAAAAAAAAB9lC4=")


def engines(n=2, *options, **more):
    return Fleet(*[ENGINE] * n, options=options, patient=True, **more)


def group(f):
    if ENGINE == "sglang":
        f.init()


def push(f, *lists, shapes=None, finish=None, **start):
    """(status, answer) of the step that was refused, else of the finish."""
    status, said = f.front.ask("POST", "/v1/update_weights/start", dict(start, weight_version=next(LABELS)))
    if status != 200:
        return status, said
    mine = {"update_id": said["update_id"]}
    for names in lists:
        status, said = f.front.ask("POST", "/v1/update_weights", dict(body_of(names, shapes), **mine))
        if status != 200:
            f.front.post("/v1/update_weights/abort", mine)
            return status, said
    return f.front.ask("POST", "/v1/update_weights/" + (finish or "finish"), mine)


def pushed(f, coverage, *lists, **more):
    status, said = push(f, *lists, **more)
    assert status == 200 and said["phase"] == "committed", said
    assert said["coverage"] == coverage and (coverage == "partial") == (said["n_missing"] > 0), said
    assert f.front.status()["weights"]["coverage"] == coverage, f.front.status()
    f.wait(*["serving"] * len(f.doubles))
    return said


def spec(f):
    return f.front.status()["weights"]["spec"]


def halved(f, status, said, missing, of):
    """Refused, and an engine with parts of two models gets no requests."""
    n = len(f.doubles)
    assert status == (400 if "success" in said else 422), said  # SGLang knows one status for all of these
    message = said["error"]["message"]
    assert f"{len(missing)} of the {of} tensors" in message and any(f"'{m}'" in message for m in missing), message
    f.stays(*["fenced"] * n)
    assert not f.front.ready() and all(d.state()["torn"] for d in f.doubles)


def refused_half(f, *lists, missing=None, of=len(ALL), **more):
    missing = REST if missing is None else missing
    before = spec(f)
    status, said = push(f, *lists, **more)
    halved(f, status, said, missing, of)
    error = said["error"]
    assert error["code"] == "incomplete_update" and not error["retryable"], error
    assert error["details"]["n_missing"] == len(missing), error
    assert sorted(error["details"]["missing"]) == sorted(missing), error
    update = f.front.get("/v1/update_weights/" + error["details"]["update_id"])
    assert (update["phase"], update["coverage"], update["n_tensors_total"]) == ("aborted", "incomplete", of), update
    assert spec(f) == before
    return error["message"]


# ---- without a spec: by the update before ----

def learned(f):
    group(f)
    assert f.front.status()["weights"]["coverage"] is None and spec(f) is None
    said = pushed(f, "unknown", HALF[:10], HALF[10:])
    assert (said["n_tensors_done"], said["n_tensors_total"]) == (len(HALF), 0), said
    assert spec(f) == {"from": "update", "n_tensors": len(HALF)}

    def is_logged():
        with open(fleet_control.LOG, encoding="utf-8") as log:
            return '"event":"fleet.coverage_unknown"' in log.read()
    until("it is logged", is_logged)
    pushed(f, "as_before", ALL)  # more than before; and so it is from now on
    assert spec(f) == {"from": "update", "n_tensors": len(ALL)}
    message = refused_half(f, HALF)
    assert "the last whole update" in message and "restart the server" in message, message
    status, said = push(f, REST)  # the other half is no whole with what came before
    halved(f, status, said, HALF, len(ALL))
    pushed(f, "as_before", REST, HALF)
    # What ended badly is nothing to learn from.
    for d in f.doubles:
        d.order("update", "status", status=413)
    assert push(f, ALL + ["one.more"], shapes={"one.more": [1]})[0] != 200
    f.clean()
    f.wait(*["serving"] * len(f.doubles))
    assert spec(f)["n_tensors"] == len(ALL)
    for d in f.doubles:
        d.order("finish", "status")
    assert push(f, ALL + ["one.more"], shapes={"one.more": [1]})[0] != 200
    f.clean()
    assert spec(f)["n_tensors"] == len(ALL)
    pushed(f, "as_before", ALL)
    # Names alone: engines know what they can take.
    pushed(f, "as_before", ALL, shapes={EMBED: [7]})


def verified(f):
    """The same answer before the end."""
    status, said = push(f, HALF, finish="verify")
    halved(f, status, said, REST, len(ALL))
    pushed(f, "as_before", ALL)


def while_it_comes(f):
    mine = {"update_id": f.front.post("/v1/update_weights/start")["update_id"]}
    said = f.front.post("/v1/update_weights", dict(body_of(HALF), **mine))
    assert (said["coverage"], said["n_missing"], said["n_tensors_done"]) == ("incomplete", len(REST), len(HALF)), said
    assert said["missing"] == REST[:32] and said["n_unseen"] == 0, said
    assert f.front.status()["update"]["n_missing"] == len(REST)
    # No engine took it, so nothing was received.
    for d in f.doubles:
        d.order("update", "status", status=413)
    assert f.front.ask("POST", "/v1/update_weights", dict(body_of(REST), **mine))[0] == 413
    assert f.front.get("/v1/update_weights/" + mine["update_id"])["n_missing"] == len(REST)
    f.front.post("/v1/update_weights", dict(body_of(REST), **mine))
    assert f.front.post("/v1/update_weights/finish", mine)["coverage"] == "as_before"


def in_one_request(f):
    body = dict(body_of(HALF), weight_version=next(LABELS))
    halved(f, *f.front.ask("POST", "/v1/update_weights", body), REST, len(ALL))
    said = f.front.post("/v1/update_weights", dict(body_of(ALL), weight_version=next(LABELS)))
    assert said["coverage"] == "as_before", said


def twice(f):
    """A vLLM takes one that came twice for another, which it then drops."""
    mine = {"update_id": f.front.post("/v1/update_weights/start")["update_id"]}
    f.front.post("/v1/update_weights", dict(body_of(HALF), **mine))
    n = len(f.doubles[0].journal("update"))
    status, said = f.front.ask("POST", "/v1/update_weights", dict(body_of([REST[0], HALF[3]]), **mine))
    assert len(f.doubles[0].journal("update")) == n + (status == 200)
    if ENGINE == "vllm":
        assert (status, said["error"]["code"], said["error"]["param"]) == (409, "precondition_failed", "/names/1"), said
        assert f"'{HALF[3]}'" in said["error"]["message"], said
        f.front.post("/v1/update_weights", dict(body_of(REST), **mine))
    else:
        assert status == 200, said
        f.front.post("/v1/update_weights", dict(body_of(REST[1:]), **mine))
    assert f.front.post("/v1/update_weights/finish", mine)["coverage"] == "as_before"


def partial(f):
    if ENGINE == "vllm":  # which would put layers together of what it has
        refused(f, 400, "POST", "/v1/update_weights/start", {"partial": True})
        return
    pushed(f, "partial", HALF, partial=True)
    assert spec(f)["n_tensors"] == len(ALL)
    refused_half(f, HALF)
    pushed(f, "as_before", ALL)


def partial_on_what(f):
    """A partial update heals no engine: one with a part of another model, or a restarted one, waits for a whole
    update."""
    if ENGINE == "vllm":
        return
    refused_half(f, HALF)
    status, said = push(f, HALF, partial=True)
    assert (status, said["error"]["code"]) == (503, "no_weights"), said
    assert "a whole" in said["error"]["message"], said
    f.stays(*["fenced"] * len(f.doubles))
    pushed(f, "as_before", ALL)
    reboot(f.doubles[1])
    f.wait("serving", "unsynced")
    assert push(f, HALF, partial=True)[0] == 503
    group(f)
    pushed(f, "as_before", ALL)
    with engines(2, min_ready=1) as g:
        group(g)
        pushed(g, "unknown", ALL)
        reboot(g.doubles[1])
        g.wait("serving", "unsynced")
        group(g)
        g.clean()
        status, said = push(g, HALF, partial=True)
        assert status == 200 and ok_of(said) == [True, False], said
        g.stays("serving", "unsynced")
        assert not g.doubles[1].journal("update"), g.doubles[1].journal("update")


def unseen(f):
    """Of a directory that the engines open themselves no names are seen."""
    if ENGINE == "vllm":
        return
    said = f.front.post("/update_weights_from_disk", {"model_path": WORK, "weight_version": next(LABELS)})
    assert said["success"], said
    assert f.front.status()["weights"]["coverage"] == "unknown" and spec(f)["n_tensors"] == len(ALL)
    pushed(f, "as_before", ALL)


# ---- as each dialect's trainers send it ----

def as_vllm(f):
    n, info = len(f.doubles), [{"update_info": columns(part, dtypes="dtype_names")} for part in (HALF, REST)]
    f.front.post("/init_weight_transfer_engine", {"init_info": dict(VLLM_JOIN, world_size=1 + n * fleet_control.RANKS)})
    f.front.post("/pause?mode=keep")
    f.front.post("/start_weight_update", {"is_checkpoint_format": True})
    f.front.post("/update_weights", info[0])
    status, said = f.front.ask("POST", "/finish_weight_update", {"weight_version": next(LABELS)})
    halved(f, status, said, REST, len(ALL))
    f.front.post("/resume")
    f.stays(*["fenced"] * n)
    f.front.post("/start_weight_update", {})
    for part in info:
        f.front.post("/update_weights", part)
    f.front.post("/finish_weight_update", {})
    f.wait(*["serving"] * n)
    # Where there is no start and no finish: resume is the end.
    f.front.post("/pause?mode=keep")
    f.front.post("/update_weights", info[1])
    halved(f, *f.front.ask("POST", "/resume"), HALF, len(ALL))
    f.front.post("/pause?mode=keep")
    for part in info:
        f.front.post("/update_weights", part)
    f.front.post("/resume")
    f.wait(*["serving"] * n)
    assert f.front.status()["weights"]["coverage"] == "as_before"


def as_sglang(f):
    if ENGINE == "vllm":
        return
    n, path = len(f.doubles), "/update_weights_from_distributed"
    for end, body in (("/continue_generation", {}),
                      ("/update_weight_version", {"new_version": "w", "abort_all_requests": False})):
        f.front.post("/pause_generation", {"mode": "in_place"})
        f.front.post(path, columns(HALF))
        halved(f, *f.front.ask("POST", end, body), REST, len(ALL))
        f.front.post("/continue_generation")
        f.stays(*["fenced"] * n)
        f.front.post(path, columns(HALF))
        f.front.post(path, columns(REST))
        f.front.post(end, body)
        f.wait(*["serving"] * n)
    # The next version's first tensor is the end of the one before.
    f.front.post(path, dict(columns(HALF), weight_version="one"))
    halved(f, *f.front.ask("POST", path, dict(columns(HALF), weight_version="two")), REST, len(ALL))
    assert f.front.get("/v1/weight_transfer")["state"] == "none"  # its trainer may be in the broadcast
    group(f)
    for body in {}, {"names": [], "dtypes": [], "shapes": []}, {"names": None}:
        status, said = f.front.ask("POST", path, body)
        assert status == 400 and ("tensors" in said["message"] or "names" in said["message"]), said
        group(f)
    pushed(f, "as_before", ALL)


def pickled(names):
    p = Pickles()
    return p.named([(n, p.tensor(Export("fa6ec0da-0000-4000-8000-000000000000", bytes(64), 0, 4 * count(SHAPES[n]),
                                        b"/torch_1_2_3", 0, None, SHAPES[n], "float32"))) for n in names])


def count(shape):
    n = 1
    for dim in shape:
        n *= dim
    return n


def as_pickles(f):
    """The names stand in what is read and never executed."""
    if ENGINE == "vllm":
        return
    n, path = len(f.doubles), "/update_weights_from_tensor"
    unequal_ranks(f)
    f.front.post(path, {"serialized_named_tensors": [pickled(HALF)] * 2})
    halved(f, *f.front.ask("POST", "/continue_generation", {}), REST, len(ALL))
    f.front.post(path, {"serialized_named_tensors": [pickled(HALF), pickled(HALF)]})
    f.front.post(path, {"serialized_named_tensors": [pickled(REST), pickled(REST)]})
    f.front.post("/continue_generation")
    f.wait(*["serving"] * n)
    assert f.front.status()["weights"]["coverage"] == "as_before"
    f.front.post(path, {"serialized_named_tensors": ["bm8gcGlja2xl"] * 2})
    f.front.post("/continue_generation")
    assert f.front.status()["weights"]["coverage"] == "unknown"
    f.front.post(path, {"serialized_named_tensors": [Pickles().text([])] * 2})  # which is nothing at all
    status, said = f.front.ask("POST", "/continue_generation", {})
    assert status == 400 and "no tensor" in said["error"]["message"], said
    pushed(f, "as_before", ALL)


def unequal_ranks(f):
    """Each rank loads its own string only: what another one gets does not make it whole."""
    nothing_at_all = Pickles().text([])
    f.clean()
    for strings, at in (([pickled(ALL), nothing_at_all], 1), ([nothing_at_all, pickled(ALL)], 0),
                        ([pickled(HALF), pickled(REST)], 0), ([pickled(HALF), pickled(HALF[:3] + REST)], 0)):
        body = {"serialized_named_tensors": strings, "weight_version": next(LABELS)}
        status, said = f.front.ask("POST", "/v1/update_weights", body)
        assert (status, said["error"]["param"]) == (400, f"/serialized_named_tensors/{at}"), said
        assert f.front.ask("POST", "/update_weights_from_tensor", body)[0] == 400
    assert not [d for d in f.doubles if d.journal("update") or d.journal("pause")]
    f.stays(*["serving"] * len(f.doubles))
    sharded = {"update_id": f.front.post("/v1/update_weights/start", {"placement": "sharded"})["update_id"]}
    f.front.post("/v1/update_weights", dict(sharded, serialized_named_tensors=[pickled(HALF), pickled(REST)]))
    assert f.front.post("/v1/update_weights/finish", sharded)["n_missing"] == 0


def at_once(f):
    """Several trainers' ranks, a request each: together they cover the model."""
    mine = {"update_id": f.front.post("/v1/update_weights/start")["update_id"]}
    parts, said = [ALL[i::5] for i in range(5)], []
    threads = [threading.Thread(target=lambda p=p: said.append(f.front.ask(
        "POST", "/v1/update_weights", dict(body_of(p), **mine)))) for p in parts]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [s[0] for s in said] == [200] * 5, said
    assert f.front.post("/v1/update_weights/finish", mine)["coverage"] == "as_before"


# ---- with one ----

def given(f, source):
    group(f)
    assert spec(f) == {"from": source, "n_tensors": len(ALL)}
    refused_half(f, HALF)  # the first update of all
    pushed(f, "whole", REST, HALF)
    pushed(f, "whole", ALL + ["model.layers.0.mlp.down_proj.weight_scale"],
           shapes={"model.layers.0.mlp.down_proj.weight_scale": [1]})
    assert source in refused_half(f, HALF)
    pushed(f, "whole", ALL)
    # A wrong shape is refused before it is sent: no engine has any of it.
    f.clean()
    status, said = push(f, HALF, shapes={HALF[2]: [1, 2, 3]})
    assert (status, said["error"]["code"], said["error"]["param"]) == (422, "manifest_mismatch", "/shapes/2"), said
    assert not [d for d in f.doubles if d.journal("update") or d.journal("pause")]
    f.stays(*["serving"] * len(f.doubles))
    nothing(f)
    none_of_it(f)
    if ENGINE == "sglang":
        unequal_ranks(f)
    unread(f, source)


def none_of_it(f):
    """Names of another program are told."""
    status, said = push(f, ["actor." + HALF[0]], shapes={"actor." + HALF[0]: SHAPES[HALF[0]]})
    assert status == 422 and f"1 is none of them: 'actor.{HALF[0]}'" in said["error"]["message"], said
    f.wait(*["fenced"] * len(f.doubles))
    proofs = [u["proof"] for u in f.front.upstreams().values()]  # the one before may not have been proven yet
    assert all(p is None or p["state"] == "unproven" for p in proofs), proofs
    pushed(f, "whole", ALL)


def nothing(f):
    """A broadcast without names is success at a vLLM of 0.33, which loads nothing of it."""
    of_group = {"transport": "nccl"}
    for body in of_group, dict(of_group, names=[], dtypes=[], shapes=[]), dict(of_group, names=None):
        mine = {"update_id": f.front.post("/v1/update_weights/start")["update_id"]}
        f.front.post("/v1/update_weights", dict(body_of(HALF), **mine))
        status, said = f.front.ask("POST", "/v1/update_weights", dict(body, **mine))
        assert (status, said["error"]["param"]) == (400, "/names"), said
        halved(f, *f.front.ask("POST", "/v1/update_weights/finish", mine), REST, len(ALL))
        pushed(f, "whole", ALL)
        f.clean()
        mine = {"update_id": f.front.post("/v1/update_weights/start")["update_id"]}
        assert f.front.ask("POST", "/v1/update_weights", dict(body, **mine))[0] == 400
        status, said = f.front.ask("POST", "/v1/update_weights/finish", mine)
        assert status == 422 and "no tensor" in said["error"]["message"], said
        assert not [d for d in f.doubles if d.journal("update")]
        f.stays(*["serving"] * len(f.doubles))


def unread(f, source):
    """What cannot be compared with the spec is refused before it is sent, and the message says how to allow it."""
    if ENGINE == "vllm":
        return
    f.clean()
    for path, body, end in (("/update_weights_from_disk", {"model_path": WORK}, None),
                            ("/update_weights_from_tensor", {"serialized_named_tensors": ["bm8gcGlja2xl"] * 2},
                             "/continue_generation")):
        status, said = f.front.ask("POST", path, body)
        assert status == 400 and "--allow-unseen-tensors" in said["error"]["message"], said
        assert source in said["error"]["message"], said
        assert end is None or f.front.ask("POST", end, {})[0] == 200
    body = {"serialized_named_tensors": ["bm8gcGlja2xl"] * 2}
    status, said = f.front.ask("POST", "/v1/update_weights", body)
    assert (status, said["error"]["code"]) == (422, "incomplete_update"), said
    assert not [d for d in f.doubles if d.journal("update") or d.journal("pause")]
    f.stays(*["serving"] * len(f.doubles))


def allowed(f):
    """The option trusts the trainer, and the reply says that nothing was compared."""
    if ENGINE == "vllm":
        return
    said = f.front.post("/v1/update_weights", {"path": WORK, "weight_version": next(LABELS)})
    assert (said["coverage"], said["n_unseen"]) == ("unknown", 1), said
    group(f)
    assert "--manifest" in refused_half(f, HALF)
    pushed(f, "whole", ALL)


def other_names(f):
    """What the model's directory knows: a head that is tied, tensors that are stacked."""
    head = {HEAD: SHAPES[EMBED]}
    pushed(f, "whole", ALL + [HEAD], shapes=head)
    refused_half(f, [n for n in ALL if n != EMBED] + [HEAD], shapes=head, missing=[EMBED])
    stacked = {}
    for layer in range(64):
        parts = [f"model.layers.{layer}.mlp.{p}_proj.weight" for p in ("gate", "up")]
        if parts[0] in SHAPES:
            rows, width = SHAPES[parts[0]]
            stacked[f"model.layers.{layer}.mlp.gate_up_proj.weight"] = [2 * rows, width]
    assert stacked
    rest = [n for n in ALL if "mlp.gate_proj" not in n and "mlp.up_proj" not in n]
    pushed(f, "whole", rest + list(stacked), shapes=stacked)
    pushed(f, "whole", ALL + ["model.layers.0.self_attn.rotary_emb.inv_freq"],
           shapes={"model.layers.0.self_attn.rotary_emb.inv_freq": [SHAPES["model.layers.0.self_attn.q_norm.weight"][0] // 2]})


def unknown_model(f, n_tensors):
    """A model that the embedded engine could not run: what is stored has to come, but what is tied or derived."""
    group(f)
    assert spec(f) == {"from": "--model", "n_tensors": n_tensors}
    refused_half(f, HALF)
    pushed(f, "whole", ALL)


def with_more(content, *names):
    """A checkpoint with more tensors in it, of one element each."""
    n = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8:8 + n]), content[8 + n:]
    for name in names:
        header[name] = {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}
        data += bytes(4)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def write_model(name, *more, **config):
    """The checkpoint under another configuration."""
    path = os.path.join(WORK, name)
    os.mkdir(path)
    with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as file:
        config = {**json.load(file), **config}
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    with open(CHECKPOINT, "rb") as source, open(os.path.join(path, "model.safetensors"), "wb") as to:
        to.write(with_more(source.read(), *more))
    return path


def checked(*options):
    done = subprocess.run([fleet_control.BATON, "serve", "--check", "--upstream", "http://a:1,vllm", *options],
                          capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def says_at_check(unknown):
    no_weights, other_weights = (os.path.join(os.path.dirname(unknown), name) for name in ("no_weights", "other_weights"))
    for path in no_weights, other_weights:
        os.mkdir(path)
        with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
            json.dump({"architectures": ["NobodysForCausalLM"]}, file)
    with open(os.path.join(other_weights, "pytorch_model.bin"), "wb"):
        pass
    for options, rc, wanted in (
            ((), 0, "the first is not checked"), (("--model", MODEL), 0, "the 46 tensors of --model"),
            (("--model", unknown), 0, "the 46 tensors of --model"),
            (("--manifest", CHECKPOINT), 0, "the 46 tensors of --manifest"),
            (("--model", MODEL, "--manifest", CHECKPOINT), 2, "--manifest: with --upstream --model names the tensors of an update too"),
            (("--model", "/nowhere"), 2, "--model: there is no directory"),
            (("--manifest", "/nowhere"), 2, "--manifest: '/nowhere'"),
            (("--model", WORK), 2, "config.json"),
            (("--model", no_weights), 2, "--manifest FILE instead of --model"),
            (("--model", other_weights), 2, "--manifest FILE instead of --model")):
        found, said = checked(*options)
        assert found == rc and wanted in said, (options, found, said)


# ---- beside batons ----

def batons_prove(f):
    """Those in two phases prove what they got: theirs is the word, for the others too."""
    said = pushed(f, "whole", HALF)
    assert all(ok_of(said))
    f.clean()
    pushed(f, "whole", REST[:3])
    for d in f.doubles[:2]:
        d.order("verify", "status", status=422)
    status, said = push(f, HALF)
    assert status == 422 and "tensors of" not in said["error"]["message"], said
    f.clean()
    f.wait("serving", "serving", "fenced")
    until("it is told", lambda: f.front.status()["weights"]["coverage"] == "whole")


def main():
    if WHICH == "mixed":
        with Fleet("baton", "baton", "vllm", patient=True) as f:
            told("batons_prove", batons_prove, f)
        return
    with engines() as f:
        for p in (learned, verified, while_it_comes, in_one_request, twice, partial, partial_on_what, unseen, as_vllm, as_sglang,
                  as_pickles, at_once):
            told(p.__name__, p, f)
    with engines(2, "--manifest", CHECKPOINT) as f:
        told("given by --manifest", given, f, "--manifest")
    with engines(2, "--manifest", CHECKPOINT, "--allow-unseen-tensors") as f:
        told("allowed", allowed, f)
    whole = write_model("whole")
    with engines(2, "--model", whole) as f:
        told("given by --model", given, f, "--model")
        told("other_names", other_names, f)
    unknown = write_model("unknown", HEAD, "model.layers.0.self_attn.rotary_emb.inv_freq",
                          architectures=["NobodysForCausalLM"], model_type="nobodys")
    with engines(2, "--model", unknown) as f:
        told("unknown_model", unknown_model, f, len(ALL))
    told("says_at_check", says_at_check, unknown)


if __name__ == "__main__":
    main()
