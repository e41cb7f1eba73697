#!/usr/bin/env bash
# 200 kills of daemons and 200 of workers, about five minutes on two cores; writes
# docs/benchmarks/soak.json. Arguments go to soak.py: --daemon-kills N --worker-kills N.
set -u
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/provision.sh"
cd "$HF_ROOT" || exit 1
hf_provision build || exit 1
hf_step "Building" bazel build "${HF_BAZEL[@]}" //coordinator:hfcoordinator //agent:hfagent \
  //agent:hfshim //client/c:libhyperframes.so || exit 1
export PYTHONPATH=client/python:examples:deploy:tests:tests/faults
exec "$HF_PYTHON" tests/soak/soak.py "$@"
