# mnist_select_cuda_compiler(): choose a CUDA compiler before enable_language(CUDA), in this order:
#
#  1. what the user named: -DCMAKE_CUDA_COMPILER or CUDACXX; nothing replaces it
#  2. an nvcc >= 12.1 on PATH, in CUDA_HOME, CUDA_PATH or /usr/local/cuda   (not with MNIST_CUDA=WHEELS, nor with
#     MNIST_SYSTEM_NVCC=OFF, by which scripts/setup.sh passes over a toolkit that built the probe and not the project)
#  3. the nvcc of the PyPI wheels that this Python sees, pip's isolated build environment included
#
# It is taken if it builds cmake/probe, and in 2 and 3 with MNIST_CUDA=AUTO if this machine's driver, where there is one,
# is for its major version of CUDA.
#
# The wheels hold a toolkit in site-packages/nvidia/cu<major>/{bin,include,lib,nvvm}. Their nvcc.profile says lib64,
# so the link directory is added here. Only the static runtime is linked: find_package(CUDAToolkit) insists on an
# unversioned libcudart.so, which a wheel cannot carry (wheels hold no symbolic links).

include("${CMAKE_CURRENT_LIST_DIR}/CudaArchitectures.cmake")

function(_mnist_wheel_toolkit out)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
"import pathlib, sys
hits = [d for p in sys.path for d in sorted(pathlib.Path(p, 'nvidia').glob('cu[0-9]*'), reverse=True) if (d / 'bin/nvcc').is_file()]
print(hits[0] if hits else '', end='')"
    OUTPUT_VARIABLE root ERROR_QUIET)
  set(${out} "${root}" PARENT_SCOPE)
endfunction()

function(_mnist_nvcc_version out nvcc)  # such as 12.4; empty if it cannot say
  execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE text RESULT_VARIABLE code ERROR_QUIET)
  set(${out} "" PARENT_SCOPE)
  if(code EQUAL 0 AND text MATCHES "release ([0-9]+\\.[0-9]+)")
    set(${out} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  endif()
endfunction()

function(_mnist_nvcc_is_new_enough result nvcc)  # validator of find_program
  _mnist_nvcc_version(version "${nvcc}")
  if(NOT version VERSION_GREATER_EQUAL 12.1)
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

# The version of CUDA that the driver is for; empty where there is no driver. Asked of libcuda, as the program will: a
# container may bring a newer one than the driver that nvidia-smi speaks of.
function(_mnist_driver_version out)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
"import ctypes
version = ctypes.c_int()
ctypes.CDLL('libcuda.so.1').cuDriverGetVersion(ctypes.byref(version))
print(f'{version.value // 1000}.{version.value % 1000 // 10}', end='')"
    OUTPUT_VARIABLE version ERROR_QUIET)
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

# Builds cmake/probe with the compiler that the arguments after `name` speak of. `out` is empty if that went well, else
# the first complaint and the file that has all of the output.
function(_mnist_probe out name)
  set(folder "${CMAKE_BINARY_DIR}/cuda-probe/${name}")
  set(arguments ${ARGN})
  foreach(variable IN ITEMS CMAKE_MAKE_PROGRAM CMAKE_CXX_COMPILER CMAKE_CUDA_HOST_COMPILER CMAKE_CUDA_ARCHITECTURES
                            CMAKE_CUDA_FLAGS)
    if(DEFINED ${variable})
      string(REPLACE ";" "\\;" value "${${variable}}")
      list(APPEND arguments "-D${variable}=${value}")
    endif()
  endforeach()
  file(REMOVE_RECURSE "${folder}")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/probe" -B "${folder}" -G "${CMAKE_GENERATOR}" ${arguments}
    RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(code EQUAL 0)
    execute_process(COMMAND "${CMAKE_COMMAND}" --build "${folder}"
                    RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
  endif()
  set(problem "")
  if(NOT code EQUAL 0)
    set(details "")
    if(EXISTS "${folder}/CMakeFiles/CMakeConfigureLog.yaml")  # all that a compiler says that CMake cannot identify
      file(READ "${folder}/CMakeFiles/CMakeConfigureLog.yaml" details)
    endif()
    file(WRITE "${folder}.log" "${text}${details}")
    string(REGEX REPLACE "\n +([^ 0-9|])" " \\1" unwrapped "${text}")  # CMake breaks what it reports into short lines
    set(complaint "((nvcc )?(fatal|error|fatal error) *:|cannot find) [^\n]*")
    if("${unwrapped}" MATCHES "${complaint}")
    elseif("${details}" MATCHES "${complaint}")
    elseif("${unwrapped}" MATCHES "(Could not|Couldn't|is not able) [^\n]*")
    endif()
    string(REPLACE ";" "," complaint "${CMAKE_MATCH_0}")
    string(SUBSTRING "${complaint}" 0 160 complaint)
    set(problem "fails a test compile (${complaint}, see ${folder}.log)")
  endif()
  set(${out} "${problem}" PARENT_SCOPE)
endfunction()

# Takes `nvcc`, unless something is against it; then `_reasons` gets what.
macro(_mnist_consider name title nvcc flags)
  _mnist_nvcc_version(_version "${nvcc}")
  string(REGEX MATCH "^[0-9]+" _major "${_version}")
  if(MNIST_CUDA STREQUAL "AUTO" AND _driver AND _driver VERSION_LESS _major)
    set(_problem "needs a driver for CUDA ${_major} (580 or newer for 13, 525 for 12) and this one is for ${_driver}")
  else()
    mnist_architecture_problem(_problem "${nvcc}")
    if(NOT _problem)
      _mnist_probe(_problem ${name} "-DCMAKE_CUDA_COMPILER=${nvcc}" "-DCMAKE_CUDA_FLAGS_INIT=${flags}")
    endif()
  endif()
  if(_problem)
    string(REPLACE ";" "," _problem "${_problem}")  # of a sentence, not of a list
    list(APPEND _reasons "${title} ${_version} ${_problem}")
  else()
    set(MNIST_CUDA_CHOSEN "${title} ${_version}" CACHE INTERNAL "")
    set(CMAKE_CUDA_COMPILER "${nvcc}")
    set(_mnist_nvcc "${nvcc}")
    string(APPEND CMAKE_CUDA_FLAGS_INIT "${flags}")
  endif()
endmacro()

# Sets CMAKE_CUDA_COMPILER, MNIST_CUDA_CHOSEN (what a message calls it, empty if there is none) and MNIST_CUDA_REASONS (why
# not one of those before it). A build tree chooses once.
macro(mnist_select_cuda_compiler)
  if(NOT MNIST_CUDA_CHOSEN_FOR STREQUAL MNIST_CUDA)
    set(MNIST_CUDA_CHOSEN "" CACHE INTERNAL "")
    set(_reasons "")
    if(CMAKE_CUDA_COMPILER OR DEFINED ENV{CUDACXX})
      set(_named "CUDACXX=$ENV{CUDACXX}")
      set(_arguments "")  # CMake reads CUDACXX itself, which may hold options, too
      if(CMAKE_CUDA_COMPILER)
        set(_named "CMAKE_CUDA_COMPILER=${CMAKE_CUDA_COMPILER}")
        set(_arguments "-DCMAKE_CUDA_COMPILER=${CMAKE_CUDA_COMPILER}")
      endif()
      set(_problem "")
      if(CMAKE_CUDA_COMPILER)
        mnist_architecture_problem(_problem "${CMAKE_CUDA_COMPILER}")
      endif()
      if(NOT _problem)
        _mnist_probe(_problem named ${_arguments})
      endif()
      if(_problem)
        string(REPLACE ";" "," _problem "${_problem}")
        list(APPEND _reasons "${_named} ${_problem}")
      else()
        set(MNIST_CUDA_CHOSEN "${_named}" CACHE INTERNAL "")
      endif()
    else()
      _mnist_driver_version(_driver)
      if(NOT MNIST_CUDA STREQUAL "WHEELS")
        find_program(MNIST_SYSTEM_NVCC nvcc
          HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
          PATH_SUFFIXES bin VALIDATOR _mnist_nvcc_is_new_enough NO_CMAKE_PATH)
        if(MNIST_SYSTEM_NVCC)
          _mnist_consider(system "${MNIST_SYSTEM_NVCC}" "${MNIST_SYSTEM_NVCC}" "")
        elseif(MNIST_SYSTEM_NVCC STREQUAL "OFF")
          list(APPEND _reasons "this machine's own nvcc is not to be used")
        else()
          list(APPEND _reasons "this machine has no nvcc 12.1 or newer of its own")
        endif()
      endif()
      _mnist_wheel_toolkit(_root)
      if(NOT MNIST_CUDA_CHOSEN AND _root)
        _mnist_consider(wheels "PyPI's nvcc" "${_root}/bin/nvcc" " \"-L${_root}/lib\"")
      elseif(NOT MNIST_CUDA_CHOSEN)
        list(APPEND _reasons "the wheels named in pyproject.toml, which hold one, are not installed")
      endif()
    endif()
    list(JOIN _reasons "; " _reasons)
    set(MNIST_CUDA_REASONS "${_reasons}" CACHE INTERNAL "")
    set(MNIST_CUDA_CHOSEN_FOR "${MNIST_CUDA}" CACHE INTERNAL "")
  endif()
endmacro()

# enable_language(CUDA) and what all device code is compiled with, the probe's, too: standard, architectures and, for
# target_compile_options(), mnist_cuda_options. A macro, because languages are enabled in a file's scope.
macro(mnist_enable_cuda)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  if(DEFINED CMAKE_CUDA_ARCHITECTURES OR DEFINED ENV{CUDAARCHS})
    enable_language(CUDA)
  else()
    set(CMAKE_CUDA_ARCHITECTURES 80)  # for the compiler checks only
    enable_language(CUDA)
    mnist_default_cuda_architectures(CMAKE_CUDA_ARCHITECTURES)
  endif()
  if(_mnist_nvcc AND NOT CMAKE_CUDA_COMPILER STREQUAL _mnist_nvcc)
    unset(MNIST_CUDA_CHOSEN_FOR CACHE)  # or the next configuration would take this choice for made
    message(FATAL_ERROR "${CMAKE_BINARY_DIR} was configured with ${CMAKE_CUDA_COMPILER}, which CMake keeps; for "
      "${MNIST_CUDA_CHOSEN} start it again by cmake --fresh")
  endif()
  # CMake cuts the toolkit's library directory at a space in its path; this list has it whole.
  list(PREPEND CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES ${CMAKE_CUDA_HOST_IMPLICIT_LINK_DIRECTORIES})
  set(mnist_cuda_options -lineinfo --expt-relaxed-constexpr -Xcompiler=-Wall)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
    list(APPEND mnist_cuda_options --compress-mode=size)
  endif()
endmacro()
