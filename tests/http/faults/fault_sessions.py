"""Faulted update sessions: start, chunks, finish, abort, renew, in every wrong order.

Each case leaves no session open. Those that end in a commit update the expected weights.
"""

import json
import struct

from fault_cases import bad_checksum, missing, rows_of, some, wrong_checksum
from fault_world import TENSORS, Fault, body_of, members_of, push

DOORS = ("shm", "body", "path", "chunked")
ONE_TOKEN = {"token_ids": [1], "sampling_params": {"max_tokens": 1}}
GENERATE = ("POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
            f"{len(json.dumps(ONE_TOKEN))}\r\n\r\n{json.dumps(ONE_TOKEN)}").encode()


def start(w, **members):
    a = w.ask("POST", "/v1/update_weights/start", members)
    if a.status != 200 or a.body["phase"] != "open":
        raise Fault(f"start was answered {a}")
    return a.body["update_id"]


def chunk(w, update, rows, **members):
    a = push(w, w.rng.choice(DOORS), rows, update_id=update, **members)
    if a.status != 200 or a.body["phase"] != "receiving":
        raise Fault(f"a chunk was answered {a}")
    return a


def finish(w, update, **members):
    return w.ask("POST", "/v1/update_weights/finish", dict(members, update_id=update))


def abort(w, update):
    reason = w.rng.choice(["a fault", "a fault" + "é" * 150])  # the long one is cut inside a character
    a = w.ask("POST", "/v1/update_weights/abort", {"update_id": update, "reason": reason})
    if a.status != 200 or a.body["phase"] != "aborted":
        raise Fault(f"abort was answered {a}")
    w.wait_no_update()


def buckets(w, rows):
    """The rows in two to five pieces, in a random order."""
    rows = list(rows)
    if w.rng.random() < 0.5:
        w.rng.shuffle(rows)
    cuts = sorted(w.rng.sample(range(1, len(rows)), w.rng.randint(1, 4)))
    out = [rows[a:b] for a, b in zip([0] + cuts, cuts + [len(rows)])]
    w.rng.shuffle(out)
    return out


# sessions that must not commit


def too_early(w):
    parts = buckets(w, rows_of(w))
    update = start(w, weight_version="x")
    lost = parts.pop()
    for part in parts:
        chunk(w, update, part)
    error = w.refused(finish(w, update), 422, "incomplete_update", update)
    if error["details"]["n_missing"] != len(lost):
        raise Fault(f"{len(lost)} are missing: {error}")
    if set(error["details"]["missing"]) - {r.name for r in lost}:
        raise Fault(f"these are not missing: {error}")
    w.refused(finish(w, update), 409, update)


def abort_midway(w):
    parts = buckets(w, rows_of(w))
    update = start(w)
    for part in parts[:w.rng.randint(0, len(parts))]:
        chunk(w, update, part)
    if w.rng.random() < 0.5:
        abort(w, update)
    elif w.ask("DELETE", f"/v1/update_weights/{update}").status != 200:
        raise Fault("DELETE did not abort")
    w.refused(push(w, "shm", parts[0], update_id=update), 409, update)
    w.refused(finish(w, update), 409, update)
    w.refused(w.ask("POST", "/v1/update_weights/renew", {"update_id": update}), 409, update)


def two_starts(w):
    update = start(w)
    w.refused(w.ask("POST", "/v1/update_weights/start", {}), 409, update)
    abort(w, update)


def whole_while_open(w):
    update = start(w)
    if w.rng.random() < 0.5:
        chunk(w, update, buckets(w, rows_of(w))[0])
    w.refused(push(w, w.rng.choice(DOORS), rows_of(w), "x"), 409, update)
    abort(w, update)


def wrong_ids(w):
    update = start(w)
    rows = rows_of(w)
    wrong = w.rng.choice(["upd-unknown", update[:-1], update + "0", update.upper(), "../" + update])
    for a in (push(w, w.rng.choice(DOORS), rows, update_id=wrong), finish(w, wrong),
              w.ask("POST", "/v1/update_weights/abort", {"update_id": wrong}),
              w.ask("POST", "/v1/update_weights/renew", {"update_id": wrong})):
        w.refused(a, (400, 404), "/update_id")
    odd = w.rng.choice([7, "", "x" * 5000, [], True])
    w.refused(finish(w, odd), 400, "/update_id")
    w.refused(w.ask("POST", "/v1/update_weights/finish", {}), 400, "update_id")
    abort(w, update)


def tensor_again(w):
    parts = buckets(w, rows_of(w))
    update = start(w)
    chunk(w, update, parts[0])
    again = [parts[0][0]] + (parts[1] if w.rng.random() < 0.5 else [])
    w.refused(push(w, w.rng.choice(DOORS), again, update_id=update), 409, "/names/0", again[0].name)
    abort(w, update)


def chunk_id_reused(w):
    parts = buckets(w, rows_of(w))
    update = start(w)
    chunk(w, update, parts[0], chunk_id="c")
    w.refused(push(w, w.rng.choice(DOORS), parts[1], update_id=update, chunk_id="c"), 409, "/chunk_id")
    abort(w, update)


def said_twice(w):
    update = start(w)
    member = w.rng.choice(["partial", "convert"])
    a = push(w, w.rng.choice(DOORS), rows_of(w), update_id=update, **{member: True})
    w.refused(a, 400, f"/{member}")
    abort(w, update)


def finish_wrong_sum(w):
    rows = rows_of(w)
    update = start(w)
    for part in buckets(w, rows):
        chunk(w, update, part, sums=False)
    sums = {r.name: r.true_sum for r in rows}
    name = w.rng.choice(rows).name
    sums[name] = "0" * 32
    w.refused(finish(w, update, checksums=sums), 422, "checksum_mismatch", name)
    w.refused(finish(w, update), 409, update)


def bad_start(w):
    members, culprit = w.rng.choice([
        ({"mode": "staged"}, "/mode"), ({"lease_s": 0}, "/lease_s"),
        ({"lease_s": 3601}, "/lease_s"), ({"lease_s": -1}, "/lease_s"), ({"lease_s": 1.5}, "/lease_s"),
        ({"lease_s": 10**30}, ""), ({"lease_s": "60"}, "/lease_s"), ({"partial": "yes"}, "/partial"),
        ({"weight_version": ""}, "/weight_version"), ({"weight_version": "x" * 300}, "/weight_version"),
        ({"weight_version": "a\x02"}, "/weight_version"), ({"weightversion": "x"}, "weight_version"),
        ([], ""), ({"update_id": "x"}, "update_id")])
    w.refused(w.ask("POST", "/v1/update_weights/start", members), 400, culprit)


def abort_under_a_body(w):
    """The body is half-way in when another client aborts its session, or tries to finish it."""
    rows = rows_of(w)
    body = body_of(rows)
    n = w.rng.randrange(8 + struct.unpack("<Q", body[:8])[0], len(body))
    update = start(w)
    s = w.raw((f"POST /v1/update_weights?update_id={update} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TENSORS}"
               f"\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body[:n])
    with s:
        w.wait("the body is being received", lambda: (w.status()["update"] or {}).get("phase") == "receiving")
        w.refused(finish(w, update), 409, update)
        abort(w, update)
        s.sendall(body[n:])
        w.refused(w.answer_on(s), 409, update, "a fault")


def lease_lost(w):
    update = start(w)
    chunk(w, update, buckets(w, rows_of(w))[0])
    a = w.ask("POST", "/v1/update_weights/renew", {"update_id": update, "lease_s": 1})
    if a.status != 200:
        raise Fault(f"a renewal was answered {a}")
    w.wait_no_update()
    w.refused(finish(w, update), 409, update, "lease")


# sessions that commit in spite of a fault on the way


def repeated_and_reordered(w):
    rows, label = rows_of(w), w.new_label()
    update = start(w, weight_version=label)
    for i, part in enumerate(buckets(w, rows)):
        done = chunk(w, update, part, chunk_id=f"c{i}").body["n_tensors_done"]
        if w.rng.random() < 0.5:
            again = chunk(w, update, part, chunk_id=f"c{i}").body["n_tensors_done"]
            if again != done:
                raise Fault(f"a repeated chunk counts: {again} after {done}")
    w.committed(finish(w, update), rows, label)
    a = finish(w, update)
    if a.status != 200 or a.body["serial"] != w.serial:
        raise Fault(f"a second finish was answered {a}")
    w.refused(w.ask("POST", "/v1/update_weights/abort", {"update_id": update}), 409, update)


def failed_chunk_sent_again(w):
    rows, label = rows_of(w), w.new_label()
    parts = buckets(w, rows)
    update = start(w, weight_version="other")
    at = w.rng.randrange(len(parts))
    for i, part in enumerate(parts):
        if i == at:
            faulted = [r.copy() for r in part]
            faulted[some(w, faulted)].sum = "0" * 32
            a = push(w, w.rng.choice(DOORS), faulted, update_id=update)
            w.refused(a, 422, "checksum_mismatch")
        chunk(w, update, part)
    w.committed(finish(w, update, weight_version=label), rows, label)


def cut_chunk_sent_again(w):
    rows, label = rows_of(w), w.new_label()
    parts = buckets(w, rows)
    update = start(w, weight_version=label)
    body = body_of(parts[0])
    head = 8 + struct.unpack("<Q", body[:8])[0]
    s = w.raw((f"POST /v1/update_weights?update_id={update}&chunk_id=c HTTP/1.1\r\nHost: localhost\r\n"
               f"Content-Type: {TENSORS}\r\nContent-Length: {len(body)}\r\n\r\n").encode() +
              body[:w.rng.randrange(head, len(body))])
    w.wait("the body is being received", lambda: w.status()["update"]["phase"] == "receiving")
    w.cut(s, reset=w.rng.random() < 0.5)
    end = [None]

    def sent_again():
        end[0] = push(w, "shm", parts[0], update_id=update, chunk_id="c")
        if end[0].status == 409:  # the dead one is still on its way out
            w.refused(end[0], 409)
        return end[0].status != 409

    w.wait("the chunk may be sent again", sent_again)
    if end[0].status != 200:
        raise Fault(f"the chunk, sent again, was answered {end[0]}")
    for part in parts[1:]:
        chunk(w, update, part)
    w.committed(finish(w, update), rows, label)


def finish_unknown_name(w):
    rows, label = rows_of(w), w.new_label()
    update = start(w, weight_version=label)
    for part in buckets(w, rows):
        chunk(w, update, part)
    w.refused(finish(w, update, checksums={"no.such": "0" * 32}), 422, "no.such")
    w.refused(finish(w, update, checksums={rows[0].name: "short"}), 400, rows[0].name)
    w.refused(finish(w, update, weight_version="x" * 300), 400, "/weight_version")
    w.committed(finish(w, update, checksums={r.name: r.true_sum for r in rows}), rows, label)


def generate(w):
    return w.ask("POST", "/v1/generate", ONE_TOKEN)


# valid updates


def valid(w):
    rows, label = rows_of(w), w.new_label()
    if w.rng.random() < 0.2:
        w.rng.shuffle(rows)
    door = w.rng.choice(DOORS)
    a = push(w, door, rows, label, sums=w.rng.random() < 0.7)
    w.committed(a, rows, label)


def valid_partial(w):
    rows, label = w.rng.sample(rows_of(w), 5), w.new_label()
    w.committed(push(w, w.rng.choice(DOORS), rows, label, partial=True), rows, label)


def valid_converted(w):
    """As float32, converted back by the server: no bit is lost."""
    rows, label = rows_of(w), w.new_label()
    data = rows[0].checkpoint.data
    wide = bytearray(2 * len(data))
    wide[2::4], wide[3::4] = data[::2], data[1::2]
    name = w.shm(wide)
    body = members_of(rows, sums=False, label=label, convert=True)
    body.update(dtypes=["float32"] * len(rows), shm={"name": name, "nbytes": len(wide)})
    w.committed(w.ask("POST", "/v1/update_weights", body), rows, label)
    w.unlink(name)


CASES = [too_early, too_early, abort_midway, abort_midway, two_starts, whole_while_open, wrong_ids,
         tensor_again, chunk_id_reused, said_twice, finish_wrong_sum, bad_start, bad_start,
         abort_under_a_body, repeated_and_reordered, failed_chunk_sent_again, cut_chunk_sent_again,
         finish_unknown_name]
VALID = [valid, valid, valid, valid_partial]
