#!/bin/sh
# The thread pool in every order of its threads (crates/cpu/src/pool/loom_tests.rs): about a minute of processor time.
# A build folder of its own, since the flag changes every crate. LOOM_MAX_PREEMPTIONS=2 makes it a quick look.
set -eu
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom" CARGO_PROFILE_RELEASE_LTO=off
RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" exec cargo test -p spinetail-cpu --release --lib pool "$@"
