#!/bin/sh
# The library exports hf_* and nothing else (no gRPC, protobuf or Abseil symbol that torch or Python's
# own gRPC could bind to), and exports all that its header declares.
set -eu
library="$1"
header="$(dirname "$0")/hyperframes.h"
failed=0

foreign="$(nm -D --defined-only "$library" | awk '{print $3}' | grep -v '^hf_' || true)"
if [ -n "$foreign" ]; then
  echo "exported, but not hf_*:"
  echo "$foreign" | head -20
  failed=1
fi

declared="$(grep -oE '\bhf_[a-z_]+\(' "$header" | tr -d '(' | sort -u)"
exported="$(nm -D --defined-only "$library" | awk '{print $3}' | sort -u)"
for name in $declared; do
  if ! echo "$exported" | grep -qx "$name"; then
    echo "declared in hyperframes.h, but not exported: $name"
    failed=1
  fi
done
[ "$(echo "$declared" | wc -l)" -ge 20 ] || { echo "hyperframes.h was not read"; failed=1; }

exit "$failed"
