"""Which version the fleet serves, and which engines serve it: before the first update and after a restart of the
server, after updates, after a resync; engines that refuse the key or do not report a version; and what is
logged.

Usage: as upstreams_world.py says.
"""

import contextlib
import itertools
import json
import signal

from fake_engine_world import PROMPT, Double, completion, expected, ids_of
from fleet_world import Server, until
from upstreams_world import (ENGINE, BATON, LOG, PROBES, asked, becomes, check, closed_port, commit, double, logged, metric, refused,
                             run, same, state_of, why_not, world)


# ---- engines with another version ----

def restarted(dialect):
    with world("baton", dialect, server=("--min-ready", 1)) as (s, _, d):
        before = s.upstreams()[d.url]["process"]
        d.order("who", "restart", ms=300)
        if before:  # SGLang does not name its process: that it was away, or what it serves, tells
            until("another process", lambda: s.upstreams()[d.url]["process"] != before)
        else:
            becomes(s, d.url, "down")
        becomes(s, d.url, "serving")  # nothing was committed, and it has what the others have
        commit(s, "step-1")
        same({u["state"] for u in s.upstreams().values()}, {"serving"}, s.upstreams())
        same({u["serial"] for u in s.upstreams().values()}, {1})
        found = s.status()["weights"]
        same([found[m] for m in ("state", "serial", "weight_version")], ["ready", 1, "step-1"])
        d.order("who", "restart", ms=300)
        becomes(s, d.url, "unsynced")
        why = s.upstreams()[d.url]["error"]["message"]
        check("restarted" in why or "'step-0', not 'step-1'" in why, why)
        d.good("DELETE", "/journal")
        for _ in range(6):
            s.post("/v1/completions", completion())
        same(asked(d), [], "nothing goes to it")
        commit(s, "step-2")
        becomes(s, d.url, "serving")
        same(s.upstreams()[d.url]["serial"], 2)
        d.order("who", "restart", ms=300)
        becomes(s, d.url, "unsynced")
        vouched_for(s, d)


def name_it(d, label):
    """What a trainer does that has loaded those weights there by itself."""
    path, member = {"baton": ("/v1/weights/label", "weight_version"), "vllm": ("/update_weight_version", "new_version"),
                    "sglang": ("/update_weight_version", "new_version")}[d.dialect]
    d.post(path, {member: label})


def vouched_for(s, d):
    """Not what it said last is believed, but what it says now."""
    before = len(d.journal("completions"))
    said = refused(s, 409, "needs_update", "POST", "/v1/upstreams/resync", {"upstream": d.url})
    check("'step-0', and the fleet 'step-2': push an update" in said, said)
    name_it(d, "step-2")
    d.order("completions", "status", status=503)
    said = refused(s, 409, "conflict", "POST", "/v1/upstreams/resync", {"upstream": d.url})
    check("503" in said and state_of(s, d.url) == "unsynced", said)
    said = s.post("/v1/upstreams/resync", {"upstream": d.url})
    same((said["upstream"], said["state"], said["weight_version"]), (d.url, "serving", "step-2"))
    check(len(d.journal("completions")) >= before + 2, "it was asked for a token")


def another_version():
    with world("baton", "baton", server=("--min-ready", 1)) as (s, _, d):
        commit(s, "step-1")
        d.order("who", "wrong_version", label="rogue")
        becomes(s, d.url, "unsynced")
        check("'rogue', not 'step-1'" in s.upstreams()[d.url]["error"]["message"], s.upstreams()[d.url])
        commit(s, "step-2")
        becomes(s, d.url, "serving")


def resync_asks_now():
    """What was heard last is as old as the last question: here nobody asks by himself any more."""
    with world("sglang", "sglang", server=("--min-ready", 1, "--probe-interval", 600000)) as (s, _, d):
        commit(s, "step-1")
        for wrong in "rogue", "step-0":
            name_it(d, wrong)
            said = refused(s, 409, "needs_update", "POST", "/v1/upstreams/resync", {"upstream": d.url})
            check(f"'{wrong}', and the fleet 'step-1'" in said, said)
        d.order("who", "status", status=500)
        said = refused(s, 409, "conflict", "POST", "/v1/upstreams/resync", {"upstream": d.url})
        check("500" in said, said)
        name_it(d, "step-1")
        same(s.post("/v1/upstreams/resync", {"upstream": d.url})["state"], "serving")
        d.kill()
        refused(s, 409, "conflict", "POST", "/v1/upstreams/resync", {"upstream": d.url})


def nobody_serves_before(s, ds, *says):
    """No request reaches any, and the answer says why and what to do."""
    status, said = s.ask("POST", "/v1/generate", {"token_ids": [1]})
    same((status, said["error"]["code"]), (503, "no_weights"))
    for what in (*says, "push an update", "/v1/upstreams/resync"):
        check(what in said["error"]["message"], said)
    check(all(what in why_not(s) for what in says), why_not(s))
    same([asked(d) for d in ds], [[] for _ in ds])


def most_have_it():
    """A server that is started during a training: an engine with an old version gets no requests."""
    for dialect, behind in itertools.product(("baton", "vllm", "sglang"), ("step-7", None)):
        old = [] if behind is None else ["--weight-version", behind]
        with contextlib.ExitStack() as stack:
            new = [stack.enter_context(Double(ENGINE, dialect, "--weight-version", "step-8")) for _ in range(2)]
            late = stack.enter_context(Double(ENGINE, dialect, *old))
            specs = [o for d in (late, *new) for o in ("--upstream", f"{d.url},{dialect}")]
            s = stack.enter_context(Server(BATON, LOG, *specs, *PROBES, "--min-ready", 2))
            until("it is ready", s.ready)
            becomes(s, late.url, "unsynced")
            same(s.status()["weights"],
                 {"state": "ready", "serial": None, "update_id": None, "weight_version": "step-8", "coverage": None, "spec": None})
            check("'step-8'" in s.upstreams()[late.url]["error"]["message"], s.upstreams())
            for _ in range(6):
                s.post("/v1/completions", completion())
            same(asked(late), [], "nothing goes to it")
            name_it(late, "step-8")  # another client has loaded it there
            becomes(s, late.url, "serving")


def one_that_hangs_at_first():
    """It may change which version most engines have: none serves before it was probed or timed out."""
    with double("baton") as a, double("baton", "--weight-version", "new") as b, double() as c:
        c.order("who", "hang", times=0)
        specs = [o for d in (a, b, c) for o in ("--upstream", d.url)]
        with Server(BATON, LOG, *specs, "--probe-interval", 20, "--probe-timeout", 1500, "--min-ready", 1) as s:
            until("two are heard", lambda: all(s.upstreams()[d.url]["last_heard_s"] is not None for d in (a, b)))
            if s.upstreams()[c.url]["n_missed"] == 0:
                message = refused(s, 503, "no_weights", "POST", "/v1/generate", {"token_ids": [1]})
                check("not decided yet: 1 upstreams have not answered" in message or "(--min-ready)" in message, message)
            until("its time is over", lambda: s.upstreams()[c.url]["n_missed"] > 0)
            nobody_serves_before(s, (a, b, c), "'new' at 1", "'step-0' at 1")
            same(s.post("/v1/upstreams/resync", {"upstream": b.url})["state"], "serving")
            same(s.status()["weights"]["weight_version"], "new")
            becomes(s, a.url, "unsynced")
            said = refused(s, 409, "needs_update", "POST", "/v1/upstreams/resync", {"upstream": a.url})
            check("'step-0', and the fleet 'new'" in said, said)


def different_versions():
    """Before the first update no two versions are one."""
    with double("baton", "--weight-version", "one") as a, double("baton", "--weight-version", "two") as b:
        with Server(BATON, LOG, "--upstream", a.url, "--upstream", b.url, *PROBES) as s:
            until("both are heard", lambda: [s.upstreams()[d.url]["weight_version"] for d in (a, b)] == ["one", "two"])
            nobody_serves_before(s, (a, b), "'one' at 1", "'two' at 1", "2 (--min-ready)")
            commit(s, "three")
            same(s.ask("GET", "/health/ready")[0], 200, "one version")
            s.post("/v1/pause", {"mode": "keep"})
            check("paused" in refused(s, 409, "conflict", "POST", "/v1/upstreams/resync", {"upstream": a.url}),
                  "who is paused is not vouched for")
            s.post("/v1/resume", {})


# ---- what is logged, and which engines are not probed ----

def states_told(url):
    return [(e["from"], e["to"], e["level"]) for e in logged("upstream.state") if e["upstream"] == url]


def changes_are_logged():
    with world("baton", "sglang", server=("--min-ready", 1)) as (s, _, d):
        commit(s, "step-1")
        d.order("who", "wrong_version", label="rogue")
        becomes(s, d.url, "unsynced")
        commit(s, "step-2")
        d.kill()
        becomes(s, d.url, "down")
        wanted = [("serving", "unsynced", "warn"), ("unsynced", "serving", "info"), ("serving", "down", "warn")]
        until("it is told", lambda: states_told(d.url)[-3:] == wanted)
        check(states_told(d.url)[:-3] in ([("unknown", "serving", "info")], [
            ("unknown", "unsynced", "info"), ("unsynced", "serving", "info")]), states_told(d.url))
        lines = [e for e in logged("upstream.state") if e["upstream"] == d.url][-4:]
        check("'rogue', not 'step-1'" in lines[1]["why"] and lines[1]["weight_version"] == "rogue", lines)
        check("why" not in lines[2] and "connect" in lines[3]["why"].lower(), lines)


def a_flood_is_not():
    with world("baton", "baton", server=("--min-ready", 1, "--probe-timeout", 100)) as (s, _, d):
        for _ in range(8):
            d.order("who", "status", times=0, status=500)
            becomes(s, d.url, "down")
            d.good("DELETE", "/fault")
            becomes(s, d.url, "serving")
        told = [e for e in logged("upstream.state") if e["upstream"] == d.url]
        same((len(told), told[-1]["suppressed_for_s"]), (10, 60), "ten, and the last one says that it is")


def key_taken_for_questions_only():
    """As vLLM's: /metrics needs none. A client's request goes elsewhere; where there is nowhere, it is told why."""
    def shut(d):
        d.order("completions", "status", times=0, status=401, text='{"error":"Unauthorized"}')

    with world("vllm", "vllm", server=("--min-ready", 1)) as (s, a, b):
        shut(a)
        for _ in range(8):
            same(ids_of(s.post("/v1/completions", completion())["choices"][0]["text"]), expected(PROMPT, "step-0", 0, 5))
        becomes(s, a.url, "refused")
        error = s.upstreams()[a.url]["error"]
        check(error["code"] == "upstream_auth_failed" and "401" in error["message"], error)
        same(metric(s, f'baton_upstream_state{{upstream="{a.url}",state="refused"}}'), 1)
        check(s.ready(), "the other one serves")
        shut(b)
        status, said = s.ask("POST", "/v1/completions", completion())
        check(status == 502 and "requires a key" in said["error"]["message"], said)
        until("its code is told", lambda: ("/v1/completions", "upstream_auth_failed") in [
            (e["route"], e["code"]) for e in logged("request") if e["status"] == 502])
        becomes(s, b.url, "refused")
        status, said = s.ask("POST", "/v1/generate", {"token_ids": [1]})
        same((status, said["error"]["code"], said["error"]["retryable"]), (502, "upstream_auth_failed", False))
        n = len(a.journal("who"))
        until("it says who it is", lambda: len(a.journal("who")) > n + 3)
        same(state_of(s, a.url), "refused", "which was never the question")
        for d in a, b:
            d.good("DELETE", "/fault")
            becomes(s, d.url, "serving")
        s.post("/v1/completions", completion())


def forbidden_is_an_answer():
    """A vLLM without --enable-scale-out: what it forbids is the route. Its client is told, and nothing else happens."""
    text = json.dumps({"error": {"message": "Scale-out endpoints are disabled. Restart vllm serve with "
                                            "--enable-scale-out to enable them.",
                                 "type": "PermissionDeniedError", "param": None, "code": 403}})
    for dialect in "vllm", "sglang":
        with world(dialect, dialect) as (s, a, b):
            for d in a, b:
                d.order("chat", "status", times=0, status=403, text=text)  # no route of the server's own probes
            for _ in range(6):
                status, said = s.ask("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})
                same((status, said), (403, json.loads(text)))
            same([state_of(s, d.url) for d in (a, b)], ["serving"] * 2)
            same([e for e in logged("upstream.state") if "replied 403" in e.get("why", "")], [])
    with world("baton") as (s, a):
        a.order("generate", "status", times=0, status=403, text='{"error": {"code": "forbidden"}}')
        status, said = s.ask("POST", "/v1/generate", {"token_ids": [1]})
        same((status, said["error"]["code"]), (502, "upstream_auth_failed"))


def of_another_dialect():
    """The log says what to write, also of one that never answered."""
    for real, spec, hint in (("vllm", "", "URL,vllm"), ("sglang", "", "URL,sglang"), ("vllm", ",sglang", "URL,vllm"),
                             (None, "", "did not answer")):
        with contextlib.ExitStack() as stack:
            url = stack.enter_context(double(real)).url if real else f"http://127.0.0.1:{closed_port()}"
            s = stack.enter_context(Server(BATON, LOG, "--upstream", url + spec, *PROBES))
            becomes(s, url, "down")
            until("it is told", lambda: states_told(url) == [("unknown", "down", "warn")])
            why = logged("upstream.state")[-1]["why"]
            check(hint in why and (real is None or "404" in why), why)
            check(hint in s.upstreams()[url]["error"]["message"], s.upstreams())


def answers_clients_and_no_question():
    """Its version cannot be known: it leaves, though it misses nothing that clients ask. It is asked by SIGHUP only."""
    with world("sglang", server=("--probe-interval", 600000)) as (s, d):
        d.order("who", "status", times=0, status=500)
        for n in range(1, 11):
            same(state_of(s, d.url), "serving")
            s.post("/v1/completions", completion())
            s.process.send_signal(signal.SIGHUP)
            until("it was asked", lambda: s.upstreams()[d.url]["n_missed"] == n)
        same(state_of(s, d.url), "unsynced")
        check("is not known" in why_not(s), why_not(s))
        check("500" in s.upstreams()[d.url]["error"]["message"], s.upstreams())
        until("it is told", lambda: states_told(d.url)[-1] == ("serving", "unsynced", "warn"))
        d.good("DELETE", "/fault")
        s.process.send_signal(signal.SIGHUP)
        becomes(s, d.url, "serving")
        same(s.upstreams()[d.url]["n_missed"], 10, "an answer does not set it back")
        check(s.upstreams()[d.url]["last_heard_s"] < 60, "but it was heard")


run({"different_versions": different_versions, "most_have_it": most_have_it,
     "one_that_hangs_at_first": one_that_hangs_at_first, "another_version": another_version,
     "resync_asks_now": resync_asks_now, "changes_are_logged": changes_are_logged, "a_flood_is_not": a_flood_is_not,
     "key_taken_for_questions_only": key_taken_for_questions_only, "forbidden_is_an_answer": forbidden_is_an_answer,
     "of_another_dialect": of_another_dialect,
     "answers_clients_and_no_question": answers_clients_and_no_question,
     **{f"restarted_{d}": lambda d=d: restarted(d) for d in ("baton", "vllm", "sglang")}})
