"""Faulted updates that are whole requests: plans, shared memory, bodies, files, JSON, labels.

Each case sends the fault of its name and returns the refusal that it expects; the runner then checks that the
served weights are unchanged.
"""

import json
import os
import signal
import struct

from fault_world import TENSORS, Fault, body_of, members_of, pack, push

DOORS = ("shm", "shm", "body", "path", "chunked")
TRUE_RANDOM_MUTATIONS = (400, 404, 408, 409, 413, 415, 422)


def rows_of(w):
    return [r.copy() for r in w.rng.choice(w.checkpoints).rows]


def some(w, rows):
    return w.rng.randrange(len(rows))


# plans, by any door


def missing(w):
    rows = rows_of(w)
    gone = {some(w, rows) for _ in range(w.rng.randint(1, 3))}
    names = sorted(rows[i].name for i in gone)
    kept = [r for i, r in enumerate(rows) if i not in gone]
    w.refused(push(w, w.rng.choice(DOORS), kept, "x"), 422, "incomplete_update", *names)


def extra(w):
    rows = rows_of(w)
    at = some(w, rows)
    name = w.rng.choice(["model.layers.9.mlp.up_proj.weight", "extra", "lm_head.bias", "é" * 40])
    rows.insert(w.rng.randrange(len(rows)), rows[at].copy(name=name))
    w.refused(push(w, w.rng.choice(DOORS), rows), 422, "manifest_mismatch", name)


def renamed(w):
    rows = rows_of(w)
    at = some(w, rows)
    name = rows[at].name
    rows[at].name = w.rng.choice(["module." + name, name[:-1], name.upper(), name + ".x", "_" + name])
    w.refused(push(w, w.rng.choice(DOORS), rows), 422, "manifest_mismatch", rows[at].name)


def swapped_names(w):
    """Two tensors of one shape under each other's name: only their checksums know."""
    rows = rows_of(w)
    i = some(w, rows)
    same = [k for k, r in enumerate(rows) if r.shape == rows[i].shape and r.data != rows[i].data]
    if not same:
        return missing(w)
    k = w.rng.choice(same)
    rows[i].sum, rows[k].sum = rows[k].true_sum, rows[i].true_sum
    w.refused(push(w, w.rng.choice(DOORS), rows), 422, "checksum_mismatch",
              rows[min(i, k)].name)


def duplicate(w):
    rows = rows_of(w)
    rows.append(rows[some(w, rows)].copy())
    w.refused(push(w, w.rng.choice(DOORS), rows), 400, rows[-1].name)


def empty(w):
    door = w.rng.choice(DOORS)
    w.refused(push(w, door, []) if door != "shm" else
              w.ask("POST", "/v1/update_weights", {"names": [], "dtypes": [], "shapes": [],
                    "shm": {"name": w.checkpoints[0].shm, "nbytes": 0}}), 400)


def wrong_dtype(w):
    rows = rows_of(w)
    at = some(w, rows)
    rows[at].dtype = w.rng.choice(["F16", "I16", "U16"])
    w.refused(push(w, w.rng.choice(DOORS), rows), 422, rows[at].name, rows[at].dtype)


def unknown_dtype(w):
    rows = rows_of(w)
    at = some(w, rows)
    rows[at].dtype = w.rng.choice(["BF17", "", "torch.quint8", "bf16 ", "é", 16, None, ["BF16"]])
    w.refused(push(w, w.rng.choice(DOORS), rows), 400, rows[at].name)


def wide_dtype(w):
    """Twice the bytes are said than are there."""
    rows = rows_of(w)
    rows[some(w, rows)].dtype = "F32"
    w.refused(push(w, w.rng.choice(DOORS), rows, convert=True), 400, "bytes")


def wrong_shape(w):
    rows = rows_of(w)
    at = some(w, rows)
    numel, shape = 1, rows[at].shape
    for dim in shape:
        numel *= dim
    other = [s for s in ([numel], shape[::-1], [1] + shape, [numel // 2, 2], [2, numel // 2],
                         shape + [1]) if s != shape]
    rows[at].shape = w.rng.choice(other)
    w.refused(push(w, w.rng.choice(DOORS), rows), 422, rows[at].name, "shape")


def hostile_shape(w):
    rows = rows_of(w)
    at = some(w, rows)
    rows[at].shape = w.rng.choice([[2**62, 4], [2**32, 2**32], [1] * 9, [-1], [2**63 - 1], [0],
                                   [1.5], ["2"], [2**64], [[2]], 7, None])
    w.refused(push(w, w.rng.choice(DOORS), rows), (400, 422))


def sizes_disagree(w):
    rows = rows_of(w)
    at = some(w, rows)
    sizes = [r.nbytes // 2 for r in rows]
    sizes[at] = w.rng.choice([rows[at].nbytes, 0, sizes[at] + 1, -1, 2**63 - 1, 2**70, 1.0, "1"])
    a = w.ask("POST", "/v1/update_weights", members_of(rows, sizes=sizes))
    w.refused(a, 400, f"/sizes/{at}" if isinstance(sizes[at], int) and sizes[at] < 2**63 else "")


def lists_differ(w):
    member = w.rng.choice(["dtypes", "shapes", "sizes", "checksums"])
    rows = rows_of(w)
    body = members_of(rows, sizes=[r.nbytes // 2 for r in rows])
    if w.rng.random() < 0.5:
        body[member].pop()
    else:
        body[member].append(body[member][0])
    w.refused(w.ask("POST", "/v1/update_weights", body), 400, f"/{member}")


# shared memory


def bucket_length(w):
    body = members_of(rows_of(w))
    body["shm"]["nbytes"] += w.rng.choice([-1, 1, -2, 2, 64, -1000, 10**9])
    w.refused(w.ask("POST", "/v1/update_weights", body), 400, "/shm/nbytes")


def bucket_offset(w):
    body = members_of(rows_of(w))
    body["shm"]["offset"] = w.rng.choice([1, 2, 64, 10**6, 2**40, 2**63 - 1])
    w.refused(w.ask("POST", "/v1/update_weights", body), (400, 422), "/shm/")


def range_length(w):
    rows = rows_of(w)
    w.rng.shuffle(rows)
    at = some(w, rows)
    body = members_of(rows)
    body["shm"][at]["nbytes"] += w.rng.choice([-1, 1, 2, 10**9])
    w.refused(w.ask("POST", "/v1/update_weights", body), 400, f"/shm/{at}/nbytes", rows[at].name)


def object_short(w):
    rows = rows_of(w)
    data = rows[0].checkpoint.data
    name = w.shm(data[:w.rng.choice([0, 1, len(data) // 2, len(data) - 1])])
    body = members_of(rows)
    body["shm"]["name"] = name
    w.refused(w.ask("POST", "/v1/update_weights", body), 422, name)
    w.unlink(name)


def object_missing(w):
    name = w.shm(b"x")
    w.unlink(name)
    body = members_of(rows_of(w))
    body["shm"]["name"] = name
    w.refused(w.ask("POST", "/v1/update_weights", body), 404, "/shm/name", name)


def object_name(w):
    body = members_of(rows_of(w))
    body["shm"]["name"] = w.rng.choice(["", "/", "a/b", "..", "/..", ".", "../etc/passwd", "x" * 256,
                                        "a\x01b", 7, None, ["a"]])
    w.refused(w.ask("POST", "/v1/update_weights", body), 400, "/shm")


def object_no_file(w):
    """What is no shared memory object: a FIFO must not be waited on, a link not followed."""
    name = w.shm(b"")
    path = f"/dev/shm/{name}"
    os.unlink(path)
    kind = w.rng.choice(["fifo", "directory", "link"])
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        os.mkdir(path)
    else:
        os.symlink(f"/dev/shm/{w.checkpoints[0].shm}", path)
    body = members_of(rows_of(w))
    body["shm"]["name"] = name
    try:
        w.refused(w.ask("POST", "/v1/update_weights", body), 422, name)
    finally:
        os.rmdir(path) if kind == "directory" else os.unlink(path)


def object_shrinks(w):
    """Another process cuts the object and grows it again while it is read: the bytes that were
    lost read as zeros, so the checksums decide. Either answer is right, if it is true."""
    rows = rows_of(w)
    data = rows[0].checkpoint.data
    name = w.shm(data)
    path = f"/dev/shm/{name}"
    child = os.fork()
    if child == 0:
        try:
            fd = os.open(path, os.O_RDWR)
            while True:
                os.ftruncate(fd, w.rng.randrange(len(data)))
                os.ftruncate(fd, len(data))
                os.pwrite(fd, data, 0)
        finally:
            os._exit(1)
    try:
        for _ in range(3):
            label = w.new_label()
            body = members_of(rows, label=label)
            body["shm"]["name"] = name
            a = w.ask("POST", "/v1/update_weights", body)
            if a.status == 200:
                w.committed(a, rows, label)
            else:
                w.refused(a, 422)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        w.unlink(name)


def flipped(w):
    """One bit, two words swapped, or a slice moved: in shared memory or in a body."""
    rows = rows_of(w)
    at = some(w, rows)
    data = bytearray(rows[0].checkpoint.data)
    start, n = rows[at].offset, rows[at].nbytes
    kind = w.rng.choice(["bit", "words", "shift"])
    if kind == "bit":
        data[start + w.rng.randrange(n)] ^= 1 << w.rng.randrange(8)
    elif kind == "words":
        i, k = (start + 4 * w.rng.randrange(n // 4) for _ in range(2))
        data[i:i + 4], data[k:k + 4] = data[k:k + 4], data[i:i + 4]
    else:
        data[start:start + n] = data[start + 2:start + n] + data[start:start + 2]
    if data == rows[0].checkpoint.data:
        data[start] ^= 1
    if w.rng.random() < 0.5:
        a = w.ask("POST", "/v1/update_weights", pack(rows) + bytes(data), {"Content-Type": TENSORS})
    else:
        name = w.shm(data)
        body = members_of(rows)
        body["shm"]["name"] = name
        a = w.ask("POST", "/v1/update_weights", body)
        w.unlink(name)
    w.refused(a, 422, "checksum_mismatch", rows[at].name)


def bad_checksum(w):
    rows = rows_of(w)
    at = some(w, rows)
    true = rows[at].true_sum
    rows[at].sum = w.rng.choice([true[:-1], true + "0", "", "g" + true[1:], " " + true[1:], 7, true[16:],
                                 [true], "0x" + true[2:], {}, "é" * 32])
    door = w.rng.choice(DOORS)
    w.refused(push(w, door, rows), 400, rows[at].name if isinstance(rows[at].sum, str) or
              door == "shm" else "")


def wrong_checksum(w):
    rows = rows_of(w)
    at = some(w, rows)
    true = rows[at].true_sum
    rows[at].sum = w.rng.choice([true[16:] + true[:16], "0" * 32, "f" * 32,
                                 f"{(int(true, 16) + 1) % 2**128:032x}"])
    w.refused(push(w, w.rng.choice(DOORS), rows), 422, "checksum_mismatch", rows[at].name)


# bodies


def tensors(w, body, path="/v1/update_weights", **headers):
    return w.ask("POST", path, body, dict(headers, **{"Content-Type": TENSORS}))


def truncated(w):
    rows = rows_of(w)
    body = body_of(rows)
    head = 8 + struct.unpack("<Q", body[:8])[0]
    n = w.rng.choice([0, 1, 7, 8, 9, head // 2, head - 1, head, head + 1, len(body) - 1,
                      w.rng.randrange(len(body))])
    w.refused(tensors(w, body[:n]), (400, 422))


def longer(w):
    w.refused(tensors(w, body_of(rows_of(w)) + b"\0" * w.rng.choice([1, 8, 4096])), (400, 422))


def head_length(w):
    body = body_of(rows_of(w))
    n = struct.unpack("<Q", body[:8])[0]
    lie = w.rng.choice([0, 1, n - 1, n + 1, n - 8, n + 8, 10**8, 10**8 + 1, 2**63, 2**64 - 1, len(body)])
    w.refused(tensors(w, struct.pack("<Q", lie) + body[8:]), (400, 413, 422))


def wrong_offsets(w):
    rows = rows_of(w)
    at = some(w, rows)
    begin = sum(r.nbytes for r in rows[:at])
    end = begin + rows[at].nbytes
    offsets = w.rng.choice([[begin, end + 2], [begin + 2, end], [end, begin], [begin - 2, end],
                            [begin + 2, end + 2], [0, 2**64], [-1, end], [begin], [begin, end, end],
                            [float(begin), float(end)], ["0", "1"], None, [2**63, 2**63 + 2]])
    entry = {"dtype": rows[at].dtype, "shape": rows[at].shape, "data_offsets": offsets}
    if offsets is None:
        del entry["data_offsets"]
    a = tensors(w, pack(rows, texts={at: json.dumps(entry)}) + rows[0].checkpoint.data)
    w.refused(a, 400)


def hostile_head(w):
    rows = rows_of(w)
    at = some(w, rows)
    text = w.rng.choice(["{}", "[]", "null", "1", '"x"', '{"dtype":"BF16"}', "[" * 5000, "{" * 100,
                         '{"dtype":"BF16","dtype":"BF16","shape":[1],"data_offsets":[0,2]}', "\\",
                         '{"dtype":"BF16","shape":[1e999],"data_offsets":[0,2]}', ""])
    w.refused(tensors(w, pack(rows, texts={at: text}) + rows[0].checkpoint.data), 400)


def head_bytes(w):
    """Random bytes of the head changed. What is accepted nevertheless must be true."""
    rows = rows_of(w)
    body = bytearray(body_of(rows))
    n = struct.unpack("<Q", body[:8])[0]
    for _ in range(w.rng.randint(1, 3)):
        body[w.rng.randrange(8 + n)] = w.rng.randrange(256)
    accept_only_truth(w, tensors(w, bytes(body), "/v1/update_weights?weight_version=mutated"), rows)


def accept_only_truth(w, a, rows):
    if a.status == 200:
        w.committed(a, rows, a.body["weight_version"])
    else:
        w.refused(a, TRUE_RANDOM_MUTATIONS)


def cut_head(length):
    return (f"POST /v1/update_weights?weight_version=cut HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: {TENSORS}\r\n{length}\r\n\r\n").encode()


def connection_cut(w):
    """The client dies in the middle of its body."""
    body = body_of(rows_of(w))
    head = 8 + struct.unpack("<Q", body[:8])[0]
    n = w.rng.choice([0, 5, head // 2, head, head + 1, len(body) // 2, len(body) - 1])
    s = w.raw(cut_head(f"Content-Length: {len(body)}") + body[:n])
    if n >= head:  # the cut must come while it is received, not before
        w.wait("the body is being received", lambda: w.status()["update"] is not None)
    w.cut(s, reset=w.rng.random() < 0.5)
    w.wait_no_update()


def chunked_cut(w):
    """A chunked body that is cut inside a chunk, or ends too early, or goes on too long."""
    body = body_of(rows_of(w))
    head = 8 + struct.unpack("<Q", body[:8])[0]
    n = w.rng.randrange(1, len(body))
    kind = w.rng.choice(["cut", "early", "late", "garbage"])
    pieces = {"cut": b"%x\r\n" % (n + 1) + body[:n],
              "early": b"%x\r\n" % n + body[:n] + b"\r\n0\r\n\r\n",
              "late": b"%x\r\n" % (len(body) + 1) + body + b"!\r\n0\r\n\r\n",
              "garbage": b"%x\r\n" % n + body[:n] + b"\r\nno chunk\r\n"}
    with w.raw(cut_head("Transfer-Encoding: chunked") + pieces[kind]) as s:
        if kind == "cut" and n >= head:
            w.wait("the body is being received", lambda: w.status()["update"] is not None)
        if kind == "cut":
            w.cut(s, reset=w.rng.random() < 0.5)
        elif kind == "garbage":
            w.closed(s)
        else:
            w.refused(w.answer_on(s), (400, 422))
    w.wait_no_update()


# files


def bad_path(w):
    path = w.rng.choice(["/etc/passwd", w.root + "/../../etc/passwd", "relative", "", w.root, "/",
                         w.root + "/nothing", "/proc/self/mem", w.root + "/a\x00b", 7, [], "x" * 5000])
    a = w.ask("POST", "/v1/update_weights", {"path": path, "weight_version": "x"})
    w.refused(a, (400, 403, 404, 422))


def link_out(w):
    path = os.path.join(w.root, "link.safetensors")
    target = w.rng.choice(["/etc/passwd", "/dev/zero", path, "/proc/self/environ"])
    os.symlink(target, path)
    try:
        w.refused(w.ask("POST", "/v1/update_weights", {"path": path}), (400, 403, 404, 422))
    finally:
        os.unlink(path)


def file_short(w):
    rows = rows_of(w)
    body = body_of(rows)
    path = os.path.join(w.root, "short.safetensors")
    with open(path, "wb") as f:
        f.write(body[:w.rng.randrange(len(body))])
    w.refused(w.ask("POST", "/v1/update_weights", {"path": path}), (400, 422), "")


def file_differs(w):
    """names, dtypes or shapes that the file's header does not say."""
    rows = rows_of(w)
    path = os.path.join(w.root, "differs.safetensors")
    with open(path, "wb") as f:
        f.write(body_of(rows))
    at = some(w, rows)
    kind = w.rng.choice(["name", "dtype", "shape"])
    body = members_of(rows, sums=False, path=path)
    del body["shm"]
    if kind == "name":
        body["names"][at] = "not." + rows[at].name
    elif kind == "dtype":
        body["dtypes"][at] = "F16"
    else:
        body["shapes"][at] = [1] + rows[at].shape
    w.refused(w.ask("POST", "/v1/update_weights", body), (400, 422), body["names"][at])


# JSON


def hostile_json(w):
    text = json.dumps(members_of(rows_of(w), label="x"))
    data = w.rng.choice([
        text[:w.rng.randrange(1, len(text))], text + "x", text + text, "[" + text + "]", "", " ", "null",
        "7", '"x"', "\ufeff" + text, "{" * 5000, '{"names":' + "[" * 100000, '{"a":' * 40 + "1" + "}" * 40,
        text.replace('"names"', '"names": [], "names"', 1),
        text.replace('"offset"', '"name": "x", "offset"', 1),
        text.replace('"offset": 0', '"offset": 1e400', 1), text.replace('"offset": 0', '"offset": -1', 1),
        text.replace('"offset": 0', '"offset": ' + "9" * 400, 1),
        text.replace('"offset": 0', '"offset": 0.5', 1), text.replace('"offset": 0', '"offset": 00', 1),
        text.replace('"names": ["', '"names": ["\\u0000', 1), text.replace('"x"', '"\\ud800"', 1),
        text.replace('"names": ["', '"names": ["\x00', 1), text.replace('"x"', "NaN", 1),
        text.replace('"x"', "'x'", 1), text.replace("{", "{/* */", 1), text[:-1] + ",}"])
    w.refused(w.ask("POST", "/v1/update_weights", data.encode()), 400)


def bad_utf8(w):
    text = json.dumps(members_of(rows_of(w), label="LABEL")).encode()
    bad = w.rng.choice([b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82", b"\x80"])
    where = w.rng.choice([b"LABEL", b"model.norm", b"BF16"])
    w.refused(w.ask("POST", "/v1/update_weights", text.replace(where, where + bad, 1)), 400)


def unknown_member(w):
    member, meant = w.rng.choice([("weight_verison", "weight_version"), ("name", "names"),
                                  ("chunkid", "chunk_id"), ("Shapes", "shapes"), ("zebra", ""),
                                  ("ipc_handles", ""), ("dtype", "dtypes")])
    body = members_of(rows_of(w))
    body[member] = 1
    w.refused(w.ask("POST", "/v1/update_weights", body), 400, member, meant)


WRONG = {"update_id": [1, [], "", "x" * 500], "chunk_id": [1, {}, "", "x" * 129], "names": ["x", {}, 1],
         "dtypes": ["x", {}, [1] * 46], "shapes": [1, "x"], "sizes": ["x", {}], "packed": [1, "yes", []],
         "partial": [0, "true", []], "convert": [1, "no"], "checksums": ["x", {}],
         "weight_version": [100, True, [], {}], "plan_id": [1, []], "shm": ["x", 1, True, []],
         "path": [1, [], {}]}


def wrong_type(w):
    member = w.rng.choice(sorted(WRONG))
    body = members_of(rows_of(w))
    body[member] = w.rng.choice(WRONG[member])
    w.refused(w.ask("POST", "/v1/update_weights", body), 400, f"/{member}")


def sources(w):
    body = members_of(rows_of(w))
    if w.rng.random() < 0.5:
        body["path"] = os.path.join(w.root, "pushed.safetensors")
    else:
        del body["shm"]
    w.refused(w.ask("POST", "/v1/update_weights", body), 400, "exactly one source")


def packed_lie(w):
    rows = rows_of(w)
    packed = w.rng.random() < 0.5
    if packed:
        rows = rows[::-1]
    w.refused(w.ask("POST", "/v1/update_weights", members_of(rows, packed=packed)), 400, "/packed")


def media_type(w):
    kind = w.rng.choice(["text/plain", "application/x-www-form-urlencoded", "application/jsonx",
                         "application/vnd.safetensorsx"])
    a = w.ask("POST", "/v1/update_weights", json.dumps(members_of(rows_of(w))).encode(),
              {"Content-Type": kind})
    w.refused(a, 415, kind)


def json_bytes(w):
    """Random bytes of the request changed. What is accepted nevertheless must be true."""
    rows = rows_of(w)
    text = bytearray(json.dumps(members_of(rows, label="mutated")).encode())
    for _ in range(w.rng.randint(1, 3)):
        at = w.rng.randrange(len(text))
        text[at] = w.rng.choice([w.rng.randrange(256), text[at] ^ 1, ord(w.rng.choice('0123456789"{}[],:'))])
    accept_only_truth(w, w.ask("POST", "/v1/update_weights", bytes(text)), rows)


# labels, queries, plans


BAD_LABELS = ["", "a\x01b", "\x7f", "x" * 300, "tab\there", "line\nbreak"]


def bad_label(w):
    label = w.rng.choice(BAD_LABELS)
    w.refused(push(w, w.rng.choice(("shm", "body", "path")), rows_of(w), label), 400, "/weight_version")


def bad_label_in_head(w):
    rows = rows_of(w)
    label = w.rng.choice(BAD_LABELS)
    a = tensors(w, body_of(rows, metadata={"baton.weight_version": label}))
    w.refused(a, 400, "of the header" if len(label) > 128 else "weight_version")


def bad_query(w):
    query, culprit = w.rng.choice([
        ("weihgt_version=x", "weight_version"), ("partial=maybe", "partial"), ("update_id=", "update_id"),
        ("weight_version=a&weight_version=b", "weight_version"), ("chunk_id=" + "x" * 200, "chunk_id"),
        ("weight_version=%00", ""), ("weight_version=%zz", ""), ("&" * 100, ""), ("weight_version=%ff", "")])
    w.refused(tensors(w, body_of(rows_of(w)), "/v1/update_weights?" + query), 400, culprit)


def query_and_json(w):
    a = w.ask("POST", "/v1/update_weights?weight_version=x", members_of(rows_of(w)))
    w.refused(a, 400, "weight_version")


def unknown_plan(w):
    shm = {"name": w.checkpoints[0].shm, "nbytes": w.checkpoints[0].nbytes}
    plan = w.rng.choice(["nope", "0" * 64, "", "x" * 10000])
    a = w.ask("POST", "/v1/update_weights", {"plan_id": plan, "shm": shm})
    w.refused(a, (400, 404), "/plan_id")


def plan_abuse(w):
    """A plan that is known, with a bucket or columns that are not its own."""
    rows = rows_of(w)
    columns = {k: v for k, v in members_of(rows).items() if k in ("names", "dtypes", "shapes")}
    a = w.ask("POST", "/v1/weights/plans", columns)
    if a.status != 200 or not a.body["covers_manifest"]:
        raise Fault(f"a plan was answered {a}")
    shm = {"name": rows[0].checkpoint.shm, "nbytes": rows[0].checkpoint.nbytes}
    body = {"plan_id": a.body["plan_id"], "shm": shm}
    kind = w.rng.choice(["columns", "short", "list"])
    if kind == "columns":
        body["names"] = columns["names"]
        w.refused(w.ask("POST", "/v1/update_weights", body), 400, "/plan_id")
    elif kind == "short":
        body["shm"] = dict(shm, nbytes=shm["nbytes"] - 2)
        w.refused(w.ask("POST", "/v1/update_weights", body), 400, "/shm/nbytes")
    else:
        body["shm"] = [shm]
        w.refused(w.ask("POST", "/v1/update_weights", body), 400, "/shm")


def bad_plan(w):
    rows = rows_of(w)
    at = some(w, rows)
    rows[at].name = w.rng.choice(["", "a\nb", "x" * 2000, "no.such.tensor", 7])
    columns = {k: v for k, v in members_of(rows, sums=False).items() if k != "shm"}
    w.refused(w.ask("POST", "/v1/weights/plans", columns), (400, 422), f"/names/{at}")


CASES = [missing, missing, extra, renamed, swapped_names, duplicate, empty, wrong_dtype, unknown_dtype,
         wide_dtype, wrong_shape, hostile_shape, sizes_disagree, lists_differ, bucket_length,
         bucket_offset, range_length, object_short, object_missing, object_name, object_no_file,
         object_shrinks, flipped, flipped, flipped, bad_checksum, wrong_checksum, truncated, truncated,
         longer, head_length, wrong_offsets, wrong_offsets, hostile_head, head_bytes, head_bytes,
         connection_cut, connection_cut, chunked_cut, chunked_cut, bad_path, link_out, file_short,
         file_differs, hostile_json, hostile_json, bad_utf8, unknown_member, wrong_type, wrong_type,
         sources, packed_lie, media_type, json_bytes, json_bytes, bad_label, bad_label_in_head, bad_query,
         query_and_json, unknown_plan, plan_abuse, bad_plan]
