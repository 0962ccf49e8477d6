"""The other process of handles.sh: maps the served weights by their handles and compares bytes.
Usage: handles.py URL CLIENT_DIR LIBFAKECUDA WHAT [CHECKPOINT...]"""

import base64
import sys

url, client, library, what = sys.argv[1:5]
sys.path.insert(0, client)
import baton  # noqa: E402
import fakegpu  # noqa: E402

HANDLES = "/v1/weights/handles"
n_checks = 0


def check(found, wanted, about):
    global n_checks
    n_checks += 1
    if found != wanted:
        raise SystemExit(f"{about}: {str(found)[:300]!r}, wanted {str(wanted)[:300]!r}")


def refused(status, code, method, path, body=None):
    try:
        answer = baton.request(url, method, path, body)
    except baton.BatonError as e:
        check((e.status, e.code), (status, code), f"{method} {path}")
        return e
    raise SystemExit(f"{method} {path}: {str(answer)[:200]}, wanted {status} {code}")


def versions_alive():
    return baton.request(url, "GET", "/v1/status")["weights"]["versions_alive"]


class Mapped:
    """What a lease's answer says, mapped on one GPU of ours."""

    def __init__(self, answer, place=0, gpu=None):
        self.answer, self.about = answer, answer["devices"][place]
        self.gpu = gpu or fakegpu.Gpu(library)
        self.at = [self.gpu.open(base64.b64decode(s["handle"])) for s in self.about["slabs"]]

    def bytes_of(self, i):
        t = self.answer
        width = {"bfloat16": 2, "float32": 4, "uint8": 1}[t["dtypes"][i]]
        nbytes = width
        for dim in t["shapes"][i]:
            nbytes *= dim
        slab, offset = self.about["slab"][i], self.about["offset"][i]
        if offset + nbytes > self.about["slabs"][slab]["nbytes"]:
            raise SystemExit(f"{t['names'][i]} reaches beyond its slab")
        return self.gpu.read(self.at[slab] + offset, nbytes)

    def compare(self, checkpoint):
        """Every tensor is that of the checkpoint, and none is missing."""
        wanted = baton.load_file(checkpoint)
        for tied in self.answer["aliases"]:
            wanted.pop(tied, None)
        check(sorted(self.answer["names"]), sorted(wanted), "names")
        for i, name in enumerate(self.answer["names"]):
            t = wanted[name]
            check(baton.tensors.CANONICAL[self.answer["dtypes"][i]], t.dtype, f"{name}: dtype")
            check(self.answer["shapes"][i], list(t.shape), f"{name}: shape")
            check(self.bytes_of(i), bytes(t.data), f"{name}: bytes")

    def close(self):
        for at in self.at:
            self.gpu.close(at)


def lease(lease_s=60):
    return baton.request(url, "GET", f"{HANDLES}?lease_s={lease_s}")


def push(checkpoint):
    return baton.push(checkpoint, url, via="body")


def renew(answer, lease_s=None):
    body = {"lease_id": answer["lease_id"]}
    if lease_s is not None:
        body["lease_s"] = lease_s
    return baton.request(url, "POST", f"{HANDLES}/renew", body)


def test_bytes(first, second):
    """A leased version is what was served, and stays so while others are committed."""
    a = lease()
    check((a["lease_s"], a["serial"], a["weight_version"], a["placement"]),
          (60, 1, "step-0", "replicated"), "the lease")
    old = [Mapped(a, place, fakegpu.Gpu(library, place)) for place in range(len(a["devices"]))]
    for m in old:
        m.compare(first)
    push(second)
    check(versions_alive(), 2, "versions alive")
    for m in old:
        m.compare(first)
    check(renew(a), {"lease_id": a["lease_id"], "lease_s": 60, "weight_version": "step-0",
                     "serial": 1, "served": False}, "renewed")
    b = lease(3600)
    check(b["serial"], 2, "serial")
    new = Mapped(b, gpu=old[0].gpu)
    new.compare(second)
    check(renew(b, 30)["lease_s"], 30, "lease_s")
    check(renew(b)["served"], True, "served")
    new.close()
    for m in old:
        m.close()
    for answer in (a, b):
        path = f"{HANDLES}/{answer['lease_id']}"
        check(baton.request(url, "DELETE", path), {"lease_id": answer["lease_id"]}, "deleted")
        refused(404, "not_found", "DELETE", path)
        refused(404, "not_found", "POST", f"{HANDLES}/renew", {"lease_id": answer["lease_id"]})
    check(versions_alive(), 1, "versions alive")


def test_partial(first, second):
    """Tensors of one update are in another slab: each is found in its own."""
    name = "model.norm.weight"
    t = baton.load_file(second)[name]
    baton.push({name: t}, url, via="body", partial=True)
    a = lease()
    check(len(a["devices"][0]["slabs"]), 2, "slabs")
    m = Mapped(a)
    check(m.bytes_of(a["names"].index(name)), bytes(t.data), name)
    other = "model.embed_tokens.weight"
    check(m.bytes_of(a["names"].index(other)), bytes(baton.load_file(first)[other].data), other)
    m.close()
    baton.request(url, "DELETE", f"{HANDLES}/{a['lease_id']}")


def test_updates_wait(first, second):
    """Of two versions at most, one is leased: the next update waits until the lease has ended."""
    held = lease()
    push(second)
    try:
        push(first)
        raise SystemExit("an update began although there is no room for a version")
    except baton.BatonError as e:
        check((e.status, e.code), (409, "conflict"), "update")
        check("still being read" in e.message, True, e.message)
    renew(held, 1)
    push_waiting(first)
    refused(404, "not_found", "POST", f"{HANDLES}/renew", {"lease_id": held["lease_id"]})


def push_waiting(checkpoint):
    """Pushes until there is room; each try waits in the server for --pin-timeout."""
    for _ in range(200):
        try:
            return push(checkpoint)
        except baton.BatonError as e:
            check((e.status, e.code), (409, "conflict"), "update")
    raise SystemExit("the lease never ended")


def test_bound():
    """As many leases as there may be, and one that has to wait for another's end."""
    held = [lease() for _ in range(256)]
    check(len({a["lease_id"] for a in held}), 256, "ids")
    refused(503, "overloaded", "GET", HANDLES)
    baton.request(url, "DELETE", f"{HANDLES}/{held.pop()['lease_id']}")
    held.append(lease())
    for a in held:
        baton.request(url, "DELETE", f"{HANDLES}/{a['lease_id']}")


def test_kept():
    """Leases that are not released: the server ends them when it stops."""
    lease(3600)
    lease(3600)


tests = {"bytes": test_bytes, "partial": test_partial, "updates_wait": test_updates_wait,
         "bound": test_bound, "kept": test_kept}
tests[what](*sys.argv[5:])
print(f"{what}: {n_checks} checks")
