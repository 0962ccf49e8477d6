"""Common mistakes: each is answered with one line that says what is wrong and what to do.

Usage: mistakes.py command BATON MODEL WORK
       mistakes.py request URL WORK
"""

import http.client
import json
import os
import shutil
import subprocess
import sys
import zipfile

WAIT_S = 60

# The arguments, the exit status, and what must stand in the line that says "baton:". {m} is a model
# directory, {w} a folder with what files() makes; BATON_X=Y before the arguments is a variable.
COMMANDS = [
    ("server --model {m}", 2, ["unknown command 'server'; did you mean 'serve'?"]),
    ("serv", 2, ["did you mean 'serve'?"]),
    ("psuh x.safetensors", 2, ["unknown command 'psuh'; did you mean 'push'?"]),
    ("-q", 2, ["unknown command '-q'"]),
    ("serve {m} more", 2, ["unexpected argument 'more'", "'baton serve DIR'", "--model"]),
    ("serve --listen 127.0.0.1:0 {m}", 2, ["unexpected argument", "'baton serve DIR'", "--model"]),
    ("serve {m} --model {m}", 2, ["--model: ", "give one of the two"]),
    ("serve -p 9000", 2, ["unexpected argument '-p'", "two dashes", "'baton serve --help'"]),
    ("serve --insecure false", 2, ["unexpected argument 'false'", "--insecure=false"]),
    ("serve --model {m} --port 9000", 2,
     ["baton: --port: unknown option, did you mean --listen ADDRESS:PORT?"]),
    ("serve --model {m} --host 0.0.0.0", 2, ["--listen ADDRESS:PORT"]),
    ("serve --model-path {m}", 2, ["did you mean --model DIR?"]),
    ("serve --model {m} --max-num-seq 5", 2,
     ["baton: --max-num-seq: unknown option, did you mean --max-num-seqs?"]),
    ("serve --model {m} --frobnicate 5", 2,
     ["baton: --frobnicate: unknown option; 'baton serve --help' lists all"]),
    ("serve --model {m} --listen 9000", 2,
     ["--listen: '9000': it has no port; expected ADDRESS:PORT"]),
    ("serve --model {m} --max-versions 1", 2, ["'1' is out of range, expected 2 to 64"]),
    ("serve --model {m} --kv-cache 1GB", 2, ["--kv-cache: '1GB' is not a number of bytes", "2GiB"]),
    ("BATON_LISTEN=9000 serve --check --model {m}", 2, ["baton: BATON_LISTEN: '9000': it has no port"]),
    ("BATON_MODEL=/nowhere serve --check", 2, ["baton: BATON_MODEL: "]),
    ("serve --check --config {w}/nothing.json", 2, ["--config: '{w}/nothing.json' cannot be opened"]),
    ("serve --check --config {w}/comma.json", 2, ["baton: {w}/comma.json:3: it is not JSON"]),
    ("serve --check --config {w}/typo.json", 2,
     ["baton: {w}/typo.json:2: kv_cach: unknown member, did you mean kv_cache?"]),
    ("serve --check --config {w}/type.json", 2, ["baton: {w}/type.json:3: listen: a string is expected"]),
    ("serve --check --config {w}/listen.json --model {m}", 2,
     ["baton: {w}/listen.json:2: listen: '9000': it has no port"]),
    ("serve", 2, ["--model: it is missing", "'baton serve --model DIR'"]),
    ("serve Qwen/Qwen3-0.6B", 2,
     ["--model: there is no directory 'Qwen/Qwen3-0.6B'; a local one is expected",
      "'huggingface-cli download Qwen/Qwen3-0.6B --local-dir DIR'"]),
    ("serve --model {w}/nowhere", 2, ["--model: there is no directory '{w}/nowhere'"]),
    ("serve --model {m}/config.json", 2, ["is a file; the directory that holds config.json is expected"]),
    ("serve --model {w}/empty", 2, ["'{w}/empty' has no config.json; a Hugging Face model directory"]),
    ("serve --check --model {w}/bin", 2,
     ["--model: '{w}/bin' has its weights in pytorch_model.bin, and only .safetensors is read: convert",
      "--weights none"]),
    ("serve --model {w}/gpt2", 2,
     ['--model: {w}/gpt2: /architectures: architecture ["GPT2LMHeadModel"] is not supported; '
      "supported: Qwen3ForCausalLM, "]),
    ("serve --model {w}/sliding", 2,
     ["/sliding_window: sliding_window 256 is not supported; supported: null, or at least "
      "max_position_embeddings\n"]),
    ("serve --check {m} --max-model-len 1025", 2, ["baton: --max-model-len: 1025 is more than the 1024 positions"]),
    ("serve --check --model {w}/two-ropes", 2,
     ["/rope_scaling: rope_scaling and rope_parameters say different things", "remove the other"]),
    ("serve --check {m} --weights {w}/two-checkpoints", 2,
     ["--weights: directory '{w}/two-checkpoints' has model.safetensors beside an index"]),
    ("serve {m} --weights nope", 2, ["baton: --weights: there is no file or directory 'nope'\n"]),
    ("serve {m} --weights {w}/empty", 2, ["--weights: directory '{w}/empty' has neither model.safetensors"]),
    ("serve {m} --weights {w}/x.pt", 2,
     ["'{w}/x.pt': this is a zip file, as torch.save writes; a safetensors file is expected"]),
    ("serve {m} --weights {w}/pointer.safetensors", 2, ["a Git LFS pointer", "'git lfs pull'"]),
    ("serve --check --upstream http://127.0.0.1:1 --max-loras 3", 2, ["--max-loras: ", "remove --upstream"]),
    ("serve --check {m} --min-ready 1", 2, ["--min-ready: it has no effect without --upstream"]),
    ("serve --check --upstream http://127.0.0.1:1,vllm --allow-unseen-tensors", 2,
     ["--allow-unseen-tensors: it has no effect without --model or --manifest"]),
]

# What is no mistake, and is answered on standard output.
GOOD = [
    ("-V", "baton "), ("--version", "baton "), ("version", "baton "),
    ("help", "usage: baton serve DIR"), ("--help", "usage: baton serve DIR"), ("-h", "usage:"),
    ("BATON_LISTEN=127.0.0.1:0 serve {m} --check --weights none", "configuration: ok"),
    ("BATON_LISTEN=127.0.0.1:0 serve --check {m} --weights=none", "configuration: ok"),
    ("BATON_LISTEN=127.0.0.1:0 serve --check {w}/bin --weights none", "first weights: none"),
]

JSON, TENSORS = "application/json", "application/vnd.safetensors"

# The method, the path, what its body is and the body ("@FILE" in {w}), the status, and what must
# stand in the answer's message.
REQUESTS = [
    ("POST", "/update_weights", JSON, '{"path": "x.safetensors"}', 400,
     ["update_info is missing", "vLLM", "own to /v1/update_weights"]),
    ("POST", "/init_weight_transfer_engine", JSON, "{}", 400, ["own to /v1/weight_transfer/init"]),
    ("POST", "/update_weights/start", JSON, "{}", 404, ["did you mean /v1/update_weights/start?"]),
    ("GET", "/weights", None, None, 404, ["did you mean /v1/weights?"]),
    ("POST", "/completions", JSON, "{}", 404, ["did you mean /v1/completions?"]),
    ("POST", "/v1/responses", JSON, "{}", 404, ["/v1/responses is passed on to engines that have it (--upstream)"]),
    ("POST", "/v1/update_weights/", JSON, "{}", 404,
     ["there is no route /v1/update_weights/, did you mean /v1/update_weights?"]),
    ("GET", "/v1/weight", None, None, 404, ["did you mean /v1/weights?"]),
    ("GET", "/v1/update_weights", None, None, 405, ["/v1/update_weights takes POST"]),
    ("POST", "/generate", JSON, '{"token_ids": [1]}', 400, ["token_ids go to /v1/generate"]),
    ("POST", "/v1/generate", JSON, '{"prompt": "x"}', 400,
     ["unknown member 'prompt': text goes to /v1/completions; token ids are token_ids"]),
    ("POST", "/v1/generate", JSON, '{"messages": []}', 400, ["messages go to /v1/chat/completions"]),
    ("POST", "/v1/generate", JSON, '{"token_ids": [1], "max_tokens": 3}', 400,
     ["unknown member 'max_tokens': it belongs inside sampling_params"]),
    ("POST", "/v1/generate", JSON, '{"token_idz": [1]}', 400, ["did you mean 'token_ids'?"]),
    ("POST", "/v1/completions", JSON, '{"messages": []}', 400,
     ["'prompt' is required; messages go to /v1/chat/completions"]),
    ("POST", "/v1/update_weights", TENSORS, "@x.pt", 400,
     ["this is a zip file, as torch.save writes; a safetensors file is expected"]),
    ("POST", "/v1/update_weights", TENSORS, "@pointer.safetensors", 400, ["a Git LFS pointer"]),
    ("POST", "/v1/update_weights", JSON, '{"path": "/etc/hostname"}', 403, ["--allow-path"]),
    ("POST", "/update_weights_from_disk", JSON, '{"model_path": 5}', 400,
     ["/model_path: model_path is an integer"]),
    ("POST", "/update_weights_from_distributed", JSON,
     '{"names": ["x"], "dtypes": ["bfloat16"], "shapes": [[1]], "abort_all_requests": 5}', 400,
     ["/abort_all_requests: abort_all_requests is an integer"]),
    ("POST", "/update_weights_from_distributed", JSON, '{"names": ["x"], "dtypes": ["f7"], "shapes": [[1]]}', 400,
     ["/dtypes/0: "]),
    ("POST", "/update_weights_from_tensor", JSON,
     '{"serialized_named_tensors": ["x"], "abort_all_requests": 5}', 400,
     ["/abort_all_requests: abort_all_requests is an integer"]),
    ("POST", "/weights_checker", JSON, '{"action": "compare", "skip_tensor_list": 5}', 400,
     ["/skip_tensor_list: skip_tensor_list is not an array"]),
    ("POST", "/areal_update_weights_lora", JSON, '{"lora_name": "a", "lora_model_path": 5}', 400,
     ["/lora_model_path: lora_model_path is an integer"]),
    ("POST", "/update_weights", JSON,
     '{"update_info": {"names": ["x"], "dtype_names": ["f7"], "shapes": [[1]]}}', 400,
     ["update_info.dtype_names.0: "]),
    ("POST", "/collective_rpc", JSON,
     '{"method": "skyrl_wake_for_weight_sync", "kwargs": {"tags": ["frob"]}}', 400,
     ["kwargs.tags.0: "]),
    ("POST", "/weights_checker", JSON, '{"action": "frob"}', 400, ["checksum, compare, snapshot, reset_tensors"]),
    ("POST", "/weight_checker", JSON, '{"action": "frob"}', 400, ["checksum, compare, snapshot, reset"]),
    ("POST", "/update_weights", JSON, '{"update_info": []}', 400, ["this server has 1: send that many"]),
    ("POST", "/start_weight_update", JSON, "{}", 200, None),
    ("POST", "/collective_rpc", JSON, '{"method": "update_weights_nccl", "kwargs": {"update_info": '
     '{"names": ["x"], "dtype_names": ["f7"], "shapes": [[1]]}}}', 400,
     ["kwargs.update_info.dtype_names.0: "]),
    ("POST", "/collective_rpc", JSON,
     '{"method": "skyrl_finish_weight_update", "kwargs": {"weight_version": 5}}', 400,
     ["kwargs.weight_version: weight_version is an integer"]),
    ("POST", "/finish_weight_update", JSON, "{}", 422, [" first; the update must contain all of them"]),
    ("POST", "/v1/update_weights/start", JSON, '{"lease_s": 30}', 200, None),
    ("POST", "/v1/update_weights/start", JSON, '{"lease_s": 30}', 409,
     [" is open (open, its lease ends in ", " s): finish or abort it first ('baton abort --update' aborts it)"]),
]

# Variables that Kubernetes sets for a service named "baton".
SERVICE_LINKS = {
    "BATON_SERVICE_HOST": "10.0.0.1", "BATON_SERVICE_PORT": "8700", "BATON_SERVICE_PORT_HTTP": "8700",
    "BATON_PORT": "tcp://10.0.0.1:8700", "BATON_PORT_8700_TCP": "tcp://10.0.0.1:8700",
    "BATON_PORT_8700_TCP_PROTO": "tcp", "BATON_PORT_8700_TCP_PORT": "8700",
    "BATON_PORT_8700_TCP_ADDR": "10.0.0.1",
}


class Tally:
    def __init__(self):
        self.n = 0
        self.wrong = []

    def check(self, what, found, wanted, text, words):
        self.n += 1
        if found != wanted:
            self.wrong.append(f"{what}: ended with {found}, expected {wanted}: {text}")
        self.wrong += [f"{what}: '{word}' is not in: {text}" for word in words if word not in text]

    def end(self):
        if self.wrong:
            sys.exit("\n".join(self.wrong))
        print(f"{self.n} mistakes")


def files(work, model):
    def text(name, content):
        with open(os.path.join(work, name), "w", encoding="utf-8") as f:
            f.write(content)

    text("comma.json", '{"model": "x",\n"listen": "127.0.0.1:0",\n}')
    text("typo.json", '{"model": "x",\n"kv_cach": 1}')
    text("type.json", '{"model": "x",\n\n"listen": 1}')
    def model_dir(name, **change):
        os.mkdir(os.path.join(work, name))
        for file in "config.json", "tokenizer.json":
            shutil.copy(os.path.join(model, file), os.path.join(work, name))
        with open(os.path.join(model, "config.json"), encoding="utf-8") as f:
            text(os.path.join(name, "config.json"), json.dumps(dict(json.load(f), **change)))

    os.mkdir(os.path.join(work, "empty"))
    model_dir("bin")
    text("bin/pytorch_model.bin", "")
    model_dir("gpt2", architectures=["GPT2LMHeadModel"], model_type="gpt2")
    model_dir("sliding", architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=256)
    model_dir("two-ropes", rope_scaling={"rope_type": "linear", "factor": 2},
              rope_parameters={"rope_type": "default"})
    os.mkdir(os.path.join(work, "two-checkpoints"))
    text("two-checkpoints/model.safetensors", "")
    text("two-checkpoints/model.safetensors.index.json", '{"weight_map": {"a": "1.safetensors"}}')
    with zipfile.ZipFile(os.path.join(work, "x.pt"), "w") as z:
        z.writestr("x/data.pkl", b"\x80\2}q\0.")
    text("pointer.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    text("listen.json", '{"insecure": false,\n"listen": "9000"}')


def run(baton, words, where):
    """Its exit status, and what it said on standard output and on standard error."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("BATON_")}
    words = words.format(**where).split()
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    done = subprocess.run([baton, *words], env=env, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=WAIT_S, check=False)
    return done.returncode, done.stdout, done.stderr


def commands(baton, model, work):
    where = {"m": model, "w": work}
    tally = Tally()
    files(work, model)
    for words, status, said in COMMANDS:
        found, _, text = run(baton, words, where)
        line = "".join(f"{line}\n" for line in text.splitlines() if line.startswith("baton: "))
        tally.check(words, found, status, line, [word.format(**where) for word in said])
    for words, said in GOOD:
        found, text, _ = run(baton, words, where)
        tally.check(words, found, 0, text, [said])
    links = " ".join(f"{name}={value}" for name, value in SERVICE_LINKS.items())
    found, _, text = run(baton, f"{links} BATON_LISTEN=127.0.0.1:0 serve {{m}} --check --weights none", where)
    tally.check("variables of a Kubernetes service", (found, text), (0, ""), text, [])
    tally.end()


def requests(url, work):
    tally = Tally()
    for method, path, kind, body, status, said in REQUESTS:
        if body is not None and body.startswith("@"):
            with open(os.path.join(work, body[1:]), "rb") as f:
                body = f.read()
        c = http.client.HTTPConnection(url.partition("//")[2], timeout=WAIT_S)
        c.request(method, path, body, {} if kind is None else {"Content-Type": kind})
        answer = c.getresponse()
        text = answer.read().decode()
        c.close()
        error = {} if said is None else json.loads(text)["error"]
        message = error.get("message", "")
        if error.get("param"):
            message = f"{error['param']}: {message}"
        tally.check(f"{method} {path} {body}", answer.status, status, message or text, said or [])
    tally.end()


def main():
    what, *rest = sys.argv[1:]
    {"command": commands, "request": requests}[what](*rest)


main()
