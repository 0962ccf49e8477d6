"""The client's router replay, without a server: every encoding of routed experts, refusals, and that the blocks
of all ranks put together are the whole, for every layout of a small model and for random larger ones."""
import base64
import io
import itertools
import pathlib
import random
import sys

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client"))
import baton  # noqa: E402

K = 2
SIZES = ("pipeline_parallel_size", "context_parallel_size")
FIRST, LAST = "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"


def must(ok, what):
    if not ok:
        raise AssertionError(what)


def refused(call, *wanted, param=None):
    try:
        call()
    except baton.InputError as e:
        must(all(w in e.message for w in wanted) and e.param == param, f"{e.message!r} at {e.param}")
        return
    raise AssertionError(f"not refused: {wanted}")


def routes_of(rows, layers, n_experts=200):
    """Different experts in each row, and different rows."""
    first = numpy.arange(rows * layers).reshape(rows, layers, 1) * 7
    return ((first + numpy.arange(K) * 3) % n_experts).astype("int32")


def b64(data):
    return base64.b64encode(data).decode()


def packed(routes, dtype, **more):
    return {"data": b64(routes.astype(dtype).tobytes()), "shape": list(routes.shape), "dtype": dtype, **more}


def npy(routes):
    out = io.BytesIO()
    numpy.save(out, routes)
    return b64(out.getvalue())


def decoded():
    routes = routes_of(5, 3)
    for value, more in ((packed(routes, "uint8"), {}), (packed(routes, "int16"), {}), (packed(routes, "int32"), {}),
                        (packed(routes, "uint16", start=0), {}), (npy(routes.astype("uint8")), {}),
                        (npy(routes.astype(">u2")), {}), (npy(numpy.asfortranarray(routes)), {}),
                        (npy(routes).encode(), {}), (routes.tolist(), {}), (routes, {}),
                        (b64(routes.tobytes()), {"num_layers": 3, "top_k": K}),
                        (routes.reshape(5, 3 * K), {"num_layers": 3, "top_k": K})):
        found = baton.decode_routed_experts(value, **more)
        must(found.dtype == numpy.uint8 and found.flags.c_contiguous and (found == routes).all(), f"{value}")
    for top, dtype in ((255, "uint8"), (256, "int16"), (32767, "int16"), (32768, "int32")):
        must(baton.decode_routed_experts([[[0, top]]]).dtype == numpy.dtype(dtype), f"{top}")
    must(baton.decode_routed_experts(packed(routes[:0], "uint8")).shape == (0, 3, K), "no rows")
    for value in (packed(routes[2:], "uint8", start=2), npy(routes[2:]), packed(routes[2:], "uint8")):
        found = baton.decode_routed_experts(value, earlier=routes[:2])
        must((found == routes).all() and found.dtype == numpy.uint8, f"{value}")


def decode_refusals():
    decode = baton.decode_routed_experts
    routes = routes_of(5, 3)
    whole = packed(routes, "uint8")
    refused(lambda: decode(None), "no routed experts")
    refused(lambda: decode({}), "lack data, shape, dtype")
    refused(lambda: decode({**whole, "dtype": "float32"}), "'float32'", "uint8, int16")
    refused(lambda: decode({**whole, "data": whole["data"][:-4]}), "takes 30 bytes, got 27")
    refused(lambda: decode({**whole, "data": "?"}), "not base64")
    refused(lambda: decode(packed(routes, "uint8", start=3)), "begin at row 3", "0 earlier")
    refused(lambda: decode(packed(routes, "uint8", start=3), earlier=routes[:2]), "begin at row 3", "2 earlier")
    refused(lambda: decode(whole, earlier=routes[:2, :2]), "earlier rows have shape [2, 2, 2]")
    refused(lambda: decode(b64(routes.tobytes())), "num_layers and top_k are needed")
    refused(lambda: decode(b64(routes.tobytes()), num_layers=7, top_k=2), "no rows of 7 * 2 int32")
    refused(lambda: decode(b64(b"\x93NUMPY\x01\x00")), "no .npy file")
    refused(lambda: decode(npy(numpy.array([[["a"]]], dtype=object))), "no .npy file")
    refused(lambda: decode(npy(routes.astype("float32"))), "float32")
    refused(lambda: decode([[1, 2]]), "[rows, layers, top_k]")
    refused(lambda: decode([[[1, 2]], [[3]]]), "no array")
    refused(lambda: decode({**whole, "data": None}), "not base64")
    for shape in (None, 3, ["5", 3, 2], [-5, -3, 2]):
        refused(lambda: decode({**whole, "shape": shape}), f"have shape {shape}", "[rows, layers, top_k]")
    refused(lambda: decode(packed(routes, "uint8", start=1), earlier=5), "int64 of shape []")
    refused(lambda: decode(whole, earlier=routes[:2] / 2), "float64 of shape [2, 3, 2]")
    refused(lambda: decode(b64(routes.tobytes()), num_layers="3", top_k=2), "num_layers is '3'")
    refused(lambda: decode([[1, 2]], num_layers=3, top_k=2), "rows of 2 ids", "3 * 2")
    refused(lambda: decode([[[1, 2], [0, 1]], [[3, 4], [-1, -1]]]), "row 1 has no expert in layer 1")


def cut_refusals():
    def cut(routes=routes_of(5, 3), num_layers=3, sparse=None, length=None, **layout):
        return lambda: baton.cut_routed_experts(routes, {**dict.fromkeys(SIZES, 1), **layout}, num_layers, sparse, length)

    at = "/replay_layout/"
    refused(cut(pipeline_parallel_size=None), "is missing, it is required", param=at + SIZES[0])
    refused(cut(context_parallel_size=True), "is a boolean, expected an integer", param=at + SIZES[1])
    refused(cut(context_parallel_size="1"), "is a string, expected an integer", param=at + SIZES[1])
    refused(cut(context_parallel_size=1.5), "is a real number, expected an integer", param=at + SIZES[1])
    refused(cut(tensor_parallel_size=1), "unknown member", param=at + "tensor_parallel_size")
    refused(cut(routes_of(5, 2)), "have 2 layers; the model has 3, 3 of them with experts", "sparse_layers",
            "num_leading_dense_layers")
    native = packed(routes_of(5, 2), "uint8", layers=[0, 2])
    refused(cut(native, sparse=[0, 1, 2]), "have 2 layers; the model has 3, 3 of them")
    refused(cut(packed(routes_of(5, 2), "uint8")), "have 2 layers; the model has 3, 3 of them")
    (block,) = cut(native)()
    must(block.layers == (0, 2) and (block.routes[:5] == routes_of(5, 2)).all(), "layers of the reply")
    refused(cut(sparse=[1, 3]), "sparse_layers are [1, 3], expected numbers from 0 to 2")
    refused(cut(routes_of(5, 2), sparse=[0, 2], num_leading_dense_layers=1), "is 1, but layer 0", "has experts",
            param=at + "num_leading_dense_layers")
    refused(cut(routes_of(5, 2), sparse=[0, 2], num_leading_dense_layers=0), "is 0, but layer 1", "is dense",
            param=at + "num_leading_dense_layers")
    refused(cut(routes_of(5, 3)[0]), "int32 of shape [3, 2]", "expected integers [rows, layers, top_k]")
    refused(cut(None), "no routed experts")
    refused(cut(routes_of(5, 3) + 0.5), "float64 of shape [5, 3, 2]")
    refused(cut(num_layers="3"), "num_layers is '3', expected an integer of 1 or more")
    refused(cut(length="9"), "length is '9'")
    refused(cut(sparse=["x"]), "sparse_layers are ['x']")
    refused(cut(sparse=5), "sparse_layers are 5")
    refused(lambda: baton.cut_routed_experts(routes_of(5, 3), None, 3), "layout is None, expected a dict")
    refused(cut(length=4), "have 5 rows, more than the sequence's 4 tokens")
    zeros = routes_of(5, 3)
    zeros[:, 0] = 0
    refused(cut(zeros), "row 0 names an expert twice in layer 0", "check sparse_layers")
    baton.cut_routed_experts(zeros, {**dict.fromkeys(SIZES, 1.0), "num_leading_dense_layers": 1}, 3)
    missing = routes_of(5, 3)
    missing[2, 1] = -1
    refused(cut(missing), "row 2 has no expert in layer 1")


def even(num_layers, pp, first, last):
    """Does Megatron accept the split? Counted out, not computed."""
    n_stages = pp - bool(first) - bool(last)
    if pp == 1 and (first or last):
        return False
    return any(first + last + n_stages * each == num_layers for each in range(1, num_layers + 1)) if n_stages \
        else first + last == num_layers


def whole_again(blocks, layout, num_layers, sparse, rows, length):
    """Puts every row of every block where Megatron's ranks have it, layer by layer of the model."""
    pp, cp = (layout[member] for member in SIZES)
    multiple = layout.get("sequence_multiple") or (2 * cp if cp > 1 else 1)
    padded = (length + multiple - 1) // multiple * multiple
    whole = numpy.full((padded, num_layers, K), -1)
    must([(b.pipeline_rank, b.context_rank) for b in blocks] == list(itertools.product(range(pp), range(cp))), "order")
    chunk = padded // (2 * cp) if cp > 1 else padded
    for b in blocks:
        mine = [*range(b.context_rank * chunk, (b.context_rank + 1) * chunk)]
        if cp > 1:
            mine += range((2 * cp - 1 - b.context_rank) * chunk, (2 * cp - b.context_rank) * chunk)
        at = numpy.ix_(mine, b.layers)
        must(b.routes.shape == (len(mine), len(b.layers), K), f"{b}")
        must((whole[at] == -1).all(), f"{b} came before")
        whole[at] = b.routes
    want = numpy.full_like(whole, -1)
    want[:, sparse] = numpy.arange(K)
    want[:rows, sparse] = routes_of(rows, len(sparse))
    must((whole == want).all(), f"{layout} of {num_layers} layers, {sparse} sparse, {rows} rows")
    first, last = layout.get(FIRST), layout.get(LAST)
    n_left = pp - bool(first) - bool(last)
    each = (num_layers - (first or 0) - (last or 0)) // max(n_left, 1)
    sizes = [first] * bool(first) + [each] * n_left + [last] * bool(last)
    for stage, size in enumerate(sizes):
        begin = sum(sizes[:stage])
        want = tuple(i for i in sparse if begin <= i < begin + size)
        must(all(b.layers == want for b in blocks[stage * cp:(stage + 1) * cp]), f"stage {stage} of {sizes}")


def cut_one(pp, cp, first, last, sparse, num_layers, rows, length, multiple=None):
    layout = {SIZES[0]: pp, SIZES[1]: cp, FIRST: first or None, LAST: last or None, "sequence_multiple": multiple}
    routes = routes_of(rows, len(sparse))

    def call():
        return baton.cut_routed_experts(routes, layout, num_layers, sparse, length)

    if even(num_layers, pp, first, last):
        whole_again(call(), layout, num_layers, sparse, rows, length)
        return 1
    refused(call, param=f"/replay_layout/{(FIRST if first else LAST) if pp == 1 else SIZES[0]}")
    return 0


def layouts():
    n = 0
    for pp, first, last in itertools.product(range(1, 9), range(4), range(4)):
        for cp in range(1, 9):
            n += cut_one(pp, cp, first, last, [1, 2, 3, 4, 6, 7] if cp % 2 else [*range(cp - 1, 8)], 8, 2 * cp, 2 * cp + 1)
    must(n > 100, f"{n} accepted")
    draw, n = random.Random(20), 0
    for _ in range(400):
        pp, num_layers, cp, length = (draw.randint(1, high) for high in (16, 64, 16, 200))
        pp = min(pp, num_layers)
        first, last = (draw.randint(0, min(4, num_layers)) for _ in range(2))
        sparse = sorted(draw.sample(range(num_layers), draw.randint(1, num_layers)))
        n += cut_one(pp, cp, first, last, sparse, num_layers, draw.randint(0, length), length, 2 * cp * draw.randint(1, 3))
    must(n > 20, f"{n} accepted")
    # DeepSeek-V3: 61 layers, 3 of them dense, an engine that also lists the dense ones
    routes = routes_of(9, 61)
    blocks = baton.cut_routed_experts(routes, {SIZES[0]: 16, SIZES[1]: 2, LAST: 1, "num_leading_dense_layers": 3,
                                               "sequence_multiple": 8}, 61)
    must([b.layers for b in blocks[::2]] == [(3,)] + [tuple(range(4 * i, 4 * i + 4)) for i in range(1, 15)] + [(60,)],
         "61 layers")
    must((blocks[2].routes[:4] == routes[:4, 4:8]).all() and (blocks[2].routes[4:] == numpy.arange(K)).all(), "rank 0")
    must((blocks[3].routes[:5] == routes[4:9, 4:8]).all() and (blocks[3].routes[5:] == numpy.arange(K)).all(), "rank 1")


decoded()
decode_refusals()
cut_refusals()
layouts()
print("ok")
