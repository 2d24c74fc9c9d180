#!/usr/bin/env bash
# How far `fast` is from `exact`, and a checkpoint's widths from its own precision: the tables in docs/performance.md.
#
#   scripts/quality.sh CHECKPOINT TEXT [DOCUMENTS]     CHECKPOINT is a bf16 folder, TEXT its held-out documents
set -euo pipefail
cd "$(dirname "$0")/.."
checkpoint=$1 text=$2 documents=${3:-120}
spinetail=${SPINETAIL:-target/release/spinetail}
[ -x "$spinetail" ] || cargo build --release -p spinetail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# NAME MODEL PRECISION REFERENCE: one row, measured against the reference in exact.
row() {
  "$spinetail" perplexity "$2" --precision "$3" --against "$4" --text "$text" --documents "$documents" --json >"$work/row.json"
  python3 - "$1" "$work/row.json" <<'PY'
import json, sys
r = json.load(open(sys.argv[2]))
a = r["against"]
more = 100 * (r["perplexity"] / a["perplexity"] - 1)
print(f"| {sys.argv[1]} | {r['perplexity']:.5f} | {more:+.3f} % | {a['kl_nats_mean']:.2e} | {a['kl_nats_p999']:.2e} "
      f"| {a['kl_nats_max']:.2e} | {100 * a['top_1_agreement']:.2f} % |")
PY
}
head='perplexity | against | KL, mean | 99.9 % below | worst | same likeliest |'
rule='|---|---|---|---|---|---|---|'
printf '| `fast` | %s\n%s\n' "$head" "$rule" >"$work/fast"
printf '| `exact` | %s\n%s\n' "$head" "$rule" >"$work/widths"
for bits in 16 8 6 5 4 3 2; do
  "$spinetail" repack --source "$checkpoint" --output "$work/$bits.qpack" --bits "$bits" >/dev/null
  row "$bits bits" "$work/$bits.qpack" fast "$work/$bits.qpack" >>"$work/fast"
  [ "$bits" = 16 ] || row "$bits bits" "$work/$bits.qpack" exact "$work/16.qpack" >>"$work/widths"
  [ "$bits" = 16 ] || rm -rf "$work/$bits.qpack"
done
cat "$work/fast"
echo
cat "$work/widths"
