# Sourced by the scripts beside it: makes an environment and build/ what pyproject.toml and native/ ask for.
#
#   set_up [EXTRA...]   install the build requirements, the project's and those of the extras, then build the package
#
# Quick when nothing changed, safe to interrupt and to run twice at once. Sets `python`, the environment's interpreter, and
# `bin`, the folder of its programs. Variables it obeys (docs/install.md says more):
#   PYTHON                interpreter that .venv is made with, by default python3
#   MNIST_CUDA_ENV        `active`: no .venv, the environment of ${PYTHON:-python3} as it is
#   MNIST_CUDA_CPU_ONLY   1: neither install nor build what only a GPU needs; 0: do both; else `choose` decides
#   CMAKE_ARGS            options for the native build, such as -DMNIST_CUDA=OFF; CXX, CUDACXX and CUDAARCHS work too
# shellcheck shell=bash

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
python=$venv/bin/python
bin=$venv/bin
state=$venv  # where set-up keeps .home, .installed, .built and its logs
# shellcheck disable=SC2034  # for the scripts that source this: machine code of wheels, and PTX for what comes after
for_wheels="-DMNIST_CUDA=WHEELS -DCMAKE_CUDA_ARCHITECTURES=75-real;80-real;86-real;90a-real;100-real;120"

width=0  # of the terminal, if it is one that people look at
if [ -t 2 ]; then
  width=$(stty size <&2 2>/dev/null | cut -d' ' -f2) || true
  [ "${width:-0}" -gt 0 ] || width=80
fi
said=''  # the last line

erase_tick() { [ "$width" -eq 0 ] || printf '\033[K' >&2; }

say() {
  said=$*
  erase_tick
  printf 'mnist-cuda: %s\n' "$said" >&2
}
stop() {
  say "$@"
  exit 4
}

# tick START WHAT: a terminal shows what is being done, and for how long, in a line that goes again.
tick() {
  local line
  [ "$width" -gt 0 ] || return 0
  printf -v line '%4d s  %s' $((SECONDS - $1)) "$2"
  printf '\r\033[K%s\r' "${line:0:width-1}" >&2
}

# logged LOG COMMAND...: all output goes to LOG. CMake's line about the choice of a compiler is said here, too.
logged() {
  local log=$1 line part='' doing=$said status=0 start=$SECONDS
  shift
  "$@" 2>&1 </dev/null | tee "$log" | while true; do
    if IFS= read -r -t 1 line; then
      line=$part$line part=''
      if [[ $line =~ --\ mnist-cuda:\ (.*) ]]; then
        say "${BASH_REMATCH[1]}"
      elif [[ $line =~ (\[[1-9][0-9]*/[0-9]+\])\ (.*) ]]; then
        doing="${BASH_REMATCH[1]} ${BASH_REMATCH[2]##*/}"
      elif [[ $line =~ ^\ *(\*\*\*\ )?((Collecting|Downloading|Installing|Configuring|Building)\ .*) ]]; then
        doing=${BASH_REMATCH[2]}
      fi
    elif [ $? -gt 128 ]; then  # nothing new within a second, or not all of a line
      part+=$line
    else
      break
    fi
    tick "$start" "$doing"
  done || status=$?
  erase_tick
  return "$status"
}

# quietly LOG COMMAND...: what it says is shown only if it fails.
quietly() {
  logged "$@" || {
    cat "$1" >&2
    return 1
  }
}

# Names in one line what this machine lacks, before a build tool says it in a hundred: check_python PYTHON [headers]
check_python() {
  command -v "$1" >/dev/null ||
    stop "there is no $1; install it (Debian: apt install python3 python3-venv python3-dev) or name one: PYTHON=..."
  local problem
  problem=$("$1" -c '
import os, re, sys, sysconfig
version = "%d.%d" % sys.version_info[:2]
needed = re.search("requires-python = .>=([0-9.]+)", open(sys.argv[1]).read()).group(1)
if sys.version_info < tuple(int(n) for n in needed.split(".")):
    print("Python %s or newer is needed and %s is %s; install one (Debian: apt install python3 python3-venv "
          "python3-dev) and name it: PYTHON=..." % (needed, sys.executable, version))
elif sys.argv[2:] and not os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print("%s has no Python.h; install its headers (Debian: apt install python%s-dev)" % (sys.executable, version))
' "$root/pyproject.toml" "${@:2}") || stop "$1 does not run"
  [ -z "$problem" ] || stop "$problem"
}

# locate PYTHON [MINOR]: where it is; fails unless modules can be built for it, or if it is not Python 3.MINOR.
locate() {
  "$1" -c '
import os, sys, sysconfig
header = os.path.join(sysconfig.get_path("include"), "Python.h")
if not os.path.isfile(header) or sys.argv[1:] not in ([], [str(sys.version_info[1])]):
    sys.exit(1)
print(sys.executable)' "${@:2}" 2>/dev/null
}

# find_python MINOR: Python 3.MINOR with its headers, if it is here: .venv's, that on the PATH, or pyenv's.
find_python() {
  local candidate
  for candidate in "$venv/bin/python" "python3.$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$1".*/bin/python; do
    if locate "$candidate" "$1"; then return; fi
  done
  return 1
}

check_compiler() {
  [ -n "${CXX:-}" ] && return
  command -v g++ >/dev/null || stop "there is no g++; install it (Debian: apt install g++) or name a compiler: CXX=..."
  local version
  version=$(g++ -dumpversion)
  [ "${version%%.*}" -ge 11 ] ||
    stop "g++ 11 or newer is needed for C++20 and this one is $version; install one and name it: CXX=g++-11"
}

has_pip() { "$1" -m pip --version >/dev/null 2>&1; }

# base_python: what environments are made with. Where there is no python3, uv may have one.
base_python() {
  if [ -z "${PYTHON:-}" ] && ! command -v python3 >/dev/null && command -v uv >/dev/null; then
    uv python find '>=3.10' 2>/dev/null || echo python3
  else
    echo "${PYTHON:-python3}"
  fi
}

# new_venv PYTHON FOLDER: an environment with pip in it. A Python without ensurepip (Debian's without python3-venv, Colab's)
# cannot put it there; then its own pip does, if it knows --python, or uv.
new_venv() {
  local version name=${2##*/} log=$2/venv.log
  local pip=(install -q 'pip>=23.1')
  version=$("$1" --version)
  mkdir -p "$2"
  if ! "$1" -c 'import venv' 2>/dev/null; then
    stop "$1 has no module venv; install it (Debian: apt install python3-venv) or set MNIST_CUDA_ENV=active"
  elif "$1" -c 'import ensurepip' 2>/dev/null; then
    say "making $name with $version"
    quietly "$log" "$1" -m venv "$2" && quietly "$log" "$2/bin/python" -m pip "${pip[@]}" --disable-pip-version-check
  elif "$1" -m pip --python "$1" --version >/dev/null 2>&1; then
    say "making $name with $version, which has no ensurepip, and with its pip"
    quietly "$log" "$1" -m venv --without-pip "$2" &&
      quietly "$log" "$1" -m pip --python "$2/bin/python" "${pip[@]}" --disable-pip-version-check
  elif command -v uv >/dev/null; then
    say "making $name with $version, which has no ensurepip, and with pip from uv"
    quietly "$log" "$1" -m venv --without-pip "$2" && quietly "$log" uv pip "${pip[@]}" --python "$2/bin/python"
  else
    stop "$1 has neither ensurepip nor pip 22.3; install one of them (Debian: apt install python3-venv) or uv"
  fi || stop "the virtual environment could not be made; the reason is above"
}

# .venv/.home says where and with which Python the environment was made; without .installed it is half made.
make_venv() {
  local identity='import sys; print(sys.version, sys.base_prefix)' home base
  home=$("$python" -c "$identity" 2>/dev/null && echo "$root") || home=
  if [ -n "$home" ] && [ -f "$venv/.installed" ] && [ "$home" = "$(cat "$venv/.home" 2>/dev/null)" ] &&
    { [ -z "${PYTHON:-}" ] || [ "$("$PYTHON" -c "$identity")" = "${home%$'\n'*}" ]; }; then
    return
  fi
  base=$(base_python)
  check_python "$base" headers
  check_compiler
  [ -f "$venv/.home" ] || rmdir "$venv" 2>/dev/null || [ ! -e "$venv" ] ||
    stop ".venv is there and was not made by this script; move it away"
  rm -rf "$venv" && mkdir "$venv" && : >"$venv/.home"
  new_venv "$base" "$venv"
  { "$python" -c "$identity" && echo "$root"; } >"$venv/.home"
}

# MNIST_CUDA_ENV=active: the environment is somebody else's; what set-up keeps for itself goes to .venv-active.
find_active() {
  local base facts
  base=$(base_python)
  check_python "$base" headers
  facts=$("$base" -c '
import os, sys, sysconfig
managed = os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED"))
if managed and sys.prefix == sys.base_prefix and not os.environ.get("PIP_BREAK_SYSTEM_PACKAGES"):
    sys.exit(1)
for_user = os.geteuid() and not os.access(sysconfig.get_path("purelib"), os.W_OK)  # as pip decides it
scheme = sysconfig.get_preferred_scheme("user") if for_user else sysconfig.get_default_scheme()
print(sys.executable, sysconfig.get_path("scripts", scheme), sep="\n")
') || stop "$base belongs to the system's packages; activate an environment, or in a container of your own set" \
    "PIP_BREAK_SYSTEM_PACKAGES=1"
  python=${facts%$'\n'*}
  # shellcheck disable=SC2034  # for the scripts that source this
  bin=${facts#*$'\n'}
  state=$root/.venv-active
}

adopt_active() {
  local home
  home=$("$python" -c 'import sys; print(sys.version, sys.prefix)' && echo "$root")
  [ ! -f "$state/.installed" ] || [ "$home" != "$(cat "$state/.home")" ] || return 0
  check_compiler
  rm -rf "$state" && mkdir "$state"
  say "using the active environment of $python, $("$python" --version)"
  if ! has_pip "$python"; then
    command -v uv >/dev/null || stop "$python has no pip and there is no uv; install one of them"
    say "pip comes into it from uv"
    uv pip install -q --python "$python" 'pip>=23.1' || stop "uv failed; its reason is above"
  fi
  echo "$home" >"$state/.home"
}

# sign_of_gpu: what speaks for a GPU here: a driver, by its program or its library, as the build asks it, or an nvcc.
sign_of_gpu() {
  if command -v nvidia-smi; then
    return
  elif "$python" -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2>/dev/null; then
    echo libcuda.so.1
  else
    command -v nvcc || command -v "${CUDA_HOME:+$CUDA_HOME/bin/}nvcc" || command -v "${CUDA_PATH:+$CUDA_PATH/bin/}nvcc"
  fi
}

# choose INSTALLED: whether what only a GPU needs is left out, as MNIST_CUDA_CPU_ONLY for the rest of set-up. The user's
# words count, then the requirements that are or were INSTALLED, which so keep the choice; then what this machine has.
choose() {
  local sign
  [ -z "${MNIST_CUDA_CPU_ONLY:-}" ] || return 0
  export MNIST_CUDA_CPU_ONLY=0
  if [[ ${CMAKE_ARGS:-} =~ -DMNIST_CUDA(:[A-Z]+)?=OFF ]]; then
    MNIST_CUDA_CPU_ONLY=1
  elif [ -n "${CMAKE_ARGS:-}${CUDACXX:-}${CUDAARCHS:-}" ] || grep -qE '^(cuda|nvidia)-' <<<"$1"; then
    return
  elif ! sign=$(sign_of_gpu); then
    MNIST_CUDA_CPU_ONLY=1
    [ -n "$1" ] || say "set-up is for the CPU alone, as there is no NVIDIA driver and no nvcc; MNIST_CUDA_CPU_ONLY=0 adds the rest"
  elif [ -n "$1" ]; then
    say "here is $sign now: adding what only a GPU needs"
  fi
}

# What pyproject.toml requires to build, to run and for the extras, one requirement a line.
requirements() {
  "$python" -c '
import os, sys
try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib
with open(sys.argv[1], "rb") as file:
    toml = tomllib.load(file)
project, tools = toml["project"], toml["tool"]["scikit-build"]
lines = toml["build-system"]["requires"] + [tool + tools[tool]["version"] for tool in ("cmake", "ninja")]
lines += project["dependencies"]
lines += (line for extra in sys.argv[2:] for line in project["optional-dependencies"][extra])
if os.environ.get("MNIST_CUDA_CPU_ONLY") == "1":
    lines = [line for line in lines if not line.startswith(("cuda-", "nvidia-"))]
print(*lines, sep="\n")
' "$root/pyproject.toml" "$@"
}

# What is in the environment, one name==version a line.
installed() {
  "$python" -c '
from importlib.metadata import distributions
for d in distributions():
    print((d.metadata["Name"] or "").lower().replace("_", "-"), d.version, sep="==")
' | sort -u
}

# install REQUIREMENTS INSTALLED, both one a line. Beside PyTorch, and in an environment that is not ours, nothing of CUDA
# changes that is there: it keeps its version, cuDNN and cuBLAS are used as they are (the wheels of cuDNN for CUDA 12 and 13
# own the same files, which pip does not see), and our nvcc goes to a folder of its own.
install() {
  local lines=$1 there library found size=''
  local log=$state/requirements.log pip=("$python" -m pip install --disable-pip-version-check --progress-bar off)
  [ "$state" != "$venv" ] || pip+=(--no-compile)  # what is never imported needs no bytecode
  if [ "$state" != "$venv" ] || grep -q '^torch==' <<<"$2"; then
    there=$(grep -E '^(nvidia-|cuda-|torch|triton)' <<<"$2") || true
    for library in cudnn cublas; do
      if found=$(grep -E "^nvidia-$library(-cu[0-9]+)?==" <<<"$there") && grep -q "^nvidia-$library-" <<<"$lines"; then
        say "using ${found//$'\n'/, }, which is there"
        lines=$(grep -v "^nvidia-$library-" <<<"$lines") || true
      fi
    done
    if grep '^cuda-toolkit' <<<"$lines" >"$state/toolkit.txt"; then
      lines=$(grep -v '^cuda-toolkit' <<<"$lines") || true
      logged "$log" "${pip[@]}" --upgrade --target "$state/cuda" -r "$state/toolkit.txt" || return
    fi
    echo "$there" >"$state/constraints.txt"
    pip+=(-c "$state/constraints.txt")
  fi
  [ -n "$lines" ] || return 0
  [[ $lines != *nvidia-cudnn* ]] || size=", a download of 1.6 GB (MNIST_CUDA_CPU_ONLY=1 leaves out what only a GPU needs)"
  say "installing what pyproject.toml requires$size"
  echo "$lines" >"$state/requirements.txt"
  logged "$log" "${pip[@]}" -r "$state/requirements.txt"
}

# .installed lists the requirements that are in place. A failed pip changes nothing, an interrupted one does.
install_requirements() {
  local wanted missing there
  wanted=$(requirements "$@") || stop "pyproject.toml could not be read; the reason is above"
  missing=$(grep -vxFf <(cat "$state/.installed" 2>/dev/null || true) <<<"$wanted") || return 0
  there=$(installed) || stop "it cannot be seen what $python has; the reason is above"
  [ ! -f "$state/.installed" ] || mv "$state/.installed" "$state/.installing"
  if ! install "$missing" "$there"; then
    [ ! -f "$state/.installing" ] || mv "$state/.installing" "$state/.installed"
    stop "pip could not install the requirements: $(complaint "$state/requirements.log")"
  fi
  echo "$missing" >>"$state/.installing"
  mv "$state/.installing" "$state/.installed"
}

# complaint LOG: its first error and where the rest of it is.
complaint() {
  local line
  line=$(grep -m 1 -iE '(error|fatal) *: |CMake Error' "$1") || line=$(tail -n 1 "$1")
  echo "${line:0:200} (all of it: $1)"
}

# .built is as old as the start of the last good build and holds its options.
build_package() {
  local arguments=${CMAKE_ARGS:-} options first=
  if [ "${MNIST_CUDA_CPU_ONLY:-}" = 1 ] && [[ $arguments != *MNIST_CUDA=* ]]; then
    arguments+="${arguments:+ }-DMNIST_CUDA=OFF"
  fi
  options="CMAKE_ARGS=$arguments CXX=${CXX:-} CUDACXX=${CUDACXX:-} CUDAARCHS=${CUDAARCHS:-} CUDA_HOME=${CUDA_HOME:-}"
  options+=" CUDA_PATH=${CUDA_PATH:-} nvcc=$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc || true)"
  cd "$root"
  if [ "$options" != "$(cat "$state/.built" 2>/dev/null)" ]; then
    rm -rf build/CMakeCache.txt build/CMakeFiles/[0-9]*
  elif [ -f build/build.ninja ] && cmp -s build/.skbuild-info.json "$state/.build-info" &&
    [ -z "$(find native cmake CMakeLists.txt pyproject.toml -newer "$state/.built" -print -quit)" ]; then
    return
  fi
  check_compiler
  [ -f build/CMakeCache.txt ] || first=1
  say "building the native engine"
  echo "$options" >"$state/.building"
  compile "$arguments" "$first"
  cp build/.skbuild-info.json "$state/.build-info"
  mv "$state/.building" "$state/.built"
}

# compile CMAKE_ARGS FIRST: a first build that fails with a toolkit of CMake's choice is tried with the next one, at last
# without CUDA. Whoever named a toolkit gets the error, and so does whoever changed sources that did build.
compile() {
  local arguments=$1 first=$2 log=$state/build.log number=1 choice problem path=${PYTHONPATH:-}
  [ ! -d "$state/cuda" ] || path=$state/cuda${path:+:$path}
  [[ -z ${CUDACXX:-} && $arguments != *MNIST_CUDA=* && $arguments != *CMAKE_CUDA_COMPILER=* ]] || first=
  until logged "$log" env CMAKE_ARGS="$arguments" PYTHONPATH="$path" \
    "$python" -m pip install -v --disable-pip-version-check --no-build-isolation --no-deps --editable "$root"; do
    problem="the native engine did not build: $(complaint "$log")"
    choice=$(grep -m 1 -e '-- mnist-cuda: CUDA code for ' "$log") || first=
    [ -n "$first" ] || stop "$problem"
    case $choice in
      *" by PyPI's nvcc "*)
        say "$problem; without CUDA it may"
        arguments=${1:+$1 }-DMNIST_CUDA=OFF ;;
      *)
        say "$problem; PyPI's nvcc may"
        arguments=${1:+$1 }-DMNIST_SYSTEM_NVCC=OFF ;;
    esac
    rm -rf build/CMakeCache.txt build/CMakeFiles/[0-9]*
    number=$((number + 1))
    log=$state/build-$number.log
  done
}

# alone: wait for whoever sets up this folder, too.
alone() {
  local pid program who='another process' start=$SECONDS
  exec 9<"$root/pyproject.toml"
  if ! flock -n 9; then
    if read -r pid program 2>/dev/null <"$root/build/.set-up" && kill -0 "$pid" 2>/dev/null; then
      who="process $pid ($program)"
    fi
    say "waiting for $who, which sets up this folder"
    until flock -w 1 9; do tick "$start" "$said"; done
    erase_tick
  fi
  mkdir -p "$root/build" && echo "$$ $0" >"$root/build/.set-up"
}

set_up() {
  case ${MNIST_CUDA_ENV:-} in
    '') ;;
    active) find_active ;;
    *) stop "MNIST_CUDA_ENV is '$MNIST_CUDA_ENV', expected 'active' or nothing" ;;
  esac
  [[ ${MNIST_CUDA_CPU_ONLY:-} =~ ^[01]?$ ]] || stop "MNIST_CUDA_CPU_ONLY is '$MNIST_CUDA_CPU_ONLY', expected 0, 1 or nothing"
  (
    # pip answers Ctrl-C by failing, which must not look like a package or a compiler that does not work.
    trap 'say "stopped by Ctrl-C; the same command goes on from here"; exit 130' INT
    local before
    if command -v flock >/dev/null; then alone; fi
    before=$(cat "$state/.installed" "$state/.installing" 2>/dev/null) || true
    if [ "$state" = "$venv" ]; then make_venv; else adopt_active; fi
    choose "$before"
    install_requirements "$@"
    build_package
  )
}
