"""How the trainer of test_sglang_real.py joins, pauses and pushes: by SGLang's routes, or by
baton's own."""

import dataclasses
import itertools

import nccl_world as nccl
import sglang_trainer as trainer_side
import vllm_engines
from dialects_world import must_answer, say
from gpu_world import DETAIL_LEN

TIMEOUT_MS = 30000  # for one request of an update; a rank that waits for a dead one takes no longer
DISTRIBUTED, TENSOR = "/update_weights_from_distributed", "/update_weights_from_tensor"


@dataclasses.dataclass(frozen=True)
class Scenario:
    way: str  # nccl, tensor or disk
    flat: bool  # all tensors of a request in one
    v1: bool  # by baton's own routes
    flush: bool | None  # None: not said
    pause: str | None
    held: int  # requests under way
    n: int  # requests that carry the update

    def title(self):
        flush = {True: "flush", False: "no flush", None: "flush not said"}[self.flush]
        words = [f"{self.way}{' flat' if self.flat else ''}", "/v1" if self.v1 else flush]
        words.append(self.pause or "no pause")
        words += [f"{self.held} held"] * (self.held > 0) + [f"{self.n} requests"] * (self.n > 1)
        return ", ".join(words)


# --- a group

_names = (f"weights-{i}" for i in itertools.count())


def join(play, server, v1=False):
    """The trainer's rank and the engine's, by way of a server."""
    trainer = play.trainers.get()  # a new one takes a while, and the engine would wait for it
    name, port = next(_names), vllm_engines.free_port()
    body = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1}
    body.update(world_size=2, group_name=name)
    path, kind = (nccl.INIT, "transport") if v1 else ("/init_weights_update_group", "backend")
    pending = nccl.Pending(server, path, {**body, kind: "nccl"})
    trainer.tell(trainer_side.join, port, name)
    must_answer(pending.answer(), f"{name}: the join")
    trainer.hear()
    play.group = name


def leave(play, server):
    name, play.group = play.group, None
    pending = nccl.Pending(server, "/destroy_weights_update_group", {"group_name": name})
    play.trainers.get().tell(trainer_side.leave, name)
    play.checks.same(pending.answer().status, 200, "the group is left")
    play.trainers.get().hear()


# --- pause and resume


def pause(server, scenario):
    if scenario.pause is not None:
        say(server, "/v1/pause" if scenario.v1 else "/pause_generation", {"mode": scenario.pause})


def resume(server, scenario):
    """Also where nothing was paused: SGLang's own tensors have no end without a word."""
    if scenario.v1 and scenario.pause is not None:
        say(server, "/v1/resume")
    elif not scenario.v1 and (scenario.pause is not None or scenario.way != "disk"):
        say(server, "/continue_generation", {})


# --- a push


def push(play, server, scenario, step):
    """All of a checkpoint; AssertionError where an answer is none of success."""
    label = f"{next(play.labels)}-{step}"
    if scenario.way == "disk":
        return must_answer(_disk(play, server, scenario, step, label), "the update")
    columns = play.trainers.get().ask(trainer_side.load, step)
    said = {"weight_version": label}
    if scenario.v1 and scenario.n > 1:
        said = {"update_id": say(server, "/v1/update_weights/start", said)["update_id"]}
    for i, part in enumerate(parts(len(columns["names"]), scenario.n)):
        members = said if scenario.v1 else _flush(scenario, label, i + 1 == scenario.n)
        pending = nccl.Pending(server, *request(play, scenario, columns, part, members))
        broadcast(play, scenario, part)
        must_end(play, scenario, pending)
    if scenario.v1 and scenario.n > 1:
        say(server, "/v1/update_weights/finish", said)
    return None


def parts(n_tensors, n):
    """(first, last) of what each request brings."""
    return itertools.pairwise([n_tensors * i // n for i in range(n + 1)])


def _flush(scenario, label, last):
    """As trainers do: it is said in the last of the requests, and is false before."""
    if not last:
        return {"flush_cache": False}
    said = {} if scenario.flush is None else {"flush_cache": scenario.flush}
    return {**said, "weight_version": label}


def _disk(play, server, scenario, step, label):
    path = str(vllm_engines.model_folder(play.folder, step))
    if scenario.v1:
        body = {"path": path, "weight_version": label}
        return nccl.ask(server, "POST", nccl.UPDATE, body)
    body = {"model_path": path, **_flush(scenario, label, True)}
    return nccl.ask(server, "POST", "/update_weights_from_disk", body)


def request(play, scenario, columns, part, members):
    """(path, body)"""
    if scenario.way == "tensor":
        return _tensor_request(play, scenario, part, members)
    return _group_request(play, scenario, columns, part, members)


def _tensor_request(play, scenario, part, members):
    text = play.trainers.get().ask(trainer_side.serialized, *part, scenario.flat)
    body = {"serialized_named_tensors": [text], **members}
    if scenario.flat:
        body["serialized_format" if scenario.v1 else "load_format"] = "flattened_bucket"
    return (nccl.UPDATE if scenario.v1 else TENSOR), body


def _group_request(play, scenario, columns, part, members):
    names, dtypes, shapes = (columns[k][slice(*part)] for k in ("names", "dtype_names", "shapes"))
    body = {"names": names, "shapes": shapes, **members}
    if not scenario.v1:
        body.update(dtypes=dtypes, group_name=play.group)
        return DISTRIBUTED, {**body, "load_format": "flattened_bucket"} if scenario.flat else body
    body.update(transport="nccl", dtype_names=dtypes)
    if scenario.flat:
        specs = [nccl.Spec(*row) for row in zip(names, dtypes, shapes)]
        body.update(packed=True, sizes=[s.numel for s in specs])
    return nccl.UPDATE, body


def broadcast(play, scenario, part, gate=None):
    """While a request is under way. @gate  as in vllm_trainer"""
    if scenario.way == "nccl":
        sent = (play.group, *part, scenario.flat, gate)
        play.trainers.get().tell(trainer_side.broadcast, *sent)


def must_end(play, scenario, pending):
    try:
        must_answer(pending.answer(), pending.path)
    except AssertionError as e:
        play.drop_trainer()  # it waits for a rank that does not come
        raise AssertionError(str(e)[:DETAIL_LEN]) from None
    if scenario.way == "nccl":
        play.trainers.get().hear()
    else:
        play.trainers.get().ask(trainer_side.let_go)
