# Target: WebP::WebP (libwebp and libwebpmux).
find_path(WebP_INCLUDE_DIR webp/mux.h)
find_library(WebP_LIBRARY webp)
find_library(WebP_MUX_LIBRARY webpmux)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(WebP REQUIRED_VARS WebP_LIBRARY WebP_MUX_LIBRARY WebP_INCLUDE_DIR
                                  REASON_FAILURE_MESSAGE "install libwebp-dev")
if(WebP_FOUND AND NOT TARGET WebP::WebP)
  add_library(WebP::WebP INTERFACE IMPORTED)
  target_include_directories(WebP::WebP INTERFACE ${WebP_INCLUDE_DIR})
  target_link_libraries(WebP::WebP INTERFACE ${WebP_MUX_LIBRARY} ${WebP_LIBRARY})
endif()
