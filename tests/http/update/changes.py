"""The change report of commits: what a trainer's stale, swapped or repeated conversion looks like, and what is no
fault: ties, constants, the first commit, a version that is pushed again.
Usage: changes.py BATON CLIENT_DIR FOLDER"""

import json
import os
import random
import subprocess
import sys

BATON, CLIENT, FOLDER = sys.argv[1:4]
sys.path.insert(0, CLIENT)
import baton  # noqa: E402
from fleet_world import Server, until  # noqa: E402

LOG = os.path.join(FOLDER, "changes.log")
LARGE = {f"layers.{i}.weight": (256, 256) for i in range(4)}
STORED_TWICE = {"embed.weight": (300, 256), "head.weight": (300, 256)}
SMALL = {"norm.weight": (256,), "next_norm.weight": (256,), "proj.bias": (33,), "other.bias": (33,)}
SHAPES = {**LARGE, **STORED_TWICE, **SMALL}
ALIASES = {"lm_head.weight": "embed.weight"}  # a tied name: trainers may send it as well
WARNINGS = ("nothing_changed", "few_unchanged", "equal_to_another")
VIAS = ("shm", "body", "path", "session")
MANIFEST = os.path.join(FOLDER, "manifest.json")
n_checks = 0


def same(found, wanted, about):
    global n_checks
    n_checks += 1
    assert found == wanted, f"{about}: {found!r}, wanted {wanted!r}"


def nbytes_of(name):
    n = 2
    for dim in SHAPES[ALIASES.get(name, name)]:
        n *= dim
    return n


def constant(name, value):
    return bytes([0, value]) * (nbytes_of(name) // 2)


def version(seed, **given):
    """Bytes of all tensors: norms are ones and biases zeros, as they are at the begin of a training. @given with _
    for the dots of names."""
    draw = random.Random(seed)
    out = {n: draw.randbytes(nbytes_of(n)).translate(bytes(b & 0x3F for b in range(256))) for n in SHAPES}
    out["head.weight"] = out["embed.weight"]
    for name in SMALL:
        out[name] = constant(name, 0x3F if "norm" in name else 0)
    out.update({n: given[n.replace(".", "_")] for n in SHAPES if n.replace(".", "_") in given})
    return out


def tensors_of(data):
    return {n: baton.Tensor("BF16", SHAPES[ALIASES.get(n, n)], b) for n, b in data.items()}


def push(s, via, data, label, **more):
    """Returns the update object of the commit."""
    tensors = tensors_of(data)
    if via == "session":
        start = s.post("/v1/update_weights/start", {"weight_version": label, **more})
        names = list(tensors)
        for part in names[::2], names[1::2]:
            baton.push({n: tensors[n] for n in part}, s.url, via="body", update_id=start["update_id"],
                       checksums=False)
        return s.post("/v1/update_weights/finish", {"update_id": start["update_id"]})
    if via == "path":
        path = os.path.join(FOLDER, "weights.safetensors")
        with open(path, "wb") as f:
            f.write(baton.host.safetensors_head(list(tensors.items()), False)[0])
            f.write(b"".join(data.values()))
        tensors = path
    return baton.push(tensors, s.url, via=via, weight_version=label, **more)


def serve(*options):
    return Server(BATON, LOG, "--engine", "none", "--manifest", MANIFEST, "--allow-path", FOLDER, *options)


def events(answer):
    """Warnings of the log since it was last read, up to the commit of this update. The log is written later."""
    found = []

    def committed():
        with open(LOG, encoding="utf-8") as log:
            log.seek(events.read)
            while (line := log.readline()).endswith("\n"):
                events.read = log.tell()
                event = json.loads(line)
                if event["event"].removeprefix("weights.") in WARNINGS:
                    found.append(event["event"])
                if (event["event"], event.get("update_id")) == ("update.committed", answer["update_id"]):
                    return True
        return False

    until("the commit is logged", committed)
    return found


events.read = 0


def found(s, answer, about, *warnings, **counts):
    """The counts that are not 0 and the warnings, wherever they are told."""
    changes = answer["changes"]
    assert changes is not None, about
    told = {k[2:]: v for k, v in changes.items() if k.startswith("n_") and v}
    same(told, {k: v for k, v in counts.items() if v}, about)
    same(changes["warnings"], list(warnings), about)
    same(events(answer), [f"weights.{w}" for w in warnings], f"{about}: log")
    same(s.status()["recent_updates"][-1]["changes"], changes, f"{about}: recent_updates")
    diff = s.get("/v1/weights/diff")
    same((diff["weight_version"], diff["serial"], diff["changes"]),
         (answer["weight_version"], answer["serial"], changes), f"{about}: diff")
    same(diff["n_tensors"], len(SHAPES), about)
    return changes


def printed(s, *lines):
    """`baton weights diff` prints these lines, and ends with 1 since there is a warning."""
    told = subprocess.run([BATON, "weights", "diff", "--url", s.url], capture_output=True, text=True, timeout=60)
    same((told.returncode, [line for line in lines if line not in told.stdout.splitlines()]), (1, []), told.stdout)


def listed(s, change, about):
    diff = s.get(f"/v1/weights/diff?change={change}")
    same(diff["n_tensors"], len(diff["tensors"]), about)
    return {t["name"]: t["equal_to"] for t in diff["tensors"]}


def metric(s, line):
    return [int(at.split()[-1]) for at in s.get("/metrics").splitlines() if at.startswith(line + " ")][0]


def of_one_source(via):
    """Six updates by one source."""
    n, all_changed = len(SHAPES), len(LARGE) + len(STORED_TWICE)
    one, two = version(1), version(2)
    with serve() as s:
        answer = push(s, via, one, "one")
        same(answer["changes"], None, f"{via}: nothing was before the first")
        diff = s.get("/v1/weights/diff")
        same((diff["changes"], diff["tensors"], diff["serial"]), (None, [], None), f"{via}: first")

        # Norms and biases stay as they are: they are small. The tied copies change together.
        changes = found(s, push(s, via, two, "two"), f"{via}: all changed",
                        changed=all_changed, unchanged=len(SMALL))
        same(changes["before"], {"weight_version": "one", "serial": 1}, via)
        same(sorted(listed(s, "unchanged", via)), sorted(SMALL), via)

        changes = found(s, push(s, via, two, "two"), f"{via}: the same version again", unchanged=n,
                        newly_unchanged=all_changed)
        same(changes["repeated"], True, via)
        changes = found(s, push(s, via, two, "three"), f"{via}: another version of the same bytes",
                        "nothing_changed", unchanged=n, newly_unchanged=all_changed)
        same(changes["repeated"], False, via)

        # A version that was pushed again is no reason to expect that a tensor stays as it is.
        three = version(3)
        same(events(push(s, via, three, "four")), [], f"{via}: in step again")
        push(s, via, three, "four")
        stale = version(4, layers_1_weight=three["layers.1.weight"])
        found(s, push(s, via, stale, "five"), f"{via}: a stale one", "few_unchanged",
              changed=all_changed - 1, unchanged=len(SMALL) + 1, newly_unchanged=1)
        printed(s, "warning: few_unchanged: large tensors that did not change: 1 (5 tensors changed)",
                "newly unchanged: layers.1.weight", "unchanged: norm.weight")
        swapped = version(5, layers_0_weight=stale["layers.2.weight"], layers_2_weight=stale["layers.0.weight"])
        found(s, push(s, via, swapped, "six"), f"{via}: two are swapped", "equal_to_another",
              changed=all_changed, unchanged=len(SMALL), equal_to_another=2)
        printed(s, "warning: equal_to_another: tensors that have the bytes of another one: 2",
                "equal to another: layers.0.weight has the bytes of layers.2.weight in the version before")
        same(listed(s, "equal_to_another", via),
             {"layers.0.weight": {"name": "layers.2.weight", "in": "version_before"},
              "layers.2.weight": {"name": "layers.0.weight", "in": "version_before"}}, via)
        twice = version(6)
        twice["layers.3.weight"] = twice["layers.0.weight"]
        found(s, push(s, via, twice, "seven"), f"{via}: one tensor under two names", "equal_to_another",
              changed=all_changed, unchanged=len(SMALL), equal_to_another=1)
        same(listed(s, "equal_to_another", via),
             {"layers.3.weight": {"name": "layers.0.weight", "in": "this_version"}}, via)
        found(s, push(s, via, version(6, norm_weight=constant("norm.weight", 0), proj_bias=constant("proj.bias", 0x3F),
                                      layers_3_weight=twice["layers.3.weight"]), "eight"),
              f"{via}: constants", changed=2, unchanged=n - 2, newly_unchanged=all_changed)
        same([metric(s, f'baton_weights_change_warnings_total{{warning="{w}"}}')
              for w in WARNINGS], [1, 1, 2], via)
        same([metric(s, f'baton_weights_tensors{{change="{c}"}}') for c in ("changed", "unchanged")], [2, n - 2], via)
        same(metric(s, "baton_weights_tensors_equal_to_another"), 0, via)


def partial_and_tied():
    one, two = version(1), version(2)
    with serve() as s:
        push(s, "body", one, "one")
        answer = push(s, "body", {"layers.1.weight": two["layers.1.weight"]}, "two", partial=True)
        found(s, answer, "partial", changed=1, not_sent=len(SHAPES) - 1)
        same(len(listed(s, "not_sent", "partial")), len(SHAPES) - 1, "partial")
        answer = push(s, "body", {"layers.1.weight": one["layers.0.weight"]}, "three", partial=True)
        found(s, answer, "equal to one that was not sent", "equal_to_another", changed=1, equal_to_another=1,
              not_sent=len(SHAPES) - 1)
        # A tied name beside its target, and in its place.
        data = {**version(3), "lm_head.weight": version(3)["embed.weight"]}
        found(s, push(s, "shm", data, "four"), "tied", changed=6, unchanged=4)
        del (data := {**version(4), "lm_head.weight": version(4)["embed.weight"]})["embed.weight"]
        found(s, push(s, "shm", data, "five"), "only the tied name", changed=6, unchanged=4)
        answer = push(s, "shm", version(4), "six")
        same(answer["changes"]["n_unchanged"], len(SHAPES), "by its own name again")
        same(events(answer), ["weights.nothing_changed"], "by its own name again")
        # An update that fails changes nothing of what is compared with.
        status, _ = s.ask("POST", "/v1/update_weights", {"path": "/nowhere"})
        assert status >= 400
        same(push(s, "shm", version(4), "six")["changes"]["repeated"], True, "after a failure")
        # Converted ones are compared as they are served.
        f32 = {n: baton.Tensor("F32", SHAPES[n], b"".join(b"\0\0" + b[i:i + 2] for i in range(0, len(b), 2)))
               for n, b in version(4).items()}
        answer = baton.push(f32, s.url, via="body", weight_version="six", convert=True, checksums=False)
        same((answer["changes"]["n_unchanged"], answer["changes"]["repeated"]), (len(SHAPES), True), "converted")


def sleeps():
    for level in 1, 2:
        with serve() as s:
            push(s, "body", version(1), "one")
            push(s, "body", version(2), "two")
            s.post("/v1/sleep", {"level": level})
            same(s.get("/v1/weights/diff")["changes"]["n_changed"], 6, "while it sleeps")
            s.post("/v1/wake")
            found(s, push(s, "body", version(2, layers_0_weight=version(3)["layers.0.weight"]), "three"),
                  f"after a sleep at level {level}", changed=1, unchanged=len(SHAPES) - 1, newly_unchanged=5)


def restarts():
    """What a server restores is what the next commit is compared with."""
    options = ("--state-dir", os.path.join(FOLDER, "state"), "--snapshot", "2")
    with serve(*options) as s:
        push(s, "body", version(1), "one")
        s.post("/v1/weights/label", {"weight_version": "first"})
        until("a snapshot", lambda: (s.status()["state"]["snapshots"]["newest"] or {}).get("weight_version") == "first")
    with serve(*options) as s:
        same(s.get("/v1/weights/diff")["changes"], None, "a restored version")
        answer = push(s, "body", version(1, layers_2_weight=version(1)["layers.0.weight"]), "two")
        changes = found(s, answer, "after a restart", "equal_to_another", changed=1, unchanged=len(SHAPES) - 1,
                        newly_unchanged=5, equal_to_another=1)
        same(changes["before"], {"weight_version": "first", "serial": 1}, "after a restart")
        s.post("/v1/weights/label", {"weight_version": "second"})
        answer = push(s, "body", version(1, layers_2_weight=version(1)["layers.0.weight"]), "second")
        same((answer["changes"]["before"]["weight_version"], answer["changes"]["repeated"]), ("second", True),
             "after a new label")


def pages():
    with serve() as s:
        push(s, "body", version(1), "one")
        push(s, "body", version(2), "two")
        names, at = [], 0
        while at is not None:
            diff = s.get(f"/v1/weights/diff?change=all&limit=3&offset={at}")
            names += [t["name"] for t in diff["tensors"]]
            assert len(diff["tensors"]) <= 3
            at = diff["next_offset"]
        same(names, list(SHAPES), "all pages")
        same(s.get("/v1/weights/diff?offset=10&limit=10")["tensors"], [], "behind the last one")
        for query, param in (("change=new", "/change"), ("limit=0", "/limit"), ("limit=10001", "/limit"),
                             ("offset=x", "/offset"), ("page=1", "/page")):
            status, said = s.ask("GET", f"/v1/weights/diff?{query}")
            same((status, said["error"]["param"]), (400, param), query)


def main():
    with open(MANIFEST, "w", encoding="utf-8") as f:
        json.dump({"names": list(SHAPES), "dtypes": ["BF16"] * len(SHAPES), "shapes": list(SHAPES.values()),
                   "aliases": ALIASES}, f)
    for via in VIAS:
        of_one_source(via)
    partial_and_tied()
    sleeps()
    restarts()
    pages()
    print(f"ok: {n_checks} checks")


main()
