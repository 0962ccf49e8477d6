#!/usr/bin/env bash
# One Slurm job: a front and the trainer on its first node, and hosts, each an engine with its baton, on the others; on the same
# node if the job has one only. It ends with the trainer, and with its status.
# Usage: sbatch --nodes=5 job.sh MODEL TRAINER [ARGUMENT...]      (MODEL is a directory that all nodes have)
# The trainer gets BATON_URL, the front, and BATON_API_KEY, which the job makes; each step waits for nothing: use `baton wait`.
# PORT: of the front, 8700; hosts have the next ones. HOSTS_PER_NODE: 1. HOST_OPTIONS, FRONT_OPTIONS: more options of baton serve.
# ENGINE: the command of a host's engine, as 'vllm serve MODEL --host 127.0.0.1 --port 8000 …', which must listen there; without
# it baton's own engine is used. TRIES: how often a host is started again, 100; Slurm does not do that for a step.
#SBATCH --job-name=baton
#SBATCH --ntasks-per-node=1
set -euo pipefail
if (($# < 2)); then
  echo "usage: sbatch --nodes=N job.sh MODEL TRAINER [ARGUMENT...]" >&2
  exit 2
fi
export MODEL=$1 PORT=${PORT:-8700} ENGINE=${ENGINE:-} HOST_OPTIONS=${HOST_OPTIONS:-} TRIES=${TRIES:-100}
shift
per_node=${HOSTS_PER_NODE:-1}
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
hosts=("${nodes[@]:1}")
((${#hosts[@]} > 0)) || hosts=("${nodes[0]}")
export BATON_URL=http://${nodes[0]}:$PORT BATON_API_KEY
BATON_API_KEY=$(openssl rand -hex 24)
work=$(mktemp --directory)
pids=()

# shellcheck disable=SC2317  # called by the trap
end() {
  kill "${pids[@]}" 2>/dev/null || true
  wait
  rm --recursive --force "$work"
}
trap end EXIT

# shellcheck disable=SC2317  # called by srun
host() { # on each host, in a task of Slurm: the engine and its baton, started again when one of them ends
  set -euo pipefail
  local options keys pids here=$((PORT + 1 + SLURM_LOCALID))
  read -ra options <<<"$HOST_OPTIONS"
  keys=$(mktemp)
  echo "control $BATON_API_KEY" >"$keys"
  if [[ -n $ENGINE ]]; then
    options+=(--upstream "http://127.0.0.1:8000,${ENGINE%% *}")
  fi
  for ((i = 0; i < TRIES; i++)); do
    pids=()
    if [[ -n $ENGINE ]]; then
      VLLM_SERVER_DEV_MODE=1 bash -c "exec $ENGINE" &
      pids+=($!)
    fi
    baton serve --model "$MODEL" --listen "0.0.0.0:$here" --api-key-file "$keys" ${options[@]+"${options[@]}"} &
    pids+=($!)
    wait -n "${pids[@]}" || true
    kill "${pids[@]}" 2>/dev/null || true
    wait
    sleep 1
  done
  return 1
}
export -f host

(umask 077 && echo "control $BATON_API_KEY" >"$work/keys" && echo "$BATON_API_KEY" >"$work/upstream")
upstreams=()
for node in "${hosts[@]}"; do
  for ((i = 0; i < per_node; i++)); do
    upstreams+=(--upstream "http://$node:$((PORT + 1 + i)),key-file=$work/upstream")
  done
done
srun --overlap --nodes="${#hosts[@]}" --nodelist="$(IFS=, && echo "${hosts[*]}")" --ntasks="$((${#hosts[@]} * per_node))" \
  --ntasks-per-node="$per_node" --kill-on-bad-exit=0 bash -c host &
pids+=($!)
read -ra front <<<"${FRONT_OPTIONS:-}"
baton serve "${upstreams[@]}" --min-ready 1 --listen "0.0.0.0:$PORT" --api-key-file "$work/keys" ${front[@]+"${front[@]}"} &
pids+=($!)
srun --overlap --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" "$@" &
trainer=$!
pids+=("$trainer")
wait -n "${pids[@]}" || true # the trainer, or what it cannot do without
if kill -0 "$trainer" 2>/dev/null; then
  echo "job.sh: the front, or all hosts, ended before the trainer did" >&2
  exit 1
fi
status=0
wait "$trainer" || status=$?
exit "$status"
