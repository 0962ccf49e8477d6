"""What must not happen when upstreams send wrong replies, restart or are unreachable, or a trainer sends
contradicting requests.

Usage: as fleet_control.py.
"""

import json
import threading
import time

import fleet_control
from fake_engine_world import PROMPT, N, expected, tokens_now
from fleet_control import BROADCAST, LABELS, RESETS, WHICH, Fleet, mend, ok_of, reboot, refused, told
from fleet_world import until

fleet_control.TIMEOUT_MS = 4000  # longer than what is only slow here
LIES = {"baton": [("update", {"phase": "aborted"}), ("update", {"update_id": "another"}),
                  ("verify", {"phase": "receiving"}), ("verify", {"update_id": "another"})],
        "vllm": [("update", {"error": {"message": "out of memory"}})],
        "sglang": [("update", {"success": False, "message": "shapes differ"})]}
END_LIES = {"baton": [{"phase": "aborted"}, {"weight_version": "another"}, {}],
            "vllm": [{"error": {"message": "out of memory"}}],
            "sglang": [{"success": False, "message": "no"}, {"success": True, "new_version": "another"}]}


def false_words(f):
    """A status of 200 is not what counts."""
    bad, n, dialect = 1, len(f.doubles), f.doubles[0].dialect
    d = f.doubles[bad]
    for op, lie in LIES[dialect]:
        f.clean()
        d.order(op, "status", status=200, text=json.dumps(lie))
        before = f.versions()
        step, status, said = f.update(next(LABELS))
        if dialect == "baton":
            assert step == {"verify": "finish"}.get(op, op) and status == 502, (op, lie, step, said)
            assert d.url in said["error"]["message"] and f.versions() == before, (op, lie, said)
        else:
            assert step is None and ok_of(said) == [i != bad for i in range(n)], (op, lie, step, said)
            f.wait(*["fenced" if i == bad else "serving" for i in range(n)])
        mend(f)
    for lie in END_LIES[dialect]:
        f.clean()
        d.order("finish", "status", status=200, text=json.dumps(lie))
        step, status, said = f.update(next(LABELS))
        assert step is None and ok_of(said) == [i != bad for i in range(n)], (lie, step, said)
        f.wait(*["fenced" if i == bad else "serving" for i in range(n)])
        mend(f)
    f.clean()
    d.order("pause", "status", status=200, text=json.dumps({"paused": False, "success": False}))
    said = f.front.ask("POST", "/v1/pause", {})
    assert said[0] == 502 and ok_of(said[1]) == [i != bad for i in range(n)], said
    assert f.pauses() == [None] * n
    f.stays(*["serving"] * n)


def restart(d, ms=1):
    """Now, and away for that long."""
    reboot(d, ms)
    d.good("DELETE", "/journal")


def restarted_at_the_end(f):
    """Whoever is another process by the time that all have ended serves none of it."""
    bad, n, last = 1, len(f.doubles), len(f.doubles) - 1
    d, label, said = f.doubles[bad], next(LABELS), []
    f.clean()
    f.doubles[last].order("finish", "slow", ms=1500)
    t = threading.Thread(target=lambda: said.append(f.update(label)))
    t.start()
    d.wait("it has ended", lambda: d.state()["version"] == label)
    restart(d)
    until("it is seen", lambda: len(d.journal("who")) >= 3)
    t.join()
    step, _, answer = said[0]
    assert step is None and ok_of(answer) == [i != bad for i in range(n)], said
    f.wait(*["fenced" if i == bad else "serving" for i in range(n)])
    mend(f)


def restarted_on_the_way(f):
    """Half of an update is in nobody's memory after a restart: what the rest of it makes is torn."""
    bad, n = 1, len(f.doubles)
    d = f.doubles[bad]
    mine = {"update_id": f.front.post("/v1/update_weights/start", {"weight_version": next(LABELS)})["update_id"]}
    f.front.post("/v1/update_weights", dict(f.tensors(), **mine))
    restart(d)
    if d.dialect != "sglang":  # which does not say which process it is
        f.wait(*["unsynced" if i == bad else "serving" for i in range(n)])
    f.front.ask("POST", "/v1/update_weights", dict(f.tensors(), **mine))
    status, said = f.front.ask("POST", "/v1/update_weights/finish", mine)
    if d.dialect == "baton":
        assert status == 409 and d.url in said["error"]["message"], said
        f.wait(*["unsynced" if i == bad else "serving" for i in range(n)])
    else:
        assert status == 200 and ok_of(said) == [i != bad for i in range(n)], said
        f.wait(*["fenced" if i == bad else "serving" for i in range(n)])
    mend(f)


def restarted_in_a_group(f):
    """The next process, and an engine that is added again, is not in the trainer's group: an SGLang that is asked to
    receive from one ends."""
    n, d = len(f.doubles), f.doubles[1]

    def removed(d):
        for way, what in ("/remove", d.url), ("", f"{d.url},{d.dialect}"):
            f.front.post("/v1/upstreams" + way, {"upstream": what})

    for leaves in restart, removed:
        f.update_all()
        f.init()
        leaves(d)
        until("it is seen", lambda: f.front.upstreams().get(d.url, {}).get("state") == "unsynced" and len(d.journal("who")) >= 3)
        d.good("DELETE", "/journal")
        assert d.url not in [r["upstream"] for r in f.front.get("/v1/weight_transfer")["ranks"]]
        step, _, said = f.update(next(LABELS), BROADCAST)
        if d.dialect == "baton":  # all of them, or none
            assert step == "update", (step, said)
            why = said["error"]["message"]
        else:
            assert step is None and [u["upstream"] for u in said["upstreams"] if not u["ok"]] == [d.url], (step, said)
            why = [u["error"] for u in said["upstreams"] if not u["ok"]][0]
        assert "no longer in the group: join again by POST /v1/weight_transfer/init" in why, why
        assert not d.journal("update") and not d.journal("pause"), d.journal()
        f.init()
        step, _, said = f.update(next(LABELS), BROADCAST)
        assert step is None and ok_of(said) == [True] * n, (step, said)
        f.wait(*["serving"] * n)


def failed_in_a_group(f):
    """An engine that could not be updated is in its group still."""
    with Fleet(*[WHICH] * 2) as g:
        g.init()
        for _ in range(2):
            mine = {"update_id": g.front.post("/v1/update_weights/start", {"weight_version": "never"})["update_id"]}
            g.front.post("/v1/update_weights", dict(BROADCAST, **mine))
            g.front.post("/v1/update_weights/abort", mine)
            g.stays(*["serving" if WHICH == "baton" else "fenced"] * 2)
            step, _, said = g.update(next(LABELS), BROADCAST)
            assert step is None and all(ok_of(said)), (step, said)
            g.wait(*["serving"] * 2)


def aborted_before_the_first_byte(f):
    """An update that is aborted while its requests are cancelled reaches no engine any more."""
    before, n = f.versions(), len(f.doubles)
    mine = {"update_id": f.front.post("/v1/update_weights/start", {"weight_version": next(LABELS)})["update_id"]}
    d, said = f.doubles[0], []
    f.clean()
    d.order("abort_requests", "slow", ms=400)
    t = threading.Thread(target=lambda: said.append(f.front.ask(
        "POST", "/v1/update_weights", dict(f.tensors(), abort_requests=True, **mine))))
    t.start()
    d.wait("requests are aborted", lambda: d.journal("abort_requests"))
    assert f.front.post("/v1/update_weights/abort", mine)["phase"] == "aborted"
    t.join()
    assert said[0][0] == 409 and said[0][1]["error"]["code"] == "update_closed", said
    assert f.came("update") == [] and f.versions() == before and f.pauses() == [None] * n
    f.stays(*["serving"] * n)


def lease_of_who_waits(f):
    """A lease that runs out while an end is under way is not over: its trainer waits for it."""
    if f.doubles[0].dialect != "baton":
        return
    mine = {"update_id": f.front.post("/v1/update_weights/start",
                                      {"weight_version": next(LABELS), "lease_s": 30})["update_id"]}
    f.front.post("/v1/update_weights", dict(f.tensors(), **mine))
    f.doubles[0].order("verify", "slow", ms=1300)
    f.front.post("/v1/update_weights/renew", dict(mine, lease_s=1))
    assert f.front.post("/v1/update_weights/verify", mine)["phase"] == "verified"
    assert f.front.get("/v1/update_weights/" + mine["update_id"])["phase"] == "verified"
    assert f.front.post("/v1/update_weights/finish", mine)["phase"] == "committed"
    f.label = f.versions()[0]


def slow_to_switch(f):
    """While one hangs in its end, requests get the new version of the others."""
    if WHICH != "baton":
        return
    label = next(LABELS)
    f.clean()
    f.doubles[-1].order("finish", "late", ms=2000)
    t = threading.Thread(target=f.update, args=(label,))
    t.start()
    until("the version is shown", lambda: f.front.status()["weights"]["weight_version"] == label)
    made = [tokens_now(f.front) for _ in range(16)]
    assert t.is_alive() and f.versions()[-1] != label, f.versions()
    assert made == [expected(PROMPT, label, 0, N)] * len(made), (label, made)
    t.join()
    f.wait(*["serving"] * len(f.doubles))


def left_open(f):
    """An update that a baton did not abort is aborted once it answers, without another one; a client's own is not."""
    if WHICH != "baton":
        return

    def is_open():
        return f.front.upstreams() and d.get("/v1/status")["update"] is not None

    f.clean()
    d = f.doubles[0]
    mine = {"update_id": f.front.post("/v1/update_weights/start", {"weight_version": next(LABELS)})["update_id"]}
    d.order("abort", "close_before", times=2)
    f.front.post("/v1/update_weights/abort", mine)
    assert is_open()
    until("it is closed", lambda: not is_open(), 10)
    assert [len(e.journal("abort")) for e in f.doubles[1:]] == [1] * (len(f.doubles) - 1), f.doubles[1].journal()
    theirs = {"update_id": d.post("/v1/update_weights/start", {"weight_version": "theirs"})["update_id"]}
    time.sleep(1)
    assert is_open()
    d.post("/v1/update_weights/abort", theirs)


def away_meanwhile(f):
    """An engine that does not answer when the others are paused or resumed gets the request once it is reachable."""
    n = len(f.doubles)
    away, here = f.doubles[-1], ["serving"] * (n - 1)
    back = "unsynced" if away.dialect == "sglang" else "serving"  # which does not say which process it is
    f.clean()
    away.order("who", "hang", times=0)
    f.wait(*here, "down")
    assert ok_of(f.front.post("/v1/pause")) == [True] * (n - 1) + [False]
    away.good("DELETE", "/fault")
    until("it is paused too", lambda: f.pauses() == ["keep"] * n)
    f.wait(*here, back)
    away.order("who", "close_before", times=0)
    f.wait(*here, "down")
    away.order("resume", "close_before")
    assert ok_of(f.front.post("/v1/resume")) == [True] * (n - 1) + [False]
    assert f.pauses() == [None] * (n - 1) + ["keep"]
    away.good("DELETE", "/fault")
    until("it goes on too", lambda: f.pauses() == [None] * n)
    f.wait(*here, back)
    mend(f)


def not_paused_after_all(f):
    """What is restarted in a trainer's pause is paused too, and needs no other pause before the first byte."""
    bad, n = 1, len(f.doubles)
    d = f.doubles[bad]
    if d.dialect != "vllm":  # a new baton is never written into; an SGLang is out of step then
        return
    with Fleet(*["vllm"] * 3) as g:  # no engine has a wrong version before the first update
        d = g.doubles[bad]
        g.front.post("/v1/pause")
        restart(d)
        until(lambda: f"it is paused: {g.pauses()}", lambda: g.pauses() == ["keep"] * 3)
        d.good("DELETE", "/journal")
        step, _, said = g.update(next(LABELS))
        assert step is None, said
        assert g.ops(bad, *RESETS)[:2] == ["mark", "start"] and g.pauses() == ["keep"] * 3, g.ops(bad)
        g.front.post("/v1/resume")
        assert g.pauses() == [None] * 3


def threads_for_the_rest(f):
    """Slow requests leave threads for the requests that end them."""
    mine = {"update_id": f.front.post("/v1/update_weights/start", {"weight_version": next(LABELS)})["update_id"]}
    f.doubles[0].order("update", "hang", times=0)
    before, threads = [len(d.journal("update")) for d in f.doubles], []
    for _ in range(8):
        threads.append(threading.Thread(target=lambda: f.front.ask(
            "POST", "/v1/update_weights", dict(f.tensors(), **mine))))
        threads[-1].start()
    f.doubles[0].wait("one hangs", lambda: len(f.doubles[0].journal("update")) > before[0])
    began = time.monotonic()
    assert f.front.post("/v1/update_weights/renew", mine)["phase"] == "receiving"
    took = [time.monotonic() - began]
    f.front.post("/v1/pause")
    took.append(time.monotonic() - began)
    f.front.post("/v1/resume")
    took.append(time.monotonic() - began)
    assert f.front.post("/v1/update_weights/abort", mine)["phase"] == "aborted"
    took.append(time.monotonic() - began)
    assert any(t.is_alive() for t in threads), took
    for t in threads:
        t.join()
    print("  pause, resume, abort beside 8 hanging updates:", [round(t, 3) for t in took])
    mend(f)


def nobody_to_name(f):
    n = len(f.doubles)
    for d in f.doubles:
        d.order("who", "close_before", times=0)
    f.wait(*["down"] * n)
    refused(f, 503, "POST", "/v1/weights/label", {"weight_version": "nobody"}, "no_weights")
    mend(f)


def away_for(f, away, path, body):
    """One is not reached by an operation."""
    n = len(f.doubles)
    away.order("who", "close_before", times=0)
    f.wait(*["serving"] * (n - 1), "down")
    f.front.post(path, body)
    away.good("DELETE", "/fault")


def away_from_sleep(f):
    """An engine that misses a sleep or a wake-up gets it when it answers again, and no requests before."""
    n, away = len(f.doubles), f.doubles[-1]
    f.clean()
    for _ in range(2):
        away_for(f, away, "/v1/sleep", {"level": 1})
        until("it sleeps too", lambda: away.state()["weights_asleep"])
        f.wait(*["serving"] * n)
        away_for(f, away, "/v1/wake", {})
        until("it is awake too", lambda: not away.state()["weights_asleep"] and not away.state()["kv_released"])
        f.wait(*["serving"] * n)
    away_for(f, away, "/v1/sleep", {"level": 1})
    f.wait(*["serving"] * n)
    away.order("wake", "status", status=404)
    f.front.ask("POST", "/v1/wake", {"tags": ["weights"]})
    until("it is woken in part, as the others", lambda: not away.state()["weights_asleep"])
    assert [d.state()["kv_released"] for d in f.doubles] == [True] * n
    f.front.post("/v1/wake", {})
    mend(f)
    dropped_meanwhile(f, n, away)
    mend(f)


def dropped_meanwhile(f, n, away):
    """At level 2 the others lose their weights: it is not made to lose its own, and may serve them afterwards."""
    away_for(f, away, "/v1/sleep", {"level": 2})
    f.wait(*["fenced"] * (n - 1), "unsynced")
    f.front.post("/v1/wake", {})
    said = refused(f, 409, "POST", "/v1/upstreams/resync", {"upstream": f.doubles[0].url}, "needs_update")
    assert said["error"]["retryable"] is False and "whole update" in said["error"]["message"], said
    f.wait(*["fenced"] * (n - 1), "serving")


def missed_unseen(f):
    """An SGLang does not tell whether it was restarted: it is not asked to sleep or to wake from unknown."""
    n, away = len(f.doubles), f.doubles[-1]

    def back():
        until("it is back", lambda: "/v1/upstreams/resync" in f.front.upstreams()[away.url]["error"]["message"])
        f.wait(*["serving"] * (n - 1), "fenced")

    f.clean()
    away_for(f, away, "/v1/sleep", {"level": 1})
    back()
    assert [d.state()["weights_asleep"] for d in f.doubles] == [True] * (n - 1) + [False]
    f.front.post("/v1/upstreams/resync", {"upstream": away.url})
    assert [d.state()["weights_asleep"] for d in f.doubles] == [True] * n
    f.stays(*["serving"] * n)
    away_for(f, away, "/v1/wake", {})
    back()
    assert [d.state()["weights_asleep"] for d in f.doubles] == [False] * (n - 1) + [True]
    said = refused(f, 409, "POST", "/v1/upstreams/resync", {"upstream": away.url}, "conflict")
    assert "cannot be verified" in said["error"]["message"], said
    reboot(away)
    mend(f)


def errors_of(f, d):
    return " ".join(e["message"] for e in f.front.upstreams()[d.url]["errors"])


def sleeps_unseen(f):
    """An SGLang does not say that it sleeps. One that may, while the others are awake, gets no requests, and no tensors,
    before it is woken or has made a token."""
    n, away = len(f.doubles), f.doubles[-1]
    for tag in "weights", "kv_cache":
        f.clean()
        f.front.post("/v1/sleep", {"level": 1})
        if tag == "kv_cache":
            f.front.post("/v1/wake", {"tags": ["weights"]})
        away.order("wake", "status", times=0, status=404)
        assert ok_of(f.front.ask("POST", "/v1/wake", {} if tag == "weights" else {"tags": [tag]})[1])[-1] is False
        f.stays(*["serving"] * (n - 1), "fenced")
        assert "it may be asleep" in errors_of(f, away)
        away.good("DELETE", "/journal")
        _, _, said = f.update(next(LABELS))
        assert ok_of(said) == [True] * (n - 1) + [False], said
        assert "may be asleep" in str(said["upstreams"][-1]), said
        assert "update" not in f.ops(n - 1), f.ops(n - 1)
        assert away.state()["kv_released"] and not away.journal("completions"), "a token would end it"
        away.good("DELETE", "/fault")
        until("it is woken", lambda: "asleep" not in errors_of(f, away))
        assert not away.state()["weights_asleep"] and not away.state()["kv_released"]
        f.update_all()
    f.front.post("/v1/sleep", {"level": 1})
    away_for(f, away, "/v1/wake", {})
    until("it may be another process", lambda: "asked for a token" in errors_of(f, away))
    f.clean()
    _, _, said = f.update(next(LABELS))
    assert ok_of(said) == [True] * (n - 1) + [False] and f.ops(n - 1, *RESETS) == [], (said, f.ops(n - 1))
    until("it is asked for a token", lambda: away.journal("completions"))
    assert "it may be asleep" in errors_of(f, away), "it makes none"
    reboot(away)
    until("it makes one", lambda: "asleep" not in errors_of(f, away))
    assert not away.journal("wake"), "a second one would end it"
    mend(f)


def adapters_of_before(f):
    """An adapter that some engines had before the server started is at all of them, or at none."""
    n, load = len(f.doubles), {"lora_name": "before", "lora_path": fleet_control.WORK}
    for d in f.doubles[:2]:
        d.post("/load_lora_adapter" if d.dialect == "sglang" else "/v1/load_lora_adapter", load)
    f.doubles[0].order("lora_load", "status", status=500)
    assert f.front.ask("POST", "/v1/load_lora_adapter", load)[0] >= 400
    assert [sorted(d.state()["adapters"]) for d in f.doubles] == [[]] * n
    f.stays(*["serving"] * n)


def killed_on_the_way(f):
    """A server started after one that was killed in the middle of an update finds the open update, serves
    nothing of it, and ends it."""
    with Fleet(*[WHICH] * 3) as g:
        g.update_all()
        mine = {"update_id": g.front.post("/v1/update_weights/start", {"weight_version": "never"})["update_id"]}
        g.front.post("/v1/update_weights", dict(g.tensors(), **mine))
        g.front.kill()
        if WHICH == "baton":  # whose open update ends with its lease: nobody else may know that it is over
            for d in g.doubles:
                d.post("/v1/update_weights/abort", {"update_id": d.get("/v1/status")["update"]["update_id"]})
        g.serve()
        if WHICH == "baton":
            until("it is ready", g.front.ready)
        else:
            half_done(g)
        g.update_all()


def half_done(g):
    """By their own reports, also after a resync."""
    g.wait(*["fenced"] * len(g.doubles))
    for d in g.doubles:
        said = g.front.upstreams()[d.url]["error"]["message"]
        assert "never ended" in said and d.state()["version"] in said, said
    said = refused(g, 409, "POST", "/v1/upstreams/resync", {"upstream": g.doubles[0].url}, "needs_update")
    assert said["error"]["retryable"] is False and "whole update" in said["error"]["message"], said
    g.front.post("/v1/resume", {})
    g.stays(*["fenced"] * len(g.doubles))
    assert not g.front.ready() and g.front.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 503


def main():
    with Fleet(*[WHICH] * 4, min_ready=3) as f:
        f.update_all()
        for p in (false_words, restarted_at_the_end, restarted_on_the_way, restarted_in_a_group, failed_in_a_group, aborted_before_the_first_byte,
                  lease_of_who_waits, slow_to_switch, left_open, away_meanwhile, not_paused_after_all, *([missed_unseen, sleeps_unseen] if WHICH == "sglang" else [away_from_sleep]), threads_for_the_rest,
                  nobody_to_name, adapters_of_before, killed_on_the_way):
            told(p.__name__, p, f)


main()
