"""Part of an update is never a version, whichever process was killed in the middle of it; and an update that sent
nothing is undone.

Usage: as fleet_control.py, with vllm or sglang.
"""

import http.client
import itertools
import json
import threading

import fleet_control
from fake_engine_world import PROMPT, SGLANG, expected, ids_of
from fleet_control import BROADCAST, LABELS, RESETS, WHICH, Fleet, mend, ok_of, reboot, refused, told
from fleet_world import until

VLLM = WHICH == "vllm"
BEGINS = VLLM or SGLANG == "0.5.23"  # gets start and finish of each update
ASK = "GET /weight_info" if VLLM else "GET /model_info"
NAME = "POST /update_weight_version"
CLOSE = "finish" if VLLM else "end"
RENAME = "relabel" if VLLM else "finish"  # to a name of no unfinished update
MARK = "baton:unfinished:"


def start(f, label="never", **more):
    return {"update_id": f.front.post("/v1/update_weights/start", dict(more, weight_version=label))["update_id"]}


def send(f, mine, part=None):
    body = f.tensors() if part is None else f.part(part)
    return f.front.ask("POST", "/v1/update_weights", dict(body, **mine))


def abort(f, mine):
    assert f.front.post("/v1/update_weights/abort", mine)["phase"] == "aborted"


def marked(f, mine):
    return [v == MARK + mine["update_id"] for v in f.versions()]


def open_marked(f, **more):
    """Everything before the first byte; no engine accepts that byte."""
    mine = start(f, **more)
    f.clean()
    for d in f.doubles:
        d.order("update", "status", status=413)
    assert send(f, mine)[0] == 413
    assert all(marked(f, mine)), f.versions()
    return mine


def complete(f, maker):
    """Through the server; its tokens are of that version."""
    status, said = f.front.ask("POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 3})
    assert status == 200 and ids_of(said["choices"][0]["text"]) == expected(PROMPT, maker, 0, 3), (maker, said)


def rename(d, label):
    d.post("/update_weight_version", {"new_version": label, "abort_all_requests": False})


def one_but(n, bad, one, others):
    return [one if i == bad else others for i in range(n)]


def restart(d):
    reboot(d)
    d.good("DELETE", "/journal")


# ---- killed ----

# What is done when it is killed, and of which no answer came: by all, or by the first alone. What may be served of
# the first then, and of the others; None: nothing.
AFTER = {("mark", False): (None, None), ("mark", True): (None, "old"),
         ("start", False): (None, None), ("start", True): (None, None),
         ("update", False): (None, None), ("update", True): (None, None),
         ("end", False): (None, None), ("end", True): (None, None),
         ("finish", False): ("new", "new"), ("finish", True): ("new", None)}
STAGES = [s for s in AFTER if s[0] not in ("start", "end") or BEGINS and not (VLLM and s[0] == "end")]


def update_until_killed(g, label):
    try:
        g.update(label)
    except (OSError, http.client.HTTPException):
        pass


def kill(g, op, alone, label):
    g.clean()
    for i, d in enumerate(g.doubles):
        d.order(op, "hang", acts=not alone or i == 0)
    t = threading.Thread(target=update_until_killed, args=(g, label))
    t.start()
    for d in g.doubles:
        d.wait(op, lambda d=d: d.journal(op))
    g.front.kill()
    t.join()
    g.clean()
    g.serve()


def judged(g, serving, names):
    """By what may be served, whichever request confirms or resumes it. An SGLang does not report a pause."""
    states = ["serving" if s else "fenced" for s in serving]
    paused = [s and VLLM and p is not None for s, p in zip(serving, g.pauses())]
    g.wait(*("not_ready" if p else s for p, s in zip(paused, states)))
    for d, s in zip(g.doubles, serving):
        if not s:
            said = refused(g, 409, "POST", "/v1/upstreams/resync", {"upstream": d.url}, "needs_update")
            assert said["error"]["retryable"] is False and "whole" in said["error"]["message"], said
    assert [d.state()["version"] for d, s in zip(g.doubles, serving) if s] == [n for n in names if n]
    assert not any(d.state()["torn"] for d, s in zip(g.doubles, serving) if s)
    g.front.post("/v1/resume", {})
    assert g.states() == states, g.front.upstreams()
    g.stays(*states)
    if any(serving):
        complete(g, next(n for n in names if n))
    else:
        refused(g, 503, "POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 1})
        assert not g.front.ready()
    for d, s in zip(g.doubles, serving):
        assert s or (MARK in d.state()["version"] and d.state()["pause"] == "keep" and not asked(d)), d.state()


def asked(d):
    """Clients' requests that came there since."""
    return [r for r in d.journal("completions") if json.loads(r["body"])["prompt"] == PROMPT]


def killed(op, alone, engine=("--weight-version", "step-0"), after=None):
    with Fleet(*[WHICH] * 3, min_ready=1, engine=engine, patient=True) as g:
        g.update_all()
        versions = {"old": g.label, "new": next(LABELS), None: None}
        kill(g, op, alone, versions["new"])
        first, others = after or AFTER[op, alone]
        names = [versions[first]] + [versions[others]] * 2
        judged(g, [n is not None for n in names], names)
        g.update_all()
        complete(g, g.label)


# ---- given up before the first byte ----

def undone(f):
    """No engine received a byte: each has its old label again, and serves; requests sent meanwhile are answered."""
    before, n, said = f.versions(), len(f.doubles), []
    for way in ("abort", "delete", "lease"):
        mine = open_marked(f)
        for d in f.doubles:
            d.order(ASK, "slow", ms=60, times=0)  # an old label, read afterwards
        f.stays(*["serving"] * n)  # the mark is ours
        t = threading.Thread(target=lambda: said.append(complete(f, before[0])))
        t.start()
        if way == "lease":
            f.front.post("/v1/update_weights/renew", dict(mine, lease_s=1))
        elif way == "abort":
            abort(f, mine)
        else:
            assert f.front.good("DELETE", "/v1/update_weights/" + mine["update_id"])["phase"] == "aborted"
        until("it has ended", lambda: f.front.get("/v1/update_weights/" + mine["update_id"])["phase"] == "aborted")
        until("all go on", lambda: f.pauses() == [None] * n)
        assert f.versions() == before
        t.join()
        f.stays(*["serving"] * n)
    assert len(said) == 3, said
    f.clean()
    goes_again(f)


def goes_again(f):
    """The same update may come again after it was refused."""
    label = next(LABELS)
    mine = open_marked(f, label=label)
    assert send(f, mine, 0)[0] == 200 and send(f, mine, 1)[0] == 200
    assert f.front.post("/v1/update_weights/finish", mine)["phase"] == "committed"
    f.label = label
    assert f.versions() == [label] * len(f.doubles)
    assert len(f.came("mark")) == len(f.doubles) and len(f.came(RENAME)) == len(f.doubles) * (not VLLM)
    complete(f, label)


def not_begun(f):
    """Too few would begin: all as before."""
    before, n = f.versions(), len(f.doubles)
    f.clean()
    for d in f.doubles[:2]:
        d.order("start" if VLLM else "mark", "status", status=500)
    mine = start(f)
    assert send(f, mine)[0] == 502
    assert f.versions() == before and f.pauses() == [None] * n and f.came("update") == []
    f.stays(*["serving"] * n)
    complete(f, before[0])


# ---- answers that are lost ----

def mark_lost(f):
    """It may be named so at any time: the quorum goes on, and it waits for a whole update."""
    n, bad = len(f.doubles), 1
    for fault, acts in (("hang", False), ("close_after", True), ("late", True)):
        before = f.versions()[bad]
        f.clean()
        f.doubles[bad].order("mark", fault, ms=fleet_control.TIMEOUT_MS + 300)
        step, _, said = f.update(next(LABELS))
        assert step is None and ok_of(said) == one_but(n, bad, False, True), (fault, step, said)
        f.wait(*one_but(n, bad, "fenced", "serving"))
        assert "update" not in f.ops(bad) and f.pauses() == one_but(n, bad, "keep", None)
        f.doubles[bad].wait("it is named", lambda: (MARK in f.versions()[bad] if acts else f.versions()[bad] == before))
        f.stays(*one_but(n, bad, "fenced", "serving"))
        mend(f)


def unmark_lost(f):
    """Nobody knows what it is named now; and the same if it does not say before."""
    n, bad = len(f.doubles), 1
    for on, fault in ((RENAME, "hang"), (RENAME, "close_after"), (RENAME, "status"), (ASK, "hang"), (ASK, "status")):
        before = f.versions()
        mine = open_marked(f)
        f.doubles[bad].order(on, fault, times=0)
        abort(f, mine)
        assert [v for i, v in enumerate(f.versions()) if i != bad] == before[1:], f.versions()
        assert marked(f, mine)[bad] is (fault != "close_after"), (on, fault)
        assert f.pauses() == one_but(n, bad, "keep", None) and len(f.came(RENAME)) == n - (on == ASK)
        f.clean()
        f.wait(*one_but(n, bad, "fenced", "serving"))
        f.stays(*one_but(n, bad, "fenced", "serving"))
        mend(f)


def ask_lost(f):
    """Of one that does not say what it is named nothing is changed."""
    n, bad = len(f.doubles), 1
    for fault in ("status", "hang"):
        before = f.versions()[bad]
        f.clean()
        f.doubles[bad].order(ASK, fault, times=0)
        step, _, said = f.update(next(LABELS))
        assert step is None and ok_of(said) == one_but(n, bad, False, True), (fault, step, said)
        f.did(bad, [])
        assert f.versions()[bad] == before and f.pauses() == [None] * n
        f.clean()
        f.wait(*one_but(n, bad, "unsynced", "serving"))
        mend(f)


# ---- another client ----

def named_by_another(f):
    """Its name is another's then, and stays. A vLLM that was restarted cannot be told to end what it began."""
    n, bad = len(f.doubles), 1
    for other, state in ((lambda d: rename(d, "other"), "unsynced"), (lambda d: rename(d, MARK + "another"), "fenced"),
                         (restart, "fenced" if VLLM else "unsynced")):
        before = f.versions()
        mine = open_marked(f)
        other(f.doubles[bad])
        now = f.versions()[bad]
        abort(f, mine)
        assert f.versions() == one_but(n, bad, now, before[0]) and now in ("other", MARK + "another", "step-0"), now
        assert f.pauses() == [None] * n
        f.wait(*one_but(n, bad, state, "serving"))
        mend(f)


def restarted_before(f):
    """A first byte that comes after all is not for one that was another when it was marked."""
    n, bad = len(f.doubles), 1
    label = next(LABELS)
    mine = open_marked(f, label=label)
    restart(f.doubles[bad])
    if not VLLM:  # which takes no tensors without a start
        for i, d in enumerate(f.doubles):
            d.order(*(("update", "status") if i != bad else ("finish", "hang")), status=413)
        assert send(f, mine)[0] == 413
        f.did(bad, ["end"] * BEGINS + ["resume"])
    assert send(f, mine)[0] == 200
    said = f.front.post("/v1/update_weights/finish", mine)
    assert ok_of(said) == one_but(n, bad, False, True), said
    sent = "update" in f.ops(bad)  # unless a probe saw the new process first
    f.wait(*one_but(n, bad, "fenced" if sent else "unsynced", "serving"))
    assert f.versions() == one_but(n, bad, "step-0", label) and f.pauses() == [None] * n
    again = [CLOSE] * (not sent and f.ops(bad).count(CLOSE) > BEGINS)  # its refusal proves nothing: perhaps once more
    f.did(bad, ["update"] if sent else [CLOSE] * BEGINS + ["resume"] + again)  # which vLLM refuses: nothing is open
    mend(f)


def changed_on_the_way(f):
    """What another has named is not what was sent, even if it takes the rest and the end."""
    n, bad = len(f.doubles), 1
    label, mine = "other", start(f, next(LABELS))
    assert send(f, mine)[0] == 200
    rename(f.doubles[bad], label)
    f.clean()
    said = f.front.post("/v1/update_weights/finish", mine)
    assert ok_of(said) == one_but(n, bad, False, True), said
    assert f"{f.doubles[bad].url}: it was restarted, or changed by another client, " in str(said), said
    f.wait(*one_but(n, bad, "fenced", "serving"))
    assert "'other'" in f.front.upstreams()[f.doubles[bad].url]["error"]["message"]
    f.did(bad, [])
    assert f.versions()[bad] == label and f.pauses() == one_but(n, bad, "keep", None)
    mend(f)


def restarted_at_the_end(f):
    """Nothing names the weights of a start by the new version."""
    n, bad, last = len(f.doubles), 1, len(f.doubles) - 1
    d, label, said = f.doubles[bad], next(LABELS), []
    f.clean()
    f.doubles[last].order("finish", "slow", ms=400)
    t = threading.Thread(target=lambda: said.append(f.update(label)))
    t.start()
    d.wait("it has ended", lambda: d.state()["version"] == label)
    restart(d)
    t.join()
    assert said[0][0] is None and ok_of(said[0][2]) == one_but(n, bad, False, True), said
    f.wait(*one_but(n, bad, "fenced", "serving"))
    assert f.ops(bad, *RESETS) in ([], ["resume"]), f.ops(bad)  # it is not needed, if a probe has seen the new process
    assert f.versions()[bad] == "step-0", f.versions()
    mend(f)


def restarted_while_emptied(f):
    """Emptying takes as long as the slowest: what is started anew meanwhile gets no name."""
    n, bad = len(f.doubles), 1
    f.clean()
    f.doubles[bad].order("reset_cache", "restart", ms=50)
    f.doubles[0].order("reset_cache", "slow", ms=600)
    step, _, said = f.update(next(LABELS))
    assert step is None and ok_of(said) == one_but(n, bad, False, True), said
    f.wait(*one_but(n, bad, "fenced", "serving"))
    assert f.versions()[bad] == "step-0" and "relabel" not in f.ops(bad), f.ops(bad)
    mend(f)


# ---- what was bad before ----

def bad_before(f):
    """The old label of a fenced engine, or of one with another version, is not restored."""
    n, bad = len(f.doubles), 1
    mine = start(f)
    assert send(f, mine)[0] == 200
    abort(f, mine)
    f.wait(*["fenced"] * n)
    assert all(marked(f, mine))
    mine = open_marked(f)
    abort(f, mine)
    assert all(marked(f, mine)) and f.pauses() == ["keep"] * n and f.came(RENAME) == []
    mine = start(f)
    f.doubles[bad].order(ASK, "status", times=0)
    for d in f.doubles:
        d.order("update", "status", status=413)
    assert send(f, mine)[0] == 413
    abort(f, mine)
    assert marked(f, mine) == one_but(n, bad, False, True) and f.pauses() == ["keep"] * n
    f.doubles[bad].good("DELETE", "/fault")
    f.stays(*["fenced"] * n)
    f.front.kill()
    f.clean()
    f.serve()
    f.wait(*["fenced"] * n)
    f.update_all()
    rename(f.doubles[bad], "step-0")
    f.wait(*one_but(n, bad, "unsynced", "serving"))
    if not VLLM:  # it may have been restarted as well, and not be in the group any more
        f.init()
    mine = open_marked(f)
    abort(f, mine)
    f.wait(*one_but(n, bad, "fenced", "serving"))
    assert marked(f, mine) == one_but(n, bad, True, False)
    mend(f)
    mine = start(f)  # another server began in the meantime
    rename(f.doubles[bad], MARK + "another")
    for d in f.doubles:
        d.order("update", "status", status=413)
    assert send(f, mine)[0] == 413
    abort(f, mine)
    f.wait(*one_but(n, bad, "fenced", "serving"))
    assert marked(f, mine) == one_but(n, bad, True, False)
    mend(f)


def undecided():
    """Before it is known which version is the fleet's, each has its own again, and somebody may choose."""
    with Fleet(*[WHICH] * 2, patient=True) as g:
        g.front.kill()
        rename(g.doubles[1], "other")
        g.serve()
        g.wait("unsynced", "unsynced")
        if not VLLM:
            g.init()
        abort(g, open_marked(g))
        assert g.versions() == ["step-0", "other"] and g.pauses() == [None] * 2
        g.stays("unsynced", "unsynced")
        g.front.post("/v1/upstreams/resync", {"upstream": g.doubles[1].url})
        g.wait("unsynced", "serving")
        g.update_all()


# ---- the quorum goes on ----

def refused_at_the_door(f):
    """Who took nothing goes on with what it has, at once; and is out of step when the others have more."""
    n, bad = len(f.doubles), 1
    for status in (413, 403):
        before, label = f.versions(), next(LABELS)
        f.clean()
        f.doubles[bad].order("update", "status", status=status)
        mine = start(f, label)
        assert send(f, mine, 0)[0] == 200
        assert f.pauses() == one_but(n, bad, None, "keep") and f.versions()[bad] == before[bad], f.versions()
        assert marked(f, mine) == one_but(n, bad, False, True)
        f.stays(*["serving"] * n)
        assert send(f, mine, 1)[0] == 200
        said = f.front.post("/v1/update_weights/finish", mine)
        assert ok_of(said) == one_but(n, bad, False, True), said
        f.wait(*one_but(n, bad, "unsynced", "serving"))
        assert f.pauses() == [None] * n and f.versions() == one_but(n, bad, before[bad], label)
        f.did(bad, ["pause", "mark", "start", "update", *[CLOSE] * BEGINS, RENAME, "resume"])
        mend(f)


def refused_by_all(f):
    """Nothing was written anywhere: the update is over, and nobody stands still for it. Where something was before, they
    do: half of a model is nobody's."""
    if not VLLM:
        return
    n, before = len(f.doubles), f.versions()
    f.init()

    def send_refused(status, some=slice(None)):
        for d in f.doubles:
            d.order("update", "status", status=status)
        found, said = f.front.ask("POST", "/update_weights", {"update_info": {m: c[some] for m, c in info.items()}})
        assert found == (413 if status == 413 else 502) and str(status) in json.dumps(said), said

    info = {"names": BROADCAST["names"], "dtype_names": BROADCAST["dtypes"], "shapes": BROADCAST["shapes"]}
    for status in (413, 404):
        for pauses in (True, False):
            if pauses:
                f.front.post("/pause?mode=keep")
            f.clean()
            f.front.post("/start_weight_update", {})
            send_refused(status)
            assert f.pauses() == ["keep" if pauses else None] * n and f.versions() == before
            assert f.front.status()["update"] is None
            f.did(0, ["pause"] * (not pauses) + ["mark", "start", "update", CLOSE, RENAME] + ["resume"] * (not pauses))
            f.stays(*["serving"] * n)
            refused(f, 409, "POST", "/finish_weight_update", {})
            if pauses:
                f.front.post("/resume")
            f.clean()
            assert f.pauses() == [None] * n
            complete(f, before[0])
    f.front.post("/start_weight_update", {})
    f.front.post("/update_weights", {"update_info": {m: column[:1] for m, column in info.items()}})
    send_refused(404, slice(1, None))
    assert f.pauses() == ["keep"] * n and f.front.status()["update"]["phase"] == "receiving"
    refused(f, 422, "POST", "/finish_weight_update", {})
    f.wait(*["fenced"] * n)
    f.clean()
    mend(f)


# ---- releases that differ ----

def long_names(f):
    """As long as one may be, it is given again and known again; longer, it is not."""
    n, bad = len(f.doubles), 1
    step, _, said = f.update("x" * 256)
    assert step is None and all(ok_of(said)) and f.versions() == ["x" * 256] * n, said
    abort(f, open_marked(f))
    assert f.versions() == ["x" * 256] * n and f.pauses() == [None] * n
    f.stays(*["serving"] * n)
    mine = start(f)
    rename(f.doubles[bad], "x" * 257)
    f.clean()
    for d in f.doubles:
        d.order("update", "status", status=413)
    assert send(f, mine)[0] == 413
    abort(f, mine)
    f.wait(*one_but(n, bad, "fenced", "serving"))
    mend(f)


def without_names(f):
    """A release that cannot be named is updated all the same, and nothing is to be undone."""
    n = len(f.doubles)
    cases = [(s, [NAME] if VLLM else ["mark"]) for s in (400, 403, 404, 405, 422, 501)]
    if VLLM:  # which may also tell none
        cases += [(s, [ASK, NAME]) for s in (404, 405)]
    for status, on in cases:
        f.clean()
        for d, what in itertools.product(f.doubles, on):
            d.order(what, "status", status=status, times=0)
        step, _, said = f.update(next(LABELS))
        assert step is None and all(ok_of(said)) and f.versions() == [f.label] * n, (status, step, said)
        assert len(f.came("mark")) == n * (ASK not in on)
        f.wait(*["serving"] * n)
        mine = start(f)
        for d in f.doubles:
            d.order("update", "status", status=413)
            d.good("DELETE", "/journal")
        assert send(f, mine)[0] == 413
        abort(f, mine)
        assert f.versions() == [f.label] * n and f.pauses() == [None] * n and f.came("relabel") == []
    f.clean()
    mend(f)


def plain_finish():
    """A vLLM whose end of an update takes no name is named for itself."""
    with Fleet(*[WHICH] * 3, min_ready=2, engine=("--weight-version", "step-0", "--plain-finish")) as g:
        g.update_all()
        g.clean()
        g.update_all()
        g.did(0, ["pause", "mark", "start", "update", ("finish", "reset_cache", "reset_encoder"), "resume", "relabel"])
        for fault in ("status", "hang", "close_before"):
            g.clean()
            g.doubles[1].order("relabel", fault)
            step, _, said = g.update(next(LABELS))
            assert step is None and ok_of(said) == [True, False, True], (fault, step, said)
            g.wait("serving", "fenced", "serving")
            assert MARK in g.versions()[1] and g.pauses() == [None] * 3
            mend(g)


def nameless():
    """A vLLM that names no version names none again."""
    with Fleet(*[WHICH] * 2, engine=(), patient=True) as g:
        before = g.versions()
        abort(g, open_marked(g))
        assert g.versions() == before
        g.stays("serving", "serving")
        g.update_all()


def restarted_unseen():
    """One that is another process since the last question to it: its answers name what they are made with."""
    def body(path, **more):
        return dict(more, **({"input_ids": [1], "sampling_params": {"max_new_tokens": 3}} if path == "/generate" else
                             {"prompt": PROMPT, "max_tokens": 3}))

    was, fleet_control.PROBE_MS = fleet_control.PROBE_MS, 600000
    with Fleet(WHICH) as g:
        d = g.doubles[0]
        for path, stream in (("/generate", False), ("/generate", True), ("/v1/completions", False)):
            g.update_all()
            assert g.front.ask("POST", path, body(path, stream=stream))[0] == 200
            reboot(d)
            assert g.states() == ["serving"]
            try:
                status, said = g.front.ask("POST", path, body(path, stream=stream))
                assert not stream and status == 502 and "'step-0'" in said["error"]["message"], said
            except http.client.IncompleteRead as cut:
                assert stream and b"step-0" not in cut.partial, cut.partial
            g.wait("unsynced")
    fleet_control.PROBE_MS = was


def main():
    for op, alone in STAGES:
        told(f"killed after {op}, {'one' if alone else 'all'}", killed, op, alone)
    if VLLM:
        told("killed, plain", killed, "finish", False, ("--weight-version", "step-0", "--plain-finish"), (None, None))
        told("plain_finish", plain_finish)
        told("nameless", nameless)
    else:
        told("restarted_unseen", restarted_unseen)
    told("undecided", undecided)
    lost = (mark_lost, unmark_lost, ask_lost, restarted_before)
    others = (undone, not_begun, named_by_another, changed_on_the_way, restarted_at_the_end, restarted_while_emptied, bad_before,
              refused_at_the_door, refused_by_all, long_names, without_names)
    for promises, patient in ((lost, False), (others, True)):
        with Fleet(*[WHICH] * 4, min_ready=3, patient=patient) as f:
            f.update_all()
            for p in promises:
                told(p.__name__, p, f)


main()
