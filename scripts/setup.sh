# Sourced by the scripts beside it: makes .venv and build/ what pyproject.toml and native/ ask for.
#
#   set_up [EXTRA...]   install the build requirements, the project's and those of the extras, then build the package
#
# Quick when nothing changed, safe to interrupt and to run twice at once. Variables it obeys:
#   PYTHON       interpreter that .venv is made with, by default python3
#   CMAKE_ARGS   options for the native build, such as -DMNIST_CUDA=OFF; CXX, CUDACXX and CUDAARCHS work too
# shellcheck shell=bash

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv

say() { printf 'mnist-cuda: %s\n' "$*" >&2; }
stop() {
  say "$@"
  exit 4
}

# Names in one line what this machine lacks, before a build tool says it in a hundred.
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
    sys.exit()
try:
    import ensurepip, venv
except ImportError:
    print("%s cannot make virtual environments; install python%s-venv (Debian: apt install python%s-venv)"
          % (sys.executable, version, version))
    sys.exit()
if not os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print("%s has no Python.h; install its headers (Debian: apt install python%s-dev)" % (sys.executable, version))
' "$root/pyproject.toml") || stop "$1 does not run"
  [ -z "$problem" ] || stop "$problem"
}

check_compiler() {
  [ -n "${CXX:-}" ] && return
  command -v g++ >/dev/null || stop "there is no g++; install it (Debian: apt install g++) or name a compiler: CXX=..."
  local version
  version=$(g++ -dumpversion)
  [ "${version%%.*}" -ge 11 ] ||
    stop "g++ 11 or newer is needed for C++20 and this one is $version; install one and name it: CXX=g++-11"
}

# What pyproject.toml requires to build, to run and for the extras, one requirement a line.
requirements() {
  "$venv/bin/python" -c '
import sys
try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib
with open(sys.argv[1], "rb") as file:
    toml = tomllib.load(file)
project, tools = toml["project"], toml["tool"]["scikit-build"]
lines = toml["build-system"]["requires"] + [tool + tools[tool]["version"] for tool in ("cmake", "ninja")]
lines += project["dependencies"]
print(*lines, *(line for extra in sys.argv[2:] for line in project["optional-dependencies"][extra]), sep="\n")
' "$root/pyproject.toml" "$@"
}

# .venv/.home says where and with which Python the environment was made; without .installed it is half made.
make_venv() {
  local identity='import sys; print(sys.version, sys.base_prefix)' home
  home=$("$venv/bin/python" -c "$identity" 2>/dev/null && echo "$root") || home=
  if [ -n "$home" ] && [ -f "$venv/.installed" ] && [ "$home" = "$(cat "$venv/.home" 2>/dev/null)" ] &&
    { [ -z "${PYTHON:-}" ] || [ "$("$PYTHON" -c "$identity")" = "${home%$'\n'*}" ]; }; then
    return
  fi
  check_python "${PYTHON:-python3}"
  check_compiler
  [ -f "$venv/.home" ] || rmdir "$venv" 2>/dev/null || [ ! -e "$venv" ] ||
    stop ".venv is there and was not made by this script; move it away"
  say "making .venv with $("${PYTHON:-python3}" --version)"
  if ! { rm -rf "$venv" && mkdir "$venv" && : >"$venv/.home" && "${PYTHON:-python3}" -m venv "$venv"; }; then
    stop "the virtual environment could not be made; the reason is above"
  fi
  "$venv/bin/python" -m pip install -q --disable-pip-version-check 'pip>=23.1' || stop "pip failed; its reason is above"
  { "$venv/bin/python" -c "$identity" && echo "$root"; } >"$venv/.home"
}

# .venv/.installed lists the requirements that are in place. A failed pip changes nothing, an interrupted one does.
install_requirements() {
  local wanted missing
  wanted=$(requirements "$@") || stop "pyproject.toml could not be read; the reason is above"
  missing=$(grep -vxFf <(cat "$venv/.installed" 2>/dev/null || true) <<<"$wanted") || return 0
  say "installing into .venv what pyproject.toml requires (the first time a download of about 1.5 GB)"
  [ ! -f "$venv/.installed" ] || mv "$venv/.installed" "$venv/.installing"
  if ! "$venv/bin/python" -m pip install -q --disable-pip-version-check -r <(echo "$missing"); then
    [ ! -f "$venv/.installing" ] || mv "$venv/.installing" "$venv/.installed"
    stop "pip could not install the requirements; its reason is above"
  fi
  echo "$missing" >>"$venv/.installing"
  mv "$venv/.installing" "$venv/.installed"
}

# .venv/.built is as old as the start of the last good build and holds its options.
build_package() {
  local options="CMAKE_ARGS=${CMAKE_ARGS:-} CXX=${CXX:-} CUDACXX=${CUDACXX:-} CUDAARCHS=${CUDAARCHS:-}"
  cd "$root"
  if [ "$options" != "$(cat "$venv/.built" 2>/dev/null)" ]; then
    rm -rf build/CMakeCache.txt build/CMakeFiles/[0-9]*
  elif [ -f build/build.ninja ] && cmp -s build/.skbuild-info.json "$venv/.build-info" &&
    [ -z "$(find native cmake CMakeLists.txt pyproject.toml -newer "$venv/.built" -print -quit)" ]; then
    return
  fi
  check_compiler
  say "building the native engine"
  echo "$options" >"$venv/.building"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps --editable "$root" ||
    stop "the native engine did not build; the reason is above (CMAKE_ARGS=-DMNIST_CUDA=WHEELS takes nvcc from the" \
      "wheels instead of the system's, =OFF builds without CUDA)"
  cp build/.skbuild-info.json "$venv/.build-info"
  mv "$venv/.building" "$venv/.built"
}

set_up() (
  if command -v flock >/dev/null; then
    exec 9<"$root/pyproject.toml"
    flock 9
  fi
  make_venv
  install_requirements "$@"
  build_package
)
