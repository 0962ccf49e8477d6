"""Pushes by deltas from Python and from the command line: three of them give the bytes of three whole pushes; without the base
the whole is sent; a trainer that is killed leaves the served version as it was.
Usage: client_delta.py BATON CLIENT_DIR FOLDER TESTS"""

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


def save(name, tensors):
    path = os.path.join(FOLDER, name)
    head, _ = baton.host.safetensors_head(list(tensors.items()), False)
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
    from_command_line(one, made, baton.load_file(STEP_1500))
    killed(one, made)
print(f"ok: {n_checks} checks")
