#!/usr/bin/env bash
# Builds everything with nvcc 12.4, the oldest CUDA that is tried, to see that it still can: Debian 13 has it.
#
#   scripts/check cuda12 FOLDER [ARCHITECTURES]
#
# Nothing is installed. Debian's apt fetches the packages (1 GB) from the archive that this machine uses and they are
# unpacked into FOLDER/toolkit (150 MB), a toolkit as NVIDIA lays it out; the build goes to FOLDER/build. ARCHITECTURES are
# CMake's, by default every kind of GPU that this compiler knows. nvcc 12.4 wants a g++ of at most 13: CUDAHOSTCXX=g++-13.
source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"

[ $# -ge 1 ] || {
  say "usage: scripts/check cuda12 FOLDER [ARCHITECTURES]"
  exit 2
}
folder=$(realpath -m -- "$1")
architectures=${2:-70-real;75-real;80-real;86-real;90a-real}
toolkit=$folder/toolkit

# With lists and a cache of its own, so that neither apt's settings nor its state on this machine change.
fetch() {
  local archive apt
  # shellcheck disable=SC2016  # apt's own variable
  archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Component: main' |
    grep -v security | head -n 1)
  [ -n "$archive" ] || stop "this machine's apt knows no archive of Debian"
  mkdir -p "$folder"/apt/{lists,archives}/partial
  echo "deb [arch=amd64] $archive trixie main non-free" >"$folder/apt/sources.list"
  apt=(apt-get -q -o "Dir::Etc::SourceList=$folder/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State=$folder/apt" -o "Dir::Cache=$folder/apt" -o APT::Sandbox::User=root)
  "${apt[@]}" update && (cd "$folder/apt" && "${apt[@]}" download nvidia-cuda-toolkit nvidia-cuda-dev libcu++-dev libcub-dev libthrust-dev)
}

# The parts of the packages that compile, in the folders where nvcc and CMake look for them.
unpack() {
  local deb=$folder/apt/deb new=$folder/toolkit.new package usr
  usr=$deb/usr
  rm -rf "$deb" "$new" && mkdir -p "$deb" "$new"/{bin,lib64,nvvm/bin}
  for package in "$folder"/apt/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$deb" --exclude='./usr/share' --exclude='*.so*' \
      --exclude='./usr/lib/*/lib[!c]*.a' --exclude='./usr/lib/*/libcu[!d]*.a'
  done
  mv "$usr"/lib/nvidia-cuda-toolkit/bin/{nvcc,crt} "$usr"/bin/{ptxas,fatbinary,cudafe++,nvlink,cuobjdump} "$new/bin"
  mv "$usr/lib/nvidia-cuda-toolkit/bin/cicc" "$new/nvvm/bin"
  mv "$usr/lib/nvidia-cuda-toolkit/libdevice" "$new/nvvm"
  mv "$usr/include" "$new"
  mv "$usr"/lib/x86_64-linux-gnu/libcuda{rt_static,devrt}.a "$new/lib64"
  cat >"$new/bin/nvcc.profile" <<'PROFILE'
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64"
PROFILE
  mv "$new" "$toolkit"
  rm -rf "$folder/apt"
}

if [ ! -d "$toolkit" ]; then
  command -v apt-get dpkg-deb >/dev/null || stop "Debian's apt and dpkg are needed"
  say "fetching Debian's nvcc 12.4 into $folder"
  fetch
  unpack
fi
export MNIST_CUDA_CPU_ONLY=1  # of pyproject.toml's requirements only those that are not CUDA's
make_venv
install_requirements
build=$folder/build
rm -rf "$build"
"$bin/cmake" -S "$root" -B "$build" -G Ninja -DCMAKE_MAKE_PROGRAM="$bin/ninja" -DPython_EXECUTABLE="$python" \
  -DCMAKE_CUDA_COMPILER="$toolkit/bin/nvcc" -DCMAKE_CUDA_ARCHITECTURES="$architectures" -DMNIST_WERROR=ON &&
  "$bin/cmake" --build "$build"
