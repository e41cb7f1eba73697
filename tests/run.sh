#!/usr/bin/env bash
# Builds everything and runs every test. Installs what the machine lacks first. The last line is
# `N passed, N failed` (and `, N skipped` when there are any), summed from the reports that Bazel
# and pytest wrote; the exit status is 0 only when nothing failed.
#
#   tests/run.sh                  everything
#   tests/run.sh bazel e2e        only these groups: bazel python cases tools gates e2e telemetry
#                                 faults ecosystem release tsan asan
#
# Safe to run twice: a second run repeats only what changed, apart from the tests that start daemons.
set -u
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/provision.sh"
cd "$HF_ROOT" || exit 1

groups=("$@")
[ "${#groups[@]}" -gt 0 ] ||
  groups=(bazel python tools cases gates e2e telemetry faults ecosystem release tsan asan)

# Rooms without gRPC, whose uninstrumented locks would blind ThreadSanitizer.
core=(//common/... //coordinator/planner/... //agent/device/... //agent/arena/... //agent/engine/...)

hf_provision test || {
  echo "0 passed, 1 failed"
  exit 1
}

reports=$HF_CACHE/reports/$(printf '%s' "$HF_ROOT" | sha256sum | cut -c1-12)
rm -rf "$reports"
mkdir -p "$reports"
summary=()

# bazel_group NAME SECONDS [flag...] pattern...
bazel_group() {
  local name=$1 limit=$2 rc=0
  shift 2
  hf_step "Bazel: $name" timeout -k 30 "$limit" bazel test "${HF_BAZEL[@]}" --keep_going \
    --build_event_json_file="$reports/$name.json" "$@" || rc=$?
  summary+=(--bazel "$name=$reports/$name.json:$rc")
}

# pytest_group NAME SECONDS path...
pytest_group() {
  local name=$1 limit=$2 rc=0
  shift 2
  hf_step "pytest: $name" timeout -k 30 "$limit" "$HF_PYTHON" -m pytest -q \
    --junitxml="$reports/$name.xml" -o junit_family=xunit2 "$@" || rc=$?
  summary+=(--pytest "$name=$reports/$name.xml:$rc")
}

# The gates compute, and most groups after them wait for daemons and clocks: at the lowest priority
# they take only the time that those leave. finish_gates waits for the rest.
gates=
begin_gates() {
  gates_log=$HF_LOGS/pytest-gates.log
  printf '==> pytest: gates, beside what follows\n'
  nice -n 19 timeout -k 30 3400 "$HF_PYTHON" -m pytest -q --junitxml="$reports/gates.xml" \
    -o junit_family=xunit2 tests/gates >"$gates_log" 2>&1 </dev/null &
  gates=$!
  trap 'kill "$gates" 2>/dev/null' EXIT
}

finish_gates() {
  local rc=0
  hf_step "pytest: the rest of the gates" tail -n +1 -f --pid="$gates" "$gates_log" || true
  wait "$gates" || rc=$?
  trap - EXIT
  summary+=(--pytest "gates=$reports/gates.xml:$rc")
  [ "$rc" -eq 0 ] || {
    printf '    FAILED with status %d; the end of %s:\n' "$rc" "$gates_log"
    tail -n 25 "$gates_log" | sed 's/^/    | /'
  }
}

# What is shipped is built only when it is asked for. Should that fail, the tests say so one by one.
release_group() {
  hf_step "Building the release" timeout -k 30 1200 bazel build "${HF_BAZEL[@]}" \
    //deploy:release //deploy:wheel
  pytest_group release 900 tests/release
}

started=$SECONDS
for group in "${groups[@]}"; do
  case "$group" in
    bazel) bazel_group bazel 3000 //... ;;
    python) pytest_group python 1200 client/python/tests ;;
    tools) pytest_group tools 600 tests/test_*.py tests/bench ;;
    cases) pytest_group cases 1200 tests/cases ;;
    gates) begin_gates ;;
    e2e) pytest_group e2e 1200 tests/e2e ;;
    telemetry) pytest_group telemetry 600 tests/telemetry ;;
    faults) pytest_group faults 1200 tests/faults ;;
    # An environment that cannot be made is a failed group, not the end of the others.
    ecosystem)
      hf_ecosystem_venv || true
      HF_PYTHON=$HF_ECOSYSTEM_PYTHON pytest_group ecosystem 2400 tests/ecosystem
      ;;
    release) release_group ;;
    # A suffix of their own keeps the outputs of each configuration apart, and no symlinks: the tests
    # above use bazel-bin.
    tsan) bazel_group tsan 1800 --config=tsan --platform_suffix=tsan --symlink_prefix=/ "${core[@]}" ;;
    asan) bazel_group asan 2400 --config=asan --platform_suffix=asan --symlink_prefix=/ //... ;;
    *)
      echo "unknown group '$group'; one of: bazel python tools cases gates e2e telemetry faults" \
        "ecosystem release tsan asan" >&2
      exit 2
      ;;
  esac
done
[ -z "$gates" ] || finish_gates

echo "reports in $reports, logs in $HF_LOGS, $((SECONDS - started)) s"
"$HF_PYTHON" tests/summarize.py "${summary[@]}"
