#!/usr/bin/env bash
# Builds the release archive for Linux, and checks it the way a newcomer would meet it.
#
#   scripts/release.sh [FOLDER]     the archive goes to FOLDER (default: dist)
#
# The binary is static. With musl if both halves of it are installed, the standard library (rustup target add
# x86_64-unknown-linux-musl) and a C compiler for the cryptography of downloads (musl-gcc, in Debian's musl-tools); else
# with glibc, which looks up host names as the system's nsswitch.conf says and may want its shared libraries for that.
# The archive has the same bytes for the same sources, tools and version.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
mkdir -p "${1:-dist}"
dist=$(cd "${1:-dist}" && pwd)
cpu=$(uname -m)
target=$cpu-unknown-linux-musl
if [ -d "$(rustc --print target-libdir --target "$target" 2>/dev/null)" ] && command -v musl-gcc >/dev/null; then
    export "CC_${target//-/_}=musl-gcc"
else
    target=$cpu-unknown-linux-gnu
fi
echo "building for $target"

# `--target` keeps the flags from build scripts and macros; the paths in messages are those of the sources.
SPINETAIL_RELEASE=1 RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static --remap-path-prefix=$root=. \
--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo" \
    cargo build --release --locked -p spinetail --target "$target"
built=${CARGO_TARGET_DIR:-target}/$target/release/spinetail
version=$("$built" --version | cut -d' ' -f2)
name=spinetail-$version-$target

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/$name
mkdir -p "$stage/completions" "$stage/licences"
cp "$built" "$stage/spinetail"
strip "$stage/spinetail" 2>/dev/null || echo "no strip: the binary keeps its debug information"
"$built" completions bash >"$stage/completions/spinetail.bash"
"$built" completions zsh >"$stage/completions/_spinetail"
"$built" completions fish >"$stage/completions/spinetail.fish"
"$built" completions powershell >"$stage/completions/_spinetail.ps1"
"$built" completions elvish >"$stage/completions/spinetail.elv"
"$built" man --output "$stage/man/man1"
cp -R models "$stage/models"
cp LICENSE NOTICE README.md CHANGELOG.md docs/cli.md "$stage/"

# Whose code is in the binary, with the texts that their licences ask to be passed on.
cargo tree --locked -p spinetail -e normal,no-proc-macro --target "$target" --prefix none -f '{p} {l}' |
    grep -v " ($root" | sed 's/ (\*)$//' | LC_ALL=C sort -u >"$stage/licences/INDEX.txt"
while read -r crate tag _; do
    for folder in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$crate-${tag#v}"; do
        find "$folder" -maxdepth 1 -type f \
            \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' -o -iname 'unlicense*' \) |
            while read -r text; do cp "$text" "$stage/licences/$crate-$(basename "$text")"; done
    done
done <"$stage/licences/INDEX.txt"

echo "The Rust standard library: MIT OR Apache-2.0, https://www.rust-lang.org/policies/licenses" >>"$stage/licences/INDEX.txt"
case $target in *musl) echo "musl: MIT, https://musl.libc.org" >>"$stage/licences/INDEX.txt" ;; esac

chmod -R u+rwX,go+rX,go-w "$stage"
date=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
archive=$dist/$name.tar.gz
tar --sort=name --mtime="@$date" --owner=0 --group=0 --numeric-owner --format=gnu -C "$work" -cf - "$name" |
    gzip -9n >"$archive.partial"
mv "$archive.partial" "$archive"
(cd "$dist" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")

scripts/check-release.sh "$archive"
ls -l "$archive"
