#!/bin/sh
# One round of the node-to-node benchmark on the host backend: it checks its bytes, runs, and its
# report has the agreed shape.
set -eu
report="$TEST_TMPDIR/node_to_node.json"
tests/bench/node_to_node --rounds=1 --most-bytes=4MiB --output="$report"
for field in name command commit machine rows put_ratio fetch_ratio node_to_node_vs_tcp; do
  grep -q "\"$field\"" "$report" || { echo "report lacks $field"; cat "$report"; exit 1; }
done
if tests/bench/node_to_node --rounds=0 --output="$report"; then
  echo "rounds=0 was accepted"
  exit 1
fi
