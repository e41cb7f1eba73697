#!/bin/sh
# One round of the engine benchmark on simulated GPUs: it runs, the bytes are right, and its report
# has the agreed shape.
set -eu
report="$TEST_TMPDIR/engine.json"
tests/bench/engine --backend=host --rounds=1 --output="$report"
for field in name command commit machine rows copy_16mib_vs_peer_copy copy_16mib_vs_host_copy \
    small_64kib_vs_host_copy small_64kib_vs_peer_copy put_cpu_us_beyond_driver \
    fetch_cpu_us_beyond_driver pinning_s_per_gib; do
  grep -q "\"$field\"" "$report" || { echo "report lacks $field"; cat "$report"; exit 1; }
done
if tests/bench/engine --backend=abacus --output="$report"; then
  echo "an unknown backend was accepted"
  exit 1
fi
