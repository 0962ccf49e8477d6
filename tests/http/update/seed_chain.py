"""Servers that pass a version on while they read it: the first one reads from a double (seed_peer), each other from the one
before. Usage: seed_chain.py BATON MODEL FOLDER"""

import contextlib
import http.client
import json
import os
import sys
import time

from fleet_world import Server, until
from seed_peer import Peer, Version, tensors_of

BATON, MODEL, FOLDER = sys.argv[1:4]
STEPS = os.path.join(MODEL, "checkpoints")
LOG = os.path.join(FOLDER, "log")
N_HOSTS = 4
checks = [0]


def same(found, wanted, what):
    checks[0] += 1
    assert found == wanted, f"{what}: {found}, wanted {wanted}"


STEP = {n: os.path.join(STEPS, f"step-{n}.safetensors") for n in ("00100", "01500")}
TENSORS = {n: tensors_of(path) for n, path in STEP.items()}
with Server(BATON, LOG, "--model", MODEL, "--weights", STEP["00100"]) as plain:
    said = plain.get("/v1/weights")
ORDER, PLAN = [t["name"] for t in said["tensors"]], said["plan_digest"]
ONE = Version(TENSORS["00100"], ORDER, PLAN, "one")
EVERY_4TH = {name: TENSORS["01500" if i % 4 == 0 else "00100"][name] for i, name in enumerate(ORDER)}
MIXED = Version(EVERY_4TH, ORDER, PLAN, "mixed")
NBYTES = len(ONE.file) - ONE.head
CHANGED = sum(len(EVERY_4TH[name][2]) for name in ORDER[::4])
HALF = NBYTES // 2


def host(*options, stall_ms=30000):
    return Server(BATON, LOG, "--model", MODEL, "--seed-cidr", "127.0.0.0/8", "--body-stall-timeout", stall_ms, "--allow-path", STEPS,
                  *options)


def tell(server, *peers):
    same(server.ask("POST", "/v1/weights/seed", {"peers": [p.url for p in peers]})[0], 202, "it takes the list of peers")


@contextlib.contextmanager
def hosts(n, *options, **more):
    with contextlib.ExitStack() as stack:
        # the first has read whole tensors when its seed stalls
        yield [stack.enter_context(host(*(options or ("--weights", "none")), "--seed-connections", 4 if i > 0 else 1, **more)) for i in range(n)]


def seed_of(server):
    return server.status()["seed"]


def came(server):
    return (server.status()["update"] or {"nbytes_done": 0})["nbytes_done"]


def has(server, version, state="done"):
    """It has ended, and serves the version, byte for byte."""
    until(lambda: f"it has ended: {seed_of(server)}", lambda: seed_of(server)["state"] != "seeding")
    same([seed_of(server)["state"], server.status()["weights"]["weight_version"]], [state, version.label], f"the end: {seed_of(server)}")
    sums = {t["name"]: t["checksum"] for t in server.get("/v1/weights")["tensors"]}
    head = json.loads(version.file[8:version.head])["__metadata__"]
    same(sums, {n: head["baton.checksum." + n] for n in ORDER}, "the checksums")
    if state == "done":
        same(server.status()["weights"]["digest"], version.digest, "the digest")


def cpu_s(server):
    with open(f"/proc/{server.process.pid}/stat", encoding="ascii") as f:
        return sum(int(n) for n in f.read().rpartition(")")[2].split()[11:13]) / os.sysconf("SC_CLK_TCK")


def waits_idle():
    """Requests for what is still to come do not wake each other."""
    seed = Peer(ONE, stall_at=HALF)
    with hosts(1) as (first,), contextlib.ExitStack() as stack:
        tell(first, seed)
        until("it has something", lambda: came(first) > 0)
        path = "/v1/weights/file?lease_id=" + first.post("/v1/weights/leases", {"lease_s": 60})["lease_id"]
        for _ in range(8):
            reader = stack.enter_context(contextlib.closing(http.client.HTTPConnection("127.0.0.1", first.port)))
            reader.request("GET", path, headers={"Range": "bytes=-8"})
        time.sleep(0.2)
        before = cpu_s(first)
        time.sleep(0.5)
        took = cpu_s(first) - before
        checks[0] += 1
        assert took < 0.2, f"they took {took} s of CPU time"
        seed.release.set()
        has(first, ONE)


def passed_on():
    """The last has what the first has, before that has all; and the seed sends each byte once."""
    seed = Peer(ONE, stall_at=HALF)
    with hosts(N_HOSTS) as chain:
        for before, server in zip([seed, *chain], chain):
            tell(server, before)
        until(lambda: f"the last has something: {[came(s) for s in chain]}", lambda: came(chain[-1]) > 0)
        status, said = chain[0].ask("GET", "/readyz")
        same([status, said["reason"]], [503, "seeding"], "it is not ready itself")
        same(chain[0].status()["seed"]["passes"], True, "it says that it passes it on")
        seed.release.set()
        for server in chain:
            has(server, ONE)
            same(seed_of(server)["failures"], 0, f"nothing failed: {seed_of(server)}")
        same(seed.sent, NBYTES, "what the seed sent")
        same([seed_of(s)["seeded_from"]["url"] for s in chain], [seed.url, *(s.url for s in chain[:-1])], "who read from whom")
        same([seed_of(s)["nbytes_read"] for s in chain], [NBYTES] * N_HOSTS, "what each read")


def difference_passed_on():
    """Servers of another version get what differs; the rest is there."""
    seed = Peer(MIXED, holds_head=True)
    with hosts(3, "--weights", STEP["00100"], "--weight-version", "one") as chain:
        tell(chain[0], seed)
        until("its head is read", lambda: seed.held)
        tell(chain[1], chain[0])  # which serves another version still: not that one
        tell(chain[2], chain[1])
        time.sleep(0.2)
        seed.release.set()
        for server in chain:
            has(server, MIXED)
            same([seed_of(server)["versions"], seed_of(server)["nbytes_read"]], [1, CHANGED], "one version, of which that is read")
        same(seed.sent, CHANGED, "what the seed sent")
    seed = Peer(MIXED, stall_at=CHANGED // 2)
    with hosts(1, "--weights", STEP["00100"]) as (first,), hosts(1) as (empty,):
        tell(first, seed)
        until("it has something", lambda: came(first) > 0)
        tell(empty, first)  # all of it, of what is read and of what is served there
        until("the other has something", lambda: came(empty) > 0)
        seed.release.set()
        has(empty, MIXED)
        same(seed_of(empty)["error"], None, "nothing failed")


def seed_dies():
    """The first goes on with another seed, and the others with the first."""
    dies, good = Peer(ONE, die_at=HALF), Peer(ONE)
    with hosts(3) as chain:
        tell(chain[0], dies, good)
        tell(chain[1], chain[0])
        tell(chain[2], chain[1])
        for server in chain:
            has(server, ONE)
        same([seed_of(s)["failures"] for s in chain], [1, 0, 0], "who noticed")
        assert good.sent <= 0.7 * NBYTES, f"{good.sent} of {NBYTES} were read again"


def middle_dies():
    seed, good = Peer(ONE, stall_at=HALF), Peer(ONE)
    with hosts(3) as chain:
        tell(chain[0], seed)
        tell(chain[1], chain[0], good)
        tell(chain[2], chain[1])
        until(lambda: f"the last has something: {[(came(s), seed_of(s)) for s in chain]}", lambda: came(chain[2]) > 0)
        chain[0].kill()
        for server in chain[1:]:
            has(server, ONE)
        same([seed_of(s)["failures"] for s in chain[1:]], [1, 0], "who noticed")
        assert good.sent < NBYTES, "what came of the first is kept"
        seed.release.set()


def no_seed_left():
    """One that has nobody left to ask ends what it passes on: at once, not when its readers lose patience."""
    dies, good = Peer(ONE, die_at=HALF), Peer(ONE)
    with hosts(2) as (first, second):
        tell(first, dies)
        tell(second, first, good)
        begun = time.monotonic()
        has(second, ONE)
        assert time.monotonic() - begun < 10, "it waited"
        same([seed_of(second)["failures"], seed_of(first)["state"]], [1, "seeding"], "where it went")


def lies():
    """A bit that is flipped on the way is found by who reads it; it goes no further."""
    for flips in [ONE.head + HALF] * 2, [ONE.head + HALF]:
        liar, good = Peer(ONE, flips=list(flips)), Peer(ONE)
        with hosts(2) as (first, second):
            tell(first, liar, good)
            tell(second, first)
            has(first, ONE)
            has(second, ONE)
            said = seed_of(first)
            same([said["failures"], seed_of(second)["failures"]], [len(flips) - 1, 0], "who noticed")
            same("twice" in str(said["error"]) and "'" in said["error"], len(flips) == 2, f"the tensor is named: {said['error']}")


def trainer_wins():
    """On all that hang on each other, and on one alone: then the next takes what is left elsewhere."""
    push = {"path": STEP["01500"], "weight_version": "trained"}
    trained = Version(TENSORS["01500"], ORDER, PLAN, "trained")
    seed = Peer(ONE, stall_at=HALF)
    with hosts(N_HOSTS) as chain:
        for before, server in zip([seed, *chain], chain):
            tell(server, before)
        until("the last has something", lambda: came(chain[-1]) > 0)
        begun = time.monotonic()
        for server in chain:
            server.post("/v1/update_weights", push)
        assert time.monotonic() - begun < 8, "the push waited"
        for server in chain:
            has(server, trained, "ended")
        seed.release.set()
    seed, good = Peer(ONE, stall_at=HALF), Peer(ONE)
    with hosts(2) as (first, second):
        tell(first, seed)
        tell(second, first, good)
        until("the second has something", lambda: came(second) > 0)
        lease = first.post("/v1/weights/leases", {"lease_s": 60})
        first.post("/v1/update_weights", push)
        begun = time.monotonic()
        has(second, ONE)
        assert time.monotonic() - begun < 10, "it waited"
        same(seed_of(second)["seeded_from"]["url"], good.url, "where the rest is from")
        status, said = first.ask("GET", f"/v1/weights/file?lease_id={lease['lease_id']}")
        same([status, said["error"]["code"]], [410, "lease_ended"], "the lease")
        has(first, trained, "ended")
        seed.release.set()


for test in (passed_on, waits_idle, difference_passed_on, seed_dies, middle_dies, no_seed_left, lies, trainer_wins):
    begun_at = time.monotonic()
    test()
    if "-v" in sys.argv:
        print(test.__name__, f"{time.monotonic() - begun_at:.1f} s", flush=True)
print(f"ok: {checks[0]} checks")
