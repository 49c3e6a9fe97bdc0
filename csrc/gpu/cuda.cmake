# libringreduce_cuda.so: everything that needs CUDA. libringreduce.so loads it at run time if there is a GPU.
# RINGREDUCE_CUDA is AUTO (built beside the Python extension, if an nvcc is found), ON or OFF. CMAKE_CUDA_COMPILER, or
# CUDACXX in the environment, names another nvcc.

set(RINGREDUCE_CUDA AUTO CACHE STRING "Build the CUDA part: AUTO, ON or OFF")
set(RINGREDUCE_CUDA_ARCHITECTURES "80;90;120;100" CACHE STRING "GPUs to build for, with semicolons or commas, of those that nvcc knows; others run the last one's PTX")

set(ringreduce_oldest_nvcc 12.3)

# Finds nvcc. Sets `nvcc`, and `problem` to the reason if there is no usable one, or to nothing.
function(ringreduce_find_nvcc)
  set(nvcc ${CMAKE_CUDA_COMPILER})
  if(NOT nvcc)
    set(nvcc $ENV{CUDACXX})
  endif()
  if(NOT nvcc)
    find_program(nvcc nvcc PATHS ENV CUDA_PATH PATH_SUFFIXES bin NO_CACHE)
    find_program(nvcc nvcc PATHS /usr/local/cuda/bin NO_CACHE)
  endif()
  set(nvcc ${nvcc} PARENT_SCOPE)
  set(problem "" PARENT_SCOPE)
  execute_process(COMMAND ${nvcc} --version RESULT_VARIABLE failed OUTPUT_VARIABLE version ERROR_QUIET)
  if(failed)
    set(problem "there is no nvcc" PARENT_SCOPE)
  elseif(NOT version MATCHES "release ([0-9.]+)" OR CMAKE_MATCH_1 VERSION_LESS ${ringreduce_oldest_nvcc})
    set(problem "${nvcc} is older than ${ringreduce_oldest_nvcc}" PARENT_SCOPE)
  endif()
endfunction()

# Machine code for the GPUs that nvcc knows, and PTX of the last one for others: sm_110 runs that of 100, and not of 120.
function(ringreduce_choose_architectures)
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch OUTPUT_VARIABLE known)
  string(REPLACE "," ";" asked "${RINGREDUCE_CUDA_ARCHITECTURES}")
  foreach(architecture ${asked})
    if(known MATCHES "compute_${architecture}\n")
      list(APPEND chosen ${architecture}-real)
      set(last ${architecture})
    endif()
  endforeach()
  if(NOT chosen)
    message(FATAL_ERROR "${CMAKE_CUDA_COMPILER} knows none of the GPUs ${RINGREDUCE_CUDA_ARCHITECTURES}")
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${chosen} ${last}-virtual PARENT_SCOPE)
endfunction()

if(NOT RINGREDUCE_CUDA OR (RINGREDUCE_CUDA STREQUAL "AUTO" AND NOT RINGREDUCE_PYTHON))
  return()
endif()
ringreduce_find_nvcc()
if(NOT problem AND RINGREDUCE_CUDA STREQUAL "AUTO")
  # Does nothing if CMAKE_CUDA_COMPILER is given, or known from before.
  set(ENV{CUDACXX} ${nvcc})
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(problem "CMake ${CMAKE_VERSION} cannot compile with ${nvcc}; -DRINGREDUCE_CUDA=ON shows why")
  endif()
endif()
if(NOT problem)
  set(CMAKE_CUDA_COMPILER ${nvcc})
  ringreduce_choose_architectures()
  enable_language(CUDA)  # before the standard is chosen: a CMake that does not know it would end the build
  if(NOT "cuda_std_20" IN_LIST CMAKE_CUDA_COMPILE_FEATURES)
    set(problem "CMake ${CMAKE_VERSION} is too old to compile C++20 with ${nvcc}; 3.28 and later can")
  endif()
endif()
if(problem AND RINGREDUCE_CUDA STREQUAL "AUTO")
  message(STATUS "Without CUDA: ${problem}")
  return()
elseif(problem)
  message(FATAL_ERROR "RINGREDUCE_CUDA is ${RINGREDUCE_CUDA}, but ${problem}")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
message(STATUS "With CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")

# It does not link the other libraries.
file(GLOB cuda_sources CONFIGURE_DEPENDS csrc/gpu/reduce/*.cpp csrc/gpu/reduce/*.cu
  csrc/gpu/device/cuda/*.cpp csrc/gpu/kernels/cuda/*.cpp csrc/gpu/kernels/cuda/*.cu)
add_library(ringreduce_cuda SHARED ${cuda_sources})
target_include_directories(ringreduce_cuda PRIVATE csrc csrc/gpu/reduce csrc/gpu/reduce/nvcc)
target_compile_definitions(ringreduce_cuda PRIVATE RINGREDUCE_ISA=device)
target_include_directories(ringreduce_cuda SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
# Results round as the CPU's do (no fused multiply-add).
target_compile_options(ringreduce_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CXX>:${ringreduce_warnings}>
  $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false --expt-relaxed-constexpr -Xfatbin=-compress-all -Xcompiler=-Wall,-Wextra>
  $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${RINGREDUCE_WERROR}>>:-Werror=all-warnings -Xcompiler=-Werror>)
set_target_properties(ringreduce_cuda PROPERTIES
  UNITY_BUILD OFF  # its files take long each, and compile side by side
  CUDA_RUNTIME_LIBRARY Static  # loads even if there is no driver
  CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden)
target_link_libraries(ringreduce_cuda PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
# nvcc names files after its process, and what is in unnamed namespaces after the folder: kernels have names, and the
# symbols of files are left out, so that every build has the same bits.
target_link_options(ringreduce_cuda PRIVATE -Wl,--no-undefined -Wl,--exclude-libs,ALL -Wl,--strip-all)
install(TARGETS ringreduce_cuda LIBRARY DESTINATION ringreduce COMPONENT cuda)
