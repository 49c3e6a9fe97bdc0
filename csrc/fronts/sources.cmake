# Installs the sources of the parts that the package builds when they are first needed, for the torch or MPI that is
# installed then (ringreduce/build/on_first_use.py). Skips the repository itself, which has them.
install(CODE "set(csrc \"${CMAKE_SOURCE_DIR}/csrc/\")")
install(CODE [==[
  if(NOT EXISTS "${CMAKE_INSTALL_PREFIX}/csrc/fronts/shared/group.h")
    file(INSTALL "${csrc}" DESTINATION "${CMAKE_INSTALL_PREFIX}/ringreduce/csrc"
      FILES_MATCHING REGEX "/(torch|jax|tensorflow)/[^/]*\\.cpp$" REGEX "/mpi/.*\\.cpp$" REGEX "\\.h$" REGEX "/(python|kernels|cuda|gpu)$" EXCLUDE)
  endif()
]==])
