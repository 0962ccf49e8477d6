"""What follows from a refused update by a group whose trainer broadcasts without waiting for the answer.

Usage: as fleet_control.py.
"""

import contextlib
import itertools
import json
import threading
from concurrent import futures

import fleet_control
from fleet_control import COLUMNS, JOIN, LABELS, RANKS, Fleet, reboot, told, until
from fleet_packed import BUFFERS, EMPTY, PICKLED, TENSORS, Releases, join, step
from fleet_world import Server

fleet_control.TIMEOUT_MS = 8000
ONE = {"names": ["a"], "dtypes": ["bfloat16"], "shapes": [[1]]}
BAD = dict(ONE, dtypes=["zz"])
SLOW_MS = 1500
PATH = "/update_weights_from_distributed"


def join_named(f, *names):
    n = 1 + RANKS * len(f.doubles)
    for name in names:
        own = {} if name is None else {"group_name": name}
        f.front.post("/init_weights_update_group", dict(JOIN, rank_offset=1, world_size=n, **own))


def leaves(f):
    return [[json.loads(r["body"] or "{}").get("group_name") for r in d.journal("leave")] for d in f.doubles]


def clean(f):
    f.clean()
    f.front.ask("DELETE", "/v1/weight_transfer", {})
    f.front.ask("POST", "/continue_generation", {})
    f.clean()


class Sent(threading.Thread):
    """A request that takes long."""

    def __init__(self, f, path, body, op="update"):
        super().__init__(target=lambda: setattr(self, "said", f.front.ask("POST", path, body)))
        n = [len(d.journal(op)) for d in f.doubles]
        self.start()
        until("it is there", lambda: all(len(d.journal(op)) > k for d, k in zip(f.doubles, n)))

    def answer(self):
        self.join()
        return self.said


def is_left(f, body):
    status, said = f.front.ask("POST", PATH, body)
    assert status == 400 and "nothing is received by its group any more" in said["message"], said


def of_each_group(f):
    """Tensors of one group are received while an update by another one is refused, which is left all the same."""
    clean(f)
    join_named(f, "pp0", "pp1")
    for d in f.doubles:
        d.order("update", "slow", ms=SLOW_MS)
    receives = Sent(f, PATH, dict(ONE, group_name="pp0", weight_version="v1"))
    status, said = f.front.ask("POST", PATH, dict(BAD, group_name="pp1"))
    assert status == 400 and "have left the group" in said["message"], said
    assert leaves(f) == [["pp1"]] * len(f.doubles), leaves(f)
    is_left(f, dict(ONE, names=["b"], group_name="pp1", weight_version="v1"))
    assert receives.answer()[0] == 200, receives.said
    assert f.front.ask("POST", PATH, dict(ONE, names=["c"], group_name="pp0", weight_version="v1"))[0] == 200
    assert leaves(f) == [["pp1"]] * len(f.doubles), leaves(f)
    join_named(f, "pp1")
    assert f.front.ask("POST", PATH, dict(ONE, group_name="pp1", weight_version="v2"))[0] == 200


def after_what_it_receives(f):
    """Of the same group: nothing follows by it, and it is left when those tensors have come."""
    clean(f)
    join_named(f, "g")
    for d in f.doubles:
        d.order("update", "slow", ms=SLOW_MS)
    receives = Sent(f, PATH, dict(ONE, group_name="g", weight_version="v1"))
    status, said = f.front.ask("POST", PATH, dict(BAD, group_name="g"))
    assert status == 400 and "leave the group when" in said["message"], said
    assert leaves(f) == [[]] * len(f.doubles), leaves(f)
    receives.answer()
    until("it is left", lambda: leaves(f) == [["g"]] * len(f.doubles))
    is_left(f, dict(ONE, names=["b"], group_name="g", weight_version="v1"))


def while_they_leave(f):
    """Nothing is sent to an engine that is asked to leave: SGLang's process would end by it."""
    clean(f)
    join_named(f, "g")
    body = dict(ONE, group_name="g", weight_version="v1")
    assert f.front.ask("POST", PATH, body)[0] == 200
    for d in f.doubles:
        d.order("leave", "slow", ms=SLOW_MS)
    n = [len(d.journal("update")) for d in f.doubles]
    refusal = Sent(f, PATH, dict(BAD, group_name="g", weight_version="v1"), "leave")
    is_left(f, dict(body, names=["b"]))
    assert refusal.answer()[0] == 400
    assert [len(d.journal("update")) for d in f.doubles] == n


def by_name(f):
    """The mark is the group's own, whatever other groups there are; also of one without a name."""
    clean(f)
    for name, meant in (("pp0", {"group_name": "pp0"}), (None, {})):
        join_named(f, "pp1", name)
        f.clean()
        f.front.ask("POST", PATH, dict(BAD, **meant))
        assert [len(x) for x in leaves(f)] == [1] * len(f.doubles), leaves(f)
        is_left(f, dict(ONE, weight_version=next(LABELS), **meant))
        assert f.front.ask("POST", PATH, dict(ONE, group_name="pp1", weight_version="v"))[0] == 200
        join_named(f, name)
        assert f.front.ask("POST", PATH, dict(ONE, weight_version="v", **meant))[0] == 200
        clean(f)
    # The name in a request that cannot be translated.
    join_named(f, "pp0", "pp1")
    f.front.ask("POST", PATH, {"load_format": "x", "group_name": "pp0"})
    assert leaves(f) == [["pp0"]] * len(f.doubles), leaves(f)


def not_left(f):
    """The message tells what became of the leave."""
    clean(f)
    join_named(f, "g")
    f.doubles[0].order("leave", "status", status=500)
    status, said = f.front.ask("POST", PATH, dict(BAD, group_name="g"))
    assert f.doubles[0].url in said["message"] and "has not left the group" in said["message"], said
    is_left(f, dict(ONE, group_name="g"))
    f.front.good("DELETE", "/v1/weight_transfer")  # asks that one again
    assert [len(x) for x in leaves(f)] == [2, 1], leaves(f)


def not_reached(f, probed):
    """Nobody knows whether an engine has left that does not answer: here, or to the probe before."""
    join_named(f, "g")
    gone = f.doubles[1]
    gone.kill()
    if probed:
        f.wait("serving", "down")
    status, said = f.front.ask("POST", PATH, dict(BAD, group_name="g"))
    assert status == 400 and f"{gone.url} has not left the group" in said["message"], said
    assert len(f.doubles[0].journal("leave")) == 1


def no_call(f):
    """vLLM before 0.32 has none to leave by."""
    join(f)
    f.front.post("/start_weight_update")
    status, said = f.front.ask("POST", "/update_weights", {"update_info": dict(TENSORS, schema_version=1)})
    assert status == 400 and "has not left the group (its release has no call" in said["error"]["message"], said


def empty_lists(f):
    """They mean the list before, and after a leave there is no round at all."""
    join(f, **BUFFERS)
    step(f, TENSORS)
    f.front.post("/start_weight_update")
    assert f.front.ask("POST", "/update_weights", {"update_info": dict(TENSORS, num_updates_list=[1])})[0] == 409
    for info in EMPTY, TENSORS:
        status, said = f.front.ask("POST", "/update_weights", {"update_info": info})
        assert status == 409 and "nothing is received by its group" in said["error"]["message"], said


STRAY = (("/v1/update_weights", {"pth": "/x"}), ("/v1/load_lora_adapter", {"lora_nam": "x"}),
         ("/update_weights_from_tensor", {"zzz": 1}), ("/update_weights_from_disk", {"zzz": 1}),
         ("/update_weights", {"update_info": dict(PICKLED, zzz=1)}))


def no_broadcast(f):
    """A request that no broadcast belongs to leaves the group alone, also between two chunks."""
    join(f, **BUFFERS)
    n = [len(d.journal("leave")) for d in f.doubles]
    for path, body in STRAY:
        label = next(LABELS)
        f.front.post("/start_weight_update")
        for at in 0, 1:
            f.front.post("/update_weights", {"update_info": {m: c[at:at + 1] for m, c in TENSORS.items()}})
            status, said = f.front.ask("POST", path, body)
            assert status >= 400 and "join a new group" not in json.dumps(said), said
        f.front.post("/finish_weight_update", {"weight_version": label})
        assert f.versions() == [label] * len(f.doubles)
    assert [len(d.journal("leave")) for d in f.doubles] == n


def half(f, refusals):
    """A chunk that was refused is missing in the update, whose names nothing is known of."""
    one, two = ({m: c[at:at + 1] for m, c in PICKLED.items() if m in TENSORS} for at in (0, 1))
    handles = {"ipc_handles_pickled": PICKLED["ipc_handles_pickled"]}
    for bad in refusals:
        f.front.post("/start_weight_update")
        f.front.post("/update_weights", {"update_info": dict(one, **handles)})
        status, said = f.front.ask("POST", "/update_weights", {"update_info": dict(two, **handles, **bad)})
        assert status == 400, said
        status, said = f.front.ask("POST", "/finish_weight_update", {})
        assert status == 422 and "refused and did not come again" in said["error"]["message"], said
        f.wait(*["fenced"] * len(f.doubles))
        step(f, dict(TENSORS, **handles))


def half_of_a_group(f):
    """The same by broadcasts: what follows a refused chunk is refused, and so is the end."""
    join(f, **BUFFERS)
    f.front.post("/start_weight_update")
    f.front.post("/update_weights", {"update_info": {m: c[:1] for m, c in TENSORS.items()}})
    two = {m: c[1:] for m, c in TENSORS.items()}
    assert f.front.ask("POST", "/update_weights", {"update_info": dict(two, schema_version=1)})[0] == 400
    assert f.front.ask("POST", "/update_weights", {"update_info": two})[0] == 409
    status, said = f.front.ask("POST", "/finish_weight_update", {})
    assert status == 422 and "refused and did not come again" in said["error"]["message"], said
    f.wait(*["fenced"] * len(f.doubles))


def come_again(f):
    """A chunk that is accepted after it was refused is not missing, in whatever requests it comes."""
    def mine(path, **body):
        return f.front.ask("POST", path, dict(body, **it))
    handles = {"ipc_handles_pickled": PICKLED["ipc_handles_pickled"]}
    columns = [{m: c[at:at + 1] for m, c in COLUMNS.items()} for at in (0, 1)]
    for again in (True, False):
        it = {"update_id": f.front.post("/v1/update_weights/start", {"weight_version": next(LABELS)})["update_id"]}
        assert mine("/v1/update_weights", **columns[0], **handles)[0] == 200
        assert mine("/v1/update_weights", **columns[1], **handles, chunk_id="c")[0] == 400
        if again:
            assert mine("/v1/update_weights", **columns[1], **handles)[0] == 200
        assert mine("/v1/update_weights/finish")[0] == (200 if again else 422)


PUSH = "/update_weights_from_tensor"  # of no update's name, and with tensors of unknown names
UNREAD = {"serialized_named_tensors": ["bm8gcGlja2xl"] * 2}


def restarted_within(f):
    """The rest of a push is refused that an engine's restart cut off: it would be served as if it were the whole."""
    f.front.post("/pause_generation")
    f.front.post(PUSH, UNREAD)
    f.doubles[0].must_be_fresh = False
    reboot(f.doubles[0])
    status, said = f.front.ask("POST", PUSH, UNREAD)
    assert status == 502 and "restarted" in said["message"], said
    f.probed()  # else it seems to restart within the next update


def rest_of_it(f):
    restarted_within(f)
    f.front.post(PUSH, UNREAD)  # of a trainer that did not look at the answer
    status, said = f.front.ask("POST", "/continue_generation", {})
    assert status == 400 and "did not come again" in said["message"], said
    f.wait("fenced")
    f.front.post("/pause_generation")
    f.front.post(PUSH, UNREAD)  # the next push
    f.front.post("/continue_generation")
    f.wait("serving")


def rest_by_names(f):
    """Where names are read, those of the push that failed have to come again."""
    one, two = ({m: c[at:at + 1] for m, c in PICKLED.items() if m in TENSORS} for at in (0, 1))
    handles = {"ipc_handles_pickled": PICKLED["ipc_handles_pickled"]}
    for again in (False, True):
        f.front.post("/update_weights", {"update_info": dict(one, **handles)})
        reboot(f.doubles[0])
        f.doubles[0].must_be_fresh = False
        status, said = f.front.ask("POST", "/update_weights", {"update_info": dict(two, **handles)})
        assert status == 502, said
        f.probed()
        for chunk in (one, two) if again else (two,):
            f.front.post("/update_weights", {"update_info": dict(chunk, **handles)})
        status, said = f.front.ask("POST", "/resume")
        assert status == (200 if again else 422), said


def rest_of_one_begun(f):
    """Also one that was begun: its rest opens another, which the call that ends it would end."""
    f.front.post("/begin_weight_update", {})
    restarted_within(f)
    f.front.post(PUSH, UNREAD)
    status, said = f.front.ask("POST", "/end_weight_update", {})
    assert status == 400 and "did not come again" in said["message"], said
    for _ in range(2):
        f.front.post("/begin_weight_update", {})
        f.front.post(PUSH, UNREAD)
        f.front.post("/end_weight_update", {})
        f.front.post("/continue_generation")  # until then it has missed the pause, if a probe found it away
        f.wait("serving")


def begun_again(f):
    """A pause says that a push begins, also after a stray chunk; but never that a chunk before it did not come."""
    restarted_within(f)
    f.front.post(PUSH, UNREAD)
    f.front.post("/pause_generation")
    for _ in range(2):
        f.front.post(PUSH, UNREAD)
    f.front.post("/continue_generation")
    f.wait("serving")
    f.front.post("/pause_generation")
    f.front.post(PUSH, UNREAD)
    reboot(f.doubles[0])
    f.probed()  # it is down before, if a probe found it away
    f.front.post("/pause_generation")  # by another rank, late
    status, said = f.front.ask("POST", PUSH, UNREAD)
    assert status == 502, said


def repeated(f):
    """A first chunk that no engine accepted may come again."""
    f.front.post("/pause_generation")
    f.doubles[0].order("update", "status", status=413)
    assert f.front.ask("POST", PUSH, UNREAD)[0] >= 400
    for _ in range(2):
        f.front.post(PUSH, UNREAD)
    f.front.post("/continue_generation")
    f.wait("serving")


@contextlib.contextmanager
def before(f):
    """A server in front of f.front, which has learned no names yet."""
    own = f.front
    with Server(fleet_control.BATON, fleet_control.LOG, "--probe-interval", fleet_control.PROBE_MS, "--probe-timeout", 5000,
                "--compat", "all", "--upstream", f"{own.url},baton") as f.front:
        until("it is ready", f.front.ready)
        yield
    f.front = own


def started(f, label):
    until("it is not down", lambda: all(u["state"] != "down" for u in f.front.upstreams().values()))
    return {"update_id": f.front.post("/v1/update_weights/start", {"weight_version": label})["update_id"]}


def ignored(f):
    """A trainer goes on after a refusal: of one in front, its batons never hear."""
    handles = {"ipc_handles_pickled": PICKLED["ipc_handles_pickled"]}
    one, two = ({m: c[at:at + 1] for m, c in COLUMNS.items()} for at in (0, 1))
    for again, bad in itertools.product((False, True), ({"zzz": 1}, {"chunk_id": "/"}, {"selector": "none"})):
        label = next(LABELS)
        it = started(f, label)
        status, said = f.front.ask("POST", "/v1/update_weights", dict(two, **handles, **bad, **it))
        assert status == 400, said
        f.front.post("/v1/update_weights", dict(one, **handles, **it))
        if again:
            f.front.post("/v1/update_weights", dict(two, **handles, **it))
        status, said = f.front.ask("POST", "/v1/update_weights/finish", it)
        assert status == (200 if again else 422), (bad, said)
        assert again or "refused and did not come again" in said["error"]["message"], said
        assert (f.versions() == [label]) == again, (bad, f.versions())


def ignored_beside_others(f):
    """One of many that are sent at the same time."""
    for bad, ends in (({"zzz": 1}, 422), ({}, 200)):
        label = next(LABELS)
        it = dict(started(f, label), ipc_handles_pickled=PICKLED["ipc_handles_pickled"])
        chunks = [dict(ONE, names=[f"t{i}"], **it, **(bad if i == 5 else {})) for i in range(16)]
        with futures.ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda chunk: f.front.ask("POST", "/v1/update_weights", chunk)[0], chunks))
        assert found == [400 if bad and i == 5 else 200 for i in range(16)], found
        status, said = f.front.ask("POST", "/v1/update_weights/finish", {"update_id": it["update_id"]})
        assert status == ends and (f.versions() == [label]) == (ends == 200), said


def main():
    for what in rest_of_it, rest_of_one_begun, begun_again, repeated:
        with Fleet("sglang") as f:
            told(what.__name__, what, f)
    with Releases("0.33.0") as f:
        told("rest_by_names", rest_by_names, f)
    with Fleet("sglang", "sglang") as f:
        for what in (of_each_group, after_what_it_receives, while_they_leave, by_name, not_left):
            told(what.__name__, what, f)
    for probed in (False, True):
        with Fleet("sglang", "sglang", min_ready=1) as f:
            told(f"not_reached, probed: {probed}", not_reached, f, probed)
    with Releases("0.33.0") as f:
        told("half, in a new fleet", half, f, ({"zzz": 1},))  # in which no spec was learned
    with Releases("0.33.0") as f:
        told("ignored", ignored, f)
    for what in ignored, ignored_beside_others:
        with Releases("0.33.0") as f, before(f):
            told(f"{what.__name__}, in front of a baton", what, f)
    for what in half_of_a_group, come_again:
        with Releases(*("0.33.0",) * 2) as f:
            told(what.__name__, what, f)
    for what, releases in ((no_call, ("0.24.0",)), (empty_lists, ("0.33.0",) * 2), (no_broadcast, ("0.33.0",) * 2)):
        with Releases(*releases) as f:
            told(what.__name__, what, f)


if __name__ == "__main__":
    main()
