#!/bin/sh
# The thread pool in every order of its threads (crates/cpu/src/pool/loom_tests.rs), a minute or two on two cores.
# A build folder of its own: the flag changes every crate. LOOM_MAX_PREEMPTIONS=2 makes it a quick look.
set -eu
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom"
RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" exec cargo test -p spinetail-cpu --release --lib pool "$@"
