# The torch.distributed backend, if torch can be imported now. Otherwise, and for another version of torch, the package
# builds it when it is first needed: see ringreduce/backend/build.py, which does what this file does.
execute_process(
  COMMAND ${Python_EXECUTABLE} ${CMAKE_SOURCE_DIR}/ringreduce/backend/build.py
  RESULT_VARIABLE failed OUTPUT_VARIABLE answer ERROR_VARIABLE problem OUTPUT_STRIP_TRAILING_WHITESPACE)
if(failed)
  message(STATUS "torch cannot be imported: its backend will be built when it is first needed")
  message(VERBOSE "${problem}")
  return()
endif()
list(GET answer 0 torch_name)      # of the module, for this version of torch
list(GET answer 1 torch_versions)  # the folder of versions/
list(GET answer 2 torch_abi)
list(GET answer 3 torch_lib)
list(SUBLIST answer 4 -1 torch_includes)

file(GLOB torch_sources CONFIGURE_DEPENDS csrc/torch/*.cpp)
Python_add_library(torch_backend MODULE ${torch_sources})
target_include_directories(torch_backend PRIVATE csrc/torch/versions/${torch_versions})
target_include_directories(torch_backend SYSTEM PRIVATE ${torch_includes})
target_compile_definitions(torch_backend PRIVATE
  RINGREDUCE_TORCH_MODULE=torch_backend _GLIBCXX_USE_CXX11_ABI=${torch_abi})
target_precompile_headers(torch_backend PRIVATE <torch/csrc/distributed/c10d/Backend.hpp>)
target_compile_options(torch_backend PRIVATE -Wall -Wextra -Werror)
target_link_directories(torch_backend PRIVATE ${torch_lib})
target_link_libraries(torch_backend PRIVATE ringreduce c10 torch torch_cpu torch_python)
set_target_properties(torch_backend PROPERTIES
  OUTPUT_NAME ${torch_name} PREFIX "" SUFFIX ".so" INSTALL_RPATH "$ORIGIN" CXX_VISIBILITY_PRESET hidden)
install(TARGETS torch_backend LIBRARY DESTINATION ringreduce)
