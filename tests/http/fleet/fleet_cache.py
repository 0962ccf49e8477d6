"""No reply uses cache entries of other weights, whichever client paused and resumed the upstreams.

The doubles' caches remember which weights made each entry, and a token made from a stale entry shows it;
Fleet and Double check at their end that there was none.
Usage: as fleet_control.py, vllm or sglang.
"""

import http.client
import json
import os
import threading

import fleet_control
from fake_engine_world import LONG, N, PROMPT, completion, events, expected, ids_of
from fleet_control import COLUMNS, HANDLES, JOIN, LABELS, RANKS, WHICH, Fleet, has_in_order, ok_of, reboot, told
from fleet_world import n_traffic, until

fleet_control.TIMEOUT_MS = 4000
VLLM_INFO = {"names": ["a", "b"], "dtype_names": ["bfloat16"] * 2, "shapes": [[1], [2, 3]], "packed": True,
             "ipc_handles_pickled": HANDLES["ipc_handles_pickled"], "tensor_sizes": HANDLES["tensor_sizes"]}
RESET = {"vllm": ["reset_cache", "reset_encoder"], "sglang": ["reset_cache", "reset_storage"]}[WHICH]
SLOW = ("--interval-us", 2000)


def generate(f, n=N, prompt=PROMPT, status=200):
    said = f.front.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": n})
    assert said[0] == status, said
    return ids_of(said[1]["choices"][0]["text"]) if status == 200 else said[1]["error"]["message"]


def warm(f):
    """Every upstream caches what the weights of now make of it."""
    for _ in range(4 * len(f.doubles)):
        generate(f)


def all_serve(f, label):
    for d in f.doubles:
        n = d.state()["tokens_made"]
        until("it is asked", lambda: generate(f) == expected(PROMPT, label, 0, N) and d.state()["tokens_made"] > n)


def pause(f, mode):
    if WHICH == "vllm":
        f.front.post(f"/pause?mode={mode}")
    else:
        f.front.post("/pause_generation", {"mode": mode.replace("keep", "in_place")})


def resume(f):
    f.front.post("/resume" if WHICH == "vllm" else "/continue_generation")


def join(f):
    world = 1 + len(f.doubles) * RANKS
    if WHICH == "vllm":
        f.front.post("/init_weight_transfer_engine", {"init_info": {}})
    else:
        f.front.post("/init_weights_update_group", dict(JOIN, rank_offset=1, world_size=world, group_name="g"))


def trainer_updates(f, label, **more):
    """As a trainer does that knows nothing but its engine's own routes."""
    if WHICH == "vllm":
        f.front.post("/start_weight_update", {"is_checkpoint_format": True})
        f.front.post("/update_weights", {"update_info": VLLM_INFO})
        f.front.post("/finish_weight_update", {"weight_version": label})
    else:
        f.front.post("/update_weights_from_distributed",
                     dict(COLUMNS, group_name="g", weight_version=label, **{"flush_cache": True, **more}))


def native_updates(f, label):
    step, _, said = f.update(label)
    assert step is None and all(ok_of(said)), said


# ---- nothing runs ----

def usual(f):
    """Pause, update, resume by the engine's own routes; one client, and nothing is under way."""
    for mode in ("abort", "keep") if WHICH == "sglang" else ("abort", "keep", "wait"):
        label = next(LABELS)
        warm(f)
        f.clean()
        pause(f, mode)
        trainer_updates(f, label)
        resume(f)
        all_serve(f, label)
        for i in range(len(f.doubles)):
            f.did(i, [("finish", *RESET), "resume"], "pause", "mark", "start", "update", "end")


def by_our_routes(f):
    """Paused by /v1/pause, or not; resumed by the end of its lease, or with the update."""
    for mode in (None, "keep", "abort"):
        label = next(LABELS)
        warm(f)
        if mode is not None:
            f.front.post("/v1/pause", {"mode": mode, "lease_s": 1} if mode == "abort" else {"mode": mode})
        native_updates(f, label)
        if mode == "keep":
            f.front.post("/v1/resume")
        if mode == "abort":
            until("the pause ends with its lease", lambda: f.front.status()["pause"] is None)
        all_serve(f, label)


def not_flushed(f):
    """A trainer that leaves the flush to others gets none of the old entries either."""
    label = next(LABELS)
    warm(f)
    trainer_updates(f, label, flush_cache=False)
    resume(f)
    all_serve(f, label)


def asleep(f):
    label = next(LABELS)
    warm(f)
    f.front.post("/v1/sleep", {"level": 1})
    f.front.post("/v1/wake", {"tags": ["weights"]})
    native_updates(f, label)
    f.front.post("/v1/wake", {"tags": ["kv_cache"]})
    all_serve(f, label)


def by_trainer(f):
    """Its own words about caches reach the engines."""
    f.clean()
    if WHICH == "vllm":
        f.front.post("/reset_prefix_cache?reset_running_requests=true&reset_external=true")
        f.front.post("/reset_prefix_cache", {"reset_running_requests": False})
        for d in f.doubles:  # baton's own have one of the two words at most
            wanted = "reset_running_requests=true&reset_external=true"
            found = [e["query"] for e in d.journal("reset_cache")]
            assert found.count(wanted) == 1 and has_in_order(found, [wanted, ""]), found
    else:
        f.front.good("GET", "/flush_cache")
        assert all(d.journal("reset_cache") for d in f.doubles)


def adapters(f):
    """An engine that knows an adapter by its name keeps what the one before it cached."""
    def ask():
        said = f.front.post("/v1/completions", {"model" if WHICH == "vllm" else "lora_path": "l", "prompt": PROMPT,
                                                "max_tokens": N})
        return ids_of(said["choices"][0]["text"])
    for n in (1, 2, 3):
        if n == 3 and WHICH == "vllm":  # another server, which knows of no adapter
            f.front.kill()
            f.serve()
            f.wait(*["serving"] * len(f.doubles))
        f.front.post("/v1/load_lora_adapter", {"lora_name": "l", "lora_path": "/tmp"})
        f.wait(*["serving"] * len(f.doubles))
        for _ in range(4 * len(f.doubles)):
            assert ask() == expected(PROMPT, f"{f.label}/l#{n}", 0, N), n
    slow = f.doubles[-1]  # while the last one loads, no request reads at another what the previous adapter cached
    slow.order("lora_load", "slow", ms=400)
    found, stop = [], threading.Event()

    def client():
        while not stop.is_set():
            found.append(ask())
    clients = [threading.Thread(target=client) for _ in range(4)]
    load = threading.Thread(target=lambda: f.front.post("/v1/load_lora_adapter",
                                                        {"lora_name": "l", "lora_path": "/tmp"}))
    n_loads = len(slow.journal("lora_load"))
    load.start()
    slow.wait("it loads", lambda: len(slow.journal("lora_load")) > n_loads)
    for t in clients:
        t.start()
    load.join()
    until("they are asked again", lambda: len(found) > 20)
    stop.set()
    for t in clients:
        t.join()
    f.wait(*["serving"] * len(f.doubles))
    f.front.post("/v1/unload_lora_adapter", {"lora_name": "l"})


def ask_adapter(f, n=1):
    for _ in range(n * 4 * len(f.doubles)):
        f.front.ask("POST", "/v1/completions", {"model": "l", "prompt": PROMPT, "max_tokens": N})


def load_other(f):
    other = os.path.join(fleet_control.WORK, "other")
    os.makedirs(other, exist_ok=True)
    return f.front.ask("POST", "/v1/load_lora_adapter", {"lora_name": "l", "lora_path": other, "load_inplace": True})[0]


def emptied_after_a_later_load(f):
    """One that replaces an adapter later than the others gets no request until its cache is empty, however long that
    takes; nor does one whose reset fails while the others still load."""
    d, slow = f.doubles[0], f.doubles[-1]
    f.front.post("/v1/load_lora_adapter", {"lora_name": "l", "lora_path": "/tmp"})
    ask_adapter(f)
    d.order("lora_load", "status", status=404)
    d.order("reset_cache", "hang")
    n = len(d.journal("reset_cache"))
    assert load_other(f) == 502
    d.wait("its cache is to be emptied", lambda: len(d.journal("reset_cache")) > n)
    f.stays("unsynced", *["serving"] * (len(f.doubles) - 1))
    ask_adapter(f)
    f.wait(*["serving"] * len(f.doubles))
    ask_adapter(f)
    d.order("reset_cache", "status", status=500, times=0)
    slow.order("lora_load", "slow", ms=300)
    n = len(slow.journal("lora_load"))
    load = threading.Thread(target=lambda: f.front.post("/v1/load_lora_adapter", {"lora_name": "l", "lora_path": "/tmp"}))
    load.start()
    slow.wait("it loads", lambda: len(slow.journal("lora_load")) > n)
    clients = [threading.Thread(target=ask_adapter, args=(f,)) for _ in range(8)]
    for t in clients:
        t.start()
    load.join()
    f.stays("unsynced", *["serving"] * (len(f.doubles) - 1))
    for t in clients:
        t.join()
    d.good("DELETE", "/fault")
    f.wait(*["serving"] * len(f.doubles))
    f.front.post("/v1/unload_lora_adapter", {"lora_name": "l"})


def updated_beside_a_load(f):
    """A load that no engine needs and that hangs hides no cache of the weights before."""
    d = f.doubles[0]
    f.front.post("/v1/load_lora_adapter", {"lora_name": "l", "lora_path": "/tmp", "timeout_s": 2})
    for one in f.doubles:
        one.order("lora_load", "status", status=404, times=0)
        reboot(one)
    f.wait(*["unsynced"] * len(f.doubles))
    f.update_all()
    f.wait(*["serving"] * len(f.doubles))
    warm(f)
    d.good("DELETE", "/fault")
    d.order("lora_load", "hang")
    n = len(d.journal("lora_load"))
    d.wait("it is asked again", lambda: len(d.journal("lora_load")) > n)
    assert f.states() == ["serving"] * len(f.doubles), "as all lack it"
    d.order("reset_cache", "status", status=500, times=0)
    f.update(next(LABELS))
    f.stays("unsynced", *["serving"] * (len(f.doubles) - 1))
    warm(f)
    for one in f.doubles:
        one.good("DELETE", "/fault")
    f.front.post("/v1/unload_lora_adapter", {"lora_name": "l"})
    f.wait(*["serving"] * len(f.doubles))


def adapters_only(f):
    """A vLLM that is not in development mode takes adapters, and has no route to empty its cache by."""
    for d in f.doubles:
        d.must_be_fresh = False
        d.order("reset_cache", "status", status=404, times=0)
    for _ in range(2):
        f.front.post("/v1/load_lora_adapter", {"lora_name": "l", "lora_path": "/tmp"})
        f.stays(*["serving"] * len(f.doubles))
    f.front.post("/v1/unload_lora_adapter", {"lora_name": "l"})
    f.stays(*["serving"] * len(f.doubles))


# ---- something is held ----

class Stream:
    """A generation that goes on; what made its tokens is in its double's journal."""

    def __init__(self, f, prompt=PROMPT):
        self.c = http.client.HTTPConnection("127.0.0.1", f.front.port, timeout=60)
        self.c.request("POST", "/v1/completions", json.dumps(dict(completion(LONG, stream=True), prompt=prompt)),
                       {"Content-Type": "application/json"})
        self.events = events(self.c.getresponse())
        next(self.events)

    def next(self, n=1):
        for _ in range(n):
            next(self.events)

    def close(self):
        self.c.close()


def made_by(d):
    return d.journal("completions")[0]["versions"]


def running(f, d, n):
    d.wait("as many run", lambda: d.state()["running"] == n)


def held(f):
    """Running requests continue after the update with KV of the new weights; no request reads that of the old
    ones."""
    d, before = f.doubles[0], f.label
    for step in (trainer_updates, native_updates):
        label = next(LABELS)
        d.good("DELETE", "/journal")
        warm(f)
        d.good("DELETE", "/journal")
        s = Stream(f)
        if step is trainer_updates:
            pause(f, "keep")
        step(f, label)
        if step is trainer_updates:
            resume(f)
        f.wait("serving")
        made = d.state()["tokens_made"]
        until("it goes on", lambda: d.state()["tokens_made"] > made + 3)
        assert generate(f) == expected(PROMPT, label, 0, N)
        s.next(3)
        s.close()
        running(f, d, 0)
        assert made_by(d) == [before, label], made_by(d)
        before = label
    f.label = before


def aborted(f):
    """A held request whose KV could not be dropped ends as aborted, before the new weights make a token of it."""
    d = f.doubles[0]
    for fault in ({"do": "status", "status": 500}, {"do": "close_before"}):
        before, label = d.state()["version"], next(LABELS)
        warm(f)
        d.good("DELETE", "/journal")
        s = Stream(f)
        d.order("reset_cache", fault.pop("do"), times=0, **fault)
        step, _, said = f.update(label)
        assert step is None and "caches" in said["upstreams"][0]["error"], said
        last = [e for e in s.events if e != "[DONE]"][-1]
        assert last["choices"][0]["finish_reason"] == "abort", last
        s.close()
        assert made_by(d) == [before], made_by(d)
        f.clean()
        f.wait("serving")
        assert generate(f) == expected(PROMPT, label, 0, N)


def waits_here(f, n=1):
    until("it waits at the front", lambda: f.front.status()["admission"]["generate"]["waiting"] == n)


def queued(f):
    """What comes while they stand still waits here, and reads nothing that the old weights cached."""
    d, label = f.doubles[0], next(LABELS)
    warm(f)
    pause(f, "keep")
    found = []
    t = threading.Thread(target=lambda: found.append(generate(f)))
    t.start()
    waits_here(f)
    trainer_updates(f, label)
    assert d.state()["waiting"] == 0 and not found
    resume(f)
    t.join()
    assert found == [expected(PROMPT, label, 0, N)], found


def queued_while_held(f):
    """Also where the cache cannot be emptied because of what is held."""
    d = f.doubles[0]
    for paused in (True, False):
        label = next(LABELS)
        warm(f)
        s, found = Stream(f), []
        t = threading.Thread(target=lambda: found.append(f.front.ask("POST", "/v1/completions", completion())))
        if paused:
            pause(f, "keep")
            t.start()
            waits_here(f)
            trainer_updates(f, label)
            resume(f)
        else:
            mine = {"update_id": f.front.post("/v1/update_weights/start", {"weight_version": label})["update_id"]}
            f.front.post("/v1/update_weights", dict(f.tensors(), **mine))
            t.start()
            waits_here(f)
            f.front.post("/v1/update_weights/finish", mine)
        f.wait("unsynced")
        t.join()  # no engine serves it now, and nothing of it was sent
        assert found[0][0] == 503, found
        s.next(3)
        s.close()
        f.wait("serving")
        assert generate(f) == expected(PROMPT, label, 0, N)


def after_a_restart(f):
    """A restart of this server: it is not known any more which caches were stale."""
    join(f)
    d, label = f.doubles[-1], next(LABELS)
    warm(f)
    d.order("reset_cache", "status", times=0)
    native_updates(f, label)
    f.wait(*["serving"] * (len(f.doubles) - 1), "unsynced")
    f.front.kill()
    f.serve()
    f.wait(*["serving"] * (len(f.doubles) - 1), "unsynced")
    assert not f.front.ready()
    f.clean()
    f.wait(*["serving"] * len(f.doubles))
    join(f)
    all_serve(f, label)


def without_routes(f):
    """An engine that cannot be updated has no route to reset its cache, and serves."""
    f.front.kill()
    for d in f.doubles:
        d.order("reset_cache", "status", status=404, times=0)
    f.serve()
    f.wait(*["serving"] * len(f.doubles))
    f.clean()
    join(f)


def goes_on(f):
    """--on-update continue: what is held keeps its KV, and nothing new comes until it has ended."""
    d, label = f.doubles[0], next(LABELS)
    warm(f)
    s = Stream(f)
    native_updates(f, label)
    f.wait("unsynced")
    assert f.versions() == [label] and not f.front.ready()
    words = f.front.upstreams()[d.url]["error"]["message"]
    assert "caches may hold entries of other weights" in words, words
    assert "caches may hold" in generate(f, status=503)
    s.next(3)
    assert d.state()["running"] == 1 and f.states() == ["unsynced"]
    s.close()
    f.wait("serving")
    assert f.front.ready() and generate(f) == expected(PROMPT, label, 0, N)


def old_sglang(f):
    """It cannot drop what is held: it gets nothing new until that has ended."""
    goes_on(f)
    d, label = f.doubles[0], next(LABELS)
    s = Stream(f)
    pause(f, "keep")
    trainer_updates(f, label)
    resume(f)
    f.wait("unsynced")
    boots = d.state()["boots"]
    s.next(3)
    s.close()
    f.wait("serving")
    assert generate(f) == expected(PROMPT, label, 0, N) and d.state()["boots"] == boots


# ---- a reset that fails ----

def fails_once(f):
    """It is asked again, and gets nothing meanwhile."""
    last = f.doubles[-1]
    for fault in ({"do": "status"}, {"do": "close_before"}, {"do": "close_after"}, {"do": "hang"},
                  {"do": "status", "status": 200, "text": '{"success": false}'}):
        if WHICH == "sglang" and fault.get("status") == 200:
            continue
        label = next(LABELS)
        warm(f)
        f.clean()
        last.order("reset_cache", fault.pop("do"), times=1, **fault)
        native_updates(f, label)
        f.wait(*["serving"] * len(f.doubles))
        all_serve(f, label)
        assert len(last.journal("reset_cache")) >= 2
    f.clean()


def never(f):
    """The others serve; it does not, and says why; a new process of it has nothing cached."""
    d, label = f.doubles[-1], next(LABELS)
    warm(f)
    d.order("reset_cache", "status", times=0)
    step, _, said = f.update(label)
    assert step is None and "caches" in said["upstreams"][-1]["error"], said
    f.wait(*["serving"] * (len(f.doubles) - 1), "unsynced")
    assert not f.front.ready() and "reset before it gets requests" in f.front.upstreams()[d.url]["error"]["message"]
    n = n_traffic(d)
    for _ in range(8):
        assert generate(f) == expected(PROMPT, label, 0, N)
    assert n_traffic(d) == n
    f.stays(*["serving"] * (len(f.doubles) - 1), "unsynced")
    f.clean()
    f.wait(*["serving"] * len(f.doubles))
    all_serve(f, label)


def storage_fails(f):
    """HiCache storage that could not be cleared keeps its engine out of rotation until it is."""
    d, label = f.doubles[-1], next(LABELS)
    warm(f)
    d.order("reset_storage", "status", times=0, status=500)
    native_updates(f, label)
    f.wait(*["serving"] * (len(f.doubles) - 1), "unsynced")
    for _ in range(8):
        assert generate(f) == expected(PROMPT, label, 0, N)
    f.clean()
    f.wait(*["serving"] * len(f.doubles))
    all_serve(f, label)


def vouched_for(f):
    """After a resync it is not known which weights made the engine's cache entries."""
    d = f.doubles[-1]
    f.update_all()
    reboot(d, ms=1)
    f.wait(*["serving"] * (len(f.doubles) - 1), "unsynced")
    d.post("/update_weight_version", {"new_version": f.label, "abort_all_requests": False})
    f.clean()
    f.front.post("/v1/upstreams/resync", {"upstream": d.url})
    f.wait(*["serving"] * len(f.doubles))
    ops = [e["op"] for e in d.journal()]  # by the resync, and maybe beside it by the thread that repairs
    assert set(RESET) <= set(ops), ops


def quietly(f):
    """A vLLM whose reply is empty may not have reset its cache, unless the request said to preempt running
    requests."""
    d, label = f.doubles[0], next(LABELS)
    warm(f)
    s = Stream(f)
    native_updates(f, label)
    f.wait("unsynced")
    s.close()
    running(f, d, 0)
    f.wait("serving")
    assert generate(f) == expected(PROMPT, label, 0, N)


def with_fleet(promises, *dialects, engine=(), **more):
    with Fleet(*dialects, engine=("--weight-version", "step-0", *engine), **more) as f:
        f.update_all()
        join(f)  # under the name that trainer_updates() says
        for p in promises:
            told(p.__name__, p, f)


def main():
    with_fleet([usual, by_our_routes, not_flushed, asleep, by_trainer, fails_once, never, vouched_for, after_a_restart,
                without_routes], WHICH, WHICH)
    with_fleet([adapters], WHICH, WHICH)
    with_fleet([held, queued, aborted], WHICH, engine=SLOW)
    continues = {"options": ("--on-update", "continue"), "engine": (*SLOW, "--own-kv")}
    with_fleet([goes_on, queued_while_held], WHICH, **continues)
    if WHICH == "vllm":
        with_fleet([emptied_after_a_later_load, updated_beside_a_load], WHICH, WHICH)
        with_fleet([adapters_only], WHICH, WHICH)
        with_fleet([held, queued], WHICH, engine=(*SLOW, "--silent-reset"))
        with_fleet([quietly], WHICH, options=continues["options"], engine=(*continues["engine"], "--silent-reset"))
    else:
        with_fleet([usual, by_our_routes, not_flushed, storage_fails], WHICH, WHICH, engine=("--hicache",))
        with_fleet([old_sglang, queued_while_held], WHICH, engine=(*SLOW, "--sglang-version", "0.5.16", "--own-kv"))


main()
