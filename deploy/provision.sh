# Gets a Debian 12 machine ready to build and run HyperFrames. Meant to be sourced by
# deploy/quickstart.sh and tests/run.sh:
#
#   source deploy/provision.sh
#   hf_provision build     # or: test, which adds clang and its tools
#
# It installs only what is missing, so on a machine that has everything it touches no network and
# takes well under a second. Afterwards these are set:
#   HF_ROOT    the checkout            HF_CACHE   everything kept outside the checkout
#   HF_PYTHON  python with torch       HF_BAZEL   array: bazel's flags (disk cache, jobs)
# hf_ecosystem_venv then sets HF_ECOSYSTEM_PYTHON: the same with transformers and its like.
#
# HYPERFRAMES_CACHE moves the cache (default ~/.cache/hyperframes).

HF_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
HF_CACHE=${HYPERFRAMES_CACHE:-${HOME:-/root}/.cache/hyperframes}
HF_LOGS=$HF_CACHE/logs

HF_BUILD_PACKAGES=(
  bazel-bootstrap g++ libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler
  libabsl-dev prometheus-cpp-dev libcivetweb-dev nlohmann-json3-dev libgtest-dev libgmock-dev
  libsqlite3-dev libgoogle-glog-dev ca-certificates prometheus
)
HF_TEST_PACKAGES=(clang-14 clang-tidy-14 clang-format-14 libclang-rt-14-dev)

# hf_step "What is being done" command...: runs the command with its output in a log file. Prints a
# line when it starts, one every 15 s while it runs, and one with its seconds when it ends. A failure
# prints the end of the log and where the rest is.
hf_step() {
  local name=$1 log started pid next rc=0
  shift
  mkdir -p "$HF_LOGS"
  log=$HF_LOGS/$(printf '%s' "$name" | tr -cs 'A-Za-z0-9' '-' | cut -c1-40 | sed 's/-$//').log
  started=$SECONDS next=15
  printf '==> %s\n' "$name"
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  # Polled in this shell: a helper process for the beat would outlive an interrupt.
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.2
    if [ "$((SECONDS - started))" -ge "$next" ]; then
      next=$((next + 15))
      printf '    ... %d s: %s\n' "$((SECONDS - started))" \
        "$(tr '\r' '\n' <"$log" | grep -av '^[[:space:]]*$' | tail -n 1 | cut -c1-90)"
    fi
  done
  wait "$pid" || rc=$?
  if [ "$rc" -eq 0 ]; then
    printf '    done in %d s\n' "$((SECONDS - started))"
  else
    printf '    FAILED with status %d after %d s; the end of %s:\n' \
      "$rc" "$((SECONDS - started))" "$log"
    tail -n 25 "$log" | sed 's/^/    | /'
  fi
  return "$rc"
}

_hf_as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    env DEBIAN_FRONTEND=noninteractive "$@"
  elif command -v sudo >/dev/null 2>&1; then
    sudo env DEBIAN_FRONTEND=noninteractive "$@"
  else
    echo "cannot install packages: neither root nor sudo. As root run: $*" >&2
    return 1
  fi
}

_hf_missing_packages() {
  local status
  # One call for all: dpkg-query names only those it knows, and exits non-zero for the others.
  status=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)
  local package
  for package in "$@"; do
    grep -qx "$package installed" <<<"$status" || printf '%s\n' "$package"
  done
}

_hf_install_packages() {
  local rc=0 masked=
  # Only the program is wanted: the package would start a server of its own on port 9090.
  if [[ " $* " == *" prometheus "* ]] && [ -d /run/systemd/system ]; then
    _hf_as_root systemctl mask prometheus && masked=1
  fi
  # An interrupted dpkg leaves packages half configured; finishing them is a no-op otherwise.
  _hf_as_root dpkg --configure -a &&
    _hf_as_root apt-get update -q &&
    _hf_as_root apt-get install -y -q --no-install-recommends "$@" || rc=$?
  [ -z "$masked" ] || { _hf_as_root systemctl unmask prometheus &&
    _hf_as_root systemctl disable prometheus; }
  return "$rc"
}

hf_packages() {
  command -v dpkg-query >/dev/null 2>&1 || {
    echo "this script installs Debian packages; on another system install the equivalents of:" \
      "$*" >&2
    return 1
  }
  local missing
  mapfile -t missing < <(_hf_missing_packages "$@")
  [ "${#missing[@]}" -eq 0 ] ||
    hf_step "Installing ${#missing[@]} Debian packages (${missing[*]:0:4} ...)" \
      _hf_install_packages "${missing[@]}"
}

# The first interpreter that is new enough and can make virtual environments.
_hf_base_python() {
  local candidate
  for candidate in python3 /usr/bin/python3; do
    if "$candidate" -c 'import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
      2>/dev/null; then
      command -v "$candidate"
      return 0
    fi
  done
  return 1
}

_hf_make_venv() {
  local base=$1 target=$2
  # Whatever an interrupted start left is thrown away: the stamp is written last.
  rm -rf "$target"
  "$base" -m venv "$target" || return 1
  "$target/bin/python" -m pip install --no-deps --no-input --progress-bar off \
    -r "$HF_ROOT/deploy/requirements.txt" || return 1
  "$target/bin/python" -c 'import torch, torch.distributed as d; assert d.is_gloo_available()' ||
    return 1
  touch "$target/.complete"
}

hf_venv() {
  local wanted target
  wanted=$(sha256sum <"$HF_ROOT/deploy/requirements.txt" | cut -c1-12)
  target=$HF_CACHE/venv-$wanted
  HF_PYTHON=$target/bin/python
  [ -e "$target/.complete" ] && return 0
  mkdir -p "$HF_CACHE"
  (
    # Two first starts at once (quick start and tests) must not write one environment.
    flock 9
    [ -e "$target/.complete" ] && exit 0
    base=$(_hf_base_python) || {
      hf_packages python3 python3-venv || exit 1
      base=$(_hf_base_python) || {
        echo "no python between 3.11 and 3.13 that can make virtual environments; install" \
          "python3 and python3-venv" >&2
        exit 1
      }
    }
    hf_step "Installing torch into $target (once, about two minutes)" _hf_make_venv "$base" "$target"
  ) 9>"$HF_CACHE/venv.lock"
}

# A second environment on top of the first: whoever does not run the ecosystem's tests does without it,
# and a new version of transformers makes nobody install torch again.
_hf_make_ecosystem_venv() {
  local target=$1 purelib
  rm -rf "$target"
  purelib=$("$HF_PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || return 1
  "$HF_PYTHON" -m venv "$target" || return 1
  printf '%s\n' "$purelib" >"$("$target/bin/python" -c \
    'import sysconfig; print(sysconfig.get_path("purelib"))')/hyperframes-base.pth" || return 1
  "$target/bin/python" -m pip install --no-deps --no-input --progress-bar off \
    -r "$HF_ROOT/deploy/requirements-ecosystem.txt" || return 1
  HF_HUB_OFFLINE=1 "$target/bin/python" -c \
    'import torch, transformers, accelerate, peft, lightning.pytorch' || return 1
  touch "$target/.complete"
}

# After hf_provision.
hf_ecosystem_venv() {
  local wanted target
  wanted=$(cat "$HF_ROOT"/deploy/requirements{,-ecosystem}.txt | sha256sum | cut -c1-12)
  target=$HF_CACHE/ecosystem-$wanted
  HF_ECOSYSTEM_PYTHON=$target/bin/python
  [ -e "$target/.complete" ] && return 0
  (
    flock 9
    [ -e "$target/.complete" ] && exit 0
    hf_step "Installing transformers and its like into $target (once)" \
      _hf_make_ecosystem_venv "$target"
  ) 9>"$HF_CACHE/ecosystem.lock"
}

hf_provision() {
  case "${1:-build}" in
    build) hf_packages "${HF_BUILD_PACKAGES[@]}" || return 1 ;;
    test) hf_packages "${HF_BUILD_PACKAGES[@]}" "${HF_TEST_PACKAGES[@]}" || return 1 ;;
    *)
      echo "hf_provision: '$1' is neither build nor test" >&2
      return 2
      ;;
  esac
  hf_venv || return 1
  mkdir -p "$HF_CACHE/bazel"
  HF_BAZEL=("--disk_cache=$HF_CACHE/bazel" "--jobs=$(nproc)" --color=no --curses=no
    --noshow_loading_progress --show_progress_rate_limit=5)
}
