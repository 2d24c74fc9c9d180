# The developers' manual: `just` lists it, `just NAME` does it.

default:
    @just --list

# Everything that CI checks
ci:
    .ci/run

# Tests only
test:
    cargo test --workspace

# Format, lints, habits
lint:
    cargo fmt --all
    cargo xtask tidy
    cargo clippy --workspace --all-targets -- -D warnings

# Each fuzz target for a minute
fuzz seconds="60":
    .ci/fuzz {{seconds}}

# Licences, sources and bans of what we depend on
deny:
    cargo deny check bans licenses sources

# Make the reference fixtures again (needs Python; see fixtures/README.md)
fixtures:
    cd fixtures && python3 make_parity.py && python3 make_quantize.py
