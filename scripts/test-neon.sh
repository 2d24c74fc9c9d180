#!/usr/bin/env bash
# Compiles the kernels' tests for AArch64 and runs them on an x86-64 Debian machine: with all extensions, and as a
# processor that lacks i8mm, and as one that lacks dotprod too.
#
# Needs, once, as root:
#   dpkg --add-architecture arm64 && apt-get update
#   apt-get install -y --no-install-recommends \
#     rustc-web libstd-rust-web-dev:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
#
# Usage: scripts/test-neon.sh [FILTER]   (default: kernels)
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in /usr/bin/rustc aarch64-linux-gnu-gcc qemu-aarch64-static; do
  command -v "$tool" >/dev/null || { echo "$tool is missing: see the head of $0" >&2; exit 1; }
done

export RUSTC=/usr/bin/rustc
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/neon"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
for cpu in max neoverse-n1 cortex-a53; do
  echo "== $cpu"
  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -cpu $cpu" \
    cargo test -p spinetail-cpu --lib --target aarch64-unknown-linux-gnu "${1:-kernels}"
done
