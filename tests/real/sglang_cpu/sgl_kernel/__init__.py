"""Stands in for SGLang's compiled kernels, which need a GPU's driver to be loaded: every name is
there, and none works. Only scalar_type is the real one, which is Python. On PYTHONPATH before it."""

import importlib.abc
import importlib.machinery
import os
import sys
import types

__version__ = "0.4.5"
_REAL = [os.path.join(p, "sgl_kernel") for p in sys.path]
__path__ = [p for p in _REAL if os.path.exists(os.path.join(p, "scalar_type.py"))]


def _missing(name):
    def missing(*_args, **_more):
        raise NotImplementedError(f"{name} needs a GPU")

    return missing


class _Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _missing(f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("sgl_kernel.") and name != "sgl_kernel.scalar_type":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = _Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, _Finder())


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _missing(f"sgl_kernel.{name}")


def _gloo_for_nccl():
    """A group that is asked for by NCCL is one of gloo here."""
    from torch.distributed import distributed_c10d as c10d

    make = c10d._new_process_group_helper

    def helper(size, rank, ranks, backend, *args, **more):
        backend = c10d.Backend("gloo") if backend == "nccl" else backend
        return make(size, rank, ranks, backend, *args, **more)

    c10d._new_process_group_helper = helper


_gloo_for_nccl()
