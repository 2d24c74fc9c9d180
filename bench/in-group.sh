#!/usr/bin/env bash
# Runs a command in a memory control group of its own, page cache included, and says its peak; either version of control
# groups. Needs the right to make groups (root, or a delegated one).
#
#   bench/in-group.sh BYTES COMMAND…
set -uo pipefail
[ $# -ge 2 ] || { echo "usage: $0 BYTES COMMAND…" >&2; exit 2; }
bytes=$1
shift
if [ -d /sys/fs/cgroup/memory ]; then
  group=/sys/fs/cgroup/memory/spinetail-bench-$$ limit=memory.limit_in_bytes peak=memory.max_usage_in_bytes
else
  group=/sys/fs/cgroup/spinetail-bench-$$ limit=memory.max peak=memory.peak
fi
mkdir "$group" || { echo "cannot make a control group; run this as root" >&2; exit 1; }
echo "$bytes" >"$group/$limit" || { echo "cannot limit the group's memory; is the memory controller on?" >&2; rmdir "$group"; exit 1; }
[ ! -e "$group/memory.swap.max" ] || echo 0 >"$group/memory.swap.max"
end() {
  [ ! -e "$group/memory.force_empty" ] || echo 1 >"$group/memory.force_empty" 2>/dev/null
  rmdir "$group"
}
trap end EXIT
trap 'kill "$command" 2>/dev/null; wait "$command"; exit 143' TERM INT
# The shell moves itself, so that all of the command is charged.
sh -c 'echo $$ >"$0/cgroup.procs"; exec "$@"' "$group" "$@" &
command=$!
wait "$command"
rc=$?
echo "group: limit $bytes, peak $(cat "$group/$peak"), exit status $rc" >&2
exit "$rc"
