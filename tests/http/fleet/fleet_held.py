"""What an update, its end or a fence holds is not resumed, and what none of them holds is.

Usage: as fleet_control.py, vllm or sglang.
"""

import os
import signal
import threading
import time

import fleet_control
from fleet_control import BROADCAST, LABELS, TIMEOUT_MS, WHICH, Fleet, ok_of
from fleet_world import until

END = {"vllm": "finish", "sglang": "end"}[WHICH]


def begin(f):
    if f.tensors() is BROADCAST:
        f.init()
    return {"update_id": f.front.post("/v1/update_weights/start", {"weight_version": next(LABELS)})["update_id"]}


def torn_and_removed():
    """One with half of an update goes nowhere: its weights are none."""
    with Fleet(*[WHICH] * 3, min_ready=1) as f:
        mine, d = begin(f), f.doubles[1]
        f.front.post("/v1/update_weights", dict(f.part(0), **mine))
        f.front.post("/v1/upstreams/remove", {"upstream": d.url})
        f.front.post("/v1/update_weights/abort", mine)
        time.sleep(1)
        assert f.pauses()[1] and not d.journal("resume"), (f.pauses(), d.journal("resume"))


def unwhole_in_a_pause_that_waits():
    """What runs in one with part of an update, or with what is left of one, does not run on for a pause that waits."""
    with Fleet(*[WHICH] * 3, min_ready=1) as f:
        for end in "finish", "abort":
            mine = begin(f)
            f.front.post("/v1/update_weights", dict(f.part(0), **mine))
            for ended in False, True:
                if ended and end == "abort":
                    f.front.post("/v1/update_weights/abort", mine)
                f.front.post("/v1/pause", {"mode": "wait"})
                queries = [d.journal("pause")[-1]["query"] for d in f.doubles]
                assert all("mode=keep" in q for q in queries), (end, ended, queries)
                f.front.post("/v1/resume")
            assert all(f.pauses()), f.pauses()
            if end == "finish":
                f.front.post("/v1/update_weights", dict(f.part(1), **mine))
                f.front.post("/v1/update_weights/finish", mine)
                assert f.pauses() == [None] * 3, f.pauses()
                f.front.post("/v1/pause", {"mode": "wait"})
                assert "mode=wait" in f.doubles[0].journal("pause")[-1]["query"], f.doubles[0].journal("pause")
                f.front.post("/v1/resume")


def removed_and_gone():
    """A removed one that does not answer keeps neither pauses nor resumes waiting, and is asked once."""
    with Fleet(*[WHICH] * 3, min_ready=1) as f:
        d = f.doubles[1]
        f.front.post("/v1/pause")
        f.front.post("/v1/upstreams/remove", {"upstream": d.url})
        os.kill(d.process.pid, signal.SIGSTOP)
        f.front.post("/v1/resume")
        time.sleep(3)  # a request to it takes 2 s
        for _ in range(8):
            began = time.monotonic()
            f.front.post("/v1/pause")
            f.front.post("/v1/resume")
            assert time.monotonic() - began < 1.9, time.monotonic() - began
            time.sleep(0.2)
        os.kill(d.process.pid, signal.SIGCONT)
        time.sleep(1)
        assert len(d.journal("resume")) == 1, d.journal("resume")


def dropped():
    """One that refused the tensors runs on, and a trainer's pause and resume reach it."""
    with Fleet(*[WHICH] * 3, min_ready=2) as f:
        mine = begin(f)
        f.doubles[2].order("update", "status", status=413)
        f.front.post("/v1/update_weights", dict(f.part(0), **mine))
        until(lambda: f"it runs: {f.pauses()}", lambda: f.pauses()[2] is None)
        f.front.post("/v1/pause")
        assert f.pauses()[2], f.pauses()
        f.front.post("/v1/resume")
        assert f.pauses()[2] is None and all(f.pauses()[:2]), f.pauses()
        f.front.post("/v1/update_weights/finish", mine)
        f.wait("serving", "serving", "unsynced")
        assert f.pauses() == [None] * 3, f.pauses()


def fenced_in_an_update():
    """The abort of an update that has touched nothing leaves alone what is paused for its fence."""
    with Fleet(*[WHICH] * 3, min_ready=1, options=("--pause-fenced",)) as f:
        d = f.doubles[0]
        f.update_all()
        mine = begin(f)
        d.order("wake", "status", status=503)
        f.front.ask("POST", "/v1/wake", {"tags": ["weights"]})
        until(lambda: f"it is paused: {f.pauses()}", lambda: f.front.upstreams()[d.url]["fence_paused"])
        n = len(d.journal("resume"))
        f.front.post("/v1/update_weights/abort", mine)
        time.sleep(0.5)
        assert f.pauses()[0] and len(d.journal("resume")) == n, (f.pauses(), d.journal("resume"))


def outlived():
    """A request may hang for longer than its update is kept to be shown, which is until sixteen others have ended."""
    with Fleet(*[WHICH] * 2, min_ready=1) as f:
        mine, d, said = begin(f), f.doubles[0], []
        d.order("update", "hang", times=1)
        t = threading.Thread(target=lambda: said.append(f.front.ask("POST", "/v1/update_weights", dict(f.tensors(), **mine))))
        t.start()
        d.wait("it hangs", lambda: d.journal("update"))
        f.front.post("/v1/update_weights/abort", mine)
        for _ in range(17):
            f.front.post("/v1/update_weights/abort", {"update_id": f.front.post("/v1/update_weights/start", {})["update_id"]})
        d.kill()  # its connections end
        t.join()
        assert said[0][0] == 409 and f.front.process.poll() is None, (said, f.front.process.poll())


def without_a_wake():
    """Engines that have no route for a wake are not asked for one before each update."""
    with Fleet(*[WHICH] * 2) as f:
        f.update_all()
        for d in f.doubles:
            d.order("wake", "status", status=404, times=0)
        assert f.front.ask("POST", "/v1/wake", {})[0] >= 400
        f.update_all()


def refused_on_the_way():
    """A 404 to a wake may be that of a proxy: an engine that reports to be asleep gets no tensors, and is woken later."""
    with Fleet(*[WHICH] * 2, min_ready=1) as f:
        f.update_all()
        d = f.doubles[1]
        d.order("sleep", "close_after")
        assert f.front.ask("POST", "/v1/sleep")[0] == 502
        f.probed()
        d.order("wake", "status", status=404, times=0)
        assert f.front.ask("POST", "/v1/wake")[0] == 502
        d.wait("it is asked again", lambda: len(d.journal("wake")) > 1)
        f.probed()
        n = len(d.journal("update"))
        step, _, said = f.update(next(LABELS))
        assert step is None and ok_of(said) == [True, False] and d.state()["weights_asleep"], (step, said, d.state())
        assert len(d.journal("update")) == n, d.journal("update")
        d.good("DELETE", "/fault")
        until(lambda: f"it is woken: {d.state()}", lambda: not d.state()["weights_asleep"])
        f.update_all()


def late():
    """One that hangs before the first byte is left out as soon as enough others are ready, and runs on afterwards."""
    fleet_control.TIMEOUT_MS = 60000  # so long a step would wait
    with Fleet(*[WHICH] * 3, min_ready=2) as f:
        d = f.doubles[2]
        for op in "pause", "mark", "start":
            mine = begin(f)
            f.clean()
            d.order(op, "hang", times=1)
            f.front.post("/v1/update_weights", dict(f.tensors(), **mine))
            end = f.front.post("/v1/update_weights/finish", mine)
            ends = {u["upstream"]: u for u in end["upstreams"]}
            assert "within 2.0 s of the others" in str(ends[d.url]), (op, end)
            assert [ends[x.url]["ok"] for x in f.doubles[:2]] == [True] * 2, (op, end)
            d.good("DELETE", "/fault")
            until(lambda: f"it runs: {op}, {f.pauses()}", lambda: f.pauses()[2] is None or op != "pause")
            f.update_all()
    fleet_control.TIMEOUT_MS = TIMEOUT_MS


def aborted_while_it_prepares():
    """An abort does not wait for an engine that hangs before the first byte, whatever the others do."""
    fleet_control.TIMEOUT_MS = 60000
    with Fleet(*[WHICH] * 2) as f:
        for op in "pause", "mark", "start":
            mine, said = begin(f), []
            f.clean()
            f.doubles[1].order(op, "hang", times=1)
            t = threading.Thread(target=lambda m=mine, s=said: s.append(f.front.ask("POST", "/v1/update_weights", dict(f.tensors(), **m))))
            t.start()
            f.doubles[1].wait("it hangs", lambda op=op: f.doubles[1].journal(op))
            assert f.front.post("/v1/update_weights/abort", mine)["phase"] == "aborted"
            t.join()
            assert said[0][0] != 200, said
            f.doubles[1].good("DELETE", "/fault")
            f.update_all()
    fleet_control.TIMEOUT_MS = TIMEOUT_MS


def started_in_doubt():
    """One that may have begun an update of its own does not run on before that is closed."""
    with Fleet(*[WHICH] * 2, min_ready=1) as f:
        d = f.doubles[1]
        d.order("start", "status", status=500, acts=True)
        d.order(END, "status", status=503)
        if f.tensors() is BROADCAST:
            f.init()
        step, _, said = f.update(next(LABELS))
        assert step is None and ok_of(said) == [True, False], (step, said)
        assert d.state()["update"] != "open" and f.pauses() == [None] * 2, (d.state(), d.journal())
        f.wait("serving", "unsynced")


def not_closed():
    """What an engine answers to the end of an update of which it took nothing is why it is fenced."""
    with Fleet(*[WHICH] * 2, min_ready=1) as f:
        mine = begin(f)
        for d in f.doubles:
            d.order("update", "status", status=413)
        f.front.ask("POST", "/v1/update_weights", dict(f.part(0), **mine))
        f.doubles[1].order(END, "status", status=503)
        f.front.post("/v1/update_weights/abort", mine)
        f.wait("serving", "fenced")
        assert "503" in f.front.upstreams()[f.doubles[1].url]["error"]["message"], f.front.upstreams()
        f.update_all()


def aborted_while_slow():
    """An engine that is only slow is not given up: it is in doubt about nothing, and serves on."""
    with Fleet(*[WHICH] * 2) as f:
        for op in "pause", "mark", "start":
            mine, said = begin(f), []
            f.clean()
            for d in f.doubles:
                d.order(op, "slow", ms=600, times=1)
            t = threading.Thread(target=lambda m=mine, s=said: s.append(f.front.ask("POST", "/v1/update_weights", dict(f.tensors(), **m))))
            t.start()
            f.doubles[1].wait("it is in it", lambda op=op: f.doubles[1].journal(op))
            assert f.front.post("/v1/update_weights/abort", mine)["phase"] == "aborted"
            t.join()
            assert said[0][0] != 200, said
            assert not f.doubles[0].journal("update"), f.doubles[0].journal()
            f.wait("serving", "serving")
            assert f.pauses() == [None] * 2, (op, f.pauses())


def another_is_aborted():
    """An abort of an update that has ended ends nothing of the one under way."""
    fleet_control.TIMEOUT_MS = 60000
    with Fleet(*[WHICH] * 2) as f:
        f.update_all()
        old, mine, said = dict(f.id), begin(f), []
        f.doubles[1].order("pause", "slow", ms=3000, times=1)
        t = threading.Thread(target=lambda: said.append(f.front.ask("POST", "/v1/update_weights", dict(f.tensors(), **mine))))
        t.start()
        f.doubles[1].wait("it is in it", lambda: f.doubles[1].journal("pause"))
        assert f.front.ask("POST", "/v1/update_weights/abort", old)[0] == 409
        t.join()
        assert said[0][0] == 200, said
        f.front.post("/v1/update_weights/finish", mine)
        f.wait("serving", "serving")
    fleet_control.TIMEOUT_MS = TIMEOUT_MS


def named_for_its_weights_only():
    """One that did not take a name, and then misses the next version, is not given the name of that."""
    with Fleet(*[WHICH] * 3, min_ready=1) as f:
        f.update_all()
        d = f.doubles[1]
        d.order("finish" if WHICH == "sglang" else "relabel", "status", status=503, times=0)
        assert f.front.ask("POST", "/v1/weights/label", {"weight_version": next(LABELS)})[0] >= 500
        if f.tensors() is BROADCAST:
            f.init()
        d.order("pause", "status", status=503, times=1)
        step, _, said = f.update(next(LABELS))
        assert step is None and ok_of(said) == [True, False, True], (step, said)
        d.good("DELETE", "/fault")
        time.sleep(1.5)  # names are given after 0.25 s
        assert d.state()["version"] != f.label, d.state()
        f.wait("serving", "unsynced", "serving")


def woken_in_part():
    """What was not asked to wake is not in doubt."""
    with Fleet(*[WHICH] * 2) as f:
        f.update_all()
        f.clean()
        part = {"tags": ["kv_cache"]}
        if WHICH == "sglang":
            f.front.post("/v1/sleep", part)
        f.front.post("/v1/wake", part)
        assert f.states() == ["serving"] * 2, f.front.upstreams()
        f.stays("serving", "serving")
        assert [len(d.journal("wake")) for d in f.doubles] == [1, 1], [d.journal("wake") for d in f.doubles]


def woken_twice():
    """A second wake would end an SGLang, and costs a vLLM nothing."""
    with Fleet(*[WHICH] * 2) as f:
        f.update_all()
        f.front.post("/v1/sleep")
        f.clean()
        for _ in range(2):
            f.front.post("/v1/wake")
        assert [len(d.journal("wake")) for d in f.doubles] == [1 if WHICH == "sglang" else 2] * 2
        f.wait("serving", "serving")


def put_to_sleep_by_a_client():
    """At the engine itself: a wake asked for here wakes it all the same, unless it hides that it sleeps."""
    if WHICH == "sglang":
        return
    with Fleet(*[WHICH] * 2) as f:
        f.update_all()
        f.front.post("/v1/sleep")
        f.front.post("/v1/wake")
        f.wait("serving", "serving")
        for d in f.doubles:
            d.good("POST", "/sleep", {})
        f.front.post("/v1/wake")
        assert not any(d.state()["weights_asleep"] or d.state()["kv_released"] for d in f.doubles), [d.state() for d in f.doubles]
        f.wait("serving", "serving")


def main():
    for case in (aborted_while_slow, another_is_aborted, named_for_its_weights_only, woken_in_part, woken_twice,
                 put_to_sleep_by_a_client, started_in_doubt, not_closed, torn_and_removed, removed_and_gone, dropped, fenced_in_an_update, outlived,
                 without_a_wake, late, aborted_while_it_prepares):
        case()
    if WHICH == "vllm":  # the other has no pause that waits
        unwhole_in_a_pause_that_waits()
        refused_on_the_way()  # and hides whether it sleeps


main()
