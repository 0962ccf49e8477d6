"""After an update each upstream is asked for a canary, and with --prove checksums for checksums.

The doubles' log-probabilities and checksums follow from the version that they serve.
Usage: as fleet_control.py, vllm or sglang.
"""

import contextlib
import itertools
import json
import signal
import subprocess
import threading

from fake_engine_world import Double
from fleet_control import BATON, ENGINE, LOG, RANKS, WHICH, Fleet, reboot
from fleet_world import Server, n_traffic, until

IDS = [17, 42, 23, 61, 34, 52, 19, 58, 27, 45, 38, 63, 21, 49, 30, 55]
NEW = ("vllm", "--vllm-version", "0.32.0") if WHICH == "vllm" else WHICH  # which has checksums
VERSIONS = itertools.count(1)  # shared by threads
NAMES = ["model.embed_tokens.weight", "model.norm.weight"]


def canary_reply(values):
    """Of an engine whose values are these; None: not finite."""
    if WHICH == "sglang":
        return 200, json.dumps({"text": "x", "meta_info": {"input_token_logprobs": [[None, IDS[0], None]] +
                                                           [[v, i, None] for i, v in zip(IDS[1:], values)]}})
    if None in values:  # as vLLM 0.32 answers
        return 400, json.dumps({"error": {"message": "Out of range float values are not JSON compliant: nan", "code": 400}})
    logprobs = [None] + [{str(i): {"logprob": v, "rank": 1, "decoded_token": "x"}} for i, v in zip(IDS[1:], values)]
    return 200, json.dumps({"choices": [{"index": 0, "text": "x", "prompt_logprobs": logprobs}]})


def answers(d, values, **more):
    status, text = canary_reply(values)
    d.order("canary", "status", status=status, text=text, **more)


def update(f):
    if WHICH == "sglang":
        f.init()
    f.label = f"step-{next(VERSIONS)}"
    step, _, said = f.update(f.label)
    assert step is None, (step, said)


def proofs(f):
    found = f.front.upstreams()
    return [found[d.url]["proof"] for d in f.doubles]


def proof_states(f):
    return [p and p["state"] for p in proofs(f)]


def until_proofs(f, *states):
    until(lambda: f"{states}: {proofs(f)}", lambda: proof_states(f) == list(states))
    assert all(p is None or p["weight_version"] == f.label for p in proofs(f)), proofs(f)


def n_canaries(f):
    return [len(d.journal("canary")) for d in f.doubles]


def proof_log(f, state):
    with open(f.front.log, encoding="utf-8") as log:
        lines = [json.loads(line) for line in log if '"event":"upstream.proof"' in line]
    return [r for r in lines if r["state"] == state and r["weight_version"] == f.label]


def until_logged(f, state, *actions):
    """The state is shown before it is logged."""
    until(lambda: f"{state}: {actions}: {proof_log(f, state)}", lambda: [r["action"] for r in proof_log(f, state)] == list(actions))


def equal(f):
    """All agree, by one request each, which is no client's; the update did not wait for it."""
    until_proofs(f, "proven", "proven", "proven")  # of the version that they started with
    for _ in range(2):
        f.clean()
        update(f)
        until_proofs(f, "proven", "proven", "proven")
        assert all(p["n_compared"] == 2 and p["largest_difference"] < 1e-6 and p["checksums"] is None for p in proofs(f))
        assert n_canaries(f) == [1, 1, 1] and [n_traffic(d) for d in f.doubles] == [0, 0, 0]
    status, text = f.front.ask("GET", "/metrics")
    assert status == 200 and f'baton_upstream_proofs_total{{upstream="{f.doubles[0].url}",result="proven"}} 3' in text, text


def not_finite(f):
    """It is fenced, the others serve, and the next update heals it."""
    answers(f.doubles[0], [None] * 15, times=2)
    update(f)
    f.wait("fenced", "serving", "serving")
    until_proofs(f, "not_finite", "proven", "proven")
    error = f.front.upstreams()[f.doubles[0].url]["error"]
    assert "not finite" in error["message"] and f.label in error["message"], error
    until_logged(f, "not_finite", "fenced")
    update(f)
    f.wait("serving", "serving", "serving")
    until_proofs(f, "proven", "proven", "proven")


def minority(f):
    """Two agree, so the third is wrong. Small differences are those of hardware."""
    answers(f.doubles[1], [-40.0] * 15, times=2)
    update(f)
    f.wait("serving", "fenced", "serving")
    until_proofs(f, "proven", "differs", "proven")
    assert proofs(f)[1]["largest_difference"] > 1 and proofs(f)[1]["n_compared"] == 2, proofs(f)
    update(f)
    until_proofs(f, "proven", "proven", "proven")
    for d, by in zip(f.doubles, (0, 0.3, -0.3)):
        answers(d, [-5.0 + by] * 15)
    update(f)
    until_proofs(f, "proven", "proven", "proven")
    assert f.states() == ["serving"] * 3 and 0.2 < max(p["largest_difference"] for p in proofs(f)) < 0.7, proofs(f)


def once(f):
    """One faulty answer accuses nobody: all are asked again."""
    for values in [None] * 15, [-40.0] * 15:
        f.clean()
        answers(f.doubles[1], values)
        update(f)
        until_proofs(f, "proven", "proven", "proven")
        until(lambda: n_canaries(f), lambda: n_canaries(f)[1] == 2)
        until_proofs(f, "proven", "proven", "proven")
        f.stays("serving", "serving", "serving")
        assert proof_log(f, "differs") == [] and proof_log(f, "not_finite") == []


def late(f):
    """What does not answer yet is unproven, and serves. A failure is no answer: it is asked again."""
    f.doubles[2].order("canary", "slow", ms=1500)  # the failure is asked again after 0.5 s, well before
    f.doubles[1].order("canary", "status", status=500)
    update(f)
    until_proofs(f, "proven", "proven", "unproven")
    assert f.states() == ["serving"] * 3
    until_proofs(f, "proven", "proven", "proven")


def preempted(f):
    """None is: an engine is paused once its canary has been answered, since a vLLM that preempts one ends."""
    for pause in lambda: update(f), lambda: f.front.post("/v1/pause", {"mode": "keep"}):
        f.clean()
        f.doubles[0].order("canary", "slow", ms=700)
        update(f)
        until(lambda: n_canaries(f), lambda: n_canaries(f)[0] == 1)
        n = len(f.doubles[0].journal("pause"))
        pause()
        until(lambda: f.doubles[0].journal("canary"), lambda: f.doubles[0].journal("canary")[0]["ended_us"])
        canary, found = f.doubles[0].journal("canary")[0], f.doubles[0].journal("pause")[n]
        assert found["came_us"] >= canary["ended_us"], (found, canary)
    f.front.post("/v1/resume")
    until_proofs(f, "proven", "proven", "proven")


def reset_within(f):
    """The caches of its engine are emptied once it is answered, and it is asked once they are: a reset preempts."""
    def ended_before(op, other, n=0):
        until(op, lambda: f.doubles[0].journal(op) and f.doubles[0].journal(op)[0]["ended_us"])
        until(other, lambda: len(f.doubles[0].journal(other)) > n)
        first, then = f.doubles[0].journal(op)[0], f.doubles[0].journal(other)[n]
        assert then["came_us"] >= first["ended_us"], (first, then)
    if WHICH == "vllm":
        f.clean()
        f.doubles[0].order("canary", "slow", ms=700)
        update(f)
        until(lambda: n_canaries(f), lambda: n_canaries(f)[0] == 1)
        n = len(f.doubles[0].journal("reset_cache"))
        f.front.post("/reset_prefix_cache?reset_running_requests=true")
        ended_before("canary", "reset_cache", n)
    f.front.__exit__(None)
    f.clean()
    f.doubles[0].order("reset_cache", "slow", ms=700)
    f.serve()
    ended_before("reset_cache", "canary")
    until_proofs(f, "proven", "proven", "proven")


def unsupported(f):
    """An engine that refuses the request is unknown, and serves."""
    f.doubles[0].order("canary", "status", status=404)
    update(f)
    until_proofs(f, "unknown", "proven", "proven")
    assert f.states() == ["serving"] * 3


def paused(f):
    """While the trainer holds them paused nothing is asked."""
    f.front.post("/v1/pause", {"mode": "keep"})
    f.clean()
    update(f)
    f.stays("serving", "serving", "serving")
    assert n_canaries(f) == [0, 0, 0] and proof_states(f) == ["unproven"] * 3, (n_canaries(f), proofs(f))
    f.front.post("/v1/resume")
    until_proofs(f, "proven", "proven", "proven")


def newer(f):
    """A newer version ends the canary of the one before, and is proven itself."""
    f.clean()
    f.doubles[0].order("canary", "hang")
    update(f)
    until_proofs(f, "unproven", "proven", "proven")
    update(f)
    until_proofs(f, "proven", "proven", "proven")
    until(lambda: f.doubles[0].journal("canary"), lambda: f.doubles[0].journal("canary")[0]["end"] == "client_left")
    assert f.states() == ["serving"] * 3


def restarts(f):
    """What the process before served is not proven of the next."""
    f.doubles[0].order("canary", "hang")
    update(f)
    until_proofs(f, "unproven", "proven", "proven")
    reboot(f.doubles[0], ms=300)
    until_proofs(f, None, "proven", "proven")
    f.wait("unsynced", "serving", "serving")
    update(f)
    until_proofs(f, "proven", "proven", "proven")
    f.wait("serving", "serving", "serving")


def tie(f):
    """Which of two is wrong cannot be known: both serve, with a warning."""
    answers(f.doubles[0], [-30.0] * 15)
    update(f)
    until_proofs(f, "differs", "differs")
    f.stays("serving", "serving")
    assert all(p["largest_difference"] > 1 and p["n_compared"] == 1 for p in proofs(f)), proofs(f)
    until_logged(f, "differs", *["none, since no majority agrees"] * 2)
    for command in "upstreams", "status":
        page = subprocess.run([BATON, command, "--url", f.front.url], capture_output=True, text=True, timeout=60, check=True).stdout
        for d in f.doubles:
            assert f"proof       {d.url}: differs from 1 other: log-probabilities by up to " in page, page
    update(f)
    until_proofs(f, "proven", "proven")


def dies(f):
    """One that is gone is not waited for."""
    f.doubles[0].order("canary", "hang")
    update(f)
    until("it is asked", lambda: f.doubles[0].journal("canary")[-1]["end"] is None)
    assert proof_states(f) == ["unproven"] * 2, proofs(f)
    f.doubles[0].kill()
    f.wait("down", "serving")
    until(lambda: proofs(f), lambda: proof_states(f)[1] == "proven")


def checksums_reply(sums):
    if WHICH == "vllm":
        return json.dumps({"checksums": {f"dp0:pp0:pcp0:tp0:{n}": s for n, s in sums.items()}})
    return json.dumps({"success": True, "message": "Success.", "ranks": [{"checksums": sums, "parallelism_info": {"rank": 0}}]})


def checksums(f):
    """Compared too, one engine at a time; a release without them is proven by its canary."""
    f.clean()
    update(f)
    until_proofs(f, "proven", "proven", "proven")
    assert all(p["checksums"] == {"state": "proven", "n": 2, "n_different": 0, "n_compared": 2, "committed": None} for p in proofs(f)), proofs(f)
    spans = sorted((r["came_us"], r["ended_us"]) for d in f.doubles for r in d.journal("checksums"))
    assert len(spans) == 3 and all(a[1] <= b[0] for a, b in zip(spans, spans[1:])), spans
    f.doubles[2].order("checksums", "status", status=200, text=checksums_reply(dict.fromkeys(NAMES, "ab")))
    update(f)
    f.wait("serving", "serving", "fenced")
    until_proofs(f, "proven", "proven", "differs")
    assert proofs(f)[2]["checksums"]["n_different"] == 2, proofs(f)
    f.doubles[1].order("checksums", "status", status=404)
    f.doubles[2].order("checksums", "status", status=200, text=checksums_reply({"other.weight": "ab"}))
    update(f)
    until_proofs(f, "proven", "proven", "proven")
    assert [p["checksums"]["state"] for p in proofs(f)] == ["proven", "unknown", "proven"], proofs(f)
    assert f.states() == ["serving"] * 3


def prove(f, body, status=200):
    found, said = f.front.ask("POST", "/v1/upstreams/prove", body)
    assert found == status, (found, said)
    return said if status == 200 else said["error"]["message"]


def states_of(said):
    return {row["upstream"]: row["proof"]["state"] for row in said["list"]}


def nothing(f):
    """Without the option nobody is asked, but on demand."""
    one, other = f.doubles
    f.stays("serving", "serving")
    assert n_canaries(f) == [0, 0] and proofs(f) == [None, None]
    said = prove(f, {"checksums": False})  # before the first update too
    assert (said["n"], said["n_proven"]) == (2, 2) and n_canaries(f) == [1, 1], said
    f.clean()
    update(f)
    f.stays("serving", "serving")
    assert n_canaries(f) == [0, 0] and proofs(f) == [None, None]
    said = prove(f, {})
    assert (said["n"], said["n_proven"]) == (2, 2) and states_of(said) == {d.url: "proven" for d in f.doubles}, said
    assert [row["proof"]["checksums"]["n_compared"] for row in said["list"]] == [1, 1], said
    assert said["n_checksums"] == 2, said
    assert [len(d.journal("checksums")) for d in f.doubles] == [1, 1]
    said = prove(f, {"upstream": one.url, "checksums": False})
    assert states_of(said) == {one.url: "proven"} and said["list"][0]["proof"]["checksums"] is None, said
    assert n_canaries(f) == [2, 1] and [len(d.journal("checksums")) for d in f.doubles] == [1, 1]
    shown = subprocess.run([BATON, "upstreams", "prove", one.url, "--canary", "--url", f.front.url], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout == f"{one.url}: proven, compared with 1 other\n", shown
    prove(f, {"upstream": "http://127.0.0.1:1"}, 404)
    one.order("checksums", "status", status=404)
    said = prove(f, {})
    assert (said["n_proven"], said["n_checksums"]) == (2, 0), said  # the canary alone
    one.order("checksums", "status", status=404)
    shown = subprocess.run([BATON, "upstreams", "prove", one.url, "--url", f.front.url], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout == f"{one.url}: proven, compared with 1 other; checksums: unknown, it has no checker that can be used\n", shown
    shown = subprocess.run([BATON, "status", "--url", f.front.url], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "granted" not in shown and ", 0 refused\n" in shown, shown  # each engine has its own number
    f.front.post("/v1/pause", {"mode": "keep"})
    assert "paused" in prove(f, {}, 503)
    f.front.post("/v1/resume")
    f.wait("serving", "serving")
    other.order("canary", "hang")
    said = prove(f, {"timeout_s": 1})
    assert (said["n"], said["n_proven"]) == (2, 0) and set(states_of(said).values()) == {"unproven"}, said
    waits = threading.Thread(target=lambda: late.append(prove(f, {"timeout_s": 60})))
    other.order("canary", "hang")
    late, asked = [], n_canaries(f)[1]
    waits.start()
    until("it is asked", lambda: n_canaries(f)[1] > asked)
    message = prove(f, {}, 409)
    assert "another request" in message and "closing its connection" in message and "for at most " in message, message
    update(f)  # what is asked of the version before is not waited for, nor shown of the next one
    waits.join(20)
    assert late and proofs(f) == [None, None], (late, proofs(f))
    answers(other, [-30.0] * 15)
    shown = subprocess.run([BATON, "upstreams", "prove", "--url", f.front.url], capture_output=True, text=True, timeout=60, check=False)
    assert shown.returncode == 1 and shown.stdout.count(": differs, compared with 1 other; checksums: ") == 2, shown



def stops():
    """A drain does not wait for a proof: it is a question."""
    with Fleet(WHICH, WHICH, min_ready=1, options=("--prove", "none")) as f:
        update(f)
        for d in f.doubles:
            d.order("canary", "hang", times=0)
        said = []
        waits = threading.Thread(target=lambda: said.append(f.front.ask("POST", "/v1/upstreams/prove", {"timeout_s": 300})))
        waits.start()
        until("it is asked", lambda: n_canaries(f)[0] > 0)
        f.front.process.terminate()
        assert f.front.process.wait(15) == 0
        waits.join(15)
        assert said[0][0] == 503 and said[0][1]["error"]["code"] == "draining", said


class Differing(Fleet):
    """Of which some, by their numbers, answer otherwise from the start, and under the same name."""

    def __init__(self, n, *wrong, values=(-40.0,) * 15, options=()):
        self.wrong, self.values = wrong, values
        label = f"first-{next(VERSIONS)}"
        super().__init__(*[WHICH] * n, min_ready=1, options=options, engine=("--weight-version", label))
        self.label = label

    def serve(self):
        for i in self.wrong:
            answers(self.doubles[i], list(self.values), times=0)
        super().serve()

    def __enter__(self):
        until("it is ready", self.front.ready)
        return self


def first_version():
    """What engines started with is proven once the fleet takes it, and once more by each server that takes it."""
    with Differing(3, 1) as f:
        until_proofs(f, "proven", "differs", "proven")
        f.wait("serving", "fenced", "serving")
        until_logged(f, "differs", "fenced")
        f.doubles[1].good("DELETE", "/fault")
        update(f)
        f.wait("serving", "serving", "serving")
        until_proofs(f, "proven", "proven", "proven")
        answers(f.doubles[0], [-40.0] * 15, times=0)
        f.front.__exit__(None)
        f.clean()
        answers(f.doubles[0], [-40.0] * 15, times=0)
        Fleet.serve(f)
        until_proofs(f, "differs", "proven", "proven")
        f.wait("fenced", "serving", "serving")
        assert f.front.status()["upstreams"]["warning"] is None


def first_tie():
    """Which of two is wrong cannot be known: both serve, and nobody can miss it."""
    with Differing(2, 0) as f:
        until_proofs(f, "differs", "differs")
        f.stays("serving", "serving")
        until_logged(f, "differs", *["none, since no majority agrees"] * 2)
        warning = f.front.status()["upstreams"]["warning"]
        assert all(d.url in warning for d in f.doubles) and "no majority" in warning and "push a whole update" in warning, warning
        assert f.front.get("/v1/upstreams")["warning"] == warning
        assert f.front.ask("GET", "/readyz") == (200, {"ready": True, "warning": warning})
        for command in "upstreams", "status":
            page = subprocess.run([BATON, command, "--url", f.front.url], capture_output=True, text=True, timeout=60, check=True).stdout
            assert f"warning     {warning}\n" in page, page
        late = Double(ENGINE, WHICH, "--weight-version", f.label, "--world-size", RANKS)
        f.doubles.append(late)  # of the same name, so it serves: and it decides
        f.front.post("/v1/upstreams", {"upstream": f"{late.url},{WHICH}"})
        until_proofs(f, "differs", "proven", "proven")
        f.wait("fenced", "serving", "serving")
        assert f.front.ask("GET", "/readyz") == (200, {"ready": True, "warning": None}) and f.front.status()["upstreams"]["warning"] is None
        f.doubles[0].good("DELETE", "/fault")
        reboot(f.doubles[0], ms=300)  # from a good checkpoint: somebody vouches for it, and it is asked again
        until("it is back", lambda: f.front.ask("POST", "/v1/upstreams/resync", {"upstream": f.doubles[0].url})[0] == 200)
        until_proofs(f, "proven", "proven", "proven")
        f.wait("serving", "serving", "serving")
        update(f)
        until_proofs(f, "proven", "proven", "proven")


def batons_only():
    """--prove checksums has no effect in front of batons: a warning says so."""
    log = f"{LOG}-batons"
    with Server(BATON, log, "--upstream", "http://127.0.0.1:1,baton", "--prove", "checksums"), open(log, encoding="utf-8") as lines:
        assert '"prove.unused"' in lines.read()


def other_kind():
    """What a reload makes a baton of is asked for no proof any more, though one was pending."""
    path = f"{LOG}-upstreams"

    def write(kind):
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"{d.url},{kind}\n")

    with Double(ENGINE, WHICH, "--weight-version", "a", "--world-size", RANKS) as d:
        d.order("canary", "status", status=500, times=0)
        write(WHICH)
        with Server(BATON, f"{LOG}-kind", "--probe-interval", 100, "--upstream-file", path) as s:
            until("it is asked", lambda: d.journal("canary"))
            write("baton")
            s.process.send_signal(signal.SIGHUP)
            until("it is a baton", lambda: s.upstreams()[d.url]["dialect"] == "baton")
            until("nothing is to prove", lambda: s.upstreams()[d.url]["proof"] is None)


def main():
    batons_only()
    other_kind()
    stops()
    first_version()
    first_tie()
    rows = [((WHICH,) * 3, (), (equal, not_finite, minority, once, late, preempted, reset_within, unsupported, paused, newer, restarts)),
            ((WHICH,) * 2, (), (tie, dies)),
            ((NEW,) * 3, ("--prove", "checksums"), (checksums,)),
            ((NEW,) * 2, ("--prove", "none"), (nothing,))]

    def run(f, cases):
        for case in cases:
            case(f)
            done.append(case.__name__)

    done = []
    wanted = {case.__name__ for row in rows for case in row[2]}
    with contextlib.ExitStack() as stack:
        fleets = [stack.enter_context(Fleet(*dialects, min_ready=1, options=options)) for dialects, options, _ in rows]
        threads = [threading.Thread(target=run, args=(f, row[2])) for f, row in zip(fleets, rows)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(done) == wanted, f"failed: {wanted - set(done)}"


if __name__ == "__main__":
    main()
