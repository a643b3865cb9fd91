# Sourced by run and nightly: steps, one after the other, and the lines that sum them up.
#
#   step NAME COMMAND...   runs it, whatever became of the steps before
#   sum_up LOG             the steps with their times, then what pytest and ctest said last in LOG; fails if a step did
# shellcheck shell=bash
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 4
source scripts/setup.sh
export CI=true

# What was compiled before, in any folder, is not compiled again where ccache is installed.
if command -v ccache >/dev/null; then
  say "compiling with $(ccache --version | head -1)"
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
  export CCACHE_BASEDIR=$root CCACHE_COMPILERCHECK=content CCACHE_NOHASHDIR=1
fi

# The four files of the data set, by default beside the checkout.
mnist=$(realpath -m -- "${MNIST_CUDA_TEST_DATA:-../shared/mnist}")
export MNIST_CUDA_TEST_DATA=$mnist
# shellcheck disable=SC2034  # for the scripts that source this
out=$root/.venv/ci  # what the steps leave behind
failed=0
results=()

step() {
  local name=$1 start=$SECONDS verdict=ok
  shift
  printf '\n==== %s: %s\n' "$name" "$*"
  "$@" </dev/null || { verdict="FAILED ($?)" && failed=1; }
  results+=("$(printf '%-10s %5d s  %s' "$name" $((SECONDS - start)) "$verdict")")
}

sum_up() {
  printf '\n====\n'
  printf '%s\n' "${results[@]}"
  grep -hE 'tests passed|tests failed|^=+ .*(passed|failed|error|no tests ran).*=+$' "$1" || failed=1
  exit "$failed"
}

# sanitizer PRESET: the host's C++ tests under what CMakePresets.json names.
sanitizer() {
  local -x PATH=$venv/bin:$PATH VIRTUAL_ENV=$venv
  cmake --preset "$1" -DMNIST_WERROR=ON && cmake --build --preset "$1" && ctest --preset "$1"
}

# packages: where .venv's are, for its Python without `site`.
packages() { "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))'; }

# away FOLDER: what git tracks, without the package, so that tests there see the one that is installed.
away() {
  rm -rf "$1" && mkdir -p "$1" && git ls-files -z -- . ':!mnist_cuda' | xargs -0 cp --parents -t "$1"
}

# other_python MINOR INTERPRETER: TESTS with the wheel for Python 3.MINOR, in a new environment.
TESTS=(test_{api,baseline,bench_check,charts,checkpoint,cli,completion,damaged_files,digit,errors,evaluate}.py
  test_{export,files,predict,profile,ranks,ranks_world,registry,report,reported_values,runs,schedule,signals}.py
  test_data_{commands,dataset,idx,synthetic,unpacked}.py
  test_{docs_from_records,picture_file,startup,streams,timing,train}.py)
other_python() (
  local folder=$out/python-3.$1 wheel
  wheel=$(find "$out/dist" -name "*-cp3$(($1 < 12 ? $1 : 12))-*.whl")
  rm -rf "$folder" && new_venv "$2" "$folder" && away "$folder/checkout" || return
  MNIST_CUDA_CPU_ONLY=1 requirements test >"$folder/requirements.txt"
  local pip=("$folder/bin/python" -m pip install -q --disable-pip-version-check --no-compile)
  "${pip[@]}" -r "$folder/requirements.txt" && "${pip[@]}" --no-deps "$wheel" && cd "$folder/checkout/tests" &&
    "$folder/bin/pytest" -p no:cacheprovider -n 2 --dist worksteal "${TESTS[@]}"
)

# other_pythons MINOR...: that as a step for each that is here, but for .venv's own.
other_pythons() {
  local minor interpreter
  for minor; do
    if ! interpreter=$(find_python "$minor"); then
      say "Python 3.$minor or its headers are not here: no tests by it"
    elif [ "$interpreter" != "$python" ]; then
      step "python3.$minor" other_python "$minor" "$interpreter"
    fi
  done
}
