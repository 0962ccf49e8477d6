"""What bench_nccl.py sends: how its updates are cut into broadcasts and requests, what bytes they
bring, and a connection on which several answers may be under way."""

import itertools
import json
import random
import select
import time

import ipc_wire as wire

BASE_WORDS = 1048573  # prime: no two tensors of a model begin at the same word of the base
WORD_NBYTES = 4
ADDS_UP = (1 << 64) - 1


def smaller(named, by):
    """The same names, every dimension that allows it so many times smaller."""
    return [(name, tuple(d // by if d >= 2 * by else d for d in shape)) for name, shape in named]


def placed(named):
    """[(name, shape, offset, nbytes)], back to back."""
    out, at = [], 0
    for name, shape in named:
        nbytes = wire.nbytes_of(shape)
        out.append((name, shape, at, nbytes))
        at += nbytes
    return out


def cut_vllm(tensors, bucket_nbytes):
    """vLLM's rule: append a tensor, and when the sum is greater than that, it was a bucket."""
    buckets, total = [[]], 0
    for tensor in tensors:
        buckets[-1].append(tensor)
        total += tensor[3]
        if total > bucket_nbytes:
            buckets.append([])
            total = 0
    return [b for b in buckets if b]


def span(bucket):
    """(offset, nbytes) of a bucket in the model."""
    return bucket[0][2], bucket[-1][2] + bucket[-1][3] - bucket[0][2]


def pieces(total, nbytes):
    """(offset, nbytes): all of it, cut without regard to tensors."""
    return [(at, min(nbytes, total - at)) for at in range(0, total, nbytes)]


def columns(bucket, sized):
    out = {
        "names": [t[0] for t in bucket],
        "dtype_names": ["bfloat16"] * len(bucket),
        "shapes": [list(t[1]) for t in bucket],
    }
    if sized:
        out["sizes"] = [t[3] // 2 for t in bucket]
    return out


class Content:
    """The bytes of a whole model: a block of random words, again and again. The block's length is
    prime, so that each tensor has bytes of its own, and its checksum is known without making it."""

    def __init__(self, seed):
        finite = bytes(b % 0x80 for b in range(256))  # as bytes of bfloat16
        self.base = random.Random(seed).randbytes(BASE_WORDS * WORD_NBYTES).translate(finite)
        words = memoryview(self.base).cast("I")
        self.sums = [0, *itertools.accumulate(words)]
        self.places = [0, *itertools.accumulate(i * w for i, w in enumerate(words))]

    def _before(self, end):
        """Of the first words of the endless row: their sum, and with their places as factors."""
        n, (turns, rest) = BASE_WORDS, divmod(end, BASE_WORDS)
        total = turns * self.sums[n] + self.sums[rest]
        by_place = (
            turns * self.places[n]
            + n * self.sums[n] * (turns * (turns - 1) // 2)
            + self.places[rest]
            + turns * n * self.sums[rest]
        )
        return total, by_place

    def checksum(self, offset, nbytes):
        """baton's, of so many bytes of the model; both are multiples of a word."""
        first, n = offset // WORD_NBYTES, nbytes // WORD_NBYTES
        (sum_a, place_a), (sum_b, place_b) = self._before(first), self._before(first + n)
        a = sum_b - sum_a
        b = place_b - place_a - (first - 1) * a
        return f"{a & ADDS_UP:016x}{b & ADDS_UP:016x}"

    def data(self, offset, nbytes):
        at, period = offset % len(self.base), len(self.base)
        turns = (at + nbytes + period - 1) // period
        return (self.base * turns)[at : at + nbytes]


class Refused(Exception):
    """An answer other than 200."""

    def __init__(self, status, body):
        try:
            error = json.loads(body)["error"]
            text = f"{error['code']}: {error['message']}"
        except (ValueError, KeyError, TypeError):
            text = repr(body)
        super().__init__(f"answered {status}: {text[:400]}")


class Connection(wire.Connection):
    """Answers come in the order of the requests, with a deadline on each wait."""

    def __init__(self, port, patience_s):
        super().__init__(port)
        self.patience_s = patience_s
        self.socket.settimeout(patience_s)

    def _cut(self):
        """(status, body) of the first answer, once it is whole."""
        end = self.seen.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = bytes(self.seen[:end]).lower()
        at = head.find(b"content-length:")
        if at < 0:
            raise AssertionError(f"an answer without a length: {head!r}")
        whole = end + 4 + int(head[at + 15 :].split(b"\r\n", 1)[0])
        if len(self.seen) < whole:
            return None
        body = bytes(self.seen[end + 4 : whole])
        del self.seen[:whole]
        return int(head[9:12]), body

    def next(self):
        """(status, body) of the next answer."""
        deadline = time.monotonic() + self.patience_s
        while True:
            found = self._cut()
            if found:
                return found
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.socket], [], [], left)[0]:
                raise AssertionError(f"no answer within {self.patience_s} s")
            data = self.socket.recv(1 << 16)
            if not data:
                raise AssertionError(f"the server closed after {bytes(self.seen[:300])!r}")
            self.seen += data

    def answer(self):
        status, body = self.next()
        if status != 200:
            raise Refused(status, body)
        return body

    def ask(self, parts):
        self.send(parts)
        return self.answer()

    def post(self, path, members):
        return json.loads(self.ask(wire.Ready(path, members, with_id=False).parts(b"")))


class Job:
    """One update: its requests, and the broadcasts that belong to each. how: 'whole' one request
    that is an update by itself; 'step' a session, the next request when the one before is answered;
    'line' a session, whose requests are sent without waiting, on one connection."""

    def __init__(self, how, requests, broadcasts):
        self.how, self.requests, self.broadcasts = how, requests, broadcasts


def whole_job(members, broadcasts):
    return Job("whole", [wire.Ready(wire.PATH, members, with_id=False)], [broadcasts])
