# Which GPU architectures the CUDA code is compiled for. Lists are CMake's: `75-real` is machine code, `80` machine code
# and PTX, which the driver compiles for newer GPUs, `75-virtual` PTX alone.
#
#   mnist_known_architectures(OUT NVCC)             numbers that a compiler compiles for
#   mnist_default_cuda_architectures(OUT)           for the GPUs in this machine, or for a machine without any
#   mnist_architecture_problem(OUT NVCC)            why what is asked for cannot be compiled
#   mnist_architectures_from(OLDEST OUT LIST...)    those of a list that are not older

set(_mnist_oldest 60)  # see native/host/cuda/architectures.h

function(mnist_known_architectures out nvcc)
  execute_process(COMMAND "${nvcc}" --list-gpu-arch OUTPUT_VARIABLE text ERROR_QUIET)
  string(REGEX MATCHALL "compute_[0-9]+" known "${text}")
  list(TRANSFORM known REPLACE "compute_" "")
  set(${out} "${known}" PARENT_SCOPE)
endfunction()

# The newest of a list of numbers that is not above `number`; 0 if all are.
function(_mnist_newest_up_to number out)
  set(newest 0)
  foreach(candidate IN LISTS ARGN)
    if(candidate LESS_EQUAL number AND candidate GREATER newest)
      set(newest ${candidate})
    endif()
  endforeach()
  set(${out} ${newest} PARENT_SCOPE)
endfunction()

# A sentence without its subject, which is an nvcc.
function(_mnist_why_not_compiled number out)
  string(REGEX REPLACE "(.)$" ".\\1" capability "${number}")
  if(number LESS _mnist_oldest)
    set(reason "has no code to compile for ${capability}: the project's is for 6.0 and newer")
  elseif(number LESS 75)
    set(reason "does not compile for compute capability ${capability}, which CUDA 13 has dropped; a CUDA 12 toolkit does")
  else()
    set(reason "does not know compute capability ${capability}; a newer one may")
  endif()
  set(${out} "${reason}" PARENT_SCOPE)
endfunction()

# The GPUs in this machine, each by its own machine code: 90a for Hopper, because CMake's "native" says 90, which has no
# wgmma. One that is newer than the compiler gets the newest PTX that there is; one that is too old is announced.
# Without a GPU: Turing, Hopper, and PTX of Ampere for everything between and after them.
function(mnist_default_cuda_architectures out)
  mnist_known_architectures(known "${CMAKE_CUDA_COMPILER}")
  set(architectures)
  find_program(MNIST_NVIDIA_SMI nvidia-smi)
  if(MNIST_NVIDIA_SMI)
    execute_process(COMMAND "${MNIST_NVIDIA_SMI}" --query-gpu=compute_cap --format=csv,noheader
      OUTPUT_VARIABLE text RESULT_VARIABLE code ERROR_QUIET)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]" found "${text}")
    if(NOT code EQUAL 0)
      set(found)
    endif()
    list(REMOVE_DUPLICATES found)
    foreach(capability IN LISTS found)
      string(REPLACE "." "" number "${capability}")
      _mnist_newest_up_to(${number} newest ${known})
      if(number LESS _mnist_oldest)
        set(newest 0)
      endif()
      if(number EQUAL 90 AND newest EQUAL 90)
        list(APPEND architectures 90a-real)
      elseif(newest EQUAL number)
        list(APPEND architectures ${number}-real)
      elseif(newest GREATER 0)
        list(APPEND architectures ${newest})
      else()
        _mnist_why_not_compiled(${number} reason)
        # scripts/setup.sh shows lines that begin like this one
        message(STATUS "mnist-cuda: there is a GPU of compute capability ${capability}, and ${CMAKE_CUDA_COMPILER} ${reason}")
      endif()
    endforeach()
    list(REMOVE_DUPLICATES architectures)
  endif()
  if(NOT architectures)
    set(architectures 75-real 80 90a-real)
  endif()
  set(${out} "${architectures}" PARENT_SCOPE)
endfunction()

# Why `nvcc` cannot compile for what CMAKE_CUDA_ARCHITECTURES or CUDAARCHS asks for; empty if it can, or
# if they ask for nothing.
function(mnist_architecture_problem out nvcc)
  set(asked "${CMAKE_CUDA_ARCHITECTURES}")
  if(NOT asked)
    set(asked "$ENV{CUDAARCHS}")
  endif()
  mnist_known_architectures(known "${nvcc}")
  set(problem "")
  foreach(entry IN LISTS asked)
    string(REGEX MATCH "^[0-9]+" number "${entry}")
    if(NOT entry MATCHES "^[0-9]+[af]?(-real|-virtual)?$")
      set(problem "cannot compile for '${entry}' (CMAKE_CUDA_ARCHITECTURES wants numbers such as 75-real,80,90a-real)")
    elseif(number LESS _mnist_oldest OR (known AND NOT number IN_LIST known))  # one that says nothing is probed
      _mnist_why_not_compiled(${number} problem)
    endif()
  endforeach()
  set(${out} "${problem}" PARENT_SCOPE)
endfunction()

function(mnist_architectures_from oldest out)
  set(kept)
  foreach(entry IN LISTS ARGN)
    string(REGEX MATCH "^[0-9]+" number "${entry}")
    if(number GREATER_EQUAL oldest)
      list(APPEND kept ${entry})
    endif()
  endforeach()
  set(${out} "${kept}" PARENT_SCOPE)
endfunction()
