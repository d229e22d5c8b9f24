# cmake --install: the program with its manual page and completions, the libraries, the public headers, the tokenizers, and a
# package for find_package(pardiff).
include(CMakePackageConfigHelpers)

set(pardiff_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/pardiff)
# The wheel stays where it is. Libraries and program look for it behind the link LIBDIR/pardiff/torch, which wins, and where it
# was when they were built.
set(pardiff_torch_link ${CMAKE_INSTALL_LIBDIR}/pardiff/torch)
set_target_properties(pardiff PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/pardiff/torch/lib;${TorchWheel_DIR}/lib")
set_target_properties(
  pardiff_program PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};$ORIGIN/../${pardiff_torch_link}/lib;${TorchWheel_DIR}/lib")

install(TARGETS pardiff EXPORT pardiff_targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS pardiff_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET pardiff_cuda)
  # libpardiff opens it from its own folder.
  set_target_properties(pardiff_cuda PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/pardiff/torch/lib;${TorchWheel_DIR}/lib"
                                                INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS pardiff_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/pardiff DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/flux-shapes/tokenizer ${PROJECT_SOURCE_DIR}/models/flux-shapes/tokenizer_2
        DESTINATION ${CMAKE_INSTALL_DATADIR}/pardiff/tokenizers)

install(FILES ${PROJECT_SOURCE_DIR}/data/machines.json DESTINATION ${CMAKE_INSTALL_DATADIR}/pardiff)

install(FILES ${PARDIFF_PRINTED_DIR}/pardiff.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${PARDIFF_PRINTED_DIR}/pardiff DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${PARDIFF_PRINTED_DIR}/_pardiff DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
install(FILES ${PARDIFF_PRINTED_DIR}/pardiff.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

install(EXPORT pardiff_targets NAMESPACE pardiff:: FILE pardiff-targets.cmake DESTINATION ${pardiff_package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/pardiff-config.cmake.in ${PROJECT_BINARY_DIR}/pardiff-config.cmake
                              INSTALL_DESTINATION ${pardiff_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/pardiff-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/pardiff-config.cmake ${PROJECT_BINARY_DIR}/pardiff-config-version.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindTorchWheel.cmake
        DESTINATION ${pardiff_package_dir})
