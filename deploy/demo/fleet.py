"""What the demo shows with a fleet: an engine dies in mid update, and comes back."""

import collections
import time

from acts import LOAD_MAX, checksums_of
from servers import Server, check, refusal_of, until
from streams import Streams
import baton

N, MIN_READY, PROBE_MS, HEAL_S = 3, 2, 200, 20
LOAD_FLEET_MAX = LOAD_MAX


class Fleet:
    """Three batons, and one in front of them."""

    def __init__(self, world, keep):
        """keep(server) is called with each server before it is waited for."""
        self.world, self.keep = world, keep
        self.engines = [keep(Server(world.binary, *world.options(100))) for _ in range(N)]
        urls = [e.wait_until_it_serves().url for e in self.engines]
        self.front = keep(Server(world.binary, "--min-ready", str(MIN_READY), "--probe-interval",
                                 str(PROBE_MS), *(x for u in urls for x in ("--upstream", u))))
        self.front.wait_until_it_serves()
        self.boots = {e.get("/v1/status")["boot_id"]: i for i, e in enumerate(self.engines)}

    def states(self):
        return self.front.get("/v1/upstreams")["list"]

    def state(self, i):
        return self.states()[i]["state"]

    def n_serving(self):
        return sum(s["state"] == "serving" for s in self.states())

    def restart(self, i, step):
        port = int(self.engines[i].url.rsplit(":", 1)[1])
        self.engines[i] = self.keep(Server(self.world.binary, *self.world.options(step), port=port))
        self.engines[i].wait_until_it_serves()
        self.boots[self.engines[i].get("/v1/status")["boot_id"]] = i

    def rows(self):
        """A line for each engine, for the screen."""
        try:
            states = self.states()
        except baton.BatonError as e:
            return [f" the fleet does not answer: {e.message}"] + [""] * (N - 1)
        return [f" engine {i + 1}: {s['state']:<10} {s['weight_version'] or '-':<10} "
                f"{s['outstanding']['generate']:3} requests  {(s['error'] or {}).get('message', '')}"
                for i, s in enumerate(states)]


def run(world, keep):
    show = world.show
    show.act("4. A fleet of three loses an engine to kill -9 in mid update")
    fleet = Fleet(world, keep)
    until(lambda: fleet.n_serving() == N, HEAL_S, "three engines serve")
    streams = Streams(fleet.front.url)
    show.watch(streams.list, fleet.rows)
    try:
        streams.wait_for_text(until)
        streams.slow_down(show.step_ms, LOAD_FLEET_MAX)
        world.dwell(streams)
        show.say(f"  ok  {N} engines serve step-100 behind one URL; an update needs {MIN_READY} of them")
        lost = lose_one(world, fleet, streams)
        recover(world, fleet, streams, *lost)
    finally:
        streams.stop()
    report_requests(world, fleet, streams, lost[1])
    return fleet


def lose_one(world, fleet, streams):
    """Kills an engine after it got half of an update. Returns its index, its boot id, and when."""
    tensors = baton.load_file(world.checkpoint(1500))
    names, url = list(tensors), fleet.front.url
    i = next(i for i, s in enumerate(fleet.states()) if s["outstanding"]["generate"] > 0)
    boot_id = next(b for b, at in fleet.boots.items() if at == i)
    update = fleet.front.post("/v1/update_weights/start", {"weight_version": "step-1500"})
    half = {n: tensors[n] for n in names[:len(names) // 2]}
    rest = {n: tensors[n] for n in names[len(names) // 2:]}
    baton.push(half, url, via="shm", update_id=update["update_id"])
    fleet.engines[i].kill()
    when = time.monotonic()
    e = refusal_of(baton.push, rest, url, via="shm", update_id=update["update_id"])
    check(e.retryable and fleet.engines[i].url in e.message,
          f"the update fails, may be repeated, and the error names the engine: {e}")
    world.show.say(f"  ok  engine {i + 1} killed (-9) with half of step-1500: {e.status} {e.code}: {e.message}")
    sums = checksums_of(baton.load_file(world.checkpoint(100)))
    for engine in fleet.engines[:i] + fleet.engines[i + 1:]:
        served = engine.get("/v1/weights")
        check({t["name"]: t["checksum"] for t in served["tensors"]} == sums,
              "the other engines serve every byte of step-100")
    world.dwell(streams)
    world.show.say("  ok  the two others still serve step-100, every checksum, and the text flows on")
    return i, boot_id, when


def recover(world, fleet, streams, i, boot_id, when):
    """The same update again, then the engine again."""
    show = world.show
    until(lambda: fleet.state(i) == "down", HEAL_S, "the killed engine is down")
    answer = baton.push(world.checkpoint(1500), fleet.front.url, via="path", weight_version="step-1500")
    check(answer["phase"] == "committed" and fleet.n_serving() == MIN_READY,
          f"two engines commit: {answer}")
    world.check_greedy(fleet.front.url, 1500)
    show.say(f"  ok  the same update, sent again, is committed by {MIN_READY} of {N}: a quorum")
    world.dwell(streams)
    fleet.restart(i, 100)
    until(lambda: fleet.state(i) not in ("down", "serving"), HEAL_S, "a restarted engine is kept out")
    n_granted = fleet.states()[i]["n_granted"]
    e = refusal_of(fleet.front.post, "/v1/upstreams/resync", {"upstream": fleet.engines[i].url})
    show.say(f"  ok  engine {i + 1} restarted with its old weights is kept out; resync: "
             f"{e.status} {e.code}: {e.message}")
    world.dwell(streams, 0.75)
    baton.push(world.checkpoint(1500), fleet.engines[i].url, via="path", weight_version="step-1500")
    check(fleet.states()[i]["n_granted"] == n_granted, "an engine that is kept out gets no request")
    fleet.front.post("/v1/upstreams/resync", {"upstream": fleet.engines[i].url})
    until(lambda: fleet.n_serving() == N, HEAL_S, "three engines serve again")
    until(lambda: fleet.states()[i]["n_granted"] > n_granted, HEAL_S, "it gets requests again")
    show.say(f"  ok  given step-1500 and resynced, engine {i + 1} serves again; until then it got no request")
    world.dwell(streams)
    world.figures.append(("fleet: from kill -9 to three engines of the new version",
                          f"{time.monotonic() - when - 2.75 * show.dwell_s:.1f} s"))


def report_requests(world, fleet, streams, killed):
    """Every request ended in one way, and only requests of the killed engine were broken."""
    broken = [b for s in streams.list for b in s.broken]
    check(all(boot_id in (killed, None) for boot_id, _ in broken),
          f"only requests of the killed engine are broken: {broken}")
    kinds = collections.Counter(message[:60] for _, message in broken)
    line = (f"streams: {streams.n_outcomes('finished')} finished, {len(broken)} broken, all at the killed "
            f"engine, {streams.n_outcomes('closed')} closed by the demo at its end; load: "
            f"{streams.load.finished} finished, {streams.load.broken} broken")
    world.show.say(f"  ok  {line}")
    for message, n in kinds.items():
        world.show.say(f"      broken {n} x: {message}")
    world.figures.append(("fleet: requests, finished and broken by the kill",
                          f"{streams.n_outcomes('finished') + streams.load.finished} and "
                          f"{len(broken) + streams.load.broken}"))
