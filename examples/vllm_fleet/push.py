"""Push a checkpoint to both engines through baton, by NCCL, with TRL's client of vLLM; then generate.

Usage: push.py MODEL [URL]      (needs a third GPU, cuda:2 or DEVICE, torch, transformers, trl, vllm)"""

import os
import sys

import requests
import torch
from transformers import AutoModelForCausalLM
from trl.generation.vllm_client import VLLMClient

MODEL, URL = sys.argv[1], (sys.argv + ["http://127.0.0.1:8700"])[2]
DEVICE = os.environ.get("DEVICE", "cuda:2")

model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).to(DEVICE)
client = VLLMClient(base_url=URL)
client.init_communicator(device=DEVICE)  # one group of this process and both engines
client.update_model_params(model)
answer = requests.post(f"{URL}/v1/completions", timeout=60,
                       json={"model": "policy", "prompt": "In the beginning", "max_tokens": 24})
print(repr(answer.json()["choices"][0]["text"]))
for engine in requests.get(f"{URL}/v1/upstreams", timeout=60).json()["list"]:
    print(engine["upstream"], engine["state"], engine.get("weight_version"))
