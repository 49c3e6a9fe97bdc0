ringreduce_layer(reduce)

# One source of kernels is compiled once per instruction set, into a namespace of that name. Every build rounds
# alike (no fused multiply-add), so that ranks on different machines get the same bits.
# The headers of a family that has several names come from the first of their folders that has one.
function(ringreduce_kernels isa vector_bytes families)
  list(TRANSFORM families PREPEND csrc/reduce/kernels/)
  set(target ringreduce_kernels_${isa})
  add_library(${target} OBJECT EXCLUDE_FROM_ALL csrc/reduce/kernels/kernels.cpp)
  target_include_directories(${target} PRIVATE csrc csrc/reduce/kernels ${families})
  target_compile_definitions(${target} PRIVATE
    RINGREDUCE_ISA=${isa} RINGREDUCE_VECTOR_BYTES=${vector_bytes})
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden)
  # Without no-tree-loop-distribute-patterns, copying loops would become calls of memcpy.
  target_compile_options(${target} PRIVATE
    ${ringreduce_warnings} ${ARGN} -ffp-contract=off -fno-math-errno
    $<$<CXX_COMPILER_ID:GNU>:-fno-tree-loop-distribute-patterns>)
  if(RINGREDUCE_SANITIZE)
    target_compile_options(${target} PRIVATE -O1 -g1)  # otherwise the checks in every loop take minutes
  endif()
  target_sources(ringreduce_reduce PRIVATE $<TARGET_OBJECTS:${target}>)
  set_property(TARGET ringreduce_reduce APPEND PROPERTY RINGREDUCE_KERNELS $<TARGET_OBJECTS:${target}>)
endfunction()

# Other machines have only one set of kernels.
function(ringreduce_only_kernels isa)
  ringreduce_kernels(${isa} 16 portable)
  target_sources(ringreduce_reduce PRIVATE csrc/reduce/kernels/sets_of_one.cpp)
  set_property(SOURCE csrc/reduce/kernels/sets_of_one.cpp PROPERTY COMPILE_DEFINITIONS RINGREDUCE_ISA=${isa})
endfunction()

if(RINGREDUCE_FUZZ)  # checks every loop, so build as few as possible
  ringreduce_only_kernels(plain)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  ringreduce_kernels(avx512 64 x86 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mf16c)
  ringreduce_kernels(avx2 32 x86 -mavx2 -mf16c)
  ringreduce_kernels(plain 16 portable -DRINGREDUCE_ONE_SHAPE)
  target_sources(ringreduce_reduce PRIVATE csrc/reduce/kernels/sets_x86_64.cpp)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  ringreduce_kernels(neon_bf16 16 "arm_bf16;arm" -march=armv8.2-a+fp16+bf16)
  ringreduce_kernels(neon 16 arm)
  target_sources(ringreduce_reduce PRIVATE csrc/reduce/kernels/sets_arm64.cpp)
else()
  ringreduce_only_kernels(plain)
endif()
