"""checkpoint-engine's own ParameterServer and api, unmodified, on a CPU: over the suite's driver in
place of CUDA's, which is built beside the program. What it does is what
tests/gpu/test_checkpoint_engine.py does on a GPU.
Usage: test_checkpoint_engine.py --baton PROGRAM"""

import os
import pathlib
import sys

import real_world

FAKES = ("libfakecuda.so", "libfakecuda_foreign.so")  # the server's, the trainer's


def main():
    args = real_world.options()
    folder = pathlib.Path(args.baton).resolve().parent / "tests" / "fakes" / "libcuda"
    fakes = [folder / name for name in FAKES]
    missing = [str(f) for f in fakes if not f.exists()]
    if missing:
        print(f"FAIL: {', '.join(missing)} not there: build fakecuda and fakecuda_foreign")
        return 1
    test = real_world.ROOT / "tests" / "gpu" / "test_checkpoint_engine.py"
    os.environ["PYTHONPATH"] = str(real_world.ROOT / "tests" / "fakes")
    os.environ["BATON_REQUIRE_GPU"] = "1"  # what cannot be imported is a failure
    command = [sys.executable, "-B", str(test), "--baton", args.baton]
    os.execv(sys.executable, [*command, "--fakes", ",".join(map(str, fakes))])


if __name__ == "__main__":
    sys.exit(main())
