"""The trainer of preflight.sh: exports memory of a fake GPU in each way that can fail, and requests the
diagnosis. Usage: preflight.py URL CLIENT_DIR LIBFAKECUDA WHAT"""

import base64
import json
import os
import subprocess
import sys

url, client, library, what = sys.argv[1:5]
sys.path.insert(0, client)
import baton  # noqa: E402
import fakegpu  # noqa: E402
from fakegpu import UUIDS, export_args, pickled, plain  # noqa: E402

NBYTES = 4096
PID_OF_NOBODY = 4194305  # above what Linux gives out
n_checks = 0


def check(found, wanted, about):
    global n_checks
    n_checks += 1
    if found != wanted:
        raise SystemExit(f"{about}: {found!r}, wanted {wanted!r}")


def ask(body):
    answer = baton.request(url, "POST", "/v1/preflight", body)
    for row in answer["checks"]:
        check(bool(row["message"]), True, f"{row['check']} has a sentence")
    failed = any(row["ok"] is False for row in answer["checks"])
    check(answer["ok"], not failed, f"ok, with {answer['checks']}")
    return answer["checks"]


def expect(checks, place="cuda:0", **wanted):
    """Of each named check, about that place or all: (ok, words of its message); other checks of the
    place are true."""
    for row in checks:
        if row["place"] not in (place, None):
            continue
        ok, *words = wanted.pop(row["check"], (True,))
        check(row["ok"], ok, row)
        for word in words:
            check(word in row["message"], True, f"{word!r} in {row}")
    check(wanted, {}, f"checks that were not made: {checks}")


class Trainer:
    def __init__(self, device=0):
        self.gpu, self.uuid = fakegpu.Gpu(library, device), UUIDS[device]
        self.handle = self.gpu.export(self.gpu.alloc(NBYTES))
        self.event = self.gpu.event()
        self.counter = fakegpu.Counter()

    def body(self, **changes):
        args = dict(handle=self.handle, nbytes=NBYTES, counter=self.counter, event=self.event)
        args.update(changes)
        return {"ipc_handles_pickled": pickled({self.uuid: export_args(**args)})}

    def close(self):
        self.counter.remove()


def test_good(t):
    """Everything passes, again and again; nothing is counted down."""
    for _ in range(20):
        checks = ask(t.body())
        expect(checks, cuda=(True, "13.0"), device=(True, "cuda:0"), uuid=(True, t.uuid),
               mig=(True,), allocator=(True, "cudaMalloc"),
               pid_namespace=(True, f"process {os.getpid()}"),
               ref_counter=(True, t.counter.name), peer_access=(True, "same GPU"),
               open=(True, f"{NBYTES} bytes"), event=(True, "has passed"))
    check(t.counter.count(), 1, "the counter")
    expect(ask(t.body(event=None)), event=(True, "no event"))
    expect(ask(t.body(nbytes=NBYTES - 512, offset=512)), open=(True,))
    checks = ask({"ipc_handles": plain(t.uuid, t.handle, NBYTES, event=t.event)})
    silent = (None, "names no counter")
    expect(checks, allocator=(None, "do not show"), pid_namespace=silent, ref_counter=silent)


def test_wrong(t):
    """One thing at a time."""
    nobody = "11111111-2222-3333-4444-000000000000"
    unseen = (None, "no handle is for a GPU of this host")
    checks = ask({"ipc_handles_pickled": pickled({nobody: export_args(t.handle, NBYTES, t.counter)})})
    expect(checks, uuid=(False, nobody, t.uuid), peer_access=unseen, open=unseen, event=unseen)

    closed = (None, "expandable segments cannot be opened")
    checks = ask(t.body(handle=bytes(24 + 4), kind=b"\x02e"))
    expect(checks, allocator=(False, "expandable_segments:False"), uuid=closed, mig=closed,
           pid_namespace=closed, ref_counter=closed, peer_access=closed, open=closed, event=closed)

    expect(ask(t.body(nbytes=NBYTES + 1)), open=(False, "ends at byte 4097", "has 4096"))
    expect(ask(t.body(nbytes=NBYTES, offset=8)), open=(False, "ends at byte 4104"))
    expect(ask(t.body(handle=bytes(64))), open=(False, "cuIpcOpenMemHandle"),
           event=(None, "does not open"))
    expect(ask(t.body(event=bytes(range(64)))), event=(False, "cuIpcOpenEventHandle"))
    empty = (None, "empty")
    expect(ask(t.body(handle=None, nbytes=0, counter=None, event=None)), pid_namespace=empty,
           ref_counter=empty, open=(False, "empty"), event=empty)


def test_counters(t):
    """The trainer's process and its counter, as far as they can be seen from here."""
    def judged(counter, pid_namespace, ref_counter):
        try:
            expect(ask(t.body(counter=counter)), pid_namespace=pid_namespace, ref_counter=ref_counter)
        finally:
            counter.remove()

    judged(fakegpu.Counter(made=False), (False, "not in /dev/shm", "share /dev/shm"),
           (False, "cannot be opened", "until it exits"))
    judged(fakegpu.Counter(pid=PID_OF_NOBODY), (False, "pid namespace", str(PID_OF_NOBODY)), (True,))
    judged(fakegpu.Counter(pid=PID_OF_NOBODY, made=False),
           (False, "neither its process nor its counter", "container"), (False, "cannot be opened"))
    judged(fakegpu.Counter(nbytes=80063), (True,), (False, "80063 bytes"))


def test_dead(t):
    """A trainer that was killed: its handle opens no more."""
    child = subprocess.Popen([sys.executable, fakegpu.__file__, library, str(NBYTES)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    handle = base64.b64decode(json.loads(child.stdout.readline())["handle"])
    counter = fakegpu.Counter(pid=child.pid)
    body = {"ipc_handles_pickled": pickled({t.uuid: export_args(handle, NBYTES, counter)})}
    expect(ask(body))
    child.kill()
    child.wait()
    expect(ask(body), pid_namespace=(False, "it has exited"),
           open=(False, "cuIpcOpenMemHandle", "exited"), event=(None,))
    counter.remove()


def test_own(t):
    """Handles that the server itself exported."""
    lease = baton.request(url, "GET", "/v1/weights/handles")
    slab = lease["devices"][0]["slabs"][0]
    body = {"ipc_handles": {t.uuid: {"handle": slab["handle"], "offset": 0, "nbytes": 64}}}
    expect(ask(body), allocator=(None,), pid_namespace=(None,), ref_counter=(None,),
           open=(False, "exported itself"), event=(None,))
    baton.request(url, "DELETE", "/v1/weights/handles/" + lease["lease_id"])


def test_two_ranks(t):
    """A server on cuda:0 and cuda:1: each is judged by the handles that an update would give it."""
    other = Trainer(1)
    both = {t.uuid: export_args(t.handle, NBYTES, t.counter),
            other.uuid: export_args(other.handle, NBYTES, fakegpu.Counter(made=False))}
    checks = ask({"ipc_handles_pickled": pickled(both)})
    expect(checks, "cuda:0", uuid=(True, UUIDS[0]))
    expect(checks, "cuda:1", uuid=(True, UUIDS[1]), pid_namespace=(False,), ref_counter=(False,))
    checks = ask(other.body())
    expect(checks, "cuda:0", uuid=(True, "which is cuda:1 here"), peer_access=(True, "cuda:1"))
    expect(checks, "cuda:1", peer_access=(True, "same GPU"))
    other.close()


def test_no_peer(_):
    """A server on cuda:0, a trainer on cuda:1, and no way between them."""
    t = Trainer(1)
    none = (None, "no peer access")
    expect(ask(t.body()), uuid=(True,), peer_access=(False, "cuda:1"), open=none, event=none)
    t.close()


def test_mig(_):
    """The same slice is fine, another one is out of reach."""
    for device, mig in ((0, (True, "same MIG slice")), (1, (False, "one slice only"))):
        t = Trainer(device)
        expect(ask(t.body()), mig=mig)
        t.close()


def test_no_device(t):
    """Weights in host memory: what can be judged without a GPU is."""
    none = (None, "holds no weights on a GPU")
    expect(ask(t.body()), device=(False, "--device cpu"), uuid=none, mig=none, peer_access=none,
           open=none, event=none)
    check(t.counter.count(), 1, "the counter")


def test_no_cuda(t):
    none = (None, "holds no weights on a GPU")
    expect(ask(t.body()), cuda=(False, "could not be loaded"), device=(False,), uuid=none, mig=none,
           peer_access=none, open=none, event=none)


trainer = Trainer()
try:
    globals()["test_" + what](trainer)
finally:
    trainer.close()
print(f"{what}: {n_checks} checks")
