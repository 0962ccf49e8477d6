"""The requests that upstreams get in each scenario are those of journals/KIND.txt.

Usage: journals.py as journals.sh calls it, then KIND [--write] [scenario...]; --write renews the file, and scenarios that
are named are only shown.
"""

import concurrent.futures
import difflib
import os
import sys
import threading
import time
import traceback

import forked
from fleet_control import BROADCAST, COLUMNS, HANDLES, JOIN, VLLM_INFO, VLLM_JOIN, write_file
from journal_world import ENGINE, FILE, MODEL, OPTIONS, RANKS, WORK, Double, Journal

KIND = (sys.argv[7:8] or [""])[0]
HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "journals", f"{KIND}.txt")
AT_ONCE = 4
SCENARIOS = []
NEW, ENGINES, PASSING = ("baton", "vllm", "sglang"), ("vllm", "vllm_old", "sglang", "sglang_old"), tuple(OPTIONS)
VLLMS, SGLANGS = ("vllm", "vllm_old"), ("sglang", "sglang_old")
LOAD = {"lora_name": "mine", "lora_path": WORK}
OK, DOWN = ("serving", "serving"), ("serving", "down")


def scenario(*kinds, n=2, **more):
    """Played for each of the kinds: with `n` engines and options of Journal."""
    def add(play):
        if KIND in kinds:
            SCENARIOS.append((play, {"min_ready": 1, **more}, n))
        return play
    return add


# ---- what trainers do ----

def tensors(f):
    return BROADCAST if any(d.dialect == "sglang" for d in f.doubles) else HANDLES


def init(f):
    return f.post("/v1/weight_transfer/init", dict(JOIN, world_size=1 + RANKS * len(f.doubles)))


def join(f):
    """Where tensors are sent by a group only."""
    if tensors(f) is BROADCAST:
        init(f)


def start(f, **body):
    return {"update_id": f.post("/v1/update_weights/start", body).get("update_id")}


def send(f, mine, body=None):
    return f.ask("POST", "/v1/update_weights", {**(body or tensors(f)), **mine})


def part(f, i):
    body = tensors(f)
    return dict(body, **{m: body[m][i:i + 1] for m in (*COLUMNS, "tensor_sizes") if m in body})


def finish(f, mine, *states, **body):
    said = f.ask("POST", "/v1/update_weights/finish", {**mine, **body})
    f.until_seen("no baton has it open", lambda: all(
        d.dialect != "baton" or d.state()["update"] not in ("open", "verified") for d in f.doubles))
    f.wait(*(states or ["serving"] * len(f.doubles)))
    return said


def whole(f, label, *states, body=None):
    mine = start(f, weight_version=label)
    send(f, mine, body)
    return finish(f, mine, *states)


def heal(f, label="healed"):
    """A whole update, after which all serve."""
    join(f)
    whole(f, label)


# ---- updates that go well ----

@scenario(*PASSING, "mixed")
def named(f):
    join(f)
    whole(f, "a")
    whole(f, "b")


@scenario(*PASSING, "mixed")
def named_at_its_end(f):
    join(f)
    mine = start(f)
    send(f, mine)
    finish(f, mine, weight_version="a")


@scenario(*PASSING, "mixed")
def without_a_name(f):
    join(f)
    mine = start(f)
    send(f, mine)
    finish(f, mine)


@scenario(*PASSING, "mixed")
def one_request(f):
    join(f)
    for body in {"weight_version": "a"}, {}:
        f.post("/v1/update_weights", dict(tensors(f), **body))
        f.wait(*["serving"] * len(f.doubles))


@scenario(*PASSING, "mixed")
def chunks(f):
    join(f)
    mine = start(f, weight_version="a", lease_s=30)
    for i in range(2):
        send(f, mine, part(f, i))
    f.post("/v1/update_weights/renew", dict(mine, lease_s=40))
    f.post("/v1/update_weights/verify", mine)
    finish(f, mine)


@scenario("baton", "sglang", "sglang_old")
def partial(f):
    join(f)
    whole(f, "a")
    mine = start(f, weight_version="b", partial=True)
    send(f, mine, part(f, 0))
    finish(f, mine)


@scenario("baton", "sglang", "sglang_old")
def file(f):
    f.post("/v1/update_weights", {"path": FILE, "weight_version": "a"})


@scenario(*VLLMS, "baton")
def by_a_group(f):
    init(f)
    whole(f, "a", body=BROADCAST)


@scenario("sglang", "sglang_old")
def by_handles(f):
    f.post("/update_weights_from_tensor", {"serialized_named_tensors": ["bm90aGluZw=="] * RANKS, "weight_version": "a"})
    f.post("/continue_generation")


@scenario(*VLLMS)
def as_vllm(f):
    f.post("/init_weight_transfer_engine", {"init_info": dict(VLLM_JOIN, world_size=1 + len(f.doubles) * RANKS)})
    f.post("/pause?mode=keep")
    f.post("/start_weight_update", {"is_checkpoint_format": True})
    f.post("/update_weights", {"update_info": VLLM_INFO})
    f.post("/finish_weight_update", {"weight_version": "a"})
    f.post("/resume")
    f.post("/pause?mode=abort")  # before it had a start and a finish: resume is the end
    for i in range(2):
        f.post("/update_weights", {"update_info": {m: column[i:i + 1] for m, column in VLLM_INFO.items()}})
    f.post("/resume")
    f.post("/update_weight_version", {"new_version": "b"})
    f.wait(*OK)


@scenario(*SGLANGS)
def as_sglang(f):
    group = dict(JOIN, rank_offset=1, world_size=1 + len(f.doubles) * RANKS, group_name="g", backend="nccl")
    f.post("/init_weights_update_group", group)
    f.post("/pause_generation", {"mode": "retract"})
    f.post("/flush_cache")
    f.post("/begin_weight_update", {"selector": "target"})
    for i in range(2):
        one = {m: column[i:i + 1] for m, column in COLUMNS.items()}
        f.post("/update_weights_from_distributed", dict(one, group_name="g", weight_version="a", selector="target"))
    f.post("/end_weight_update")
    f.post("/continue_generation")
    f.post("/update_weights_from_distributed", dict(COLUMNS, group_name="g"))  # not paused: the name is the last word
    f.post("/update_weight_version", {"new_version": "b", "abort_all_requests": False})
    f.wait(*OK)


@scenario("vllm", "sglang", options=("--on-update", "finish"))
def on_update_finish(f):
    join(f)
    whole(f, "a")


# ---- updates that fail ----

def fails(f, op, do="status", state="fenced", label="a", **more):
    """Engine 1 fails at one thing; a whole update heals it."""
    join(f)
    f.order(1, op, do, **more)
    mine = start(f, weight_version=label)
    if send(f, mine)[0] == 200:
        finish(f, mine, "serving", state)
    f.wait("serving", state)
    heal(f)


for _kinds, _op, _do, _state, _more in (
        (ENGINES, "pause", "status", "unsynced", {}), (ENGINES, "pause", "close_after", "unsynced", {}),
        (ENGINES, "mark", "status", "unsynced", {}), (ENGINES, "mark", "close_after", "fenced", {}),
        (("vllm", "sglang"), "start", "status", "serving", {}), (("vllm", "sglang"), "start", "close_after", "unsynced", {}),
        (ENGINES, "update", "status", "fenced", {"status": 400}), (ENGINES, "update", "close_before", "fenced", {}),
        (ENGINES, "update", "close_after", "fenced", {}),
        (PASSING, "finish", "status", "fenced", {}), (PASSING, "finish", "close_before", "fenced", {}),
        (PASSING, "finish", "close_after", "fenced", {}),
        (("sglang",), "end", "status", "fenced", {}), (("sglang",), "end", "close_after", "fenced", {}),
        (ENGINES, "resume", "status", "serving", {}), (ENGINES, "resume", "close_after", "serving", {})):
    def _play(f, op=_op, do=_do, state=_state, more=_more):
        fails(f, op, do, state, **more)
    _play.__name__ = f"{_op}_{_do}"
    scenario(*_kinds)(_play)


@scenario(*ENGINES)
def reset_refused(f):
    """Once, and it is asked again."""
    join(f)
    f.order(1, "reset_cache", "status")
    whole(f, "a")


@scenario("baton")
def two_phases(f):
    """Batons: all of them, or none."""
    for op in "start", "update", "verify":
        for do in "status", "close_after":
            f.order(1, op, do)
            said = f.ask("POST", "/v1/update_weights/start", {"weight_version": op})
            if said[0] == 200:
                mine = {"update_id": said[1]["update_id"]}
                if send(f, mine)[0] == 200:
                    finish(f, mine, *OK)
            f.until_seen("no update is open", lambda: f.front.status()["update"] is None)
            f.wait(*OK)
    heal(f)


@scenario(*ENGINES, min_ready=2)
def no_quorum(f):
    join(f)
    f.order(0, "pause", "status")
    mine = start(f, weight_version="a")
    send(f, mine)
    f.wait(*OK)
    join(f)
    f.order(0, "update", "status", status=400)
    mine = start(f, weight_version="b")
    send(f, mine)
    f.wait("fenced", "fenced")
    heal(f)


@scenario("mixed", n=3)
def baton_refuses(f):
    """The others have the bytes by then."""
    join(f)
    f.order(0, "verify", "status")
    mine = start(f, weight_version="a")
    send(f, mine)
    finish(f, mine, "serving", "fenced", "fenced")
    heal(f)


@scenario(*PASSING, "mixed")
def given_up(f):
    before = ["serving"] * len(f.doubles)
    f.post("/v1/update_weights/abort", start(f, weight_version="a"))
    f.ask("DELETE", "/v1/update_weights/" + start(f, weight_version="b")["update_id"])
    finish(f, start(f, weight_version="c"), *before)


@scenario(*PASSING, "mixed")
def given_up_after_bytes(f):
    join(f)
    mine = start(f, weight_version="a")
    send(f, mine)
    f.post("/v1/update_weights/abort", dict(mine, reason="so it is"))
    f.wait(*["serving" if d.dialect == "baton" else "fenced" for d in f.doubles])
    heal(f)


@scenario(*NEW)
def lease_ends(f):
    join(f)
    mine = start(f, weight_version="a", lease_s=1)
    send(f, mine)
    f.until_seen("the lease ended", lambda: f.front.get("/v1/update_weights/" + mine["update_id"])["phase"] == "aborted")
    if KIND == "baton":
        for i in range(2):
            f.got(i, "abort")
    f.wait(*["serving" if d.dialect == "baton" else "fenced" for d in f.doubles])
    heal(f)


# ---- engines that restart, join and leave ----

@scenario(*PASSING)
def restarts_before(f):
    join(f)
    whole(f, "a")
    f.restart(1, DOWN, "serving", "unsynced")
    heal(f)


@scenario(*PASSING)
def restarts_within(f):
    """Before the first bytes, and between two chunks."""
    join(f)
    whole(f, "0")
    mine = start(f, weight_version="a")
    f.restart(1, DOWN, "serving", "unsynced")
    if send(f, mine, part(f, 0))[0] == 200:
        send(f, mine, part(f, 1))
        finish(f, mine, "serving", "serving" if tensors(f) is HANDLES else "unsynced")
    heal(f)
    mine = start(f, weight_version="b")
    send(f, mine, part(f, 0))
    f.restart(1, DOWN, "serving", "unsynced", resets=False)
    send(f, mine, part(f, 1))
    f.ask("POST", "/v1/update_weights/finish", mine)
    f.emptied(1)
    heal(f)


@scenario(*NEW)
def restarts_in_a_group(f):
    """It is in no group, and nor is one that was added again."""
    init(f)
    whole(f, "a", body=BROADCAST)
    f.restart(1, DOWN, "serving", "unsynced")
    mine = start(f, weight_version="b")
    send(f, mine, BROADCAST)
    f.ask("POST", "/v1/update_weights/finish", mine)
    init(f)
    whole(f, "c", body=BROADCAST)
    f.post("/v1/upstreams/remove", {"upstream": f.doubles[1].url})
    f.post("/v1/upstreams", {"upstream": f"{f.doubles[1].url},{f.doubles[1].dialect}"})
    f.wait("serving", "unsynced")
    f.emptied(1)
    if KIND == "sglang":  # which may be paused since before
        f.got(1, "resume")
    mine = start(f, weight_version="d")
    send(f, mine, BROADCAST)
    f.ask("POST", "/v1/update_weights/finish", mine)


@scenario(*NEW)
def joins_and_leaves(f):
    join(f)
    whole(f, "a")
    with Double(ENGINE, *OPTIONS[KIND], "--weight-version", "a", "--world-size", RANKS) as late:
        f.step("! an engine of the same name joins")
        f.adopt(late)
        f.post("/v1/upstreams", {"upstream": f"{late.url},{late.dialect}"})
        f.wait("serving", "serving", "unsynced")
        f.emptied(2)
        heal(f, "b")
        f.post("/v1/upstreams/remove", {"upstream": late.url})
        f.wait("serving", "serving", "gone")
        f.step("it is not asked any more")
        f.disown()
    mine = start(f, weight_version="c")
    f.post("/v1/upstreams/remove", {"upstream": f.doubles[1].url})
    f.wait("serving", "gone")
    join(f)
    send(f, mine)
    f.ask("POST", "/v1/update_weights/finish", mine)
    f.wait("serving", "gone")


@scenario(*NEW)
def resync(f):
    """It is vouched for, if its name is that of the others."""
    join(f)
    whole(f, "step-0")
    f.restart(1, DOWN, "serving", "unsynced")
    f.post("/v1/upstreams/resync", {"upstream": f.doubles[1].url})
    f.wait(*OK)


# ---- pauses, sleep, the name ----

@scenario(*PASSING, "mixed")
def pauses(f):
    for mode in ("keep", "wait", "abort"):
        f.post("/v1/pause", {"mode": mode, "owner": "me"})
        f.post("/v1/resume", {"owner": "me"})


@scenario(*NEW)
def pause_with_an_update(f):
    """It is the trainer's, who ends it."""
    join(f)
    f.post("/v1/pause")
    whole(f, "a")
    f.post("/v1/resume")
    f.wait(*OK)


@scenario(*NEW)
def resumed_within(f):
    """A resume lets nothing go that has half an update in it."""
    join(f)
    f.post("/v1/pause")
    mine = start(f, weight_version="a")
    send(f, mine)
    f.post("/v1/resume")
    finish(f, mine)


@scenario(*NEW)
def pause_lease(f):
    f.post("/v1/pause", {"lease_s": 1})
    f.until_seen("its lease ended", lambda: f.front.status()["pause"] is None and f.pauses() == [None] * 2)


@scenario(*NEW, min_ready=2)
def pause_refused(f):
    f.order(1, "pause", "status", status=503)
    f.post("/v1/pause")
    f.until_seen("the others go on", lambda: f.pauses() == [None] * 2)
    f.wait(*OK)


@scenario(*NEW)
def pause_missed(f):
    """By one that was away then, and by one that is another process."""
    f.away(1, *DOWN)
    f.post("/v1/pause")
    f.back(1, *OK)
    f.until_seen("it is paused", lambda: f.pauses() == ["keep"] * 2)
    f.post("/v1/resume")
    f.wait(*OK)


@scenario("baton", "vllm")
def restarts_while_paused(f):
    f.post("/v1/pause")
    f.restart(1, DOWN, *OK)
    f.until_seen("it is paused", lambda: f.pauses() == ["keep"] * 2)
    f.post("/v1/resume")
    f.wait(*OK)


@scenario(*NEW, n=3, options=("--pause-fenced",))
def pause_fenced(f):
    join(f)
    f.order(1, "finish", "status")
    whole(f, "a", "serving", "fenced", "serving")
    f.until_seen("it is paused", lambda: f.front.upstreams()[f.doubles[1].url]["fence_paused"])
    f.post("/v1/pause")
    f.post("/v1/resume")
    f.until_seen("it is paused still", lambda: [p is not None for p in f.pauses()] == [False, True, False])
    heal(f)
    f.until_seen("it goes on", lambda: f.pauses() == [None] * 3)


@scenario(*PASSING, "mixed")
def sleeps(f):
    f.post("/v1/sleep", {"level": 1})
    f.post("/v1/wake", {"tags": ["weights"]})
    f.post("/v1/wake", {"tags": ["kv_cache"]})
    f.wait(*["serving"] * len(f.doubles))


@scenario(*NEW)
def sleeps_and_is_updated(f):
    """At level 2 it has no weights, until an update."""
    n = len(f.doubles)
    f.post("/v1/sleep", {"level": 2})
    f.wait(*["fenced"] * n)
    join(f)
    mine = start(f, weight_version="a")
    f.post("/v1/wake", {"tags": ["weights"]})
    send(f, mine)
    f.ask("POST", "/v1/update_weights/finish", mine)
    f.post("/v1/wake")
    f.wait(*OK)
    f.post("/v1/sleep", {"level": 1})
    f.ask("POST", "/v1/update_weights/start", {"weight_version": "b"})


@scenario(*NEW)
def sleep_refused(f):
    f.order(0, "sleep", "status")
    f.post("/v1/sleep", {"level": 1})
    f.wait("fenced", "serving")
    f.post("/v1/wake")
    heal(f)


@scenario(*NEW)
def sleep_missed(f):
    """By one that was away: it gets it when it is back, but an SGLang only by a resync."""
    f.away(1, *DOWN)
    f.post("/v1/sleep", {"level": 1})
    if f.doubles[1].dialect != "sglang":
        f.back(1, *OK)
        f.post("/v1/wake")
        f.wait(*OK)
        return
    f.back(1, "serving", "fenced")
    f.until_seen("it has answered", lambda: "/v1/upstreams/resync" in f.front.upstreams()[f.doubles[1].url]["error"]["message"])
    f.post("/v1/upstreams/resync", {"upstream": f.doubles[1].url})
    f.wait(*OK)
    f.post("/v1/wake")
    f.wait(*OK)


@scenario(*PASSING, "mixed")
def label(f):
    f.post("/v1/weights/label", {"weight_version": "another"})
    f.wait(*["serving"] * len(f.doubles))
    f.order(1, {"baton": "relabel", "vllm": "relabel", "sglang": "finish"}[f.doubles[1].dialect], "status")
    f.post("/v1/weights/label", {"weight_version": "third"})
    f.until_seen("it is given it again", lambda: f.versions() == ["third"] * len(f.doubles))
    f.wait(*["serving"] * len(f.doubles))


# ---- adapters, caches, requests, groups ----

@scenario(*PASSING)
def adapters(f):
    f.post("/v1/load_lora_adapter", LOAD)
    f.post("/v1/load_lora_adapter", LOAD)  # in its place
    f.wait(*OK)
    f.post("/v1/unload_lora_adapter", {"lora_name": "mine"})
    f.wait(*OK)


@scenario(*NEW)
def adapter_refused(f):
    """A new one: all or none. One in its place: it is asked again."""
    f.order(0, "lora_load", "status")
    f.post("/v1/load_lora_adapter", LOAD)
    f.post("/v1/load_lora_adapter", LOAD)
    f.order(0, "lora_load", "status")
    f.post("/v1/load_lora_adapter", dict(LOAD, lora_path=WORK + "/other"))
    f.until_seen("it has it", lambda: f.doubles[0].state()["adapters"] == {"mine": WORK + "/other"})
    f.wait(*OK)
    f.order(0, "lora_unload", "status")
    f.post("/v1/unload_lora_adapter", {"lora_name": "mine"})
    f.until_seen("it lets go", lambda: f.doubles[0].state()["adapters"] == {})
    f.wait(*OK)


@scenario(*PASSING)
def adapters_returned(f):
    """To another process of an engine, and to one that was away."""
    join(f)
    whole(f, "a")
    f.post("/v1/load_lora_adapter", LOAD)
    f.restart(1, DOWN, "serving", "unsynced")
    f.until_seen("it has it", lambda: list(f.doubles[1].state()["adapters"]) == ["mine"])
    heal(f)
    f.away(1, *DOWN)
    f.post("/v1/load_lora_adapter", dict(LOAD, lora_name="two"))
    f.back(1, *(OK if f.doubles[1].dialect != "sglang" else ("serving", "unsynced")))
    f.until_seen("it has both", lambda: list(f.doubles[1].state()["adapters"]) == ["mine", "two"])


@scenario(*PASSING, "mixed")
def others(f):
    f.post("/v1/reset_cache")
    f.order(0, "reset_cache", "status")
    f.post("/v1/reset_cache")
    f.wait(*["serving"] * len(f.doubles))
    f.post("/v1/abort_requests", {"all": True})
    f.post("/v1/abort_requests", {"request_ids": ["a", "b"]})


@scenario("baton")
def plans(f):
    f.post("/v1/weights/plans", COLUMNS)


@scenario(*PASSING, "mixed")
def group(f):
    init(f)
    f.ask("DELETE", "/v1/weight_transfer")
    f.order(0, "init", "status")
    init(f)
    f.wait(*["serving"] * len(f.doubles))


@scenario(*SGLANGS)
def groups_of_stages(f):
    body = dict(JOIN, rank_offset=1, world_size=1 + len(f.doubles) * RANKS)
    for name in "pp_0", "pp_1":
        f.post("/init_weights_update_group", dict(body, group_name=name))
    f.post("/pause_generation", {"mode": "in_place"})
    for name in "pp_0", "pp_1":
        f.post("/update_weights_from_distributed", dict(COLUMNS, group_name=name, weight_version="a"))
    f.post("/continue_generation")
    f.post("/destroy_weights_update_group", {"group_name": "pp_0"})
    f.ask("DELETE", "/v1/weight_transfer")


@scenario("vllm", "sglang")
def together(f):
    """What ends an update goes with the resets of the caches: they come while it is not answered."""
    join(f)
    mine = start(f, weight_version="a")
    send(f, mine)
    first, beside = ("finish", ("reset_cache", "reset_encoder")) if KIND == "vllm" else ("end", ("reset_cache",))
    seen = [len(d.journal()) for d in f.doubles]
    for i in range(2):
        f.order(i, first, "slow", ms=60000)
    thread = threading.Thread(target=finish, args=(f, mine))
    thread.start()
    for d, n in zip(f.doubles, seen):
        d.wait("the resets come", lambda d=d, n=n: {r["op"] for r in d.journal()[n:]} >= {first, *beside})
        d.good("DELETE", "/fault")
    thread.join()


# ---- the server is the trainer of its engines ----

def push(f, step, label, *states):
    f.post("/v1/update_weights", {"path": f"{MODEL}/checkpoints/step-{step}.safetensors", "weight_version": label})
    f.wait(*(states or ["serving"] * len(f.doubles)))
    for tap in f.taps:
        tap.settle()


STAGED = ("vllm_staged", "sglang_staged")
LOADS = "update"


@scenario(*STAGED)
def handed_over(f):
    push(f, "00100", "a")
    push(f, "01500", "b")
    f.post("/v1/weights/label", {"weight_version": "c"})
    f.wait(*OK)


@scenario(*STAGED)
def handed_over_to_another_process(f):
    """A repair: with what the others have. Its caches are emptied beside it."""
    push(f, "00100", "a")
    f.lone_resets = False
    f.restart(1, DOWN, *OK)


for _op, _do in (("pause", "status"), ("mark", "status"), ("start", "status"), (LOADS, "status"), (LOADS, "close_after"),
                 ("finish", "status"), ("finish", "close_after"), ("resume", "status")):
    def _play(f, op=_op, do=_do):
        push(f, "00100", "a")
        f.barriers = False  # what engine 1 does not get, it gets by itself
        f.order(1, op, do, **({"status": 400} if do == "status" else {}))
        push(f, "01500", "b")
    _play.__name__ = f"handed_over_{_op}_{_do}"
    scenario(*STAGED)(_play)


@scenario(*STAGED)
def handed_over_while_paused(f):
    push(f, "00100", "a")
    f.post("/v1/pause")
    push(f, "01500", "b")
    f.post("/v1/resume")
    f.wait(*OK)


@scenario(*STAGED)
def handed_over_after_a_sleep(f):
    """Each engine by itself: it is a repair."""
    push(f, "00100", "a")
    f.barriers = False
    f.post("/v1/sleep", {"level": 2})
    f.post("/v1/wake")
    f.wait(*OK)


@scenario(*STAGED)
def handed_over_with_adapters(f):
    push(f, "00100", "a")
    f.post("/v1/load_lora_adapter", LOAD)
    push(f, "01500", "b")
    f.lone_resets, f.apart = False, ("lora_load", "lora_unload")
    f.restart(1, DOWN, *OK)
    f.until_seen("it has it", lambda: list(f.doubles[1].state()["adapters"]) == ["mine"])


@scenario(*STAGED)
def name_refused(f):
    """The name is the server's, so the engine is repaired."""
    push(f, "00100", "a")
    f.order(1, "relabel" if KIND == "vllm_staged" else "finish", "status")
    f.post("/v1/weights/label", {"weight_version": "b"})
    f.until_seen("it is repaired", lambda: f.versions() == ["b"] * 2)
    f.wait(*OK)


# ---- all of them ----

def kinds_of(n):
    return {"mixed": ["baton", "vllm", "sglang"], "vllm_staged": ["vllm"] * n, "sglang_staged": ["sglang"] * n}.get(KIND, [KIND] * n)


def played(play, more, n):
    """(the scenario as text, did it end well?)"""
    options = ("--update-timeout", 30000, *more.pop("options", ()))
    began, f = time.monotonic(), Journal(play.__name__, *kinds_of(n), stage=KIND.endswith("_staged"), options=options, **more)
    try:
        with f:
            play(f)
    except Exception:  # pylint: disable=broad-except
        return "\n".join([*f.lines, "  failed: " + traceback.format_exc()]), False
    print(f"  {play.__name__}: {time.monotonic() - began:.2f} s", file=sys.stderr, flush=True)
    return "\n".join(f.lines) + "\n", True


def main(arguments):
    forked.context()  # before several threads want it
    write_file()
    os.makedirs(WORK + "/other", exist_ok=True)
    names = [a for a in arguments if not a.startswith("-")]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda s: played(*s), [s for s in SCENARIOS if not names or s[0].__name__ in names]))
    text, well = "\n".join(one for one, _ in found), all(good for _, good in found)
    if names:
        print(text)
        return int(not well)
    if "--write" in arguments and well:
        with open(HERE, "w", encoding="utf-8") as out:
            out.write(text)
        return 0
    with open(HERE, encoding="utf-8") as file_:
        kept = file_.read()
    sys.stdout.writelines(difflib.unified_diff(kept.splitlines(True), text.splitlines(True), HERE, "now", n=12))
    return int(not well or kept != text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[8:]))
