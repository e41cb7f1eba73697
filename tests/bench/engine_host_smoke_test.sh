#!/bin/sh
# One round of the benchmark of the engine on simulated GPUs: it runs, and its report has the agreed shape.
set -eu
report="$TEST_TMPDIR/engine.json"
tests/bench/engine_host --rounds=1 --output="$report"
for field in name command commit machine rows copy_1mib_vs_memcpy copy_16mib_vs_memcpy \
    copy_64mib_vs_memcpy put_cpu_us_beyond_driver fetch_cpu_us_beyond_driver; do
  grep -q "\"$field\"" "$report" || { echo "report lacks $field"; cat "$report"; exit 1; }
done
if tests/bench/engine_host --rounds=0 --output="$report"; then
  echo "rounds=0 was accepted"
  exit 1
fi
