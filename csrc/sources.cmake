# Installs the sources of what the package builds when it is first needed: for the torch, or the MPI, that is there then
# (ringreduce/building.py). Not into the repository, which has them.
install(CODE "set(csrc \"${CMAKE_SOURCE_DIR}/csrc/\")")
install(CODE [==[
  if(NOT EXISTS "${CMAKE_INSTALL_PREFIX}/csrc/front/group.h")
    file(INSTALL "${csrc}" DESTINATION "${CMAKE_INSTALL_PREFIX}/ringreduce/csrc"
      FILES_MATCHING REGEX "/torch/[^/]*\\.cpp$" REGEX "/mpi/.*\\.cpp$" REGEX "\\.h$" REGEX "/(bindings|kernels|cuda)$" EXCLUDE)
  endif()
]==])
