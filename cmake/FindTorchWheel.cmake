# Finds libtorch inside an installed PyPI torch wheel by asking python where it is.
# find_package(Torch) of the CUDA wheel insists on a CUDA toolkit; the wheel's libraries do not need one.
# Targets: torch_wheel::torch (headers, libtorch_cpu, libc10).   Variables: TorchWheel_DIR, TorchWheel_VERSION, TorchWheel_SITE.
find_program(PARDIFF_PYTHON NAMES python3
             HINTS ${CMAKE_CURRENT_LIST_DIR}/../.venv/bin NO_DEFAULT_PATH)
find_program(PARDIFF_PYTHON NAMES python3)
execute_process(
  COMMAND ${PARDIFF_PYTHON} -c
          "import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec('torch').origin).parent, end='')"
  OUTPUT_VARIABLE TorchWheel_DIR RESULT_VARIABLE torch_wheel_result ERROR_QUIET)
if(torch_wheel_result EQUAL 0)
  file(READ ${TorchWheel_DIR}/version.py torch_wheel_version_file)
  string(REGEX MATCH "__version__ = '([0-9.]+)" _ "${torch_wheel_version_file}")
  set(TorchWheel_VERSION ${CMAKE_MATCH_1})
  get_filename_component(TorchWheel_SITE ${TorchWheel_DIR} DIRECTORY)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  TorchWheel
  REQUIRED_VARS TorchWheel_DIR
  VERSION_VAR TorchWheel_VERSION
  REASON_FAILURE_MESSAGE "no python with a torch wheel: run `make deps`, or give -DPARDIFF_PYTHON=/path/to/python3")

if(TorchWheel_FOUND AND NOT TARGET torch_wheel::torch)
  add_library(torch_wheel::c10 SHARED IMPORTED)
  set_target_properties(torch_wheel::c10 PROPERTIES IMPORTED_LOCATION ${TorchWheel_DIR}/lib/libc10.so)
  add_library(torch_wheel::torch SHARED IMPORTED)
  set_target_properties(
    torch_wheel::torch
    PROPERTIES IMPORTED_LOCATION ${TorchWheel_DIR}/lib/libtorch_cpu.so
               INTERFACE_LINK_LIBRARIES torch_wheel::c10)
  if(EXISTS ${TorchWheel_DIR}/lib/libgomp.so.1)  # the OpenMP that libtorch_cpu itself uses: there must be one only
    add_library(torch_wheel::gomp SHARED IMPORTED)
    set_target_properties(torch_wheel::gomp PROPERTIES IMPORTED_LOCATION ${TorchWheel_DIR}/lib/libgomp.so.1)
    set_property(TARGET torch_wheel::torch APPEND PROPERTY INTERFACE_LINK_LIBRARIES torch_wheel::gomp)
  endif()
  target_include_directories(
    torch_wheel::torch SYSTEM INTERFACE ${TorchWheel_DIR}/include ${TorchWheel_DIR}/include/torch/csrc/api/include)
  # libtorch_cpu names CUDA libraries that its own rpath finds at run time; the linker need not resolve them.
  target_link_options(torch_wheel::torch INTERFACE -Wl,--allow-shlib-undefined -Wl,--unresolved-symbols=ignore-in-shared-libs)
endif()
