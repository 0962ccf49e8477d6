"""Replies of a running server have the members that openapi/baton.json gives them: none that it does
not describe, each that it describes is in one of them, and values are of its types and words.
Usage: replies.py URL BATON_JSON CHECKPOINT URL_OF_EXPERTS URL_IN_FRONT
  of servers: the second serves a model with experts; the third is in front of the second, and its replies need
  not have every member"""

import json
import sys
import urllib.error
import urllib.parse
import urllib.request

KINDS = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict,
         "null": type(None)}


def is_of(schema, value):
    """Is the value of the schema's types, and one of its words?"""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    fits = not kinds or any(isinstance(value, KINDS[kind]) and (kind == "boolean") == isinstance(value, bool)
                            for kind in kinds)
    return fits and value in schema.get("enum", [value]) and value == schema.get("const", value)


class Check:
    def __init__(self, url, document):
        self.url, self.document = url, document
        self.wrong, self.is_in_front = set(), False
        self.met = {}  # id of a schema -> where it was met first, its members, those seen

    def resolve(self, schema):
        while "$ref" in schema:
            found = self.document
            for step in schema["$ref"].split("/")[1:]:
                found = found[step]
            schema = found
        return schema

    def walk(self, schema, value, where):
        schema = self.resolve(schema)
        if "oneOf" in schema:
            branches = [self.resolve(s) for s in schema["oneOf"]]
            schema = next(s for s in branches if (s.get("type") == "null") == (value is None))
        if not is_of(schema, value):
            self.wrong.add(f"{where}: {json.dumps(value)[:60]} is not what the document has")
        if isinstance(value, list):
            for element in value:
                self.walk(schema.get("items", {}), element, where + "/*")
        if not isinstance(value, dict) or "properties" not in schema:
            return
        # x-upstreams: what only a server in front of upstream engines says.
        members = {name for name, of in schema["properties"].items() if self.is_in_front or not of.get("x-upstreams")}
        first = where
        if not self.is_in_front:
            first, _, seen = self.met.setdefault(id(schema), (where, members, set()))
            seen |= set(value) & members
        self.wrong |= {f"{first}: '{name}' is in a reply, not in the document"
                       for name in set(value) - members}
        for name, member in value.items():
            if name in schema["properties"]:
                self.walk(schema["properties"][name], member, f"{where}/{name}")

    def ask(self, method, path, body=None, route=None, media="application/json"):
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": media}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, reply = answer.status, json.load(answer)
        except urllib.error.HTTPError as refusal:
            status, reply = refusal.code, json.load(refusal)
        operation = self.document["paths"][route or path.partition("?")[0]][method.lower()]
        told = operation["responses"].get(str(status), operation["responses"].get("default"))
        if told is None:
            raise SystemExit(f"{method} {path}: status {status} is not described: {reply}")
        schema = self.resolve(told)["content"]["application/json"]["schema"]
        self.walk(schema, reply, f"{operation['operationId']} {'ok' if status < 300 else 'error'}")
        return reply

    def report(self):
        for where, members, seen in self.met.values():
            self.wrong |= {f"{where}: '{name}' is in the document, not in a reply"
                           for name in members - seen}
        if self.wrong:
            raise SystemExit("\n".join(sorted(self.wrong)))
        print(f"{sum(len(seen) for _, _, seen in self.met.values())} members are in both")


def updates(c, checkpoint):
    tensors = "application/vnd.safetensors"
    start = c.ask("POST", "/v1/update_weights/start", {"lease_s": 60})
    one = {"update_id": start["update_id"]}
    c.ask("GET", "/v1/status")
    c.ask("POST", "/v1/update_weights/renew", one)
    c.ask("POST", "/v1/update_weights/finish", one)  # incomplete
    c.ask("POST", "/v1/update_weights/abort", one)
    c.ask("GET", "/v1/update_weights/" + one["update_id"], route="/v1/update_weights/{id}")
    c.ask("DELETE", "/v1/update_weights/" + one["update_id"], route="/v1/update_weights/{id}")
    c.ask("POST", "/v1/update_weights?weight_version=two", checkpoint, media=tensors)
    c.ask("POST", "/v1/update_weights?weight_version=two", checkpoint[:99], media=tensors)
    row = {"names": ["model.norm.weight"], "dtypes": ["BF16"], "shapes": [[128]]}
    c.ask("POST", "/v1/weights/plans", row)
    c.ask("GET", "/v1/weights")
    start = c.ask("POST", "/v1/update_weights/start", {"trainer_ranks": 1})
    c.ask("POST", "/v1/update_weights/abort", {"update_id": start["update_id"]})


def generations(c):
    params = {"max_tokens": 2, "logprobs": 1, "prompt_logprobs": 1}
    for path in "/v1/generate", "/inference/v1/generate":
        c.ask("POST", path, {"token_ids": [40, 77], "sampling_params": params})
        c.ask("POST", path, {"token_ids": [-1], "sampling_params": params})
    c.ask("POST", "/v1/completions", {"prompt": "In the", "return_token_ids": True, **params})
    c.ask("POST", "/v1/completions", {"prompt": []})
    ids = c.ask("POST", "/tokenize", {"prompt": "In the", "return_token_strs": True})["tokens"]
    c.ask("POST", "/detokenize", {"tokens": ids})
    c.ask("POST", "/detokenize", {"tokens": [-1]})
    sglang = {"text": "In the", "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}
    for method in "POST", "PUT":
        c.ask(method, "/generate", {"sampling_params": {"max_new_tokens": 2}, **sglang})
    c.ask("POST", "/generate", {"text": []})
    c.ask("POST", "/load_lora_adapter", {"lora_name": "x"})


def life(c):
    for path in "/v1/pause", "/v1/resume", "/v1/sleep", "/v1/wake", "/v1/reset_cache":
        c.ask("POST", path, {})
    for action in "checksum", "snapshot", "compare":
        c.ask("POST", "/v1/weights/check", {"action": action})
    c.ask("POST", "/v1/preflight", {"ipc_handles": [], "names": [], "dtypes": [], "shapes": []})
    c.ask("GET", "/v1/weights/diff")


def experts(c):
    layout = {"pipeline_parallel_size": 1, "context_parallel_size": 1}
    c.ask("POST", "/v1/generate", {"token_ids": [40, 77], "sampling_params": {"max_tokens": 2},
                                   "return_routed_experts": True, "replay_layout": layout})


def fleet(c):
    c.is_in_front = True
    c.ask("GET", "/v1/status")
    listed = c.ask("GET", "/v1/upstreams")["list"]
    ready = "/v1/upstreams/ready?upstream=" + urllib.parse.quote(listed[0]["upstream"])
    c.ask("GET", ready)
    for path in "/v1/pause", "/v1/resume", "/v1/sleep", "/v1/wake":
        c.ask("POST", path, {})
    start = c.ask("POST", "/v1/update_weights/start", {})
    c.ask("GET", "/v1/status")
    c.ask("POST", "/v1/update_weights/abort", {"update_id": start["update_id"]})
    c.ask("GET", "/v1/status")


def main():
    with open(sys.argv[2], encoding="utf-8") as f:
        c = Check(sys.argv[1], json.load(f))
    with open(sys.argv[3], "rb") as f:
        checkpoint = f.read()
    for path in "/livez", "/version", "/v1/status", "/v1/models":
        c.ask("GET", path)
    c.ask("GET", "/readyz")  # not yet: nothing is served
    updates(c, checkpoint)
    c.ask("GET", "/readyz")
    generations(c)
    life(c)
    c.url = sys.argv[4]
    experts(c)
    c.url = sys.argv[5]
    fleet(c)
    c.report()


main()
