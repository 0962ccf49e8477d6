"""Batches of rollouts, as numpy arrays (or torch tensors) that are views of the reply's bytes.

    batch = baton.rollouts(url, prompts, {"n": 4, "max_tokens": 512}, layout="tight")
    batch["input_ids"], batch["loss_mask"], batch.metadata["versions"]

    for group in baton.stream_rollouts(url, prompts, {"n": 4, "max_tokens": 512}):
        ...  # each group of samples as soon as it has ended

    batch = baton.assemble_rollouts(prompts, replies)  # of JSON replies, of any engine

docs/rollouts.md describes the arrays. Needs numpy.
"""

from __future__ import annotations

import contextlib
import math
import operator
import struct
import warnings
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from .connection import decode_json, open_answer, request
from .errors import BatonError, InputError
from .replay import decode_routed_experts
from .types import Generated, RolloutStep, SamplingParams

KEY = "baton.rollouts"
FORMAT = 1  # of the metadata; docs/rollouts.md
SHOWN_MAX = 80  # characters of a value in a message
LENGTH_NBYTES = 8  # of a safetensors header, and of a frame in a stream
DTYPES = {"I32": "<i4", "F32": "<f4", "I16": "<i2", "U8": "|u1", "BOOL": "|b1"}
LAYOUTS = ("left_padded", "tight")
REPLIES = "the JSON reply of /v1/generate or of vLLM's /inference/v1/generate"
FINISH_REASONS = [None, "stop", "length", "abort", "error", "repetition"]  # the last one is vLLM's
LOGPROB_MIN = -9999.0
Sampling = Union[SamplingParams, Mapping[str, Any]]
Steps = Sequence[Union[RolloutStep, Mapping[str, Any]]]
MALFORMED = (TypeError, ValueError, LookupError, AttributeError, OverflowError)


class Rollouts(Mapping[str, Any]):
    """The arrays of one batch, by name, and its metadata."""

    def __init__(self, arrays: Dict[str, Any], metadata: Dict[str, Any]):
        self._arrays, self.metadata = arrays, metadata

    def __getitem__(self, name: str) -> Any:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        rows = ", ".join(f"{name}: {a.dtype}{list(a.shape)}" for name, a in self.items())
        return f"Rollouts({rows})"

    @property
    def response_width(self) -> int:
        """The responses lie in the last columns, so many: batch["logprobs"][:, -width:]."""
        return self.metadata["response_width"]

    def torch(self) -> "Rollouts":
        """The same batch as torch tensors, which see the same memory. Do not write to them."""
        import torch

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given .* is not writable")
            return Rollouts({name: torch.from_numpy(a) for name, a in self.items()}, self.metadata)


def _numpy():
    try:
        import numpy
    except ImportError as e:
        raise InputError(f"rollouts need numpy: {e}") from e
    return numpy


def _read(data: Any) -> Rollouts:
    numpy = _numpy()
    try:
        (n_head,) = struct.unpack_from("<Q", data)
        start = LENGTH_NBYTES + n_head
        head = decode_json(bytes(data[LENGTH_NBYTES:start]), KEY)
        metadata = decode_json(head.pop("__metadata__")[KEY], KEY)
        if not isinstance(metadata, dict):
            raise ValueError(f"its metadata has no format: {_shown(metadata)}")
        arrays = {}
        for name, t in head.items():
            dtype, (begin, end) = numpy.dtype(DTYPES[t["dtype"]]), t["data_offsets"]
            arrays[name] = numpy.frombuffer(data, dtype, (end - begin) // dtype.itemsize,
                                            start + begin).reshape(t["shape"])
    except (struct.error, BatonError, *MALFORMED) as e:
        raise BatonError(f"the answer is not a whole batch of rollouts: {type(e).__name__}: {e}",
                         code="bad_answer") from e
    return Rollouts(arrays, metadata)


def _check_format(batch: Rollouts) -> Rollouts:
    found = batch.metadata.get("format")
    if found != FORMAT:
        raise BatonError(f"the batch of rollouts has the format {_shown(found)}, and this client reads "
                         f"{FORMAT}: it needs the server's version of the client",
                         code="bad_answer")
    return batch


def read_rollouts(data: Any) -> Rollouts:
    """A batch, from the bytes of a reply. The arrays are views of `data`."""
    return _check_format(_read(data))


@contextlib.contextmanager
def _checked(what):
    """Malformed values in the block become InputErrors."""
    try:
        yield
    except BatonError:
        raise
    except MALFORMED as e:
        raise InputError(f"{what}: {type(e).__name__}: {e}") from e


def _prompt(i, ids):
    if not isinstance(ids, (str, bytes, Mapping)):
        with contextlib.suppress(TypeError):
            return [operator.index(t) for t in ids]
    raise _refused(f"/prompts/{i}", f"prompt {i} is {_shown(ids)}, expected a list of token ids; "
                   "/tokenize and /v1/chat/completions/render make them from text and messages")


def _prompts(prompts):
    """Lists of Python's integers."""
    if isinstance(prompts, (str, bytes, Mapping)) or not hasattr(prompts, "__iter__"):
        raise _refused("/prompts", f"prompts is {_shown(prompts)}, expected a list with the token "
                       "ids of each prompt, such as [[5, 6], [7]]")
    return [_prompt(i, ids) for i, ids in enumerate(prompts)]


def _shown(value):
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."


def _body(prompts, sampling_params, options):
    if not isinstance(sampling_params, Mapping):
        raise _refused("/sampling_params", f"sampling_params is {_shown(sampling_params)}, expected "
                       'a dict such as {"n": 4, "max_tokens": 512}')
    body = {"prompts": _prompts(prompts), "sampling_params": dict(sampling_params)}
    body.update({name: value for name, value in options.items() if value is not None})
    return body


def rollouts(url: str, prompts: Iterable[Sequence[int]], sampling_params: Sampling,
             timeout: float = 3600.0, **options: Any) -> Rollouts:
    """n samples of each prompt, as one batch.

    prompts          token ids
    sampling_params  as of /v1/generate: n, max_tokens, temperature, seed, ...
    options          further members of the request: layout ("left_padded" or "tight"),
                     sequence_multiple, pad_token_id, steps, return_routed_experts, model,
                     request_id, on_update

    Raises BatonError. A sequence that failed is a row of the batch, with finish reason "error".
    """
    if options.get("stream"):
        raise _refused("/stream", "rollouts() returns one whole batch, but stream is set: call "
                       "stream_rollouts(), which yields each group as it ends")
    data = request(url, "POST", "/v1/rollouts", _body(prompts, sampling_params, options),
                   timeout=timeout)
    return read_rollouts(data)


def _exactly(answer, n):
    try:
        data = answer.read(n)
    except (OverflowError, MemoryError) as e:
        raise BatonError(f"the answer is not a stream of rollouts: a batch of {n} bytes",
                         code="bad_answer") from e
    if len(data) < n:
        raise BatonError("the stream of rollouts was cut: the server, or a proxy before it, ended",
                         code="connection", retryable=True)
    return data


def _frames(answer):
    while True:
        (n,) = struct.unpack("<Q", _exactly(answer, LENGTH_NBYTES))
        yield _read(_exactly(answer, n))


def stream_rollouts(url: str, prompts: Iterable[Sequence[int]], sampling_params: Sampling,
                    timeout: float = 3600.0, **options: Any) -> Iterator[Rollouts]:
    """The same, each group as a batch of its own, in the order in which they end:
    batch["groups"] has its place in the request.

    Raises BatonError, also after some groups, when the stream is not complete.
    """
    body = dict(_body(prompts, sampling_params, options), stream=True)
    with open_answer(url, "POST", "/v1/rollouts", body, timeout=timeout) as answer:
        for frame in _frames(answer):
            end = frame.metadata.get("end")
            if end is None:
                yield _check_format(frame)
                continue
            if isinstance(end, dict) and end.get("complete") is True:
                return
            e = end.get("error") if isinstance(end, dict) else None
            e = e if isinstance(e, dict) else {}
            raise BatonError(str(e.get("message", "the stream of rollouts is not complete")),
                             answer.status, str(e.get("code", "bad_answer")), e.get("param"),
                             e.get("retryable") is True)


# ---- from JSON replies ----

def _choices(i, reply):
    choices = reply.get("choices") if isinstance(reply, Mapping) else None
    if not isinstance(choices, (list, tuple)) or not choices:
        raise InputError(f"reply {i} has no choices: {_shown(reply)}; expected {REPLIES}")
    return choices


def _sequences(prompts, replies):
    """The number of choices of each reply."""
    if len(replies) != len(prompts):
        raise InputError(f"{len(replies)} replies for {len(prompts)} prompts; there is one for each")
    n = {len(_choices(i, r)) for i, r in enumerate(replies)}
    if not n:
        raise _refused("/prompts", "there are no prompts; a batch has at least one")
    if len(n) != 1:
        raise InputError(f"replies have {sorted(n)} choices; each prompt needs the same number")
    return n.pop()


def check_steps(steps: Steps, n_prompts: int) -> List[Tuple[int, int]]:
    """The prompts [begin, end) of each trajectory. Raises InputError, with the server's param, for
    an order that a trainer could not use: steps of one trajectory are adjacent and ascend by 1."""
    if len(steps) != n_prompts:
        raise _refused("/steps", f"{len(steps)} steps for {n_prompts} prompts; there is one for "
                       "each prompt")
    spans: List[Tuple[int, int]] = []
    begun = set()
    for i, step in enumerate(steps):
        same = i > 0 and steps[i - 1]["trajectory_id"] == step["trajectory_id"]
        if same and step["step"] != steps[i - 1]["step"] + 1:
            raise _refused(f"/steps/{i}", f"step {step['step']} of trajectory "
                           f"'{step['trajectory_id']}' follows its step {steps[i - 1]['step']}; "
                           "steps of a trajectory ascend by 1")
        if not same and step["trajectory_id"] in begun:
            raise _refused(f"/steps/{i}", f"trajectory '{step['trajectory_id']}' goes on here, "
                           "after another one: the steps of one must be adjacent")
        begun.add(step["trajectory_id"])
        spans.append((spans.pop()[0], i + 1) if same else (i, i + 1))
    return spans


def _refused(param, text):
    e = InputError(text)
    e.param = param
    return e


def _logprob(entry):
    value = entry["logprob"]
    return value if value is not None and math.isfinite(value) else LOGPROB_MIN


def _at_least(name, value, low):
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < low:
        raise _refused(f"/{name}", f"{name} is {_shown(value)}, expected an integer of {low} or more")


def _spans(reply, choice, n_tokens):
    """Those of a baton: of its own engine, or, exact, of an engine behind it. Else none is known."""
    own = choice.get("weight_versions") or []
    if own and all("serial" in span for span in own):
        return own
    added = reply.get("weight_versions") or []
    if not all(span.get("exact") for span in added):
        return []
    return [dict(s, end=n_tokens if s["end"] is None else s["end"]) for s in added]


class _Row:
    """One sequence of a JSON reply."""

    def __init__(self, prompt, sample, ids, reply, with_routes):
        choice = reply["choices"][sample]
        self.prompt, self.sample, self.ids = prompt, sample, ids
        self.tokens = choice.get("token_ids")
        if not isinstance(self.tokens, list):
            raise InputError(f"reply {prompt}, choice {sample} has no list token_ids; expected "
                             f"{REPLIES}")
        content = (choice.get("logprobs") or {}).get("content") or []
        self.logprobs = [_logprob(entry) for entry in content]
        if len(self.logprobs) != len(self.tokens):
            raise InputError(f"reply {prompt}, choice {sample} has {len(self.logprobs)} logprobs "
                             f"(logprobs.content) for {len(self.tokens)} tokens, each needs one: "
                             'request them with "logprobs": 1 in sampling_params')
        self.spans = _spans(reply, choice, len(self.tokens))
        self.finish, self.stop = choice.get("finish_reason"), choice.get("stop_reason")
        if self.finish not in FINISH_REASONS:
            raise InputError(f"reply {prompt}, choice {sample} has finish_reason {self.finish!r}, "
                             f"expected one of {', '.join(FINISH_REASONS[1:])}")
        self.routes = decode_routed_experts(choice.get("routed_experts")) if with_routes else None


def _up(n, multiple):
    return -(-n // multiple) * multiple


def _widths(rows, layout, multiple):
    response = max(len(r.tokens) for r in rows)
    if layout == "tight":
        return _up(max(len(r.ids) + len(r.tokens) for r in rows), multiple), response
    response = _up(response, multiple)
    return _up(max(len(r.ids) for r in rows), multiple) + response, response


def _empty(numpy, rows, width, pad_token_id, with_steps, routes):
    """The arrays, filled with their padding, in the order of the server's."""
    n, i4 = len(rows), "<i4"
    arrays = {"input_ids": numpy.full((n, width), pad_token_id, i4),
              "position_ids": numpy.zeros((n, width), i4),
              "logprobs": numpy.zeros((n, width), "<f4"),
              "versions": numpy.full((n, width), -1, i4)}
    for name in ("prompt_offsets", "prompt_lengths", "response_offsets", "response_lengths",
                 "groups", "samples"):
        arrays[name] = numpy.zeros(n, i4)
    if with_steps:
        arrays["steps"] = numpy.zeros(n, i4)
    if routes is not None:
        n_layers, top_k, dtype = routes
        arrays["route_lengths"] = numpy.zeros(n, i4)
        arrays["routed_experts"] = numpy.empty((n, width, n_layers, top_k), dtype)
        arrays["routed_experts"][:] = numpy.arange(top_k)
    arrays["attention_mask"] = numpy.zeros((n, width), bool)
    arrays["loss_mask"] = numpy.zeros((n, width), bool)
    arrays["finish_reasons"] = numpy.zeros(n, "|u1")
    if with_steps:
        arrays["is_last_step"] = numpy.zeros(n, bool)
    return arrays


def _put(arrays, i, r, response, versions):
    first, end = response - len(r.ids), response + len(r.tokens)
    arrays["input_ids"][i, first:end] = r.ids + r.tokens
    arrays["position_ids"][i, first:end] = range(end - first)
    arrays["attention_mask"][i, first:end] = True
    arrays["loss_mask"][i, response:end] = r.finish != "error"
    arrays["logprobs"][i, response:end] = r.logprobs
    for span in r.spans:
        key = (span["serial"], span["version"])
        index = versions.setdefault(key, len(versions))
        arrays["versions"][i, response + span["start"]:response + span["end"]] = index
    for name, value in (("prompt_offsets", first), ("prompt_lengths", len(r.ids)),
                        ("response_offsets", response), ("response_lengths", len(r.tokens)),
                        ("samples", r.sample), ("finish_reasons", FINISH_REASONS.index(r.finish))):
        arrays[name][i] = value
    if r.routes is not None:
        arrays["route_lengths"][i] = len(r.routes)
        arrays["routed_experts"][i, first:first + len(r.routes)] = r.routes


def _routes_shape(numpy, rows, n_experts):
    """(layers, top_k, dtype): the smallest that holds every expert of the model."""
    of = next((r.routes for r in rows if r.routes is not None), None)
    if of is None:
        return None
    most = max(int(r.routes.max(initial=0)) for r in rows) + 1 if n_experts is None else n_experts
    dtype = "|u1" if most <= 256 else "<i2" if most <= 32768 else "<i4"
    return of.shape[1], of.shape[2], numpy.dtype(dtype)


def assemble_rollouts(prompts: Sequence[Sequence[int]],
                      replies: Sequence[Union[Generated, Mapping[str, Any]]],
                      layout: str = "left_padded", sequence_multiple: int = 1,
                      pad_token_id: int = 0, steps: Optional[Steps] = None,
                      return_routed_experts: bool = False,
                      n_experts: Optional[int] = None) -> Rollouts:
    """The batch of JSON replies, one for each prompt, each with n choices, as /v1/generate and
    vLLM's /inference/v1/generate answer. Of a baton, it is the batch that /v1/rollouts answers.

    replies    requested with "logprobs": 1. A choice has token_ids, logprobs and finish_reason;
               optional: weight_versions, there or in the reply (without it, or where it is not exact,
               versions is -1), stop_reason, routed_experts
    n_experts  of the model: decides the dtype of routed_experts; None: the largest id does

    Raises InputError.
    """
    numpy = _numpy()
    if layout not in LAYOUTS:
        raise _refused("/layout", f"layout {layout!r} is none of {', '.join(LAYOUTS)}")
    _at_least("sequence_multiple", sequence_multiple, 1)
    _at_least("pad_token_id", pad_token_id, 0)
    prompts = _prompts(prompts)
    with _checked("replies are not a list"):
        n = _sequences(prompts, replies)
    with _checked('steps are not a list of {"trajectory_id": "...", "step": 0}'):
        spans = check_steps(steps, len(prompts)) if steps is not None else \
            [(i, i + 1) for i in range(len(prompts))]
    rows, groups = [], []
    for group, (begin, end) in enumerate(spans):
        for sample in range(n):
            for p in range(begin, end):
                with _checked(f"reply {p}, choice {sample} is not of {REPLIES}"):
                    rows.append(_Row(p, sample, prompts[p], replies[p], return_routed_experts))
                groups.append((group, p + 1 == end))
    width, response_width = _widths(rows, layout, sequence_multiple)
    arrays = _empty(numpy, rows, width, pad_token_id, steps is not None,
                    _routes_shape(numpy, rows, n_experts))
    versions: Dict[Tuple[int, str], int] = {}
    for i, r in enumerate(rows):
        response = width - (len(r.tokens) if layout == "tight" else response_width)
        with _checked(f"reply {r.prompt}, choice {r.sample} is not of {REPLIES}"):
            _put(arrays, i, r, response, versions)
        arrays["groups"][i] = groups[i][0]
        if steps is not None:
            arrays["steps"][i], arrays["is_last_step"][i] = steps[r.prompt]["step"], groups[i][1]
    return Rollouts(arrays, {
        "layout": layout, "sequence_multiple": sequence_multiple, "pad_token_id": pad_token_id,
        "n_rows": len(rows), "width": width, "response_width": response_width,
        "n_prompts": len(prompts), "n": n, "finish_reasons": FINISH_REASONS,
        "versions": [{"version": v, "serial": s} for s, v in versions],
        "stop_reasons": [r.stop for r in rows],
        "trajectory_ids": [steps[r.prompt]["trajectory_id"] for r in rows] if steps else None})
