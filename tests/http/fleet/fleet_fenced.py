"""With --pause-fenced an upstream that is fenced is paused too, until what ends the fence.

Usage: as fleet_control.py, baton, vllm or sglang.
"""

from fleet_control import WHICH, Fleet, reboot
from fleet_proof import answers, update
from fleet_world import until

MARKER = "baton:unfinished:fenced"
WRONG = [-40.0] * 15


class Fenced(Fleet):
    """Three, of which the first gets fenced."""

    def __init__(self):
        super().__init__(*[WHICH] * 3, min_ready=1, options=("--pause-fenced",))

    def until_paused(self, *paused):
        until(lambda: f"{paused}: {self.pauses()} {self.front.upstreams()}", lambda: [p is not None for p in self.pauses()] == list(paused))

    def fence(self):
        """It is found wrong; a baton does not end its update."""
        self.clean()
        if WHICH == "baton":
            self.doubles[0].order("finish", "status", status=500)
        else:  # the canary of the update before takes none of them
            until("nothing is left to prove", lambda: all((u["proof"] or {"state": "proven"})["state"] == "proven"
                                                          for u in self.front.upstreams().values()))
            answers(self.doubles[0], WRONG, times=2)
        update(self)
        self.wait("fenced", "serving", "serving")
        self.until_paused(True, False, False)
        until("it is shown", lambda: self.shown() == [True, False, False])

    def shown(self):
        found = self.front.upstreams()
        return [found[d.url]["fence_paused"] for d in self.doubles]

    def heal(self):
        update(self)
        self.wait("serving", "serving", "serving")
        self.until_paused(False, False, False)
        until("it is shown", lambda: self.shown() == [False] * 3)

    def again(self):
        """Another server takes its place."""
        self.front.__exit__(None)
        self.serve()


def paused(f):
    """It is marked before it is paused, and an update resumes it."""
    f.fence()
    d = f.doubles[0]
    found = [f.front.ask("GET", "/v1/upstreams/ready?upstream=" + d.url) for d in f.doubles]
    assert [status for status, _ in found] == [503, 200, 200] and found[1][1] == {"ready": True}, found
    assert found[0][1]["reason"] == "fenced" and found[0][1]["message"], found
    assert f.front.ask("GET", "/v1/upstreams/ready?upstream=http://127.0.0.1:1")[0] == 404
    assert f.front.ask("GET", "/v1/upstreams/ready")[0] == 400
    if WHICH != "baton":
        assert d.state()["version"] == MARKER, d.state()
        ops = [r["op"] for r in d.journal() if r["op"] in ("relabel", "mark", "finish", "pause")]
        assert ops[-1] == "pause" and ops[-2] in ("relabel", "mark", "finish"), ops
    f.heal()


def ready(f, *reasons):
    found = [f.front.ask("GET", "/v1/upstreams/ready?upstream=" + d.url) for d in f.doubles]
    assert [(status, said.get("reason")) for status, said in found] == [(200 if r is None else 503, r) for r in reasons], found
    assert all(said["ready"] == (r is None) for (_, said), r in zip(found, reasons)), found


def routers(f):
    """What a router that asks about one engine is answered: requests that would wait make no engine unready."""
    ready(f, None, None, None)
    for mode in "keep", "abort":
        f.front.post("/v1/pause", {"mode": mode})
        ready(f, None, None, None)
    if WHICH == "baton":  # the others keep requests
        f.front.post("/v1/pause", {"new_requests": "reject"})
        ready(f, "paused", "paused", "paused")
    f.front.post("/v1/resume")
    ready(f, None, None, None)
    f.front.post("/v1/sleep", {"level": 1})
    ready(f, "asleep", "asleep", "asleep")
    f.front.post("/v1/wake", {})
    ready(f, None, None, None)
    f.doubles[0].process.kill()
    f.wait("down", "serving", "serving")
    ready(f, "down", None, None)


def clients(f):
    """Clients' pauses and resumes leave it paused, also at the engine itself where that can be seen."""
    f.fence()
    f.front.post("/v1/pause")
    f.until_paused(True, True, True)
    f.front.post("/v1/resume")
    assert f.pauses() == ["keep", None, None], f.pauses()
    f.stays("fenced", "serving", "serving")
    f.until_paused(True, False, False)
    if WHICH != "sglang":
        f.doubles[0].good("POST", "/resume" if WHICH == "vllm" else "/v1/resume", {})
        f.until_paused(True, False, False)
    f.front.post("/v1/pause")
    update(f)  # heals it, and leaves the trainer's pause
    f.stays("serving", "serving", "serving")
    assert f.pauses() == ["keep"] * 3, f.pauses()
    f.front.post("/v1/resume")
    f.until_paused(False, False, False)
    f.stays("serving", "serving", "serving")


def next_server(f):
    """A server that starts knows it: by the marker, or by whose pause it is."""
    f.fence()
    f.front.post("/v1/pause")  # which replaces the fence's at a baton
    f.front.post("/v1/resume")
    if WHICH == "baton":
        until("it is the fence's", lambda: f.doubles[0].ask("GET", "/v1/status")[1]["pause"]["owner"] == "baton:fenced")
    f.again()
    if WHICH == "baton":  # it says truly what it serves, which is not what the others do
        f.wait("unsynced", "serving", "serving")
        f.until_paused(False, False, False)
    else:
        f.wait("fenced", "serving", "serving")
        assert "an earlier server fenced it" in f.front.upstreams()[f.doubles[0].url]["error"]["message"]
        until("it is shown", lambda: f.shown() == [True, False, False])
        f.until_paused(True, False, False)
    f.heal()


def removed(f):
    """It is nobody's business any more."""
    f.fence()
    f.front.post("/v1/upstreams/remove", {"upstream": f.doubles[0].url})
    f.until_paused(False, False, False)
    f.front.post("/v1/upstreams", {"upstream": f"{f.doubles[0].url},{WHICH}"})
    f.wait("fenced", "serving", "serving")
    f.heal()


def restarts(f):
    """Another process is paused too, and a resync makes it run."""
    if WHICH == "baton":
        return
    f.fence()
    d = f.doubles[0]
    reboot(d, ms=300)
    f.until_paused(True, False, False)
    assert d.state()["version"] == "step-0", d.state()  # of this one nothing is known to be wrong
    said = f.front.ask("POST", "/v1/upstreams/resync", {"upstream": d.url})
    assert said[0] == 409 and said[1]["error"]["code"] == "needs_update", said  # another version
    f.until_paused(True, False, False)
    d.good("POST", "/update_weight_version", {"new_version": f.label})
    until("it is vouched for", lambda: f.front.ask("POST", "/v1/upstreams/resync", {"upstream": d.url})[0] == 200)
    f.wait("serving", "serving", "serving")
    f.until_paused(False, False, False)


def main():
    with Fenced() as f:
        for case in paused, clients, next_server, removed, restarts, routers:
            case(f)


if __name__ == "__main__":
    main()
