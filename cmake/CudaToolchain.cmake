# mnist_select_cuda_compiler(): choose a CUDA compiler before enable_language(CUDA), in this order:
#
#  1. what the user named: -DCMAKE_CUDA_COMPILER or CUDACXX
#  2. an nvcc >= 12 on PATH, in CUDA_HOME, CUDA_PATH or /usr/local/cuda   (not with MNIST_CUDA=WHEELS)
#  3. the nvcc of the PyPI wheels that this Python sees, pip's isolated build environment included
#
# The wheels hold a toolkit in site-packages/nvidia/cu<major>/{bin,include,lib,nvvm}. Their nvcc.profile says lib64,
# so the link directory is added here. Only the static runtime is linked: find_package(CUDAToolkit) insists on an
# unversioned libcudart.so, which a wheel cannot carry (wheels hold no symbolic links).

function(_mnist_wheel_toolkit out)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
"import pathlib, sys
hits = [d for p in sys.path for d in sorted(pathlib.Path(p, 'nvidia').glob('cu[0-9]*'), reverse=True) if (d / 'bin/nvcc').is_file()]
print(hits[0] if hits else '', end='')"
    OUTPUT_VARIABLE root ERROR_QUIET)
  set(${out} "${root}" PARENT_SCOPE)
endfunction()

function(_mnist_nvcc_is_new_enough result nvcc)  # validator of find_program
  execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE text RESULT_VARIABLE code ERROR_QUIET)
  if(NOT code EQUAL 0 OR NOT text MATCHES "release ([0-9]+)\\." OR CMAKE_MATCH_1 LESS 12)
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

macro(mnist_select_cuda_compiler)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    if(NOT MNIST_CUDA STREQUAL "WHEELS")
      find_program(MNIST_SYSTEM_NVCC nvcc
        HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
        PATH_SUFFIXES bin VALIDATOR _mnist_nvcc_is_new_enough NO_CMAKE_PATH)
    endif()
    if(MNIST_SYSTEM_NVCC)
      set(CMAKE_CUDA_COMPILER "${MNIST_SYSTEM_NVCC}")
    else()
      _mnist_wheel_toolkit(_root)
      if(_root)
        set(CMAKE_CUDA_COMPILER "${_root}/bin/nvcc")
        string(APPEND CMAKE_CUDA_FLAGS_INIT " \"-L${_root}/lib\"")
      endif()
    endif()
  endif()
endmacro()

# Default architectures: those of the GPUs in this machine, else Hopper's own and a base that every GPU from Ampere
# on can run (its PTX is compiled by the driver). CMake's "native" would say sm_90 on Hopper, which has no wgmma.
function(mnist_default_cuda_architectures out)
  set(architectures 80 90a-real)
  find_program(MNIST_NVIDIA_SMI nvidia-smi)
  if(MNIST_NVIDIA_SMI)
    execute_process(COMMAND "${MNIST_NVIDIA_SMI}" --query-gpu=compute_cap --format=csv,noheader
      OUTPUT_VARIABLE found RESULT_VARIABLE code ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(code EQUAL 0 AND found MATCHES "^[0-9]+\\.[0-9]")
      string(REPLACE "." "" found "${found}")
      string(REGEX REPLACE "[ \r\n]+" ";" found "${found}")
      list(REMOVE_DUPLICATES found)
      list(TRANSFORM found REPLACE "^90$" "90a")
      list(TRANSFORM found APPEND "-real")
      set(architectures ${found})
    endif()
  endif()
  set(${out} "${architectures}" PARENT_SCOPE)
endfunction()
