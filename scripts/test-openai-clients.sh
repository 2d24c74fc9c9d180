#!/usr/bin/env bash
# Runs the official openai packages for Python and Node against the server on the shipped model.
# Needs python3 with venv, node and npm, and the network for PyPI and npm; installs into a temporary folder only.
# SERVER=COMMAND starts another server than the example; it gets the port as its last argument.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
server_pid=
finish() {
  [ -z "$server_pid" ] || kill "$server_pid" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check openai
(cd "$work" && npm install --silent --no-audit --no-fund --prefix "$work" openai)
cp "$root/scripts/openai_clients.mjs" "$work/"

cd "$root"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
if [ -n "${SERVER:-}" ]; then
  $SERVER "$port" 2>"$work/log" &
else
  cargo build --quiet --package spinetail-server --example serve
  "${CARGO_TARGET_DIR:-target}/debug/examples/serve" models/pip.qpack "$port" 2>"$work/log" &
fi
server_pid=$!
for _ in $(seq 100); do
  curl --silent --fail "http://127.0.0.1:$port/health" >/dev/null && break
  kill -0 "$server_pid" 2>/dev/null || { cat "$work/log"; exit 1; }
  sleep 0.2
done

"$work/venv/bin/python" scripts/openai_clients.py "$port" || { tail -n 20 "$work/log"; exit 1; }
node "$work/openai_clients.mjs" "$port" || { tail -n 20 "$work/log"; exit 1; }
echo "both clients passed"
