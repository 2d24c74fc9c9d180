#!/usr/bin/env bash
# Unpacks a release archive in an empty folder and uses it there: no environment, another working directory.
#
#   scripts/check-release.sh ARCHIVE
set -euo pipefail
archive=$(realpath "$1")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir "$place/unpacked" "$place/elsewhere"
tar -xzf "$archive" -C "$place/unpacked"
folder=$(echo "$place"/unpacked/*)
run() { (cd "$place/elsewhere" && env -i "$folder/spinetail" "$@"); }

# Static: no interpreter, no shared library.
if command -v readelf >/dev/null; then
    if readelf -lW "$folder/spinetail" | grep -q INTERP || readelf -dW "$folder/spinetail" | grep -q NEEDED; then
        echo "error: the binary is not static"
        exit 1
    fi
fi
for file in LICENSE NOTICE README.md cli.md licences/INDEX.txt completions/_spinetail man/man1/spinetail.1; do
    [ -s "$folder/$file" ] || { echo "error: $file is missing from the archive"; exit 1; }
done
# The model of the archive, not that of the tree it was built in.
run inspect pip | head -n 1 | grep -F "$folder/models/pip.qpack"
run verify pip
answers=$(run chat pip "What is the capital of Spain?" "And of France?")
echo "$answers"
grep -q Madrid <<<"$answers"
grep -q Paris <<<"$answers"
[ -z "$(ls -A "$place/elsewhere")" ] || { echo "error: it left files behind"; exit 1; }
echo "the archive works"
