"""replay_layout: the blocks of every layout of the bundled models are those that the client cuts from routed_experts,
byte for byte, and a layout that cannot be is refused by both with the same words.
Usage: replay_blocks.py BATON FIXTURES FOLDER (the last line says how many checks were made)"""

import base64
import itertools
import json
import sys

import baton
import numpy as np

from fleet_world import Server

BATON, FIXTURES, FOLDER = sys.argv[1:]
PP, CP = "pipeline_parallel_size", "context_parallel_size"
FIRST, LAST = "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"
DENSE, MULTIPLE = "num_leading_dense_layers", "sequence_multiple"
PROMPT, MAX_TOKENS, N = [5, 9, 400, 77, 3], 6, 2
n_checks = 0


def check(condition, *what):
    global n_checks
    n_checks += 1
    assert condition, what


def request(layout, **more):
    return {"token_ids": PROMPT, "return_routed_experts": True, "replay_layout": layout,
            "sampling_params": {"max_tokens": MAX_TOKENS, "ignore_eos": True, "seed": 3, "n": N}, **more}


def refusal(server, body):
    try:
        baton.request(server.url, "POST", "/v1/generate", body)
    except baton.BatonError as e:
        return e
    raise AssertionError(f"not refused: {body}")


def client_cut(layout, model, routes, length=None):
    value = model.routed
    return baton.cut_routed_experts(routes, layout, model.n_layers, value["layers"], length)


def same_blocks(found, wanted):
    check(len(found) == len(wanted), len(found), len(wanted))
    for block, want in zip(found, wanted):
        check(base64.b64decode(block["data"], validate=True) == want.routes.tobytes(), block, want)
        check(block["shape"] == list(want.routes.shape) and block["dtype"] == want.routes.dtype.name, block, want)
        check((block["pipeline_rank"], block["context_rank"]) == want[:2], block, want)
        check(block["layers"] == list(want.layers), block, want)
        check((baton.decode_routed_experts(block) == want.routes).all(), block)


class Model:
    """A server of one of the bundled models, and a reply's routed experts."""

    def __init__(self, name, server):
        self.server = server
        with open(f"{FIXTURES}/{name}/config.json", encoding="utf-8") as file:
            self.n_layers = json.load(file)["num_hidden_layers"]
        self.routed = self.generate(None)[0]["routed_experts"]

    def generate(self, layout, **more):
        return baton.request(self.server.url, "POST", "/v1/generate", request(layout, **more))["choices"]


def layouts(n_layers):
    for pp, cp, first, last, multiple in itertools.product(range(1, n_layers + 2), (1, 2, 3, 8), (None, 1, 2),
                                                           (None, 1, n_layers), (None, 6, 16)):
        yield {PP: pp, CP: cp, FIRST: first, LAST: last, MULTIPLE: multiple}


def one_layout(model, layout):
    try:
        client_cut(layout, model, baton.decode_routed_experts(model.routed))
    except baton.InputError as refused:
        e = refusal(model.server, request(layout))
        check((e.status, e.code, e.param) == (400, "bad_request", refused.param), e, refused)
        check(e.message == refused.message, e.message, refused.message)
        return 0
    for choice in model.generate(layout):
        routes = baton.decode_routed_experts(choice["routed_experts"])
        check(len(routes) == len(PROMPT) + len(choice["token_ids"]) - 1, routes.shape)
        same_blocks(choice["replay_blocks"], client_cut(layout, model, routes))
    return 1


def dense_layers(model):
    sparse = model.routed["layers"]
    for leading in range(model.n_layers + 2):
        layout = {PP: 1, CP: 1, DENSE: leading}
        check(one_layout(model, layout) == (sparse == list(range(leading, model.n_layers))), layout)


def other_members(model):
    """Members of another type, unknown ones, and none."""
    for layout in ({}, {PP: 1}, {CP: 1}, {PP: True, CP: 1}, {PP: 1, CP: "2"}, {PP: 1.5, CP: 1}, {PP: 1, CP: [1]},
                   {PP: 1, CP: 0}, {PP: 1, CP: 257}, {PP: 1, CP: 1, MULTIPLE: 0}, {PP: 1, CP: 1, MULTIPLE: 1 << 21}):
        check(one_layout(model, layout) == 0, layout)
    check(one_layout(model, {PP: 1.0, CP: 1}) == 1, "a whole real is an integer")
    e = refusal(model.server, request({PP: 1, CP: 1, "vp_size": 2}))
    check(e.param == "/replay_layout/vp_size" and e.message.startswith("unknown member 'vp_size'"), e)
    check(refusal(model.server, request([1])).param == "/replay_layout", "an array")
    e = refusal(model.server, request({PP: 1, CP: 1}, return_routed_experts=False))
    check(e.param == "/replay_layout" and '"return_routed_experts": true' in e.message, e)
    e = refusal(model.server, request({PP: 1, CP: 1, MULTIPLE: 1 << 20},
                                      sampling_params={"max_tokens": 1, "n": 128}))
    check((e.status, e.code, e.param) == (413, "too_large", "/replay_layout"), e)
    check("replay_blocks" not in model.generate(None)[0], "not asked")


def other_replies(model):
    """A later prompt start, a stream, one token: the blocks are of the whole sequence."""
    layout = {PP: model.n_layers, CP: 2}
    sampling = {"max_tokens": MAX_TOKENS, "ignore_eos": True, "seed": 3, "n": N}
    whole = [choice["replay_blocks"] for choice in model.generate(layout)]
    later = model.generate(layout, sampling_params={**sampling, "routed_experts_prompt_start": 4})
    check([choice["replay_blocks"] for choice in later] == whole, "later start")
    check(later[0]["routed_experts"]["shape"][0] == len(PROMPT) + MAX_TOKENS - 1 - 4, later)
    choice, = model.generate(layout, sampling_params={**sampling, "n": 1, "max_tokens": 1})
    same_blocks(choice["replay_blocks"], client_cut(layout, model, baton.decode_routed_experts(
        choice["routed_experts"]), len(PROMPT) + 1))
    last = {}
    for line in model.server.post("/v1/generate", request(layout, stream=True)).split("\n\n")[:-2]:
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            check(("replay_blocks" in choice) == (choice["finish_reason"] is not None), choice)
            last[choice["index"]] = choice
    check([last[i]["replay_blocks"] for i in range(N)] == whole, "stream")


def main():
    for name in ("tiny-qwen3-moe", "tiny-mixtral", "tiny-deepseek"):
        with Server(BATON, f"{FOLDER}/log", "--model", f"{FIXTURES}/{name}") as server:
            model = Model(name, server)
            n = sum(one_layout(model, layout) for layout in layouts(model.n_layers))
            check(n > 10, name, n)
            dense_layers(model)
            other_members(model)
            other_replies(model)
    print(n_checks)


main()
