"""The part of NIXL's Python package that baton's client uses, for the double of its library (tests/fakes/libnixl/): the
memory is that of this process."""
import ctypes
import os

PR_SET_PTRACER, ANY = 0x59616D61, ctypes.c_ulong(-1)
MEMORIES = {"DRAM": 0, "VRAM": 1}


class nixl_agent_config:
    def __init__(self, enable_prog_thread=True, backends=None):
        assert enable_prog_thread and backends == ["UCX"]


class nixl_agent:
    live = []  # ranges of all agents, for tests
    segments = None  # of the last one: what UCX read from the environment

    def __init__(self, name, config):
        assert isinstance(config, nixl_agent_config)
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANY, 0, 0, 0)  # who reads is no child of this process
        self.name = name
        nixl_agent.segments = [os.environ.get(f"UCX_TCP_{way}_SEG_SIZE") for way in ("TX", "RX")]

    def register_memory(self, ranges, mem_type):
        lines = [f"{MEMORIES[mem_type]} {device} {addr} {nbytes} /proc/{os.getpid()}/mem" for addr, nbytes, device, _ in ranges]
        nixl_agent.live += lines
        return lines

    def deregister_memory(self, lines):
        for line in lines:
            nixl_agent.live.remove(line)

    def get_agent_metadata(self):
        return "\n".join(["NIXLDOUBLE", self.name, str(os.getpid()), *self.live, ""]).encode()
