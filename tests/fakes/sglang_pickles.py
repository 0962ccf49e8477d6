"""The pickles in which SGLang's trainers (slime, verl and others) send tensors, made by pickle itself
from stand-ins that bear torch's and SGLang's names; no torch is needed. What is in them is said in
transport/ipc/torch_tensors.h."""

import base64
import contextlib
import pickle
import sys
import types

from ipc_trainer import _MODULES, _arguments

DEVICE = 6  # among the arguments of rebuild_cuda_tensor
PATCH, OLD_PATCH = "sglang.srt.utils.patch_torch", "sglang.srt.patch_torch"
BUCKET = "sglang.srt.weight_sync.tensor_bucket"
LOCAL = "sglang.srt.model_executor.model_runner"


for _dtype in vars(_MODULES["torch"]).values():  # torch's have one string between them
    if hasattr(_dtype, "name"):
        _dtype.__module__ = _MODULES["torch"].uint8.__module__


class Global:
    """A function or class of that module and name, for pickle to find where it will look."""

    def __init__(self, module, name, made):
        made.__module__, made.__qualname__, made.__name__ = module, name, name
        self.module, self.name, self.made = module, name, made


def function(module, name):
    def called(*_):
        raise AssertionError("a pickle is read, never executed")

    return Global(module, name, called)


def dataclass(module, name):
    """An object that is nothing but its dict; `made(**members)`."""
    return Global(module, name, type(name, (), {
        "__init__": lambda self, **members: self.__dict__.update(members)}))


@contextlib.contextmanager
def _found(used):
    """For a moment, modules by those names hold the globals."""
    modules = dict(_MODULES)
    for g in used:
        module = modules.get(g.module)
        if module is None or module is _MODULES.get(g.module):
            made = types.ModuleType(g.module)
            made.__dict__.update({} if module is None else module.__dict__)
            modules[g.module] = module = made
        setattr(module, g.name, g.made)
        parts = g.module.split(".")
        for n in range(1, len(parts)):
            parent = ".".join(parts[:n])
            modules.setdefault(parent, types.ModuleType(parent))
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


class Pickles:
    """How one trainer writes. @rebuild the module that patched torch; None: torch's own function,
    with the sender's index of the GPU"""

    def __init__(self, rebuild=PATCH, bucket=BUCKET, local=LOCAL, index=0, protocol=4):
        name = "rebuild_cuda_tensor" if rebuild is None else "_rebuild_cuda_tensor_modified"
        self.function = function(rebuild or "torch.multiprocessing.reductions", name)
        self.metadata = dataclass(bucket, "FlattenedTensorMetadata")
        self.local = dataclass(local, "LocalSerializedTensor")
        self.index = index if rebuild is None else None
        self.protocol = protocol

    def dumps(self, value):
        with _found((self.function, self.metadata, self.local)):
            return pickle.dumps(value, self.protocol)

    def text(self, value):
        return base64.b64encode(self.dumps(value)).decode()

    def tensor(self, x):
        """A CUDA tensor; the same object twice is the same tensor."""
        arguments = list(_arguments(x))
        arguments[DEVICE] = x.uuid if self.index is None else self.index
        return _Reduced(self.function.made, tuple(arguments))

    def named(self, pairs):
        """[(name, tensor)]"""
        return self.text([(name, tensor) for name, tensor in pairs])

    def serialized(self, pairs):
        """[(name, [export of each rank])], each in a LocalSerializedTensor."""
        return self.text([
            (name, self.local.made(values=[self.dumps(self.tensor(x)) for x in exports]))
            for name, exports in pairs])

    def part(self, name, shape, dtype, start, end, **more):
        """FlattenedTensorMetadata"""
        torch = _MODULES["torch"]
        return self.metadata.made(name=name, shape=torch.Size(shape), dtype=getattr(torch, dtype),
                                  start_idx=start, end_idx=end, numel=end - start, **more)

    def flattened(self, x, parts):
        return self.text({"flattened_tensor": self.tensor(x), "metadata": list(parts)})

    def bucket(self, x, columns):
        """As FlattenedTensorBucket cuts it: [(name, shape, dtype, elements of x)] back to back."""
        parts, at = [], 0
        for name, shape, dtype, n in columns:
            parts.append(self.part(name, shape, dtype, at, at + n))
            at += n
        return self.flattened(x, parts)


class _Reduced:
    def __init__(self, function_, arguments):
        self.function, self.arguments = function_, arguments

    def __reduce__(self):
        return self.function, self.arguments
