"""What the tests of SkyRL's forms share: a server with the embedded engine over the fake GPU, its
trainer's weights, and what the pushed checkpoint must generate."""

import asyncio
import json
import os

import baton  # noqa: E402
from ipc_trainer import pickled_dict  # noqa: E402
from ipc_world import NBYTES, TORCH, Server, Spec, fill, must  # noqa: E402
from remote_client import Refused, RemoteClient  # noqa: E402
from transfer_world import GIB, Ended, Groups, cut_vllm  # noqa: E402

MODEL = "kjv-qwen3-1m"
STEPS = ("step-00100", "step-01500", "step-00000")
TOLERANCE = 1e-4
TIED = ("lm_head.weight", "model.embed_tokens.weight")


class SkyRL(Groups):
    def __init__(self, *args, seed):
        super().__init__(*args, seed)
        self.steps, self.golden = {}, {}
        with open(f"{self.model}/golden.json", encoding="utf-8") as f:
            checkpoints = json.load(f)["checkpoints"]
        for step in STEPS:
            tensors = baton.load_file(f"{self.model}/checkpoints/{step}.safetensors")
            self.steps[step] = {n: (Spec(n, t.dtype, t.shape), bytes(t.data))
                                for n, t in tensors.items()}
            self.golden[step] = checkpoints[step]["cases"]

    def serving(self, step="step-00000", devices="cuda:0", n_devices="1", *options):
        """With the weights that a server has loaded before its trainer comes."""
        self.n_reports += 1
        report = os.path.join(self.folder, f"nccl-{self.n_reports}")
        return Ended(Server(self, "--model", self.model, "--weights",
                            f"{self.model}/checkpoints/{step}.safetensors", "--device", devices,
                            "--nccl-library", self.nccl, *options, devices=n_devices,
                            FAKENCCL_REPORT=report), report)

    def weights(self, step, tied=True):
        """[(spec, bytes)] as a state dict has them: of a tied model both names, the second last."""
        rows = list(self.steps[step].values())
        if tied:
            of = self.steps[step][TIED[1]]
            rows.append((Spec(TIED[0], of[0].dtype, of[0].shape), of[1]))
        return rows

    def case_of(self, case, endpoint="/inference/v1/generate", **more):
        return {"token_ids": case["prompt_token_ids"], "endpoint": endpoint,
                "sampling": {"max_tokens": len(case["greedy_token_ids"]), "min_tokens": 1,
                             "temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
                             "logprobs": 1, "stop": None, "skip_special_tokens": True,
                             "include_stop_str_in_output": True, "ignore_eos": True}, **more}

    async def generates(self, client, cases, what, **more):
        """All at once: exactly these tokens, with these logprobs."""
        found = await asyncio.gather(*(client.generate(**self.case_of(c, **more)) for c in cases))
        for case, (ids, finish, logprobs) in zip(cases, found):
            must(ids == case["greedy_token_ids"] and finish == "length", f"{what}: {ids}, {finish}")
            must(len(logprobs) == len(ids), f"{what}: {len(logprobs)} logprobs of {len(ids)}")
            for a, b in zip(logprobs, case["greedy_logprobs"]):
                must(abs(a - b) < TOLERANCE, f"{what}: logprob {a}, wanted {b}")

    async def serves(self, client, step, **more):
        await self.generates(client, self.golden[step], step, **more)


def url_of(server):
    return f"http://127.0.0.1:{server.port}"


def client_of(*servers, **more):
    return RemoteClient([url_of(s) for s in servers], MODEL, **more)


async def refused(status, words, waiting):
    try:
        await waiting
    except Refused as e:
        must(e.status == status and all(w in e.message for w in words), f"{status} {words}: {e}")
        return e
    raise AssertionError(f"{status} {words}: it was not refused")


def columns_of(rows, dtypes="dtype_names", **more):
    return {"names": [s.name for s, _ in rows], dtypes: [TORCH[s.dtype] for s, _ in rows],
            "shapes": [s.shape for s, _ in rows], **more}


def chunks_of(rows, threshold):
    """Of one dtype each, and of about `threshold` bytes."""
    out = []
    for spec, data in rows:
        if out and out[-1][0][0].dtype == spec.dtype and \
                sum(len(d) for _, d in out[-1]) + len(data) <= threshold:
            out[-1].append((spec, data))
        else:
            out.append([(spec, data)])
    return out


def export_of(trainer, rows, devices):
    """One bucket on each GPU, its storage seen as the tensors' dtype: {uuid: handle}, pickled."""
    content, exports = b"".join(d for _, d in rows), {}
    for device in devices:
        x = trainer.export(fill(trainer, device, content, front=512), 512, len(content))
        exports[x.uuid] = x.seen_as((len(content) // NBYTES[rows[0][0].dtype],),
                                    TORCH[rows[0][0].dtype])
    return pickled_dict(exports)


async def ask(trainer, name, *args):
    """Without keeping the loop from its requests."""
    return await asyncio.to_thread(trainer.ask, name, *args)


async def broadcast(trainer, blobs, request):
    """The trainer broadcasts while the request is under way."""
    trainer.begin("send", blobs)
    answer = await request
    await asyncio.to_thread(trainer.result)
    return answer
