"""POST /update_weights_from_tensor, as slime and verl call it: pickles of tensors in the memory of
trainers that are other processes, on one GPU and on two, in each of their forms; and what is refused.
Usage: sglang_tensor.py BATON MODEL CLIENT_DIR FAKECUDA FAKECUDA_OF_TRAINERS [SEED]"""

import faulthandler
import json
import os
import shutil
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, sys.argv[3] if len(sys.argv) > 3 else "")

import baton  # noqa: E402
from ipc_trainer import Export  # noqa: E402
from ipc_world import NBYTES, TORCH, Server, Spec, World, fill, must, packed  # noqa: E402
from sglang_pickles import LOCAL, OLD_PATCH, Pickles  # noqa: E402

GIVE_UP_S = 280
TENSOR, STRINGS = "/update_weights_from_tensor", "serialized_named_tensors"


def cut(specs, n):
    """Into n runs."""
    edges = [len(specs) * i // n for i in range(n + 1)]
    return [specs[a:b] for a, b in zip(edges, edges[1:])]


def post(server, strings, what, status=200, **members):
    """What slime sends; the answer must say what the status says."""
    found = server.post(status, TENSOR, {STRINGS: strings, **members}, what)
    must(found["success"] is (status == 200) and isinstance(found["message"], str), f"{what}: {found}")
    return found["message"]


def refuse(server, strings, *words, what="", **members):
    said = post(server, strings, what, 400, **members)
    for word in words:
        must(word in said, f"{what}: '{word}' is not in {said}")
    server.check(what, server.served and list(server.served)[-2:])


def committed(server, data, label, what):
    """Everything has come: it is served, under the name that the trainer gave it if it gave one."""
    status = server.ask("GET", "/v1/status").body
    must(label in (None, status["weights"]["weight_version"]), f"{what}: {status['weights']}")
    must(status["weights"]["serial"] > server.serial, f"{what}: {status['weights']}")
    server.serve(data, status["weights"])
    must(server.metric("baton_ipc_mapped") == 0, f"{what}: trainers' memory is still mapped")


def spent(trainer, what):
    """Every export has been counted down once: not once too few, and not once too often."""
    must(trainer.counters() and not any(trainer.counters()), f"{what}: {trainer.counters()}")


# A trainer's strings

def flattened(t, pickles, gpu, specs, data, dtype="uint8", front=256):
    """FlattenedTensorBucket of one rank."""
    content = packed(specs, data)
    address = fill(t, gpu, content, front=front)
    unit = NBYTES[{v: k for k, v in TORCH.items()}[dtype]]
    x = t.export(address, front, len(content)).seen_as((len(content) // unit,), dtype)
    return pickles.bucket(x, [(s.name, s.shape, TORCH[s.dtype], s.nbytes // unit) for s in specs])


def nothing(pickles, uuid):
    """slime's filling for a rank that has sent all."""
    return pickles.bucket(Export(uuid, None, 0, 0, None, 0, None, (0,), "uint8"), [])


def exports(t, gpu, specs, data):
    """One tensor after the other in one allocation, each exported by itself."""
    content, offsets = bytearray(), []
    for s in specs:
        content += bytes(-len(content) % 512)
        offsets.append(len(content))
        content += data[s.name]
    address = fill(t, gpu, bytes(content) or b"\0")
    return [(s.name, t.export(address, offset, s.nbytes, s.shape, TORCH[s.dtype]))
            for s, offset in zip(specs, offsets)]


def named(t, pickles, gpu, specs, data):
    return pickles.named([(n, pickles.tensor(x)) for n, x in exports(t, gpu, specs, data)])


# One GPU

def slime(world, server):
    """Buckets without a start or a finish; the version is in each of them."""
    data, p = world.data(), Pickles()
    with world.trainer(server) as t:
        parts = cut(world.specs, 4)
        for i, specs in enumerate(parts):
            said = post(server, [flattened(t, p, 0, specs, data)], f"slime {i}",
                        load_format="flattened_bucket", flush_cache=False, weight_version="7")
            if i < len(parts) - 1:
                must("received" in said, said)
                server.check("slime, not all of it")
        committed(server, data, "7", "slime")
        spent(t, "slime")
    server.check("slime")


def verl(world, server):
    """One request for each tensor, in LocalSerializedTensor; a whole list in the last."""
    data, p = world.data(), Pickles(local=LOCAL + "_components.weight_updater")
    with world.trainer(server) as t:
        for s in world.specs[:5]:
            (pair,) = exports(t, 0, [s], data)
            post(server, [p.serialized([(s.name, [pair[1]])])], "verl", flush_cache=False)
        rest = [(n, [x]) for n, x in exports(t, 0, world.specs[5:], data)]
        post(server, [p.serialized(rest)], "verl", weight_version="verl", load_format=None)
        committed(server, data, "verl", "verl")
        spent(t, "verl")
    server.check("verl")


def each_form(world, server):
    """A list of tensors; by torch's own function, which sends an index; elements of one dtype."""
    forms = {"list": Pickles(), "copy": Pickles("trainer.utils.torch_patch", "trainer.bucket"),
             "index": Pickles(rebuild=None, index=5), "protocol 5": Pickles(protocol=5)}
    for label, p in forms.items():
        data = world.data()
        with world.trainer(server) as t:
            post(server, [named(t, p, 0, world.specs, data)], label, weight_version=label,
                 load_format="direct" if label == "copy" else None)
            committed(server, data, label, label)
            spent(t, label)
        server.check(label)
    data, p = world.data(), Pickles(OLD_PATCH)
    with world.trainer(server) as t:
        for dtype in sorted({s.dtype for s in world.specs}):
            specs = [s for s in world.specs if s.dtype == dtype]
            post(server, [flattened(t, p, 0, specs, data, TORCH[dtype])], f"elements {dtype}",
                 load_format="flattened_bucket", weight_version="elements")
        committed(server, data, "elements", "elements")
        spent(t, "elements")
    server.check("elements")


def gaps(world, server):
    """Parts that do not lie back to back are read where they are."""
    data, p = world.data(), Pickles()
    with world.trainer(server) as t:
        content, parts = bytearray(), []
        for s in reversed(world.specs):
            content += bytes(-len(content) % 64)
            parts.append(p.part(s.name, s.shape, TORCH[s.dtype], len(content),
                                len(content) + s.nbytes))
            content += data[s.name]
        x = t.export(fill(t, 0, bytes(content)), 0, len(content))
        post(server, [p.flattened(x, parts)], "gaps", weight_version="gaps",
             load_format="flattened_bucket", abort_all_requests=True)
        committed(server, data, "gaps", "gaps")
        spent(t, "gaps")
    server.check("gaps")


def another_rank(world, server):
    """Two strings, one of them for a GPU that is not this server's: it is not touched."""
    data, p = world.data(), Pickles()
    stranger = Export("deadbeef-0000-4000-8000-000000000000", bytes(64), 0, 64, b"/torch_1_2_3", 0,
                      None, (64,))
    other = p.bucket(stranger, [("x", (64,), "uint8", 64)])
    with world.trainer(server) as t:
        own = flattened(t, p, 0, world.specs, data)
        post(server, [other, own], "two ranks", weight_version="two ranks",
             load_format="flattened_bucket")
        committed(server, data, "two ranks", "two ranks")
        spent(t, "two ranks")
        # All tensors are for other ranks: a reply "received" would be wrong.
        for filling in nothing(p, stranger.uuid), nothing(p, t.uuid(0)):
            for strings in [other, filling], [filling, other]:
                refuse(server, strings, stranger.uuid, t.uuid(0), what="astray",
                       load_format="flattened_bucket")
        # Nothing was sent: the reply says so, and no update is open.
        post(server, [nothing(p, t.uuid(0))], "nothing", load_format="flattened_bucket")
        post(server, [p.named([])], "nothing")
        server.check("nothing")
        must(server.post(200, "/v1/update_weights/start", {})["phase"] == "open", "one is open")
        found = server.ask("GET", "/v1/status").body["update"]
        server.post(200, "/v1/update_weights/abort", {"update_id": found["update_id"]})
    server.check("two ranks")


def refused(world, server):
    data, p = world.data(), Pickles()
    fixtures = os.path.join(HERE, "../../fixtures/torch-ipc/sglang_pickles.json")
    with open(fixtures, encoding="utf-8") as f:
        for case in json.load(f)["hostile"]:
            if case["rank"] == 0:
                refuse(server, [case["pickle"]], case["says"], what=case["name"])
    with world.trainer(server) as t:
        good = flattened(t, p, 0, world.specs, data)
        bucket = {"load_format": "flattened_bucket"}
        for members, words in (({"load_format": "my.loader"}, "other loaders are code"),
                               ({"load_format": 7}, "load_format"),
                               ({"weight_version": 7}, "weight_version"),
                               ({"weight_version": ""}, "1 to")):
            refuse(server, [good], words, what=str(members), **members)
        for strings, words in ((None, "it is required"),
                               ("text", "serialized_named_tensors"), ([], "0 strings"), ([7], "an integer"),
                               ([None], "null"), ([good[:-4]], "are left"), ([good] * 65, "65 strings"),
                               ([good + "===="], "alphabet")):
            refuse(server, strings, words, what=words, **bucket)
        unknown = Spec("nobody", "BF16", [2])
        refuse(server, [flattened(t, p, 0, [unknown], {"nobody": b"1234"})], "nobody",
               what="unknown name")
        s = world.specs[-1]
        turned = Spec(s.name, s.dtype, [*s.shape, 1])
        refuse(server, [flattened(t, p, 0, [turned], data)], s.name, what="another shape")
        other = Spec(s.name, "I8", s.shape)  # floats are converted, as SGLang does
        refuse(server, [flattened(t, p, 0, [other], {s.name: data[s.name][:other.nbytes]})], s.name,
               what="another dtype")
        index = Pickles(rebuild=None)
        refuse(server, [flattened(t, index, 0, world.specs, data)] * 2,
               "by the sender's index", what="two strings by index")
        stranger = Export("deadbeef-0000-4000-8000-000000000000", bytes(64), 0, 64, b"/torch_1_2_3",
                          0, None, (64,))
        refuse(server, [p.bucket(stranger, [("x", (64,), "uint8", 64)])],
               "there is no handle for GPU", what="a stranger's GPU")
        lies = t.export(fill(t, 0, packed(world.specs, data)), 0, 1)
        lies.storage_nbytes = 1 << 40
        lies.shape = (sum(s.nbytes for s in world.specs),)
        refuse(server, [p.bucket(lies, [(s.name, s.shape, TORCH[s.dtype], s.nbytes)
                                        for s in world.specs])], "memory has", what="too long")
        server.check("refused")
        found = server.post(400, "/continue_generation", {}, "refused")  # the buckets opened an update
        must("could not be committed" in found["message"], f"{found}")
        server.refuse({STRINGS: [good], "names": ["a"]}, "bad_request", "/names")
        server.refuse({STRINGS: [good], "buckets": []}, "bad_request", "/" + STRINGS)
        server.refuse({STRINGS: [good[:-8]]}, "bad_request", f"/{STRINGS}/0")


def native(world, server):
    """The same strings are a source of the native route, with its answers."""
    data, p = world.data(), Pickles()
    with world.trainer(server) as t:
        server.update({STRINGS: [flattened(t, p, 0, world.specs, data)],
                       "weight_version": "native"}, data, "native")
        spent(t, "native")
        server.check("native")
        half = [named(t, p, 0, world.specs[::2], data)]
        found = server.refuse({STRINGS: half}, "incomplete_update", "/" + STRINGS,
                              status=422)
        must(found["details"]["missing"][0] == world.specs[1].name, f"{found}")
        new = {**data, **{s.name: world.rng.randbytes(s.nbytes) for s in world.specs[::2]}}
        server.update({STRINGS: [named(t, p, 0, world.specs[::2], new)], "partial": True},
                      new, "partial")
    server.check("partial")


def cut_short(world, server):
    """Half of the tensors, then generation is continued: that says what is missing."""
    data, p = world.data(), Pickles()
    with world.trainer(server) as t:
        post(server, [named(t, p, 0, world.specs[::2], data)], "half", weight_version="half")
        found = server.post(400, "/continue_generation", {}, "half")
        must(not found["success"] and "could not be committed" in found["message"], f"{found}")
        server.check("half")
        spent(t, "half")
        post(server, [named(t, p, 0, world.specs, data)], "whole", weight_version="whole")
        committed(server, data, "whole", "whole")
        server.post(200, "/continue_generation", {}, "whole")
    server.check("whole")


def never_mixed(world, server):
    """Buckets of two steps do not make one version: neither those of a step that was cut short, nor
    one that is sent again because its answer was lost."""
    old, new, p = world.data(), world.data(), Pickles()
    parts = cut(world.specs, 4)
    with world.trainer(server) as t:
        def send(i, data, what, status=200, **members):
            return post(server, [named(t, p, 0, parts[i], data)], what, status, **members)

        send(0, old, "cut short", weight_version="8")
        said = send(1, new, "the next step", 400, weight_version="9")
        must("'8'" in said and "'9'" in said, said)
        server.post(400, "/continue_generation", {}, "cut short")
        server.check("cut short")
        for label in "9", None:
            named_so = {"weight_version": label} if label else {}
            for i in range(4):
                send(i, new, f"step {label}", **named_so)
            committed(server, new, label, f"step {label}")
            said = send(3, new, "sent again", 400, **named_so)
            must("is now served" in said, said)
            must(server.ask("GET", "/v1/status").body["update"] is None, "it has opened an update")
            server.check("sent again")
            old, new = new, world.data()
        for i in range(4):  # nothing of the one that was sent again is in it
            send(i, new, "the step after")
        committed(server, new, None, "the step after")
        # Whoever names another version, or has continued generation, begins with what he likes.
        send(3, old, "turned", weight_version="turned")
        server.post(400, "/continue_generation", {}, "turned")
        send(3, old, "turned")
        for i in range(3):
            send(i, old, "turned")
        committed(server, old, None, "turned")
    server.check("never mixed")


# Two GPUs

def two(world, server, t, uuids):
    """A string for each GPU, in any order; those of a rank may be cut at other places."""
    p = Pickles()
    for label, order in (("both", (0, 1)), ("turned", (1, 0))):
        data = world.data()
        post(server, [flattened(t, p, gpu, world.specs, data) for gpu in order], label,
             load_format="flattened_bucket", weight_version=label)
        committed(server, data, label, label)
        spent(t, label)
        server.check_gpus(t, [data, data], label)
    data = world.data()
    parts = [cut(world.specs, 2), cut(world.specs, 3)]
    for i in range(3):
        strings = [flattened(t, p, gpu, parts[gpu][i], data) if i < len(parts[gpu])
                   else nothing(p, uuids[1]) for gpu in (0, 1)]
        post(server, strings, f"ragged {i}", load_format="flattened_bucket", weight_version="ragged")
    committed(server, data, "ragged", "ragged")
    spent(t, "ragged")
    server.check_gpus(t, [data, data], "ragged")
    data = world.data()  # values of a LocalSerializedTensor, all strings the same
    of_gpu = [exports(t, gpu, world.specs, data) for gpu in (0, 1)]
    text = p.serialized([(a[0], [a[1], b[1]]) for a, b in zip(*of_gpu)])
    post(server, [text, text], "verl", weight_version="verl")
    committed(server, data, "verl", "verl")
    spent(t, "verl")
    server.check_gpus(t, [data, data], "verl")


def one_for_two(world, server, t, uuids):
    """Both strings are of one GPU, an export each: the other reads its own from there."""
    for label, p, n in (("peers", Pickles(), 2), ("one", Pickles(), 1),
                        ("indexes", Pickles(rebuild=None, index=0), 2)):
        data = world.data()
        post(server, [flattened(t, p, 1, world.specs, data) for _ in range(n)], label,
             load_format="flattened_bucket", weight_version=label)
        committed(server, data, label, label)
        spent(t, label)
        server.check_gpus(t, [data, data], label)
    data = world.data()
    server.check("one GPU for two")
    mixed = [flattened(t, Pickles(), 0, world.specs, data),
             flattened(t, Pickles(), 1, world.specs[:-1], data)]
    server.refuse({STRINGS: mixed}, "incomplete_update", "/" + STRINGS,
                  status=422, what="the second is not whole")
    data, half = world.data(), [world.specs[gpu::2] for gpu in range(len(uuids))]
    server.update({STRINGS: [named(t, Pickles(), gpu, half[gpu], data)
                                                for gpu in (0, 1)], "placement": "sharded"},
                  data, "sharded")
    server.check("sharded")
    server.check_gpus(t, [{s.name: data[s.name] for s in specs} for specs in half], "sharded")


# A real model

def kjv(world, server, t, label, form):
    """What is generated afterwards is what the checkpoint generates."""
    p = Pickles()
    tensors = baton.load_file(f"{world.model}/checkpoints/{label}.safetensors")
    specs = [Spec(n, x.dtype, x.shape) for n, x in tensors.items()]
    data = {n: bytes(x.data) for n, x in tensors.items()}
    for i, part in enumerate(cut(specs, 3)):
        if form == "flattened_bucket":
            post(server, [flattened(t, p, 0, part, data)], f"{label} {i}", load_format=form,
                 flush_cache=False, weight_version=label)
        else:
            post(server, [named(t, p, 0, part, data)], f"{label} {i}", weight_version=label)
    spent(t, label)
    server.post(200, "/continue_generation", {}, label)
    with open(f"{world.model}/golden.json", encoding="utf-8") as f:
        golden = json.load(f)["checkpoints"][label]["cases"][0]["greedy_text"]
    made = server.post(200, "/v1/completions",
                       {"prompt": "In the beginning", "max_tokens": 24, "temperature": 0})
    text = made["choices"][0]["text"]
    must(text == golden, f"{label}: generated {text!r}, wanted {golden!r}")
    found = server.ask("GET", "/get_weight_version").body
    must(found["weight_version"] == label, f"{label}: {found}")


def without_gpu(world):
    """Errors are reported there too, and a correct request is refused with the reason."""
    p = Pickles()
    x = Export("deadbeef-0000-4000-8000-000000000000", bytes(64), 0, 64, b"/torch_1_2_3", 0, None, (64,))
    good = p.bucket(x, [("x", (64,), "uint8", 64)])
    with Server(world, "--engine", "none", "--manifest", world.manifest, "--weights", "none") as server:
        refuse(server, [good], "well formed", "--device cpu", what="no GPU")
        refuse(server, [good[:-8]], "are left", what="no GPU, and wrong")


def run(world):
    with world.store() as server:
        for step in (slime, verl, each_form, gaps, another_rank, refused, native, cut_short,
                     never_mixed):
            step(world, server)
    with world.store("cuda:0,cuda:1", "2") as server, world.trainer(server) as t:
        for step in (two, one_for_two):
            step(world, server, t, [t.uuid(0), t.uuid(1)])
    with world.engine("cuda:0", "1") as server, world.trainer(server) as t:
        for label, form in (("step-00100", "flattened_bucket"), ("step-01500", None),
                            ("step-00000", "flattened_bucket")):
            kjv(world, server, t, label, form)
    without_gpu(world)


def main():
    faulthandler.dump_traceback_later(GIVE_UP_S, exit=True)  # where it hangs, rather than that it does
    world = World(*sys.argv[1:6], seed=sys.argv[6] if len(sys.argv) > 6 else os.urandom(4).hex())
    try:
        run(world)
    finally:
        shutil.rmtree(world.folder)
    print(f"ok: {must.n} checks")


if __name__ == "__main__":
    main()
