#!/bin/sh
# A second of the control benchmark: it runs, and its report has the agreed shape.
set -eu
report="$TEST_TMPDIR/control.json"
echo '{"ratios": {"other": 7, "stale": 1}, "ratios_from": {"other": "other.json"}}' > "$report"
tests/bench/control --rate=200 --duration=1s --nodes=2 --output="$report"
for field in name command commit machine rows ratios rpc_p99_ms_at_200_per_s GetJob ListNodes; do
  grep -q "\"$field\"" "$report" || { echo "report lacks $field"; cat "$report"; exit 1; }
done
grep -q '"other": 7' "$report" || { echo "another program's ratio is gone"; cat "$report"; exit 1; }
! grep -q stale "$report" || { echo "a ratio of nobody's stayed"; cat "$report"; exit 1; }
if tests/bench/control --coordinator-binary=/nonexistent --output="$report"; then
  echo "a missing coordinator was accepted"
  exit 1
fi
