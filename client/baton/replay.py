"""Router replay: the experts that computed a sequence, read from the reply of any engine, and cut
for the ranks of a trainer. Needs numpy.

    routes = baton.decode_routed_experts(choice["routed_experts"])        # [rows, layers, top_k]
    blocks = baton.cut_routed_experts(routes, {"pipeline_parallel_size": 4,
                                               "context_parallel_size": 2}, num_layers=48)

Row i has the experts that computed the token at position i of prompt and output; the last token was
never computed and has no row. baton returns the same blocks for a request with `replay_layout`.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import operator
from typing import Any, Iterable, List, Mapping, NamedTuple, Optional, Tuple, Union

from .errors import InputError
from .types import ReplayLayout

CONTEXT_MAX, BLOCKS_MAX, MULTIPLE_MAX = 256, 4096, 1 << 20  # as the server's
DTYPES = ("uint8", "int16", "uint16", "int32")
NPY_MAGIC = b"\x93NUMPY"
AT = "/replay_layout"
SIZES = ("pipeline_parallel_size", "context_parallel_size")
FIRST, LAST = "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"
DENSE, MULTIPLE = "num_leading_dense_layers", "sequence_multiple"


class ReplayBlock(NamedTuple):
    """The part of one rank."""
    pipeline_rank: int
    context_rank: int
    layers: Tuple[int, ...]  # numbers of the model's layers, from 0
    routes: Any              # numpy, [rows, layers, top_k]


def decode_routed_experts(value: Any, num_layers: Optional[int] = None, top_k: Optional[int] = None,
                          earlier: Any = None) -> Any:
    """routed_experts of a reply as a numpy array [rows, layers, top_k] of the smallest of uint8,
    int16 and int32 that holds its ids.

    value       of baton or SkyRL {data, shape, dtype}; of prime-rl the same with `start`; of vLLM
                the base64 text of a .npy file, or nested lists; of SGLang the base64 text of int32
                numbers, which needs num_layers and top_k; or an array
    num_layers  layers of the array: vLLM and SGLang also count the dense ones
    earlier     rows of earlier turns, if the engine was asked to leave them out
                (routed_experts_prompt_start, routed_experts_start_len)

    Raises InputError if the value is none of these, or lacks the experts of a row.
    """
    numpy, start = _numpy(), 0
    for name, n in (("num_layers", num_layers), ("top_k", top_k)):
        if n is not None and not _is_number(n, 1):
            raise InputError(f"{name} is {n!r}, expected an integer of 1 or more, or None")
    if isinstance(value, Mapping):
        start = value.get("start") or 0
        found = _unpack(numpy, value)
    elif isinstance(value, (str, bytes)):
        found = _unbase64(numpy, value, num_layers, top_k)
    else:
        found = _array(numpy, value)
    if found.ndim == 2 and num_layers and top_k:
        if found.shape[1] != num_layers * top_k:
            raise InputError(f"routed experts have rows of {found.shape[1]} ids, expected num_layers "
                             f"* top_k, which is {num_layers} * {top_k}")
        found = found.reshape(len(found), num_layers, top_k)
    return _compact(numpy, _join(numpy, earlier, _integers(numpy, found), start))


def cut_routed_experts(routes: Any, layout: Union[ReplayLayout, Mapping[str, Any]], num_layers: int,
                       sparse_layers: Optional[Iterable[int]] = None,
                       length: Optional[int] = None) -> List[ReplayBlock]:
    """The blocks of all ranks: those of pipeline rank 0 first, in the order of their context ranks.

    routes        [rows, layers, top_k], as decode_routed_experts returns it; its layers are all of
                  the model or the sparse ones. Or baton's routed_experts as the reply has it, whose
                  `layers` are sparse_layers
    layout        the members of a request's replay_layout: pipeline_parallel_size,
                  context_parallel_size; optional: num_layers_in_first_pipeline_stage,
                  num_layers_in_last_pipeline_stage, num_leading_dense_layers, sequence_multiple
    num_layers    of the model, dense ones included
    sparse_layers numbers, from 0, of those with experts, as baton's routed_experts["layers"]; None:
                  all but the first num_leading_dense_layers
    length        tokens of the sequence; None: one more than routes has rows

    A block has rows for the two chunks of the padded sequence that its context rank owns; see
    docs/protocol.md. Rows without routing name the experts 0, 1, ..., top_k - 1.

    Raises InputError, with the message and the param of the server's refusal.
    """
    numpy = _numpy()
    if isinstance(routes, Mapping):
        sparse_layers = routes.get("layers") if sparse_layers is None else sparse_layers
        routes = decode_routed_experts(routes)
    for name, n, low in (("num_layers", num_layers, 1), ("length", length or 0, 0)):
        if not _is_number(n, low):
            raise InputError(f"{name} is {n!r}, expected an integer of {low} or more")
    if not isinstance(layout, Mapping):
        raise InputError(f"layout is {layout!r}, expected a dict such as "
                         '{"pipeline_parallel_size": 4, "context_parallel_size": 2}')
    if sparse_layers is not None:
        sparse_layers = _layer_numbers(sparse_layers)
    pp, cp, first, last, multiple, sparse = _parse(layout, num_layers, sparse_layers)
    routes = _sparse_only(numpy, _compact(numpy, _integers(numpy, routes)), num_layers, sparse)
    length = len(routes) + 1 if length is None else length
    if length < len(routes):
        raise InputError(f"routed experts have {len(routes)} rows, more than the sequence's "
                         f"{length} tokens")
    padded = _pad(numpy, routes, -(-length // multiple) * multiple)
    blocks = []
    for p, (begin, end) in enumerate(split_layers(pp, first, last, num_layers)):
        mine = [at for at, layer in enumerate(sparse) if begin <= layer < end]
        for c in range(cp):
            cut = _chunks(numpy, padded[:, mine], c, cp)
            blocks.append(ReplayBlock(p, c, tuple(sparse[at] for at in mine), _compact(numpy, cut)))
    return blocks


def _numpy():
    try:
        import numpy
    except ImportError as e:
        raise InputError(f"routed experts need numpy: {e}") from e
    return numpy


def _is_number(value, low):
    return hasattr(value, "__index__") and not isinstance(value, bool) and value >= low


def _array(numpy, value):
    if value is None:
        raise InputError("the reply has no routed experts: request them, from an engine that "
                         "returns them")
    try:
        return numpy.asarray(value)
    except (ValueError, TypeError) as e:
        raise InputError(f"routed experts are no array: {e}") from e


def _integers(numpy, value):
    found = _array(numpy, value)
    if found.ndim != 3 or found.dtype.kind not in "iu":
        raise InputError(f"routed experts are {found.dtype} of shape {list(found.shape)}, expected "
                         "integers [rows, layers, top_k], as decode_routed_experts() returns them; it takes "
                         "two dimensions with num_layers and top_k")
    return found


def _bytes(text):
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError) as e:
        raise InputError(f"routed experts are not base64: {e}") from e


def _unpack(numpy, value):
    lacking = [name for name in ("data", "shape", "dtype") if name not in value]
    if lacking:
        raise InputError(f"routed experts lack {', '.join(lacking)}; expected data, shape, dtype")
    if value["dtype"] not in DTYPES:
        raise InputError(f"routed experts have dtype {value['dtype']!r}, expected one of "
                         f"{', '.join(DTYPES)}")
    data, shape = _bytes(value["data"]), value["shape"]
    if not isinstance(shape, (list, tuple)) or not all(_is_number(n, 0) for n in shape):
        raise InputError(f"routed experts have shape {shape!r}, expected [rows, layers, top_k]")
    dtype = numpy.dtype(value["dtype"]).newbyteorder("<")
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise InputError(f"{value['dtype']} of shape {list(shape)} takes "
                         f"{math.prod(shape) * dtype.itemsize} bytes, got {len(data)}")
    return numpy.frombuffer(data, dtype).reshape(shape)


def _unbase64(numpy, text, num_layers, top_k):
    data = _bytes(text)
    if data.startswith(NPY_MAGIC):
        try:
            return numpy.load(io.BytesIO(data), allow_pickle=False)
        except (ValueError, EOFError, OSError) as e:
            raise InputError(f"routed experts are no .npy file: {e}") from e
    if not num_layers or not top_k:
        raise InputError("routed experts are bare numbers, as SGLang returns them: num_layers and "
                         "top_k are needed")
    if len(data) % (4 * num_layers * top_k) != 0:
        raise InputError(f"{len(data)} bytes are no rows of {num_layers} * {top_k} int32")
    return numpy.frombuffer(data, "<i4").reshape(-1, num_layers, top_k)


def _join(numpy, earlier, found, start):
    if earlier is None and start == 0:
        return found
    earlier = numpy.empty((0,) + found.shape[1:], found.dtype) if earlier is None else \
        _integers(numpy, earlier)
    n_earlier = len(earlier)
    if start not in (0, n_earlier):
        raise InputError(f"routed experts begin at row {start}, but {n_earlier} earlier rows were "
                         "given; pass those of earlier turns as `earlier`")
    if earlier.shape[1:] != found.shape[1:]:
        raise InputError(f"earlier rows have shape {list(earlier.shape)}, the others "
                         f"{list(found.shape)}")
    return numpy.concatenate([earlier, found])


def _compact(numpy, routes):
    if routes.size and routes.min() < 0:
        row, layer, _ = (int(i[0]) for i in numpy.nonzero(routes < 0))
        raise InputError(f"row {row} has no expert in layer {layer}: the engine did not record the "
                         "routing of this position")
    top = int(routes.max()) if routes.size else 0
    dtype = "uint8" if top < 1 << 8 else "int16" if top < 1 << 15 else "int32"
    return numpy.array(routes, dtype=dtype, order="C")


def _refuse(member, text):
    raise InputError(text, param=f"{AT}/{member}")


def _type_name(value):
    kinds = ((bool, "a boolean"), (str, "a string"), (float, "a real number"), (Mapping, "an object"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "an array")


def _number(layout, member, low, high, absent):
    value = layout.get(member)
    if value is None:
        return absent
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        _refuse(member, f"{member} is {_type_name(value)}, expected an integer")
    if not low <= value <= high:
        _refuse(member, f"{member} is {value}, expected {low} to {high}")
    return int(value)


def _parse(layout, num_layers, sparse):
    known = SIZES + (FIRST, LAST, DENSE, MULTIPLE)
    for member in layout:
        if member not in known:
            _refuse(member, f"unknown member '{member}'; known: {', '.join(known)}")
    for member in SIZES:
        if layout.get(member) is None:
            _refuse(member, f"{member} is missing, it is required")
    pp = _number(layout, SIZES[0], 1, num_layers, None)
    cp = _number(layout, SIZES[1], 1, CONTEXT_MAX, None)
    if pp * cp > BLOCKS_MAX:
        _refuse(SIZES[1], f"{pp} pipeline stages and {cp} context ranks are {pp * cp} blocks; at "
                f"most {BLOCKS_MAX} are allowed")
    first, last = _uneven(layout, pp, num_layers)
    sparse = _sparse(layout, num_layers, sparse)
    n_chunks = 2 * cp if cp > 1 else 1
    multiple = _number(layout, MULTIPLE, 1, MULTIPLE_MAX, n_chunks)
    if multiple % n_chunks:
        _refuse(MULTIPLE, f"{MULTIPLE} is {multiple}, expected a multiple of {n_chunks} (2 * "
                "context_parallel_size): a padded sequence is cut into so many chunks of one length")
    return pp, cp, first, last, multiple, sparse


def _uneven(layout, pp, num_layers):
    first, last = (_number(layout, member, 1, num_layers, 0) for member in (FIRST, LAST))
    if pp == 1 and (first or last):
        member = FIRST if first else LAST
        _refuse(member, f"one pipeline stage has all {num_layers} layers of the model: leave "
                f"{member} out, or set pipeline_parallel_size to 2 or more")
    if first + last > num_layers:
        _refuse(SIZES[0], f"the first stage has {first} layers and the last one {last}, but the "
                f"model has {num_layers}")
    rest, n_left = num_layers - first - last, pp - bool(first) - bool(last)
    if rest if n_left == 0 else rest == 0 or rest % n_left:
        _refuse(SIZES[0], f"of the model's {num_layers} layers the first stage's {first} and the "
                f"last one's {last} leave {rest} for {n_left} stages; each of these must get the "
                f"same number, at least 1: change {SIZES[0]}, {FIRST} or {LAST}")
    return first, last


def _layer_numbers(sparse):
    try:
        return sorted({operator.index(i) for i in sparse})
    except TypeError as e:
        raise InputError(f"sparse_layers are {sparse!r}, expected numbers of layers such as [1, 2]"
                         ) from e


def _sparse(layout, num_layers, sparse):
    leading = _number(layout, DENSE, 0, num_layers, None)
    if sparse is None:
        return list(range(leading or 0, num_layers))
    if any(not 0 <= i < num_layers for i in sparse):
        raise InputError(f"sparse_layers are {sparse}, expected numbers from 0 to {num_layers - 1}")
    for i in range(num_layers if leading is not None else 0):
        if (i >= leading) != (i in sparse):
            _refuse(DENSE, f"{DENSE} is {leading}, but layer {i} of the model (counted from 0) "
                    f"{'has experts' if i in sparse else 'is dense'}: send the model's own number, "
                    "or leave it out")
    return sparse


def split_layers(pp, first, last, num_layers):
    """[begin, end) of each stage."""
    n_left = pp - bool(first) - bool(last)
    each = [(num_layers - first - last) // n_left] * n_left if n_left else []
    sizes = ([first] if first else []) + each + ([last] if last else [])
    return [(sum(sizes[:i]), sum(sizes[:i + 1])) for i in range(pp)]


def _sparse_only(numpy, routes, num_layers, sparse):
    if routes.shape[1] not in (len(sparse), num_layers):
        raise InputError(f"routed experts have {routes.shape[1]} layers; the model has {num_layers}, "
                         f"{len(sparse)} of them with experts: check num_layers; if the model has "
                         f"dense layers, pass sparse_layers (baton's routed_experts[\"layers\"]), "
                         f"or layout[\"{DENSE}\"]")
    if routes.shape[1] != len(sparse):
        routes = routes[:, sparse]
    ordered = numpy.sort(routes, axis=2)
    row, layer, _ = numpy.nonzero(ordered[:, :, 1:] == ordered[:, :, :-1])
    if len(row):  # vLLM writes zeros for a dense layer
        raise InputError(f"row {row[0]} names an expert twice in layer {layer[0]}, so that no router "
                         "chose them: check sparse_layers")
    return routes


def _pad(numpy, routes, n):
    padded = numpy.empty((n,) + routes.shape[1:], numpy.int32)
    padded[:len(routes)] = routes
    padded[len(routes):] = numpy.arange(routes.shape[2])
    return padded


def _chunks(numpy, padded, rank, cp):
    at = [len(padded) * i // (2 * cp) for i in range(2 * cp + 1)]
    pairs = ((at[i], at[i + 1]) for i in (rank, 2 * cp - 1 - rank))
    return numpy.concatenate([padded[begin:end] for begin, end in pairs])
