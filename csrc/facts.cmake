# What `ringreduce --version` says of the build, as it is installed: ringreduce/build/facts.py reads it.
if(NOT RINGREDUCE_PYTHON)
  return()
endif()

set(facts "compiler: ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}\nnanobind: ${nanobind_VERSION}\n")
if(TARGET ringreduce_cuda)
  list(JOIN CMAKE_CUDA_ARCHITECTURES " " gpus)
  string(REGEX REPLACE "([0-9]+)-real" "sm_\\1" gpus "${gpus}")
  string(REGEX REPLACE "([0-9]+)-virtual" "compute_\\1" gpus "${gpus}")
  string(APPEND facts "CUDA: ${CMAKE_CUDA_COMPILER_VERSION} for ${gpus}\n")
endif()
set(RINGREDUCE_COMMIT "" CACHE STRING "The commit that is built, where the sources are not in a repository")

install(CODE "set(source \"${CMAKE_SOURCE_DIR}\")\nset(commit \"${RINGREDUCE_COMMIT}\")\nset(facts \"${facts}\")" COMPONENT engine)
install(CODE [==[
  if(NOT commit AND EXISTS "${source}/.git")
    execute_process(COMMAND git describe --always --abbrev=12 --dirty --exclude * WORKING_DIRECTORY "${source}"
      OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(commit)
    string(APPEND facts "commit: ${commit}\n")
  endif()
  set(file "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/ringreduce/_built.txt")
  file(WRITE "${file}" "${facts}")
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${CMAKE_INSTALL_PREFIX}/ringreduce/_built.txt")
]==] COMPONENT engine)
