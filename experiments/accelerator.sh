#!/usr/bin/env bash
# Runs studies beside one another on a machine that is lent for minutes, and keeps what they finish.
#
#     bash experiments/accelerator.sh SECONDS FOLDER hardening dirty_mnist "photonic --parts light"
#
# Each argument is a study with its settings. Every half minute, and at the end, FOLDER/results.tgz
# is written anew: reports, figures and the rows of finished tasks, without checkpoints, so that it
# stays small and nothing is lost when the machine goes. At home unpack it, and
# `python -m experiments.queue docs/results/queue.toml --collect FOLDER` takes it over. Where there is
# no git repository, JAXEFF_COMMIT says which commit this is.
set -euo pipefail
seconds=$1
mkdir -p "$2"
folder=$(cd "$2" && pwd)
shift 2
cd "$(dirname "$0")/.."
results=$(mktemp -d)
export XLA_PYTHON_CLIENT_PREALLOCATE=false # they share the memory
export PYTHONPATH=$PWD:$PWD/export${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1

keep() {
  # Renamed when it is complete: the machine may go in the middle.
  (
    cd "$results"
    find . -maxdepth 3 -type f '(' -not -path './*/work*/*' -o -name '*.jsonl' ')' |
      tar czf "$folder/.part" -T -
  )
  mv "$folder/.part" "$folder/results.tgz"
}

running=()
for study in "$@"; do
  # shellcheck disable=SC2086 # the settings are words
  python3 -m experiments.$study --results "$results" >"$results/${study// /_}.log" 2>&1 </dev/null &
  running+=($!)
done
trap 'kill "${running[@]}" 2>/dev/null || true; keep' EXIT

end=$((SECONDS + seconds))
while [ "$SECONDS" -lt "$end" ]; do
  left=$((end - SECONDS))
  sleep $((left < 30 ? left : 30))
  keep
  kill -0 "${running[@]}" 2>/dev/null || break # none of them is left
done
