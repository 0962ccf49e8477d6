"""torch as the trainer, on GPU 0: vLLM's stateless group over torch's own store, a torch process
group as slime and SGLang make it, and an id that is posted. Sections of test_nccl_torch.py."""

import base64
import contextlib
import ctypes
import datetime
import itertools
import signal
import socket
import time

import gpu_world as world
import nccl_world as nccl
import test_ipc_torch as ipc
from gpu_world import baton

STORE_S = 60  # of the trainer's rendezvous
BY_DTYPE = {  # as pynccl_wrapper.py maps them; the rest are sent as bytes
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "int64": 4,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
FLOAT32, SUM = 7, 0


# --- in the trainer


def be_torch(state, library):
    import torch

    state.index, state.library, state.pg, state.rank = 0, library, None, None
    torch.cuda.set_device(state.index)
    torch.zeros(1, device="cuda")
    return torch.__version__


def place(state):
    return f"cuda:{state.index}"


def settle(_state, patience_s=nccl.ANSWER_S):
    """Waits for the stream, but not for ever."""
    import torch

    event, end = torch.cuda.Event(), time.monotonic() + patience_s
    event.record()
    while not event.query():
        if time.monotonic() > end:
            raise TimeoutError(f"a collective did not end within {patience_s} s")


def load(state, step):
    """A checkpoint; what it consists of."""
    from safetensors.torch import load_file

    path = ipc.CHECKPOINTS / f"{step}.safetensors"
    state.named = list(load_file(path, device=place(state)).items())
    return [(n, world.dtype_name(t), list(t.shape)) for n, t in state.named]


def make(state, specs, seed):
    """Each tensor in an allocation of its own."""
    import torch

    state.named = []
    for spec in specs:
        block = bytearray(nccl.block_of(seed, spec))
        block = torch.frombuffer(block, dtype=torch.uint8).to(place(state))
        raw = block.repeat(spec.nbytes // block.numel() + 1)[: spec.nbytes].clone()
        tensor = raw.view(getattr(torch, spec.dtype)).reshape(spec.shape)
        state.named.append((spec.name, tensor))


def _fresh_rank(state):
    if state.rank is not None and state.rank.comm:
        state.rank.leave()
    state.rank, state.pg = nccl.nccl_rank.Rank(state.library, None), None
    return state.rank


def mint(state):
    return _fresh_rank(state).mint()


def join(state, unique_id, world_size):
    """ncclCommInitRank, and vLLM's warm-up."""
    import torch

    state.rank.join(unique_id, 0, world_size)
    data = torch.zeros(1, device=place(state))
    out = torch.empty_like(data)
    state.rank.call(
        "ncclAllReduce",
        ctypes.c_void_p(data.data_ptr()),
        ctypes.c_void_p(out.data_ptr()),
        ctypes.c_size_t(1),
        FLOAT32,
        SUM,
        state.rank.comm,
        _stream(state),
    )
    settle(state)
    return float(out[0])


def _stream(state):
    import torch

    return ctypes.c_void_p(torch.cuda.current_stream(state.index).cuda_stream)


def listen(state):
    """The socket that the store will take over, as StatelessProcessGroup.create opens it."""
    state.listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    state.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    state.listener.bind(("127.0.0.1", 0))
    state.listener.listen()
    return state.listener.getsockname()[1]


def stateless(state, port, world_size):
    """Store, id, init, warm-up, in the order of vLLM's trainer."""
    import torch

    state.store = torch.distributed.TCPStore(
        host_name="127.0.0.1",
        port=port,
        world_size=world_size,
        is_master=True,
        timeout=datetime.timedelta(seconds=STORE_S),
        use_libuv=False,
        master_listen_fd=state.listener.detach(),
    )
    unique_id = mint(state)
    state.store.set("broadcast_from/0/0", nccl.nccl_trainer.vllm_pickle(unique_id))
    return join(state, unique_id, world_size)


def free_port(_state):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def form_group(state, port, world_size, name):
    """A process group beside the default one, with a store of its own. It has no communicator until
    its first collective."""
    from torch.distributed import distributed_c10d as c10d

    timeout = datetime.timedelta(seconds=STORE_S)
    url = f"tcp://127.0.0.1:{port}"
    found = next(c10d.rendezvous(url, rank=0, world_size=world_size, timeout=timeout))
    state.store = found[0]
    state.store.set_timeout(timeout)
    state.pg, _ = c10d._new_process_group_helper(
        world_size,
        0,
        [],
        c10d.Backend("nccl"),
        c10d.PrefixStore(name, state.store),
        group_name=name,
        timeout=timeout,
    )
    c10d._world.pg_group_ranks[state.pg] = {i: i for i in range(world_size)}


def broadcast(state, tensor):
    """From rank 0, in its own dtype where NCCL has that."""
    import torch

    name = world.dtype_name(tensor)
    if name not in BY_DTYPE:
        tensor, name = world.raw_of(tensor), "uint8"
    if state.pg is not None:
        torch.distributed.broadcast(tensor, src=0, group=state.pg)
        return
    at = ctypes.c_void_p(tensor.data_ptr())
    numel = ctypes.c_size_t(tensor.numel())
    state.rank.call(
        "ncclBroadcast", at, at, numel, BY_DTYPE[name], 0, state.rank.comm, _stream(state)
    )


def send_each(state, n=None):
    """The first n tensors, or all; also the empty ones, as trainers do."""
    for _, tensor in state.named[:n]:
        broadcast(state, tensor)
        settle(state)


def send_packed(state, cuts):
    """Each broadcast is a concatenation of the bytes of whole tensors."""
    import torch

    rest = iter(world.raw_of(t) for _, t in state.named)
    for _, nbytes in cuts:
        raws, size = [], 0
        while size < nbytes:
            raws.append(next(rest))
            size += raws[-1].numel()
        assert size == nbytes, "a broadcast ends inside a tensor"
        broadcast(state, torch.cat(raws))
        settle(state)


# --- asking


class TorchTrainer(nccl.Trainer):
    def __init__(self, args):
        world.Worker.__init__(self)
        self.tell(be_torch, args.nccl)


def enter_id(server, trainer, _name):
    unique_id = trainer.ask(mint)
    text = base64.b64encode(unique_id).decode()
    pending = nccl.Pending(server, nccl.INIT, nccl.invitation(server, nccl_unique_id=text))
    trainer.tell(join, unique_id, server.world_size)
    return pending.answer()


def enter_stateless(server, trainer, _name):
    port = trainer.ask(listen)
    body = nccl.invitation(server, master_address="127.0.0.1", master_port=port)
    pending = nccl.Pending(server, nccl.INIT, body)
    trainer.tell(stateless, port, server.world_size)
    return pending.answer()


def enter_group(server, trainer, name):
    port = trainer.ask(free_port)
    body = nccl.invitation(
        server, master_address="127.0.0.1", master_port=port, group_name=name
    )
    pending = nccl.Pending(server, nccl.INIT, body)
    trainer.tell(form_group, port, server.world_size, name)
    return pending.answer()


FORMS = {
    "vLLM's stateless group": enter_stateless,
    "a torch process group": enter_group,
    "an id that is posted": enter_id,
}
_names = (f"weights-{i}" for i in itertools.count())


def enter(checks, server, trainer, form):
    """The state that the init's answer told."""
    answer = FORMS[form](server, trainer, next(_names))
    if answer.status != 200:
        raise AssertionError(f"the init was refused: {answer}")
    summed = trainer.hear()
    state = answer.body["state"]
    waits = FORMS[form] is enter_group
    checks.same(state, "joining" if waits else "joined", "the init answers")
    if not waits:
        checks.same(summed, 0.0, "the warm-up's sum")


def update(server, trainer, body, cuts):
    """One update, broadcast while its request is under way."""
    pending = nccl.Pending(server, nccl.UPDATE, body)
    if body.get("packed"):
        trainer.tell(send_packed, cuts)
    else:
        trainer.tell(send_each)
    answer = pending.answer()
    if answer.status != 200:
        raise AssertionError(f"the update failed: {answer}")
    trainer.hear()
    return answer.body


# --- checks


class Trainers:
    """One that is used again as long as all goes well."""

    def __init__(self, args):
        self.args, self.one = args, None

    def get(self):
        if self.one is None:
            self.one = TorchTrainer(self.args).ready()
        return self.one

    def drop(self):
        one, self.one = self.one, None
        if one is not None and one.process.exitcode is None:
            one.kill()

    @contextlib.contextmanager
    def lent(self):
        try:
            yield self.get()
        except BaseException:
            self.drop()
            raise


def joined(checks, args, server):
    found = nccl.group(server)
    version = args.nccl_version
    checks.same(
        (found["state"], found["nccl_version"], found["trainer_nccl_version"]),
        ("joined", version, version),
        "the group, and the versions of both sides",
    )
    ranks = [(r["rank"], r["place"]) for r in found["ranks"]]
    wanted = [(k, f"cuda:{i}") for k, i in enumerate(server.devices, 1)]
    checks.same(ranks, wanted, "ranks")
    checks.that(found["n_broadcasts"] > 0 and found["nbytes_received"] > 0, "it counts")


def served_is(checks, server, step, label, what):
    wrong = []
    for index in server.devices:
        expected = ipc.expected_on_gpu(step, index)
        names = world.differing(server.url, expected, device=f"cuda:{index}")
        wrong += [(index, n) for n in names]
    checks.same(wrong, [], f"{what}: bytes on the GPUs")
    with baton.attach(server.url) as served:
        checks.same(served.weight_version, label, f"{what}: the version that is mapped")


def sums_are(checks, server, step):
    tensors = ipc.expected_on_gpu(step, server.devices[0])
    sums = dict(zip(tensors, baton.gpu_checksums([world.raw_of(t) for t in tensors.values()])))
    told = {t["name"]: t["checksum"] for t in server.get("/v1/weights")["tensors"]}
    checks.same(
        [n for n in sums if told.get(n) != sums[n]], [], "the server's sums are those of torch"
    )


def model_by(checks, args, trainer, form):
    """A model that generates, in each way to cut it."""
    steps = itertools.cycle(("step-00100", "step-01500", "step-00000"))
    options = ("--model", world.MODEL, "--weights", ipc.CHECKPOINTS / "step-00000.safetensors")
    with nccl.Server(args, *options, "--weight-version", "step-0") as server:
        with nccl.Health(server) as health:
            enter(checks, server, trainer, form)
            specs = [nccl.Spec(*row) for row in trainer.ask(load, "step-00000")]
            for i, ((way, members, cuts), step) in enumerate(zip(nccl.ways(specs), steps)):
                label = f"{way}, {step}"
                trainer.ask(load, step)
                body = nccl.wire(specs, **{"weight_version": label, **members})
                found = update(server, trainer, body, cuts)
                checks.same(
                    (found["phase"], found["nbytes_done"]),
                    ("committed", nccl.total_of(specs)),
                    f"{way}: the update",
                )
                served_is(checks, server, step, label, way)
                if i % 3 == 1:
                    wrong = ipc.wrong_generations(server, step, label)
                    checks.same(wrong, [], f"{way}: generation from the mirror")
            sums_are(checks, server, step)
            joined(checks, args, server)
        health.judge(checks, form)


def mixed_by(checks, args, trainer, form):
    """Every dtype, odd sizes, nothing at all, and views at odd places."""
    specs = [nccl.Spec(*row) for row in ipc.MIXED]
    with nccl.store(args, specs) as server:
        enter(checks, server, trainer, form)
        for seed, (way, members, cuts) in enumerate(nccl.ways(specs), 1):
            trainer.ask(make, specs, seed)
            body = nccl.wire(specs, **{"weight_version": way, **members})
            checks.same(update(server, trainer, body, cuts)["phase"], "committed", way)
            checks.same(nccl.wrong(args, server, specs, seed), [], f"{way}: bytes")
        joined(checks, args, server)
        checks_by(checks, args, server, trainer, specs)


def checks_by(checks, args, server, trainer, specs):
    """Checksums and a digest, right and wrong."""
    trainer.ask(make, specs, 100)
    sums = [nccl.checksums_of(100, specs)[s.name] for s in specs]
    proofs = {"checksums": sums, "expected_digest": nccl.digest(specs)}
    body = nccl.wire(specs, packed=True, weight_version="sums", **proofs)
    cuts = nccl.cut_vllm(specs, nccl.GIB)
    checks.same(update(server, trainer, body, cuts)["phase"], "committed", "with checksums")
    lying = dict(body, checksums=[*sums[:7], "0" * 32, *sums[8:]], weight_version="lies")
    pending = nccl.Pending(server, nccl.UPDATE, lying)
    trainer.tell(send_packed, cuts)
    answer = pending.answer()
    trainer.hear()
    checks.same(
        (answer.status, answer.code, answer.error.get("param")),
        (422, "checksum_mismatch", "/checksums/7"),
        "a wrong checksum is told by its place",
    )
    checks.same(nccl.wrong(args, server, specs, 100), [], "and changes nothing")
    trainer.ask(make, specs, 101)
    body = nccl.wire(specs, packed=True, weight_version="after")
    checks.same(update(server, trainer, body, cuts)["phase"], "committed", "the group goes on")
    checks.same(nccl.wrong(args, server, specs, 101), [], "bytes after it")


def forms(checks, args):
    """Each form in which torch trainers make groups, each way in which they send."""
    if not args.torch:
        checks.skip("forms", "no torch")
        return
    trainers = Trainers(args)
    try:
        for form in FORMS:
            for what, play in (("model", model_by), ("mixed", mixed_by)):
                with checks.section(f"{what}, {form}"), trainers.lent() as trainer:
                    play(checks, args, trainer, form)
    finally:
        trainers.drop()


# --- a torch trainer that dies


def dies(stage, form):
    """Between two broadcasts; where it had a store, that tells it sooner than the deadline."""
    checks, server, specs = stage.checks, stage.server, stage.specs
    with TorchTrainer(stage.args).ready() as trainer:
        enter(checks, server, trainer, form)
        trainer.ask(make, specs, 7000)
        pending = nccl.Pending(server, nccl.UPDATE, nccl.wire(specs, weight_version="never"))
        trainer.ask(send_each, len(specs) // 2)
        trainer.signal(signal.SIGKILL)
        answer = pending.answer()
        nccl.in_time(checks, answer, stage.update_s, form)
    wanted = ("timeout", "nccl_error")
    if FORMS[form] is not enter_id:
        wanted += ("source_unreadable",)
    checks.that(answer.code in wanted, f"{form}: why it failed", answer)
    stage.unchanged(form)
    stage.renew(form)
