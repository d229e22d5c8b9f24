# Declarations of gloo, which ProcessGroupGloo.hpp includes and the torch wheel does not carry. Never linked:
# the definitions are inside libtorch_cpu.
find_path(GlooHeaders_INCLUDE_DIR gloo/context.h)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(GlooHeaders REQUIRED_VARS GlooHeaders_INCLUDE_DIR
                                  REASON_FAILURE_MESSAGE "install libgloo-dev")
