"""Deltas among the pushes of linear.py: from the content that is served to another, in every kind and by every source; and
those that must not be committed: of a base that is not served any more, of another update's base, of other bytes, with a wrong
checksum, or given up in the middle."""

import collections
import os

import numpy
from delta_parts import KINDS, packed, parts_of
from linear_contents import N_CONTENTS, build, parse, write

WRONG = ("stale", "renamed", "bytes", "sum", "abort")
WORDS = {"BF16": "<u2", "F16": "<u2", "F32": "<u4"}
FILE = "application/vnd.safetensors"
LEASE_S = 5

Base = collections.namedtuple("Base", "label serial content update_id")  # update_id None: not known


def checksum(data):
    words = numpy.frombuffer(data + b"\0" * (-len(data) % 4), "<u4").astype("u8")
    with numpy.errstate(over="ignore"):
        b = (words * numpy.arange(1, len(words) + 1, dtype="u8")).sum(dtype="u8")
    return f"{int(words.sum(dtype='u8')):016x}{int(b):016x}"


def checksums(data):
    head, body = parse(data)
    return {name: checksum(body[slice(*t["data_offsets"])]) for name, t in head.items()}


def delta_of(old, new, kind, zstd, base, names):
    """A file: what makes these tensors of content `new` of those of `old`. Both are files."""
    (head, before), (_, after) = parse(old), parse(new)
    parts, out, at = {"__metadata__": {"format": "baton-delta-1", "base_version": base}}, [], 0
    for name in names:
        at_file, word = slice(*head[name]["data_offsets"]), WORDS[head[name]["dtype"]]
        words = [numpy.frombuffer(body[at_file], word) for body in (before, after)]
        how = kind if (words[0] != words[1]).any() else "whole"
        made = parts_of(name, head[name]["dtype"], head[name]["shape"], *words, how)
        for part, dtype, shape, data in packed(made) if zstd else made:
            parts[part] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
            out.append(data)
            at += len(data)
    return build(parts, b"".join(out))


def served_base(c):
    """None: what is served is not known to be one of the contents."""
    said = c.status()[1]
    weights = said.get("weights") or {}
    label, serial = weights.get("weight_version"), weights.get("serial")
    if not label or not serial:
        return None  # dropped, or not known yet
    if label == "initial":
        return Base(label, serial, 0, weights.get("update_id"))
    for p in list(c.world.history.calls):
        if p["op"] == "push" and not p["partial"] and (p.get("serial") == serial or p["label"] == label):
            return Base(label, serial, p["content"], weights.get("update_id"))
    return None


def older_base(c, base):
    """A version from before that one, which is never served again."""
    older = [p for p in list(c.world.history.calls) if p["op"] == "push" and p["status"] == 200 and p.get("serial")
             and base.serial and p["serial"] < base.serial]
    if not older:
        return None
    p = c.rand.choice(older)
    return Base(p["label"], p["serial"], p["content"], p.get("update_id"))


class Push:
    """One delta. @of  the content that it is taken from"""

    def __init__(self, c, call, base, of, kinds=KINDS):
        self.c, self.call, self.base = c, call, base
        self.kind, self.zstd = c.rand.choice(kinds), c.rand.random() < 0.3
        call["kind"] = self.kind
        self.old, self.new = (c.world.contents.data(k, False) for k in (of, call["content"]))
        self.members = {"weight_version": call["label"], "base_version": base.label, "delta": True}
        if base.update_id is not None and c.rand.random() < 0.5:
            self.members["base_update_id"] = base.update_id

    def file(self, names):
        return delta_of(self.old, self.new, self.kind, self.zstd, self.base.label, names)

    def post(self, members, names):
        """By body or by path."""
        data = self.file(names)
        if self.c.rand.random() < 0.5:
            query = "&".join(f"{k}={str(v).lower() if v is True else v}" for k, v in members.items())
            return self.c.post(f"/v1/update_weights?{query}", data, kind=FILE)
        path = f"{self.c.world.contents.work}/delta-{self.call['id']}-{len(data)}.safetensors"
        write(path, data)
        try:
            return self.c.post("/v1/update_weights", {**members, "path": path})
        finally:
            os.unlink(path)

    def at_once(self):
        return self.post(self.members, list(parse(self.new)[0]))

    def session(self, gives_up=False, checksums=None):
        """In two chunks."""
        status, said = self.c.post("/v1/update_weights/start", dict(self.members, lease_s=LEASE_S))
        if status != 200:
            return status, said
        mine, names = {"update_id": said["update_id"]}, list(parse(self.new)[0])
        half = self.c.rand.randrange(1, len(names))
        for share in names[:half], names[half:]:
            status, said = self.post(mine, share)
            if status != 200 or gives_up:
                break
        if status == 200 and not gives_up:
            return self.c.post("/v1/update_weights/finish", dict(mine, **({"checksums": checksums} if checksums else {})))
        self.call["never"] = True
        self.c.post("/v1/update_weights/abort", mine)
        return (None, {}) if gives_up else (status, said)


def by_delta(c, call):
    base = served_base(c)
    if base is None:
        whole = c.world.contents.data(call["content"], False)
        return c.post(f"/v1/update_weights?weight_version={call['label']}", whole, kind=FILE)
    call["base"] = base.label
    push = Push(c, call, base, base.content)
    if c.rand.random() < 0.5:
        return push.at_once()
    return push.session(checksums=checksums(push.new) if c.rand.random() < 0.5 else None)


def by_wrong_delta(c, call):
    """None of them is ever served."""
    wrong, base = c.rand.choice(WRONG), served_base(c)
    if base is None or base.content == call["content"]:
        call["never"] = True
        return None, {}
    of, older = base.content, older_base(c, base)
    if wrong == "stale" and older is None:
        wrong = "abort"
    call.update(never=True, wrong=wrong)
    if wrong == "stale":
        base, of = older, older.content
    elif wrong == "renamed":  # the label is right, and what it names was made by another update
        base = base._replace(update_id="upd-" + "0" * 32)
    if wrong in ("renamed", "bytes"):
        of = next(k for k in range(N_CONTENTS) if k not in (base.content, call["content"]))
    call["base"] = base.label
    push = Push(c, call, base, of, KINDS[1:])
    sums = checksums(push.new)
    if wrong == "renamed":
        push.members["base_update_id"] = base.update_id
    elif wrong == "stale" and c.rand.random() < 0.5:
        answer = push.at_once()
        assert answer[0] != 200, f"a stale delta was committed: {answer}"
        return answer
    elif wrong == "sum":
        name = c.rand.choice(list(sums))
        sums[name] = f"{int(sums[name], 16) ^ 1:032x}"
    answer = push.session(gives_up=wrong == "abort", checksums=sums)
    assert answer[0] != 200, f"a wrong delta ({wrong}) was committed: {answer}"
    return answer
