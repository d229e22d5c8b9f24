# `cpack` in a build tree: a .deb with what `cmake --install` puts below /usr. The wheel is no part of it; its maintainer script
# links to one.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME pardiff)
set(CPACK_PACKAGE_VENDOR pardiff)
set(CPACK_PACKAGE_CONTACT "pardiff maintainers <pardiff@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Diffusion transformers on several ranks")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
    "Makes pictures with diffusion transformers on several GPUs or CPU ranks at once.
 Needs PyPI's wheel of torch ${TorchWheel_VERSION}, which is not in Debian.")
# The libraries inside the wheel belong to no package.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/src ${TorchWheel_DIR}/lib)

set(pardiff_maintainer_dir ${PROJECT_BINARY_DIR}/debian)
foreach(script postinst postrm triggers)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/debian/${script}.in ${pardiff_maintainer_dir}/${script} @ONLY)
  list(APPEND CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${pardiff_maintainer_dir}/${script})
endforeach()
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION TRUE)
include(CPack)
