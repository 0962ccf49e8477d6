"""How many stops a reader makes who follows an update through the program. A stop is a stay in a file that runs a function
not met yet; a return is one that runs none. Each stack is followed by itself: that of a thread, or of a job that waits without
holding its thread. Functions of headers and of libraries are passed over. --stays lists the stops.

The program is built with -finstrument-functions, trace_calls.c as a shared object:

    cmake --preset release -B build/trace -DBATON_TESTS=ON -DCMAKE_C_FLAGS="-finstrument-functions -fno-inline"
    ninja -C build/trace baton fake_engine fakecuda
    gcc -O2 -shared -fPIC -o build/trace/trace_calls.so tests/tools/trace_calls.c
    python3 tests/tools/trace_calls.py build/trace tests/fixtures/kjv-qwen3-1m

Usage: trace_calls.py BUILD MODEL [--stays]
"""

import glob
import os
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [f"{HERE}/http/lib", f"{HERE}/fakes"]

from fake_engine_world import Double  # noqa: E402
from fleet_world import Server, until  # noqa: E402

BUILD, MODEL = map(os.path.abspath, sys.argv[1:3])
TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NEAR = 4096  # bytes between the frames of stack_change() and of what it calls
HANDLES = {"names": ["a", "b"], "dtypes": ["bfloat16", "bfloat16"], "shapes": [[1], [2, 3]], "packed": True,
           "tensor_sizes": [2, 12], "ipc_handles_pickled": "gASVAAAAAAAAAAB9lC4="}


def passed_on(server):
    mine = {"update_id": server.post("/v1/update_weights/start", {"weight_version": "a"})["update_id"]}
    server.post("/v1/update_weights", dict(HANDLES, **mine))
    server.post("/v1/update_weights/finish", mine)


def handed_over(server):
    server.post("/v1/update_weights", {"path": f"{MODEL}/checkpoints/step-00100.safetensors", "weight_version": "a"})


def trace(does, work, *options):
    """(begin, end) of the walk in µs"""
    os.mkdir(work)
    os.environ.update(TRACE_DIR=work, FAKECUDA_DEVICES="1")
    with Double(f"{BUILD}/tests/fakes/fake_engine", "vllm", "--vllm-version", "0.33.0", "--weight-version", "0") as d:
        os.environ["LD_PRELOAD"] = f"{BUILD}/trace_calls.so"
        with Server(f"{BUILD}/baton", f"{work}.log", "--upstream", f"{d.url},vllm", "--probe-interval", 600000, "--prove", "none",
                    *options) as server:
            del os.environ["LD_PRELOAD"]
            until("it serves", server.ready)
            time.sleep(1)
            begin = time.monotonic_ns() // 1000
            does(server)
            return begin, time.monotonic_ns() // 1000


class Program:
    """Names and files of the functions of the traced program, by their addresses in the trace."""

    def __init__(self, work):
        base = int(open(f"{work}/base").read())
        lines = subprocess.run(["nm", f"{BUILD}/baton"], capture_output=True, text=True, check=True).stdout.splitlines()
        self.names = {int(at, 16) + base: name for at, kind, name in (l.split() for l in lines if len(l.split()) == 3) if kind in "tT"}
        asked = "\n".join(hex(a - base) for a in self.names)
        said = subprocess.run(["addr2line", "-e", f"{BUILD}/baton"], input=asked, capture_output=True, text=True, check=True).stdout
        files = [os.path.relpath(line.partition(":")[0], TREE) for line in said.splitlines()]
        self.files = {a: file for a, file in zip(self.names, files) if file.endswith(".c")}
        self.change = next((a for a, name in self.names.items() if name == "stack_change"), None)

    def is_own(self, function):
        """Not of a library or a header."""
        return function in self.files


class Stack:
    """What one thread, or one job that waits without holding its thread, has called."""

    def __init__(self, thread):
        self.thread, self.frames, self.steps = thread, [], []  # [(function, where)], [(µs, function met or None, file)]

    def add(self, event, program):
        us, function, at, is_return = event
        if not is_return:
            self.frames.append((function, at))
        else:  # of the calls that setcontext() left for good nothing returns
            while self.frames and self.frames.pop()[0] != function:
                pass
        inner = next((f for f, _ in reversed(self.frames) if program.is_own(f)), None)
        if is_return or program.is_own(function):
            self.steps.append((us, None if is_return else function, program.files.get(inner)))


def stacks_of(path, program):
    """A thread changes its stack in stack_change() only: what comes there next, and from far away, is of another one."""
    with open(path, "rb") as file:
        events = list(struct.iter_unpack("<QQQQ", file.read()))
    stacks = [Stack(os.path.basename(path))]
    now = stacks[0]
    for event in events:
        if now.frames and now.frames[-1][0] == program.change and abs(now.frames[-1][1] - event[2]) > NEAR:
            left = [s for s in stacks if s.frames and s.frames[-1][0] == program.change and abs(s.frames[-1][1] - event[2]) <= NEAR]
            if not left:
                stacks.append(Stack(os.path.basename(path)))
            now = left[0] if left else stacks[-1]
        now.add(event, program)
    return stacks


class Walk:
    """Stays, in the order in which the stacks began: (stack, file, functions met there)."""

    def __init__(self, work, begin, end):
        program, self.n_calls, self.stays, met = Program(work), 0, [], set()
        stacks = [s for path in glob.glob(f"{work}/[0-9]*") for s in stacks_of(path, program)]
        for s in stacks:
            s.steps = [step for step in s.steps if begin <= step[0] <= end]
        self.stacks = sorted((s for s in stacks if s.steps), key=lambda s: s.steps[0])
        for s in self.stacks:
            at = None
            for _, function, file in s.steps:
                if file is not None and file != at:
                    self.stays.append((s, file, []))
                at = file
                if function is not None:
                    self.n_calls += 1
                    if function not in met:
                        self.stays[-1][2].append(program.names[function])
                    met.add(function)
        self.n_functions = len(met)

    def count(self, stack=None):
        stays = [stay for stay in self.stays if stack in (None, stay[0])]
        stops = sum(1 for _, _, new in stays if new)
        return {"stops": stops, "returns": len(stays) - stops, "functions": sum(len(new) for _, _, new in stays),
                "files": len({file for _, file, new in stays if new})}

    def show(self, name, verbose):
        print(f"{name}: {self.count()}, {self.n_calls} calls, {len({s.thread for s in self.stacks})} threads, "
              f"{len(self.stacks)} stacks", flush=True)
        for i, stack in enumerate(self.stacks if verbose else ()):
            print(f"  stack {i} of thread {stack.thread}: {self.count(stack)}")
            for _, file, new in (stay for stay in self.stays if stay[0] is stack and stay[2]):
                print(f"    {file}: {' '.join(new)}")


def main():
    with tempfile.TemporaryDirectory() as work:
        staged = ("--stage", "cuda:0", "--cuda-library", f"{BUILD}/tests/fakes/libcuda/libfakecuda.so", "--allow-path", MODEL,
                  "--manifest", f"{MODEL}/checkpoints/step-00000.safetensors")
        for does, options in (passed_on, ()), (handed_over, staged):
            at = f"{work}/{does.__name__}"
            Walk(at, *trace(does, at, *options)).show(does.__name__, "--stays" in sys.argv)


if __name__ == "__main__":
    main()
