"""A server whose first version comes of a peer, a double (seed_peer): every fault of a peer, and what a trainer does
meanwhile. Usage: seed.py BATON MODEL FOLDER"""

import json
import os
import sys
import threading
import time

from fleet_world import Server, until
from seed_peer import Peer, Version, tensors_of

BATON, MODEL, FOLDER = sys.argv[1:4]
STEPS = os.path.join(MODEL, "checkpoints")
LOG = os.path.join(FOLDER, "log")
checks = [0]


def same(found, wanted, what):
    checks[0] += 1
    assert found == wanted, f"{what}: {found}, wanted {wanted}"


def golden(step):
    with open(os.path.join(MODEL, "golden.json"), encoding="utf-8") as f:
        return json.load(f)["checkpoints"]["step-" + step]["cases"][0]["greedy_text"]


STEP = {n: os.path.join(STEPS, f"step-{n}.safetensors") for n in ("00000", "00100", "01500")}
with Server(BATON, LOG, "--model", MODEL, "--weights", STEP["00100"]) as plain:
    said = plain.get("/v1/weights")
ORDER, PLAN = [t["name"] for t in said["tensors"]], said["plan_digest"]
TENSORS = {n: tensors_of(path) for n, path in STEP.items()}


def version(step, label=None, **more):
    return Version(TENSORS[step], ORDER, more.pop("plan", PLAN), label or "step-" + step, **more)


ONE, TWO = version("00100"), version("01500")
NBYTES = len(ONE.file) - ONE.head


def same_but(n, label):
    """Step 100, of whose tensors every n-th is that of step 1500."""
    mixed = {name: TENSORS["01500" if i % n == 0 else "00100"][name] for i, name in enumerate(ORDER)}
    return Version(mixed, ORDER, PLAN, label), sum(len(mixed[name][2]) for name in ORDER[::n])


def host(*peers, stall_ms=30000, **more):
    seeds = ("--seed", ",".join(p.url for p in peers)) if peers else ()
    options = [x for k, v in more.items() for x in ("--" + k.replace("_", "-"), v)]
    return Server(BATON, LOG, "--model", MODEL, "--body-stall-timeout", stall_ms, *seeds, *options)


def seed_of(server):
    return server.status()["seed"]


def settled(server):
    """What the seed came to."""
    until(lambda: f"it has ended: {seed_of(server)}", lambda: seed_of(server)["state"] != "seeding")
    return seed_of(server)


def failed(server, word, peer=None):
    until(lambda: f"'{word}' is said: {seed_of(server)}", lambda: word in str(seed_of(server)["error"]))
    checks[0] += 1


def serves(server, step, label=None):
    status = server.status()
    same(status["weights"]["weight_version"], label or "step-" + step, "the version")
    until("it is ready", lambda: server.ask("GET", "/readyz")[0] == 200)
    text = server.post("/v1/completions", {"prompt": "In the beginning", "max_tokens": 24, "temperature": 0})["choices"][0]["text"]
    same(text, golden(step), "what it generates")
    sums = {t["name"]: t["checksum"] for t in server.get("/v1/weights")["tensors"]}
    head = json.loads(version(step).file[8:version(step).head])["__metadata__"]
    same(sums, {n: head["baton.checksum." + n] for n in ORDER}, "the checksums")


def right():
    peer = Peer(ONE, key="secret-of-weights")
    with open(os.path.join(FOLDER, "key"), "w", encoding="utf-8") as f:
        f.write("secret-of-weights\n")
    os.chmod(os.path.join(FOLDER, "key"), 0o600)
    with host(peer, seed_key_file=os.path.join(FOLDER, "key")) as server:
        said = settled(server)
        same([said["state"], said["error"], said["versions"], said["failures"]], ["done", None, 1, 0], "the seed")
        same({k: said["seeded_from"][k] for k in ("url", "weight_version", "boot_id", "digest")},
             {"url": peer.url, "weight_version": "step-00100", "boot_id": "peer", "digest": ONE.digest}, "where it is from")
        same([peer.sent, said["nbytes_read"]], [NBYTES, NBYTES], "the bytes that were read")
        same(sorted(peer.ended), sorted(peer.leases), "the leases that were ended")
        serves(server, "00100")
        same("baton_seed_versions_total 1\n" in server.ask("GET", "/metrics")[1], True, "the metric")
        peer.version = TWO
        same(server.ask("POST", "/v1/weights/seed", {"peers": ["http://127.0.0.1:1"]})[0], 403, "a peer that is not allowed")
        same(server.ask("POST", "/v1/weights/seed", {"peers": ["http://h/path"]})[0], 400, "a path")
        same(server.ask("POST", "/v1/weights/seed")[0], 202, "another seed")
        settled(server)
        serves(server, "01500")
    with host(peer) as server:  # without the key
        failed(server, "answered 401")
        same(server.ask("GET", "/readyz")[1]["reason"], "seeding", "why it is not ready")
        same(server.ask("GET", "/readyz?for=control")[0], 200, "ready for control")
    with host() as server:
        same(server.status()["seed"], None, "no seed")
        same(server.ask("POST", "/v1/weights/seed", {"peers": [peer.url]})[0], 403, "nothing is allowed")
    peer = Peer(ONE)
    with host(weights="none", seed_cidr="127.0.0.0/8") as server:
        same(server.ask("POST", "/v1/weights/seed", {"peers": [peer.url]})[0], 202, "a peer of a request")
        settled(server)
        serves(server, "00100")
    with host(weights="none", seed_cidr="10.0.0.0/8") as server:
        server.ask("POST", "/v1/weights/seed", {"peers": [peer.url]})
        failed(server, "is not allowed")


def one_at_a_time():
    """Each fault by itself: the peer is left, and the next one gives the version."""
    middle = ONE.head + NBYTES // 2
    cases = [("answered 503", {"lease": (503, {"error": {"code": "no_weights"}})}),
             ("is no lease", {"lease": (200, {"lease_id": "../x"})}), ("is no lease", {"lease": (200, b"{" * 100)}),
             ("sent more than 65536", {"lease": (200, b" " * 100000)}),
             ("another model", {"says": {"plan_digest": "0" * 64}}), ("of digest 000000000000", {"says": {"digest": "0" * 64}}),
             ("leased version 'other'", {"says": {"weight_version": "other"}}), ("and leased", {"says": {"nbytes": len(ONE.file) + 8}}),
             ("twice", {"flips": [middle, middle]}), ("answered 302", {"redirect": True}), ("with the range", {"shift": 1}),
             ("answered 200", {"status": 200}), ("encoding 'gzip'", {"encoding": "gzip"}), ("sent more than", {"more": True}),
             ("ended the lease (410)", {"gone_at": NBYTES // 3}), ("", {"cut_at": NBYTES // 4}), ("", {"die_at": NBYTES // 2}),
             ("bytes came in 1000 ms", {"stall_at": NBYTES // 3}), ("bytes came in 1000 ms", {"drips_at": NBYTES // 3})]
    for word, faults in cases:
        bad, good = Peer(ONE, **faults), Peer(ONE)
        with host(bad, good, stall_ms=1000 if "1000 ms" in word else 30000) as server:
            said = settled(server)
            same([said["state"], said["failures"], said["seeded_from"]["url"]], ["done", 1, good.url], f"{faults}: {said}")
            same(word in said["error"], True, f"{faults}: {said['error']}")
            again = bad.sent + good.sent - NBYTES
            assert again <= 0.6 * NBYTES, f"{faults}: {again} of {NBYTES} bytes were read again"
            checks[0] += 1
            serves(server, "00100")
        bad.release.set()
    bad, good = Peer(version("00100", sums=False)), Peer(ONE, flips=[middle])
    with host(bad, good) as server:
        same("it has no checksum of" in settled(server)["error"], True, "a file without checksums")
        same(good.sent > NBYTES, True, "what was wrong is read once more")
        serves(server, "00100")
    me = Peer(ONE)
    with host(me, Peer(ONE)) as server:
        settled(server)
        me.boot_id = server.boot_id
        me.version = TWO
        server.ask("POST", "/v1/weights/seed")
        failed(server, "is this server itself")


def killed_at_each_step():
    for share in 0.1, 0.5, 0.9:
        bad, good = Peer(ONE, die_at=int(NBYTES * share)), Peer(ONE)
        with host(bad, good, seed_connections=2) as server:
            settled(server)
            again = bad.sent + good.sent - NBYTES
            assert again <= 0.6 * NBYTES, f"{share}: {again} of {NBYTES} bytes were read again"
            serves(server, "00100")
    mixed, changed = same_but(4, "mixed")
    bad, good = Peer(ONE, die_at=int(NBYTES * 0.9)), Peer(mixed)  # the next one has another version
    with host(bad, good, seed_connections=1) as server:
        settled(server)
        same(server.status()["weights"]["weight_version"], "mixed", "the version")
        assert good.sent < NBYTES * 0.5 + changed, f"{good.sent}: what is equal is kept ({changed} bytes differ)"
        sums = {t["name"]: t["checksum"] for t in server.get("/v1/weights")["tensors"]}
        head = json.loads(mixed.file[8:mixed.head])["__metadata__"]
        same(sums, {n: head["baton.checksum." + n] for n in ORDER}, "never a mix")


def nobody_answers():
    peer = Peer(ONE)
    peer.faults["lease"] = (503, {})
    with host(peer) as server:
        failed(server, "answered 503")
        same(seed_of(server)["state"], "seeding", "it goes on")
        del peer.faults["lease"]
        settled(server)
        serves(server, "00100")


def another_list():
    """Peers of a later request are asked once those that were named before have been: no restart is needed when they are dead."""
    dead, good = Peer(ONE, lease=(503, {})), Peer(ONE)

    def ask(peer, status=202, **more):
        same(server.ask("POST", "/v1/weights/seed", {"peers": [peer.url], **more})[0], status, f"a list of peers, {more}")

    with host(weights="none", seed_cidr="127.0.0.0/8") as server:
        same(server.ask("POST", "/v1/weights/seed", {})[0], 400, "no peer at all")
        ask(dead)
        failed(server, "answered 503")
        ask(good, 409, if_serial=1)
        ask(good, if_serial=0)
        same(settled(server)["seeded_from"]["url"], good.url, "the next list")
        serves(server, "00100")
        ask(good, 409, if_serial=0)  # it comes late
        good.version = TWO
        ask(good, if_serial=1)
        settled(server)
        serves(server, "01500")
    dies, good = Peer(ONE, stall_at=NBYTES // 2, die_at=NBYTES // 2), Peer(ONE)
    with host(weights="none", seed_cidr="127.0.0.0/8") as server:
        ask(dies)
        until("it is read", lambda: dies.sent >= NBYTES // 2)
        ask(good)
        dies.release.set()
        same(settled(server)["seeded_from"]["url"], good.url, "the next list")
        assert dies.sent + good.sent <= 1.6 * NBYTES, f"{dies.sent} and {good.sent} of {NBYTES} bytes were read"
        serves(server, "00100")


def newer():
    """A version that the peer commits while it is read: the leased one is taken, then what differs."""
    peer, (mixed, changed) = Peer(ONE), same_but(4, "mixed")
    peer.faults["stall_at"] = NBYTES // 2
    with host(peer) as server:
        until("it is read", lambda: peer.sent >= NBYTES // 2)
        peer.version = mixed
        peer.release.set()
        del peer.faults["stall_at"]
        said = settled(server)
        same([said["versions"], said["failures"], peer.sent], [2, 0, NBYTES + changed], "two versions")
        same(server.status()["weights"]["weight_version"], "mixed", "the version")
        peer.version = Version({n: TENSORS["01500" if i % 4 == 0 else "00100"][n] for i, n in enumerate(ORDER)}, ORDER, PLAN, "renamed")
        server.ask("POST", "/v1/weights/seed")
        settled(server)
        same(server.status()["weights"]["weight_version"], "renamed", "the same bytes by another name")


def sums_of(server, of):
    sums = {t["name"]: t["checksum"] for t in server.get("/v1/weights")["tensors"]}
    head = json.loads(of.file[8:of.head])["__metadata__"]
    same(sums, {n: head["baton.checksum." + n] for n in ORDER}, f"the tensors of {of.label}")


def overtaken():
    """An update that is committed while the peer is asked, before anything of it is read, stays."""
    peer = Peer(ONE, holds_head=True)
    with host(peer, allow_path=STEPS) as server:
        until("its head is read", lambda: peer.held)
        server.post("/v1/update_weights", {"path": STEP["01500"], "weight_version": "trained"})
        peer.release.set()
        same([settled(server)["state"], seed_of(server)["versions"]], ["ended", 0], "the seed")
        serves(server, "01500", "trained")


def never_mixed():
    """What came of one version is not in the next peer's, which has those tensors as they are served."""
    first, changed = same_but(4, "first")
    other = {n: TENSORS["01500" if i % 4 == 1 else "00100"][n] for i, n in enumerate(ORDER)}
    other = Version(other, ORDER, PLAN, "other")
    dies, good = Peer(ONE), Peer(ONE)
    with host(dies, good) as server:
        settled(server)
        dies.version, good.version = first, other
        dies.faults["die_at"] = dies.sent + changed // 2
        server.ask("POST", "/v1/weights/seed")
        said = settled(server)
        same([said["seeded_from"]["url"], said["versions"]], [good.url, 2], f"the second version: {said}")
        sums_of(server, other)


def trainer_wins():
    """A push ends the seed at once, whatever it does; the bytes of the peer are not served later."""
    push = {"path": STEP["01500"], "weight_version": "trained"}
    for how in "one request", "a session":
        peer = Peer(ONE, stall_at=NBYTES // 2)
        with host(peer, allow_path=STEPS) as server:
            until("it is read", lambda: peer.sent >= NBYTES // 2)
            same(server.ask("GET", "/readyz")[1]["reason"], "seeding", "why it is not ready")
            begun = time.monotonic()
            if how == "one request":
                server.post("/v1/update_weights", push)
            else:
                update = server.post("/v1/update_weights/start", {})["update_id"]
                server.post("/v1/update_weights", {**push, "update_id": update})
                server.post("/v1/update_weights/finish", {"update_id": update})
            assert time.monotonic() - begun < 5, "the push waited for the peer"
            peer.release.set()
            same([settled(server)["state"], seed_of(server)["versions"], seed_of(server)["failures"]], ["ended", 0, 0], how)
            serves(server, "01500", "trained")
    peer = Peer(ONE, stall_at=NBYTES // 2)
    with host(peer, allow_path=STEPS) as server:  # one that comes to nothing
        until("it is read", lambda: peer.sent >= NBYTES // 2)
        update = server.post("/v1/update_weights/start", {})["update_id"]
        peer.release.set()
        del peer.faults["stall_at"]
        time.sleep(0.3)
        same(seed_of(server)["state"], "seeding", "it waits")
        server.post("/v1/update_weights/abort", {"update_id": update})
        settled(server)
        serves(server, "00100")
    peer = Peer(ONE, stall_at=NBYTES // 2)
    with host(peer, allow_path=STEPS) as server:  # one that begins once a version of the peer is served, and stays open
        until("it is read", lambda: peer.sent >= NBYTES // 2)
        peer.version, peer.faults = TWO, {"holds_head": True}
        peer.release.set()
        peer.release = threading.Event()
        until("the next one is asked for", lambda: peer.held)
        update = server.post("/v1/update_weights/start", {})["update_id"]
        same(server.ask("GET", "/readyz")[0], 200, "it serves what it has")
        serves(server, "00100")
        peer.release.set()
        server.post("/v1/update_weights", {**push, "update_id": update})
        server.post("/v1/update_weights/finish", {"update_id": update})
        serves(server, "01500", "trained")
    peer = Peer(ONE, stall_at=NBYTES // 2)
    with host(peer) as server:  # the end of the server does not wait either
        until("it is read", lambda: peer.sent >= NBYTES // 2)
        begun = time.monotonic()
        server.process.terminate()
        same(server.process.wait(30), 0, "the end")
        assert time.monotonic() - begun < 8, "the end waited for the peer"


def state_dir():
    """What was served last comes first; then what differs at the peer. A restart serves what came of it."""
    state, peer = os.path.join(FOLDER, "state"), Peer(ONE)
    options = {"state_dir": state, "snapshot": 1}
    with host(peer, **options) as server:
        settled(server)
        until("it is on the disk", lambda: server.status()["state"]["snapshots"]["newest"])
    mixed, changed = same_but(4, "mixed")
    peer.version, peer.sent = mixed, 0
    with host(peer, **options) as server:
        same(settled(server)["versions"], 1, "one version")
        same(peer.sent, changed, "what differs is read")
        same(server.status()["weights"]["weight_version"], "mixed", "the version")
        until("it is on the disk", lambda: server.status()["state"]["snapshots"]["newest"]["weight_version"] == "mixed")
    with host(**options, weights="none") as server:
        same([server.status()["weights"]["weight_version"], server.status()["state"]["started_from"]], ["mixed", "snapshot"],
             "after a restart")


def giver(step, *options):
    return Server(BATON, LOG, "--model", MODEL, "--weights", STEP[step], "--weight-version", "step-" + step, "--allow-path", STEPS,
                  "--api-key-file", os.path.join(FOLDER, "keys"), *options)


def real_host(*urls, **more):
    options = [x for k, v in more.items() for x in ("--" + k.replace("_", "-"), v)]
    return Server(BATON, LOG, "--model", MODEL, "--seed", ",".join(urls), "--seed-key-file", os.path.join(FOLDER, "key"), *options)


def real():
    """Peers that are servers: the trainer is dead, and so are soon they."""
    with open(os.path.join(FOLDER, "keys"), "w", encoding="utf-8") as f:
        f.write("weights secret-of-weights\ncontrol secret-of-control\n")
    os.chmod(os.path.join(FOLDER, "keys"), 0o600)
    control = {"Authorization": "Bearer secret-of-control"}
    slow = {"seed_rate": NBYTES // 2}
    with giver("00100") as a:
        with real_host(a.url) as server:
            settled(server)
            same(server.status()["seed"]["seeded_from"]["boot_id"], a.boot_id, "where it is from")
            a.kill()
            serves(server, "00100")
    with giver("00100") as a, giver("00100") as b, real_host(a.url, b.url, **slow) as server:
        until("half is read", lambda: (server.status()["update"] or {"nbytes_done": 0})["nbytes_done"] >= NBYTES // 2, every_s=0.01)
        a.kill()
        said = settled(server)
        same(said["seeded_from"]["boot_id"], b.boot_id, "the second peer")
        assert said["nbytes_read"] <= 1.6 * NBYTES, f"{said['nbytes_read']} of {NBYTES} bytes were read"
        serves(server, "00100")
    with giver("00100") as a, real_host(a.url, **slow) as server:
        until("it is read", lambda: (server.status()["update"] or {"nbytes_done": 0})["nbytes_done"] > 0)
        a.post("/v1/update_weights", {"path": STEP["01500"], "weight_version": "step-01500"}, headers=control)
        same([settled(server)["versions"], seed_of(server)["failures"]], [2, 0], "the leased version, and the one after it")
        serves(server, "01500")


def limited():
    peer = Peer(ONE)
    with host(peer, seed_rate=NBYTES // 2) as server:
        begun = time.monotonic()
        settled(server)
        took = time.monotonic() - begun
        assert 1 < took < 10, f"{NBYTES} bytes at {NBYTES // 2} a second took {took:.1f} s"
        checks[0] += 1
    peer.version, changed = same_but(len(ORDER), "mixed")
    with host(weights=STEP["00100"], seed_cidr="127.0.0.0/8", seed_rate=changed // 2, stall_ms=300) as server:
        server.ask("POST", "/v1/weights/seed", {"peers": [peer.url]})
        same([settled(server)["versions"], seed_of(server)["failures"]], [1, 0], "to wait by the rate is no stall")


for test in (right, one_at_a_time, killed_at_each_step, nobody_answers, another_list, newer, overtaken, never_mixed, trainer_wins, state_dir, real, limited):
    begun_at = time.monotonic()
    test()
    if "-v" in sys.argv:
        print(test.__name__, f"{time.monotonic() - begun_at:.1f} s", flush=True)
assert threading.active_count() > 0
print(f"ok: {checks[0]} checks")
