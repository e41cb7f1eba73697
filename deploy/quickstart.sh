#!/usr/bin/env bash
# The whole path on this machine: installs what is missing, builds, starts a coordinator and two
# agents on loopback and a Prometheus that watches them, runs a real training job in three modes,
# prints the table, draws the picture, kills an agent while a fourth run trains and a worker while a
# fifth does, and shows what Prometheus holds of all that. Everything it starts it stops.
#
#   deploy/quickstart.sh [--steps N] [--results FOLDER]
set -u
source "$(dirname "${BASH_SOURCE[0]}")/provision.sh"
results=$HF_CACHE/quickstart
case " $* " in *" --results"[\ =]*) results= ;; esac
cd "$HF_ROOT" || exit 1
hf_provision build || exit 1
hf_step "Building daemons and client library" bazel build "${HF_BAZEL[@]}" \
  //coordinator:hfcoordinator //agent:hfagent //agent:hfshim //client/cli:hfctl \
  //client/c:libhyperframes.so || exit 1
export PYTHONPATH=$HF_ROOT/client/python:$HF_ROOT/deploy:$HF_ROOT/examples:$HF_ROOT/dashboards
# exec: signals go to the one process that stops everything it has started.
exec "$HF_PYTHON" deploy/quickstart.py ${results:+--results "$results"} "$@"
