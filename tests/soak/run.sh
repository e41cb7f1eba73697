#!/usr/bin/env bash
# The long runs; each adds its rows to docs/benchmarks/soak.json.
#
#   tests/soak/run.sh [--daemon-kills N] [--worker-kills N]   200 kills of daemons and 200 of workers,
#                                                             about five minutes on two cores
#   tests/soak/run.sh short-jobs [--jobs N]                   10,000 jobs that come and go, a quarter
#                                                             of an hour
set -u
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/provision.sh"
cd "$HF_ROOT" || exit 1
hf_provision build || exit 1
hf_step "Building" bazel build "${HF_BAZEL[@]}" //coordinator:hfcoordinator //agent:hfagent \
  //agent:hfshim //client/c:libhyperframes.so || exit 1
export PYTHONPATH=client/python:examples:deploy:tests:tests/faults
if [ "${1:-}" = short-jobs ]; then
  shift
  exec "$HF_PYTHON" tests/soak/short_jobs.py "$@"
fi
exec "$HF_PYTHON" tests/soak/soak.py "$@"
