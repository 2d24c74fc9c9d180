#!/usr/bin/env bash
# Checks that routing in a synthetic model is like that of a real one: with the shape of Qwen3.6-35B and decayed LFU, which
# remembers evicted records, 43 ± 5 % of records are hits with 1 GB of slots and 70 ± 5 % with 6 GB (what Swiftlet
# publishes), counting decoded tokens once the cache is full.
#
#     scripts/skew.sh [FOLDER [TOKENS [SEEDS [SYNTH FLAGS...]]]]
#
# FOLDER (default a temporary one) needs 3 GB and keeps the model and the traces; decoding takes minutes a seed.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-$(mktemp -d)}
tokens=${2:-400}
seeds=${3:-"1 2"}
shift $(($# < 3 ? $# : 3))
[ -d "$folder" ] || mkdir -p "$folder"
target=${CARGO_TARGET_DIR:-target}
cargo build --release -q -p xtask -p spinetail
model=$folder/skew-35b.qpack
[ -d "$model" ] || "$target/release/xtask" synth --config qwen3.6-35b --distinct-layers 2 --output "$model" "$@"
failed=0
for seed in $seeds; do
  trace=$folder/skew-$seed.trace
  if [ ! -f "$trace" ]; then
    rm -f "$trace.part"
    "$target/release/spinetail" generate "$model" --precision fast --memory 5GiB --trace "$trace.part" \
      --prompt "Prompt $seed: the drive is read one record at a time, and what is used often is kept." \
      --max-tokens "$tokens" --temperature 1 --top-k 0 --top-p 1 --min-p 0 --seed "$seed" --json >/dev/null
    mv "$trace.part" "$trace"
  fi
  printf '\nseed %s\n' "$seed"
  "$target/release/spinetail" replay "$trace" --slots 1GB,6GB
  "$target/release/spinetail" replay "$trace" --slots 1GB,6GB --policy decayed-lfu --json | python3 -c '
import json, sys
ok = True
for r, goal in zip(json.load(sys.stdin)["results"], (43, 70)):
    rate = 100 * r["hit_rate"]
    good = abs(rate - goal) <= 5
    ok &= good
    print("%.1f %% of %d tokens with %.0f GB of slots, expected %d ± 5: %s"
          % (rate, r["tokens_counted"], r["slots_bytes"] / 1e9, goal, "ok" if good else "NOT MET"))
sys.exit(not ok)' || failed=1
done
exit $failed
