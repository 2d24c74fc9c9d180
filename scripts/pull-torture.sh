#!/usr/bin/env bash
# Pulls a synthetic checkpoint of 3.4 GB, generated as it is sent and stored nowhere, from a hub on loopback: once
# undisturbed and once with ten kills at random moments, and compares the containers. Takes some minutes and 2 GB in
# TMPDIR. Prints times and the peak of resident memory; fails above 1 GiB.
set -euo pipefail
cd "$(dirname "$0")/.."
exec cargo test --release -p spinetail-hub --test torture -- --ignored --exact --nocapture \
    a_pull_of_gigabytes_survives_ten_kills
