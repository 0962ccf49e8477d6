"""The weights of linear.py: contents that differ in every tensor, parts of them, and adapters, as files."""

import json
import os
import random
import shutil
import struct

N_CONTENTS, N_ADAPTERS = 10, 4
# Of one element, the bits of the mantissa that may change: exponents do not, so every number stays finite.
MANTISSA = {"BF16": b"\x1f\0", "F16": b"\xff\0", "F32": b"\0\0\x3f\0"}


def read(path):
    with open(path, "rb") as f:
        return f.read()


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def parse(data):
    """({name: head of the tensor}, bytes of all tensors) of a safetensors file"""
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    head.pop("__metadata__", None)
    return head, data[8 + n:]


def build(head, body):
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def perturbed(data, seed):
    """Another content of the same shapes: its tokens are others soon."""
    head, body = parse(data)
    rand, out = random.Random(seed), bytearray(body)
    for tensor in head.values():
        at = slice(*tensor["data_offsets"])
        nbytes, mask = at.stop - at.start, MANTISSA[tensor["dtype"]]
        bits = int.from_bytes(mask * (nbytes // len(mask)), "little") & int.from_bytes(rand.randbytes(nbytes), "little")
        out[at] = (int.from_bytes(body[at], "little") ^ bits).to_bytes(nbytes, "little")
    return build(head, bytes(out))


def part_of(data):
    """The tensors of one layer and the last norm, as a file: what a partial update brings."""
    head, body = parse(data)
    out, part = b"", {}
    for name, tensor in head.items():
        if ".layers.2." in name or name == "model.norm.weight":
            piece = body[slice(*tensor["data_offsets"])]
            part[name] = dict(tensor, data_offsets=[len(out), len(out) + len(piece)])
            out += piece
    return build(part, out)


def misnamed(data, rand):
    """The file with a tensor that no model has."""
    head, body = parse(data)
    name = rand.choice(list(head))
    head[name + "x"] = head.pop(name)
    return build(head, body)


class Contents:
    """Contents by number. Each is also a file; and so are the adapters' directories."""

    def __init__(self, model, work):
        self.work = os.path.join(work, "files")
        os.makedirs(self.work)
        first, base, other = (read(f"{model}/checkpoints/step-{step}.safetensors") for step in ("00000", "01500", "00100"))
        self.whole = [first, base, other, *(perturbed(base, 1000 + k) for k in range(N_CONTENTS - 3))]
        self.parts = [part_of(data) for data in self.whole]
        for k, data in enumerate(self.whole):
            write(self.path(k), data)
            write(self.path(k, True), self.parts[k])
        for k in range(N_ADAPTERS):
            self._write_adapter(f"{model}/adapters/shout", k)

    def path(self, k, partial=False):
        return os.path.join(self.work, f"{'part' if partial else 'whole'}-{k}.safetensors")

    def adapter_path(self, k):
        return os.path.join(self.work, f"adapter-{k}")

    def data(self, k, partial):
        return self.parts[k] if partial else self.whole[k]

    def mixed(self, k, part):
        """Content k, over which the part of another one was committed; None: over which none was."""
        if part is None:
            return self.whole[k]
        head, body = parse(self.whole[k])
        part_head, part_body = parse(self.parts[part])
        out = bytearray(body)
        for name, tensor in part_head.items():
            out[slice(*head[name]["data_offsets"])] = part_body[slice(*tensor["data_offsets"])]
        return build(head, bytes(out))

    def _write_adapter(self, source, k):
        os.makedirs(self.adapter_path(k))
        shutil.copy(f"{source}/adapter_config.json", self.adapter_path(k))
        write(f"{self.adapter_path(k)}/adapter_model.safetensors",
              perturbed(read(f"{source}/adapter_model.safetensors"), 2000 + k))
