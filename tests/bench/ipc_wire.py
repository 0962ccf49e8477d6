"""What bench_ipc.py sends: the tensors of a model cut into buckets, requests made ready before the
clock starts, and connections that send them with as little Python in between as can be."""

import json
import select
import socket

UPDATE_ID_LEN = 36  # "upd-" and 32 hex digits: the length of a body is known before its id
WAIT_S = 120
PATH = "/v1/update_weights"


def qwen3_30b_a3b(n_layers=48):
    """[(name, shape)] of Qwen3-30B-A3B in bfloat16; with 48 layers 18,867 tensors, 61.06 GB."""
    hidden, vocab, experts, width = 2048, 151936, 128, 768
    heads, kv_heads, head_dim = 32, 4, 128
    out = [("model.embed_tokens.weight", (vocab, hidden))]
    for i in range(n_layers):
        at = f"model.layers.{i}."
        out += [
            (f"{at}self_attn.q_proj.weight", (heads * head_dim, hidden)),
            (f"{at}self_attn.k_proj.weight", (kv_heads * head_dim, hidden)),
            (f"{at}self_attn.v_proj.weight", (kv_heads * head_dim, hidden)),
            (f"{at}self_attn.o_proj.weight", (hidden, heads * head_dim)),
            (f"{at}self_attn.q_norm.weight", (head_dim,)),
            (f"{at}self_attn.k_norm.weight", (head_dim,)),
            (f"{at}mlp.gate.weight", (experts, hidden)),
        ]
        for e in range(experts):
            out += [
                (f"{at}mlp.experts.{e}.gate_proj.weight", (width, hidden)),
                (f"{at}mlp.experts.{e}.up_proj.weight", (width, hidden)),
                (f"{at}mlp.experts.{e}.down_proj.weight", (hidden, width)),
            ]
        out += [
            (f"{at}input_layernorm.weight", (hidden,)),
            (f"{at}post_attention_layernorm.weight", (hidden,)),
        ]
    return out + [("model.norm.weight", (hidden,)), ("lm_head.weight", (vocab, hidden))]


def equal_tensors(n, nbytes):
    """n tensors of one size, together about so many bytes, each a multiple of 512."""
    numel = max(nbytes // n // 512, 1) * 256
    return [(f"model.layers.{i}.weight", (numel,)) for i in range(n)]


def nbytes_of(shape):
    """Of a bfloat16 tensor."""
    out = 2
    for dim in shape:
        out *= dim
    return out


def total_of(named):
    return sum(nbytes_of(shape) for _, shape in named)


def cut(named, bucket_nbytes):
    """As vLLM packs: in order, as many in each bucket as fit. [[(name, shape, offset, nbytes)]]"""
    buckets, at = [], bucket_nbytes
    for name, shape in named:
        nbytes = nbytes_of(shape)
        if at + nbytes > bucket_nbytes:
            buckets.append([])
            at = 0
        buckets[-1].append((name, shape, at, nbytes))
        at += nbytes
    return buckets


def length_of(bucket):
    return bucket[-1][2] + bucket[-1][3]


def columns(bucket):
    return {
        "names": [b[0] for b in bucket],
        "dtype_names": ["bfloat16"] * len(bucket),
        "shapes": [list(b[1]) for b in bucket],
        "tensor_sizes": [b[3] for b in bucket],
    }


def dumps(value):
    return json.dumps(value, separators=(",", ":")).encode()


def head_of(path, length):
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


class Ready:
    """A request that lacks only the update's id."""

    def __init__(self, path, members, with_id=True):
        rest = dumps(members)
        self.with_id = with_id
        if with_id:
            self.tail = b'"' + (b"," if members else b"") + rest[1:]
            self.first = b'{"update_id":"'
            self.head = head_of(path, len(self.first) + UPDATE_ID_LEN + len(self.tail)) + self.first
        else:
            self.head, self.tail = head_of(path, len(rest)), rest

    def parts(self, update_id):
        return [self.head, update_id, self.tail] if self.with_id else [self.head, self.tail]


class Connection:
    """One that is kept, and says nothing late because of Nagle."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.seen, self.wanted, self.body_at = bytearray(), None, 0

    def send(self, parts):
        total = sum(map(len, parts))
        sent = self.socket.sendmsg(parts)
        if sent < total:
            self.socket.sendall(memoryview(b"".join(parts))[sent:])

    def more(self):
        """Reads what is there; true once a whole answer is."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise AssertionError(f"the server closed after {bytes(self.seen[:300])!r}")
        self.seen += data
        if self.wanted is None:
            end = self.seen.find(b"\r\n\r\n")
            if end < 0:
                return False
            head = bytes(self.seen[:end]).lower()
            at = head.find(b"content-length:")
            if at < 0:
                raise AssertionError(f"an answer without a length: {head!r}")
            self.body_at = end + 4
            self.wanted = self.body_at + int(head[at + 15 :].split(b"\r\n", 1)[0])
        return len(self.seen) >= self.wanted

    def take(self):
        """The body of the answer that is there; anything but 200 ends the benchmark."""
        answer, self.seen, self.wanted = bytes(self.seen), bytearray(), None
        if answer[9:12] != b"200":
            raise AssertionError(f"answered {answer[:1500]!r}")
        return answer[self.body_at :]

    def ask(self, parts):
        self.send(parts)
        while not self.more():
            pass
        return self.take()


def pump(connections, requests, update_id):
    """All requests, one at a time on each connection, as soon as there is a free one."""
    poll = select.poll()
    by_fd = {c.socket.fileno(): c for c in connections}
    waiting = iter(requests)
    n_open = 0
    for connection, request in zip(connections, waiting):
        connection.send(request.parts(update_id))
        poll.register(connection.socket.fileno(), select.POLLIN)
        n_open += 1
    while n_open:
        events = poll.poll(WAIT_S * 1000)
        if not events:
            raise AssertionError("no answer came in time")
        for fd, _ in events:
            connection = by_fd[fd]
            if not connection.more():
                continue
            connection.take()
            request = next(waiting, None)
            if request is None:
                poll.unregister(fd)
                n_open -= 1
            else:
                connection.send(request.parts(update_id))


class Wire:
    """A server's connections, and updates over them."""

    START = Ready(PATH + "/start", {"weight_version": "bench", "lease_s": 600}, with_id=False)
    FINISH = Ready(PATH + "/finish", {})

    def __init__(self, port, n_connections):
        self.port = port
        self.connections = [Connection(port) for _ in range(n_connections)]

    def post(self, path, members):
        return json.loads(self.connections[0].ask(Ready(path, members, with_id=False).parts(b"")))

    def session(self, requests, pipelined):
        """start, the requests, finish. Returns finish's answer."""
        first = self.connections[0]
        started = first.ask(self.START.parts(b""))
        at = started.index(b'"upd-') + 1
        update_id = started[at : at + UPDATE_ID_LEN]
        if pipelined:
            pump(self.connections, requests, update_id)
        else:
            for request in requests:
                first.ask(request.parts(update_id))
        return first.ask(self.FINISH.parts(update_id))

    def whole(self, requests):
        """One request that is an update by itself."""
        return self.connections[0].ask(requests[0].parts(b""))

    def close(self):
        for connection in self.connections:
            connection.socket.close()
