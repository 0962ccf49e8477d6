#!/usr/bin/env bash
# SkyRL's GRPO on GSM8K, which generates by a running baton and pushes each step's weights to it.
# Usage: train.sh MODEL [URL [SETTING=VALUE...]]     in a checkout of SkyRL, with its GSM8K in ~/data/gsm8k
set -euo pipefail
model=${1:?usage: train.sh MODEL [URL [SETTING=VALUE...]]} url=${2:-http://127.0.0.1:8700}
shift $(($# < 2 ? $# : 2))

exec uv run --isolated --extra fsdp -m skyrl.train.entrypoints.main_base \
  generator.inference_engine.run_engines_locally=false \
  generator.inference_engine.external_proxy_url="$url" \
  generator.inference_engine.external_server_urls="['$url']" \
  trainer.placement.colocate_all=false \
  trainer.policy.model.path="$model" \
  trainer.algorithm.advantage_estimator=grpo \
  data.train_data="['$HOME/data/gsm8k/train.parquet']" \
  data.val_data="['$HOME/data/gsm8k/validation.parquet']" \
  "$@"
