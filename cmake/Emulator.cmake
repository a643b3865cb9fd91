# Our kernels on the CPU: native/emulator, and the tests of the unfused ops built a second time against it. Needs no CUDA
# at all, only g++ for x86-64 and its addr2line.
set(_emulator "${CMAKE_CURRENT_SOURCE_DIR}/native/emulator")
set(_rewritten "${CMAKE_CURRENT_BINARY_DIR}/emulated")

# A new kernel is emulated unless left_out.txt says why not.
include(EmulatorSources)
mnist_emulator_sources(_kernels kernels)
file(STRINGS "${_emulator}/left_out.txt" _left_out REGEX "^[a-z]")
foreach(_line IN LISTS _left_out)
  string(REGEX REPLACE " .*" "" _name "${_line}")
  list(FILTER _kernels EXCLUDE REGEX "/${_name}[.]cu$")
endforeach()
# Those of `fused` for an A100 and an RTX card.
foreach(_name IN ITEMS bf16 tf32 outside_step/data outside_step/slab)
  list(APPEND _fused "${CMAKE_CURRENT_SOURCE_DIR}/native/gpu/kernels/fused/${_name}.cu")
endforeach()
file(GLOB_RECURSE _headers CONFIGURE_DEPENDS native/gpu/kernels/*.cuh)
foreach(_file IN LISTS _kernels _fused _headers)
  file(RELATIVE_PATH _path "${CMAKE_CURRENT_SOURCE_DIR}/native/gpu" "${_file}")
  if(_file MATCHES "/fused/.*[.]cu$")
    list(APPEND _emulated_fused "${_rewritten}/${_path}.cpp")
  elseif(_file MATCHES "[.]cu$")
    list(APPEND _emulated "${_rewritten}/${_path}.cpp")
  else()
    list(APPEND _emulated_headers "${_rewritten}/${_path}")
  endif()
endforeach()
add_custom_command(OUTPUT ${_emulated} ${_emulated_fused} ${_emulated_headers}
  COMMAND "${Python_EXECUTABLE}" "${_emulator}/rewrite.py" "${CMAKE_CURRENT_SOURCE_DIR}/native/gpu" "${_rewritten}" ${_kernels} ${_fused} ${_headers}
  DEPENDS "${_emulator}/rewrite.py" "${_emulator}/ptx_words.py" "${_emulator}/include/ptx.h" ${_kernels} ${_fused} ${_headers} VERBATIM)
set(_planted "${CMAKE_CURRENT_SOURCE_DIR}/tests/native/emulated/faults.cu" "${CMAKE_CURRENT_SOURCE_DIR}/tests/native/emulated/nearest.cu")
set(_planted_rewritten "${_rewritten}/emulated/faults.cu.cpp" "${_rewritten}/emulated/nearest.cu.cpp")
add_custom_command(OUTPUT ${_planted_rewritten}
  COMMAND "${Python_EXECUTABLE}" "${_emulator}/rewrite.py" "${CMAKE_CURRENT_SOURCE_DIR}/tests/native" "${_rewritten}" ${_planted}
  DEPENDS "${_emulator}/rewrite.py" "${_emulator}/ptx_words.py" "${_emulator}/include/ptx.h" ${_planted} VERBATIM)

file(STRINGS "${_emulator}/flags.txt" _emulated_flags REGEX "^-")

mnist_emulator_sources(_machine machine checks)
add_library(emulator OBJECT ${_machine})
target_include_directories(emulator PUBLIC "${_emulator}" "${_emulator}/include" PRIVATE native/gpu native/host native/include)
target_compile_options(emulator PRIVATE ${_warnings} -O3)

mnist_emulator_sources(_tables tables)
add_library(emulated OBJECT ${_emulated} ${_emulated_headers})
target_link_libraries(emulated PUBLIC emulator)
target_include_directories(emulated PUBLIC "${_rewritten}" native/gpu native/host native/include)
target_compile_options(emulated PRIVATE ${_emulated_flags})
add_library(emulated_host OBJECT ${_tables})
target_link_libraries(emulated_host PUBLIC emulator)
target_include_directories(emulated_host PUBLIC native/gpu native/host native/include)
target_compile_options(emulated_host PRIVATE ${_warnings} -O2)
target_compile_definitions(emulated_host PUBLIC MNIST_WITH_SM80)

# `bench ops --emulate`, which mnist_cuda/bench/emulate.py builds by itself where there is no build folder.
mnist_emulator_sources(_bench bench)
add_executable(emulated_bench_ops ${_bench})
target_link_libraries(emulated_bench_ops PRIVATE emulated emulated_host emulator)
add_test(NAME emulated_bench_ops COMMAND emulated_bench_ops log_softmax "" 4)

# The test `name` of `sources`, linked with `libraries` and the emulator.
function(_emulated_test name sources libraries)
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE ${libraries} emulator)
  target_include_directories(${name} PRIVATE tests/native)
  add_test(NAME ${name} COMMAND ${name})
endfunction()

foreach(_op IN ITEMS batch_norm conv2d conv_bn_relu_pool histogram linear linear_sparse log_softmax relu
                     relu_max_pool2d row_sums sgd step transpose)
  _emulated_test(emulated_${_op} tests/native/gpu/test_${_op}.cpp "emulated;emulated_host")
  target_compile_definitions(emulated_${_op} PRIVATE MNIST_EMULATED)
endforeach()

# The longest first, or one core waits for the other at the end.
set_tests_properties(emulated_linear emulated_conv2d PROPERTIES COST 100)

# A whole step of the engines that are made of unfused kernels.
file(GLOB _step_sources native/gpu/engines/naive.cpp native/gpu/engines/tiled.cpp native/gpu/engines/layerwise.cpp
  native/gpu/engines/*feed*.cpp native/gpu/engines/cuda_engine.cpp native/gpu/engines/own_ops.cpp
  native/gpu/libraries/dynlib.cpp)
list(APPEND _step_sources tests/native/emulated/test_emulated_step.cpp native/host/engines/engine.cpp
  native/host/engines/reference.cpp native/host/cpu/thread_pool.cpp)
_emulated_test(test_emulated_step "${_step_sources}" "emulated;emulated_host;Threads::Threads;${CMAKE_DL_LIBS}")

# Each phase of `fused` by itself.
add_library(emulated_fused OBJECT ${_emulated_fused} ${_emulated_headers} native/gpu/kernels/fused/launch.cpp
  native/host/kernels/fused/plan.cpp native/gpu/engines/fused/arena.cpp native/gpu/engines/fused/gpu.cpp
  native/gpu/engines/fused/probe.cpp native/gpu/engines/fused/steps.cpp native/host/engines/engine.cpp
  native/host/cpu/reference_ops.cpp ${_emulator}/status.cpp tests/native/emulated/fused_without_peers.cpp)
target_link_libraries(emulated_fused PUBLIC emulator)
target_include_directories(emulated_fused PUBLIC "${_rewritten}" native/gpu native/host native/include)
set_source_files_properties(${_emulated_fused} PROPERTIES COMPILE_OPTIONS "${_emulated_flags}")
foreach(_phase IN ITEMS conv_forward fc1 head conv2_backward update moments)
  _emulated_test(emulated_fused_${_phase} tests/native/gpu/test_fused_${_phase}.cpp "emulated_fused;Threads::Threads")
  target_compile_definitions(emulated_fused_${_phase} PRIVATE MNIST_EMULATED)
endforeach()
set_tests_properties(emulated_fused_conv2_backward PROPERTIES COST 60)

add_library(planted_faults OBJECT ${_planted_rewritten})
target_link_libraries(planted_faults PUBLIC emulator)
target_include_directories(planted_faults PRIVATE tests/native/emulated)
target_compile_options(planted_faults PRIVATE ${_emulated_flags})
_emulated_test(test_emulator_faults "tests/native/emulated/test_emulator_faults.cpp;${_emulator}/status.cpp" planted_faults)
target_include_directories(test_emulator_faults PRIVATE tests/native/emulated native/host native/include)
target_compile_definitions(test_emulator_faults PRIVATE "MNIST_FAULTS=\"${CMAKE_CURRENT_SOURCE_DIR}/tests/native/emulated/\"")
