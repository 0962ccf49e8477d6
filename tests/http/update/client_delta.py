"""Pushes by deltas from Python and from the command line: three of them give the bytes of three whole pushes; without the base
the whole is sent; a trainer that is killed leaves the served version as it was.
Usage: client_delta.py BATON CLIENT_DIR FOLDER TESTS"""

import json
import os
import signal
import subprocess
import sys

import numpy

BATON, CLIENT, FOLDER, TESTS = sys.argv[1:5]
sys.path.insert(0, CLIENT)
import baton  # noqa: E402
from fleet_world import WAIT_S, Server  # noqa: E402

MODEL = os.path.join(TESTS, "fixtures/kjv-qwen3-1m")
STEP_0, STEP_1500 = (os.path.join(MODEL, f"checkpoints/step-{n}.safetensors") for n in ("00000", "01500"))
n_checks = 0


def check(ok, about):
    global n_checks
    n_checks += 1
    assert ok, about


def stepped(tensors, seed, share=0.01):
    """A bf16 step up or down of a part of the elements of each tensor."""
    draw, out = numpy.random.default_rng(seed), {}
    for name, t in tensors.items():
        old = numpy.frombuffer(t.data, "<u2")
        new = old + ((draw.random(old.size) < share) * draw.choice([1, 0xFFFF], old.size)).astype("<u2")
        out[name] = baton.Tensor(t.dtype, t.shape, memoryview(new).cast("B"))
    return out


def served(server):
    _, answer = server.ask("GET", "/v1/weights")
    return answer["weight_version"], {t["name"]: t["checksum"] for t in answer["tensors"]}


def sums(tensors):
    return {name: baton.checksum(t.data) for name, t in tensors.items()}


def save(name, tensors, metadata=None):
    path = os.path.join(FOLDER, name)
    head, _ = baton.host.safetensors_head(list(tensors.items()), False)
    if metadata:
        text = json.dumps({"__metadata__": metadata, **json.loads(head[8:])}).encode()
        head = len(text).to_bytes(8, "little") + text
    with open(path, "wb") as f:
        f.write(head)
        for t in tensors.values():
            f.write(t.data)
    return path


def run(*args, status=0):
    done = subprocess.run([BATON, *args], capture_output=True, text=True, timeout=WAIT_S)
    check(done.returncode == status, f"{args}: {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def server_of(name):
    return Server(BATON, os.path.join(FOLDER, name), "--model", MODEL, "--weights", STEP_0, "--weight-version", "step-0")


def versions():
    out = [baton.load_file(STEP_0)]
    for k in range(3):
        out.append(stepped(out[-1], seed=k))
    return out


def from_python(server, steps):
    for via in ("shm", "body", "auto"):
        k = ("shm", "body", "auto").index(via)
        update = baton.push(steps[k + 1], server.url, via=via, weight_version=f"step-{k + 1}",
                            delta_from=f"step-{k}", delta_base=steps[k])
        check(update["delta"] and update["nbytes_sent"] < 0.03 * 1837824, update)
        check(served(server) == (f"step-{k + 1}", sums(steps[k + 1])), f"{via}: other bytes than a whole push")
    update = baton.push(steps[1], server.url, weight_version="gone", delta_from="step-1", delta_base=steps[0])
    check(not update["delta"] and served(server) == ("gone", sums(steps[1])), "the base is gone: all is sent")
    other = baton.load_file(STEP_1500)
    update = baton.push(other, server.url, weight_version="dense", delta_from="gone", delta_base=steps[1])
    check(served(server) == ("dense", sums(other)), "all has changed")
    update = baton.push(other, server.url, weight_version="same", delta_from="dense", delta_base=other)
    check(update["delta"] and served(server) == ("same", sums(other)), "nothing has changed")
    try:
        baton.push(steps[2], server.url, weight_version="wrong", delta_from="same", delta_base=steps[1])
        raise SystemExit("a delta of another base than the server's was committed")
    except baton.BatonError as e:
        check(e.code == "checksum_mismatch" and served(server) == ("same", sums(other)), e)


def by_update(server, steps):
    """The update object says which bytes the label stands for."""
    mine = baton.push(steps[0], server.url, weight_version="mine")
    baton.push(steps[2], server.url, weight_version="mine")
    update = baton.push(steps[1], server.url, weight_version="next", delta_from=mine, delta_base=steps[0])
    check(not update["delta"] and served(server) == ("next", sums(steps[1])), "other bytes under the label: all is sent")
    update = baton.push(steps[2], server.url, weight_version="last", delta_from=update, delta_base=steps[1])
    check(update["delta"] and served(server) == ("last", sums(steps[2])), update)
    try:
        baton.push(steps[2], server.url, delta_from={"weight_version": "last"}, delta_base=steps[2])
        raise SystemExit("a version without its update was taken")
    except baton.InputError as e:
        check("update object" in str(e), e)


def partly(server, steps):
    """Only a part of the model is pushed: on another base it would be a version that no trainer has."""
    some = {n: t for n, t in steps[1].items() if "layers.0" in n}
    dense = stepped({n: t for n, t in steps[0].items() if n == "model.norm.weight"}, 7, share=1)  # no delta of it is smaller
    baton.push(steps[2], server.url, weight_version="other")
    for what in (some, dense):
        try:
            baton.push(what, server.url, weight_version="mixed", partial=True, delta_from="gone", delta_base=steps[0])
            raise SystemExit("a part of another base was committed")
        except baton.BatonError as e:
            check(e.code == "precondition_failed" and served(server) == ("other", sums(steps[2])), e)
    base, new, full = (save(*what) for what in (("base.safetensors", steps[0]), ("part.safetensors", some),
                                                ("dense.safetensors", dense)))
    for what in (new, full):
        said = run("push", what, "--partial", "--weight-version", "mixed", "--delta-from", "gone", "--delta-base", base,
                   "--url", server.url, status=1)
        check(("all is sent" in said) == (what == full), said)
        check("'gone'" in said and served(server) == ("other", sums(steps[2])), said)
    baton.push(steps[0], server.url, weight_version="here")
    update = baton.push(dense, server.url, weight_version="all", partial=True, delta_from="here", delta_base=steps[0])
    check(served(server) == ("all", {**sums(steps[0]), **sums(dense)}), "all of the part, on its base")
    baton.push(steps[0], server.url, weight_version="here")
    update = baton.push(some, server.url, weight_version="some", partial=True, delta_from="here", delta_base=steps[0])
    check(update["delta"] and served(server) == ("some", {**sums(steps[0]), **sums(some)}), "the part, on its base")


def fused(tensors):
    """With the q, k and v of each layer in one tensor, as some trainers keep them."""
    out = dict(tensors)
    for q in [n for n in tensors if ".q_proj." in n]:
        three = [out.pop(q.replace(".q_proj.", f".{x}_proj.")) for x in "qkv"]
        out[q.replace(".q_proj.", ".qkv_proj.")] = baton.Tensor(
            three[0].dtype, (sum(t.shape[0] for t in three), three[0].shape[1]), b"".join(bytes(t.data) for t in three))
    return out


def what_only_comes_whole(server, steps):
    """The server has no bytes of a fused name, so its parts are refused, and it is sent whole in the same delta."""
    for via in ("shm", "body"):
        baton.push(fused(steps[0]), server.url, weight_version="one")
        update = baton.push(fused(steps[1]), server.url, via=via, weight_version="two", delta_from="one",
                            delta_base=fused(steps[0]))
        qkv = sum(t.nbytes for n, t in fused(steps[1]).items() if "qkv" in n)
        check(update["delta"] and qkv < update["nbytes_sent"] < qkv + 0.03 * 1837824, update)
        check(served(server) == ("two", sums(steps[1])), f"{via}: fused names")


def kept_wider():
    """A router's bias, which checkpoints have in bf16 and the model keeps in float32: so is it as long as it is whole."""
    model = os.path.join(TESTS, "fixtures/tiny-deepseek")
    tensors = baton.load_file(os.path.join(model, "model.safetensors"))
    bias = next(n for n in tensors if n.endswith("e_score_correction_bias"))
    halves = numpy.frombuffer(tensors[bias].data, "<f4").view("<u4") >> 16
    base = {**tensors, bias: baton.Tensor("BF16", tensors[bias].shape, halves.astype("<u2"))}
    halves = halves.copy()
    halves[0] ^= 1
    new = {**tensors, bias: baton.Tensor("BF16", tensors[bias].shape, halves.astype("<u2"))}
    head, baton.delta.PART_NBYTES_HEAD = baton.delta.PART_NBYTES_HEAD, -1000  # so that parts pay off for so few elements
    with Server(BATON, os.path.join(FOLDER, "deepseek.log"), "--model", model) as server:
        baton.push(base, server.url, weight_version="one")
        update = baton.push(new, server.url, weight_version="two", delta_from="one", delta_base=base)
        baton.delta.PART_NBYTES_HEAD = head
        check(update["delta"] and update["nbytes_sent"] == 2 * len(halves), update)
        whole = served(server)[1]
        baton.push(new, server.url, weight_version="three")
        check(served(server)[1] == whole, "a bias that is kept in float32")


def another_base(server, steps):
    """Under the same label, another base differs from the right one in a tensor that the delta does not change."""
    norm = "model.norm.weight"
    new = {**steps[1], norm: steps[0][norm]}
    other = {**steps[0], norm: stepped({norm: steps[0][norm]}, 5, share=1)[norm]}
    right, wrong, to = (save(*what) for what in (("right.safetensors", steps[0]), ("wrong.safetensors", other),
                                                ("new.safetensors", new)))
    made, delta = os.path.join(FOLDER, "none.safetensors"), os.path.join(FOLDER, "right.delta")
    baton.push(other, server.url, weight_version="base")
    said = run("push", to, "--delta-from", "base", "--delta-base", right, "--url", server.url, status=1)
    check(f"'{norm}' have checksum" in said and "from another base" in said, said)
    for by_client in (False, True):
        if by_client:
            baton.delta.write(delta, steps[0], new, "base", "new")
        else:
            run("weights", "delta", right, to, "-o", delta, "--delta-from", "base", "--weight-version", "new")
        said = run("weights", "apply", wrong, delta, "-o", made, status=2)
        check(norm in said and "another base" in said and not os.path.exists(made), said)
        said = run("push", delta, "--url", server.url, status=1)
        check(f"'{norm}' have checksum" in said and "from another base" in said and served(server) == ("base", sums(other)), said)
        if baton.delta._Zstd().there or by_client:
            try:
                baton.delta.read(delta, other)
                raise SystemExit("a delta was applied to another base")
            except baton.InputError as e:
                check(norm in str(e), e)
    baton.push(steps[0], server.url, weight_version="base")
    run("push", delta, "--url", server.url)
    check(served(server) == ("new", sums(new)), "the right base")


def labels(server, steps):
    """What a file says of the versions stands unless the command does; a base that it does not name, the command has to."""
    url, delta = ("--url", server.url), os.path.join(FOLDER, "labels.delta")
    base = save("theirs.safetensors", steps[0], {"baton.weight_version": "theirs"})
    to = save("to.safetensors", steps[1])
    run("push", base, "--weight-version", "A", *url)
    check(served(server) == ("A", sums(steps[0])), "the command's label of a whole file")
    baton.delta.write(delta, steps[0], steps[1], "A", "N")
    run("push", delta, "--weight-version", "mine", *url)
    check(served(server) == ("mine", sums(steps[1])), "the command's label of a delta file")
    run("push", base, *url)
    check(served(server) == ("theirs", sums(steps[0])), "the file's label")
    said = run("push", delta, "--delta-from", "theirs", *url, status=1)
    check("builds on version 'A'" in said and "says 'theirs'" in said, said)
    baton.delta.write(delta, steps[0], steps[1])
    check("--delta-from" in run("push", delta, *url, status=2), "a delta that names no base")
    run("push", to, "--weight-version", "theirs", *url)
    said = run("push", delta, "--delta-from", "theirs", *url, status=1)
    check("(at /checksums/" in said and "from another base" in said, said)
    run("push", base, *url)
    run("push", delta, "--delta-from", "theirs", "--weight-version", "new", *url)
    check(served(server) == ("new", sums(steps[1])), "a base that only the command names")
    run("weights", "delta", base, to, "-o", delta)
    run("push", base, *url)
    run("push", delta, *url)
    check(served(server)[1] == sums(steps[1]), "a base that says its version")
    for path in (delta, os.path.join(FOLDER, "bare.delta")):
        try:
            baton.push(path, server.url)
            raise SystemExit("the client took a delta file for tensors")
        except baton.InputError as e:
            check("is a delta" in str(e) and "baton push" in str(e), e)


def about_deltas(server, steps):
    """What the command line says of the base and of the proof."""
    url, made = ("--url", server.url), os.path.join(FOLDER, "made.safetensors")
    base = save("labelled.safetensors", steps[0], {"baton.weight_version": "B"})
    delta = os.path.join(FOLDER, "proof.delta")
    baton.delta.write(delta, steps[0], steps[1], "A", "N")
    said = run("weights", "apply", base, delta, "-o", made, status=2)
    check("version 'B'" in said and "version 'A'" in said and not os.path.exists(made), said)
    baton.delta.write(delta, steps[0], steps[1], "B", "N")
    said = run("weights", "apply", base, delta, "-o", made)
    n = len(sums(steps[1]).items() - sums(steps[0]).items())
    check(f"{n} of them from the delta, {len(steps[1])} of all proven" in said and "warning" not in said, said)
    parts = baton.delta.encode(steps[0], steps[1]).parts
    bare = save("bare.delta", parts, {"format": "baton-delta-1", "base_version": "B", "version": "N"})
    said = run("weights", "apply", base, bare, "-o", made)
    check("0 of all proven" in said and f"no checksum of {len(steps[1])} of the tensors" in said, said)
    labels(server, steps)
    another_base(server, steps)
    # A delta is one file; among others it is not taken for whole tensors.
    folder = os.path.join(FOLDER, "several")
    os.mkdir(folder)
    about = {"format": "baton-delta-1", "base_version": "B"}
    names = list(steps[1])
    for k, share in enumerate((names[:9], names[9:])):
        save(os.path.join("several", f"{k}.safetensors"), {n: steps[1][n] for n in share}, about if k else None)
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"weight_map": {n: f"{int(k >= 9)}.safetensors" for k, n in enumerate(names)}}, f)
    before = served(server)
    check("each delta by itself" in run("push", folder, *url, status=2), "several files, one of them a delta")
    check(served(server) == before, "several files, one of them a delta")


def from_command_line(server, steps, other):
    paths = [save(f"{k}.safetensors", tensors) for k, tensors in enumerate(steps)]
    url = ("--url", server.url)
    run("push", paths[0], "--weight-version", "step-0", *url)
    said = run("push", paths[1], "--weight-version", "step-1", "--delta-from", "step-0", "--delta-base", paths[0], *url)
    check("tensors changed, " in said and " instead of 1.8 MB in" in said, said)
    check(served(server) == ("step-1", sums(steps[1])), "push --delta-base")
    delta, made = os.path.join(FOLDER, "2.delta"), os.path.join(FOLDER, "made.safetensors")
    said = run("weights", "delta", paths[1], paths[2], "-o", delta, "--delta-from", "step-1", "--weight-version", "step-2")
    check("of 46 tensors changed, " in said, said)
    check(os.path.getsize(delta) < 0.02 * 1837824, os.path.getsize(delta))
    run("weights", "apply", paths[1], delta, "-o", made)
    check("the same: 46 tensors" in run("weights", "diff", made, paths[2]), "weights apply")
    if baton.delta._Zstd().there:
        check(sums(baton.delta.read(delta, paths[1])) == sums(steps[2]), "the client reads it")
    run("push", delta, *url)
    check(served(server) == ("step-2", sums(steps[2])), "push of a delta file")
    check("builds on another base, version step-1" in run("weights", "apply", paths[2], delta, "-o", made, status=2),
          "weights apply to another base")
    check("'step-1'" in run("push", delta, *url, status=1), "push of a delta whose base is gone")
    baton.delta.write(delta, steps[2], steps[3], "step-2", "step-3")
    run("weights", "apply", paths[2], delta, "-o", made)
    check("the same: 46 tensors" in run("weights", "diff", made, paths[3]), "weights apply of the client's file")
    run("push", delta, *url)
    check(served(server) == ("step-3", sums(steps[3])), "push of the client's file")
    said = run("push", paths[1], "--weight-version", "all", "--delta-from", "step-2", "--delta-base", paths[2], *url)
    check("all is sent, not a delta: " in said and served(server) == ("all", sums(steps[1])), said)
    said = run("push", STEP_1500, "--delta-from", "all", "--delta-base", paths[1], *url)
    check(served(server)[1] == sums(other), said)
    check("--delta-base" in run("push", paths[0], "--delta-from", "all", *url, status=2), "half of it")
    check("needs --output" in run("weights", "delta", paths[0], paths[1], status=2), "no file to write")
    small = save("small.safetensors", dict(list(steps[0].items())[:3]))
    check("is missing in what is to follow" in run("weights", "delta", paths[0], small, "-o", made, status=2), "fewer")
    check("is not in the base" in run("weights", "delta", small, paths[0], "-o", made, status=2), "more")
    check("is no delta" in run("weights", "apply", paths[0], paths[1], "-o", made, status=2), "no delta")
    check(not [n for n in os.listdir(FOLDER) if n.startswith(("2.delta.", "made.safetensors."))], "what is left")


def killed(server, steps):
    """A trainer that dies between its delta and the finish."""
    code = ("import sys, time; sys.path.insert(0, sys.argv[1]); import baton, baton.delta as d\n"
            "d.ask, ask = (lambda url, method, path, *a, **k: (print('here', flush=True), time.sleep(600))"
            " if path.endswith('finish') else ask(url, method, path, *a, **k)), d.ask\n"
            "baton.push(sys.argv[4], sys.argv[2], delta_from=sys.argv[5], delta_base=sys.argv[3])\n")
    args = [os.path.join(FOLDER, f"{k}.safetensors") for k in (0, 1)]
    baton.push(steps[0], server.url, weight_version="base")
    before = served(server)
    with subprocess.Popen([sys.executable, "-c", code, CLIENT, server.url, *args, "base"], stdout=subprocess.PIPE,
                          text=True) as child:
        check(child.stdout.readline() == "here\n", "the delta was not sent")
        child.send_signal(signal.SIGKILL)
    check(served(server) == before, "a killed trainer's delta is served")
    _, status = server.ask("GET", "/v1/status")
    server.ask("POST", "/v1/update_weights/abort", {"update_id": status["update"]["update_id"]})
    update = baton.push(steps[1], server.url, weight_version="after", delta_from="base", delta_base=steps[0])
    check(update["delta"] and served(server) == ("after", sums(steps[1])), "the next delta")


with server_of("client_delta.log") as one:
    made = versions()
    from_python(one, made)
    about_deltas(one, made)
    by_update(one, made)
    partly(one, made)
    what_only_comes_whole(one, made)
    from_command_line(one, made, baton.load_file(STEP_1500))
    killed(one, made)
kept_wider()
print(f"ok: {n_checks} checks")
