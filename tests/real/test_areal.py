"""AReaL's backends, unmodified: the requests that they build are sent to baton, and its answers are
given to them to read. Once as it speaks to vLLM, once as to SGLang.
Usage: test_areal.py --baton PROGRAM [--record DIR]"""

import json
import sys

import real_world
from areal.api.cli_args import GenerationHyperparameters
from areal.api.io_struct import ModelRequest, WeightUpdateMeta
from areal.engine.sglang_remote import SGLangBackend
from areal.engine.vllm_remote import VLLMBackend
from real_world import ask, world

N, TOLERANCE = 8, 1e-3


def case(step):
    golden = json.loads((world.MODEL / "golden.json").read_text())["checkpoints"][step]["cases"][0]
    return golden["prompt_token_ids"], golden["greedy_token_ids"], golden["greedy_logprobs"]


def send(url, request):
    body = request.payload if request.method == "POST" else None
    reply = ask(url, request.method, request.endpoint, body)
    if reply.status != 200:
        raise AssertionError(f"{request.endpoint}: {reply}")
    return reply.body


def generates(checks, backend, url, step):
    prompt, ids, logprobs = case(step)
    params = GenerationHyperparameters(max_new_tokens=N, greedy=True)
    request = ModelRequest(input_ids=prompt, gconfig=params)
    made = send(url, backend.build_generation_request(request, False, 0))
    found = backend.parse_generation_response(made)
    checks.same(list(found.output_tokens), ids[:N], f"tokens of {step}")
    off = max(abs(a - b) for a, b in zip(found.output_logprobs, logprobs))
    checks.that(off < TOLERANCE, "and their logprobs", f"{off:.1e} off")


def score(checks, backend, url, step):
    """As its teacher does. Of SGLang's answer it cannot read what SGLang itself says of a prompt's
    first token."""
    prompt, ids, logprobs = case(step)
    made = send(url, backend.build_score_request(prompt + ids, len(ids), False, 0))
    found = backend.parse_score_response(made, len(ids))
    off = max(abs(a - b) for a, b in zip(found, logprobs))
    checks.that(off < TOLERANCE and len(found) == len(ids), "scores", f"{off:.1e} off")


def update(backend, url, step, version):
    send(url, backend.get_pause_request())
    meta = WeightUpdateMeta(type="disk", path=str(real_world.untied(step)), version=version)
    for request in backend.build_disk_weight_update_requests(meta).requests:
        send(url, request)
    send(url, backend.get_resume_request())


def play(checks, backend, url):
    send(url, backend.get_health_check_request())
    generates(checks, backend, url, "step-00100")
    if isinstance(backend, VLLMBackend):
        score(checks, backend, url, "step-00100")
    update(backend, url, "step-01500", 1)
    generates(checks, backend, url, "step-01500")
    send(url, backend.get_offload_request())
    send(url, backend.get_onload_request())
    if isinstance(backend, SGLangBackend):  # which has put nothing away: its weights are gone
        update(backend, url, "step-01500", 2)
    generates(checks, backend, url, "step-01500")


def main():
    args = real_world.options()
    checks = world.Checks()
    for backend in (VLLMBackend(), SGLangBackend()):
        name = type(backend).__name__
        with (
            checks.section(f"AReaL, {name}"),
            real_world.embedded(args) as server,
            real_world.recorded(args, server, f"areal-{name.lower()[:-7]}-to-baton") as url,
        ):
            play(checks, backend, url)
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
