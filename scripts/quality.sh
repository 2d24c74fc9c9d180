#!/usr/bin/env bash
# Perplexity of a checkpoint at every width, in both precisions: the table in docs/performance.md.
#
#   scripts/quality.sh CHECKPOINT TEXT [DOCUMENTS]     CHECKPOINT is a bf16 folder, TEXT its held-out documents
set -euo pipefail
cd "$(dirname "$0")/.."
checkpoint=$1 text=$2 documents=${3:-120}
spinetail=${SPINETAIL:-target/release/spinetail}
[ -x "$spinetail" ] || cargo build --release -p spinetail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '| weights | exact | fast | fast against exact |\n|---|---|---|---|\n'
for bits in 16 8 6 5 4 3 2; do
  "$spinetail" repack --source "$checkpoint" --output "$work/$bits.qpack" --bits "$bits" >/dev/null
  for precision in exact fast; do
    "$spinetail" perplexity "$work/$bits.qpack" --text "$text" --documents "$documents" --precision "$precision" --json \
      >"$work/$precision.json"
  done
  python3 - "$bits" "$work/exact.json" "$work/fast.json" <<'PY'
import json, sys
exact, fast = (json.load(open(f))["perplexity"] for f in sys.argv[2:])
print(f"| {sys.argv[1]} bits | {exact:.5f} | {fast:.5f} | {100 * (fast / exact - 1):+.3f} % |")
PY
  rm -rf "$work/$bits.qpack"
done
