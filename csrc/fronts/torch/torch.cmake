# The torch.distributed backend, if torch can be imported now. Otherwise, and for other versions of torch, the package
# builds it from its sources when it is first needed (ringreduce/frameworks/torch/build.py). ringreduce/frameworks/torch/target.py lists
# its sources and flags.

execute_process(
  COMMAND ${Python_EXECUTABLE} ${CMAKE_SOURCE_DIR}/ringreduce/frameworks/torch/target.py
  RESULT_VARIABLE failed OUTPUT_VARIABLE answer ERROR_VARIABLE problem)
if(failed)
  string(REGEX REPLACE "\n$" "" problem "${problem}")
  string(REGEX REPLACE ".*\n" "" problem "${problem}")
  message(STATUS "The torch backend will be built when it is first needed: ${problem}")
  return()
endif()
cmake_language(EVAL CODE "${answer}")  # sets torch_name and so on

file(GLOB torch_sources CONFIGURE_DEPENDS csrc/fronts/torch/*.cpp)
Python_add_library(torch_backend MODULE ${torch_sources})
target_include_directories(torch_backend PRIVATE ${torch_versions})
target_include_directories(torch_backend SYSTEM PRIVATE ${torch_includes})
target_compile_definitions(torch_backend PRIVATE ${torch_definitions})
target_compile_options(torch_backend PRIVATE ${ringreduce_warnings})
target_link_directories(torch_backend PRIVATE ${torch_lib})
target_link_libraries(torch_backend PRIVATE ringreduce ${torch_libraries})
set_target_properties(torch_backend PROPERTIES
  OUTPUT_NAME ${torch_name} PREFIX "" SUFFIX "" INSTALL_RPATH "$ORIGIN" CXX_VISIBILITY_PRESET hidden)
# Backends for other versions of torch may be older than the library.
install(CODE [==[
  file(GLOB others "${CMAKE_INSTALL_PREFIX}/ringreduce/_torch-*.so")
  if(others)
    file(REMOVE ${others})
  endif()
]==] COMPONENT fronts)
install(TARGETS torch_backend LIBRARY DESTINATION ringreduce COMPONENT fronts)
