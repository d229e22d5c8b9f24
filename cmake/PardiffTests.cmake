# What the sanitizers run.
add_custom_target(unit_and_distributed_tests)

# pardiff_test(NAME SOURCES... [LABELS ...] [TIMEOUT seconds]): one gtest program, one CTest entry (loading libtorch costs 0.4 s a process).
function(pardiff_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE pardiff pardiff_options pardiff_test_support GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  pardiff_reuse_precompiled(${name} pardiff_test_support)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}")
  if(arg_LABELS MATCHES "unit|distributed")
    add_dependencies(unit_and_distributed_tests ${name})
  endif()
endfunction()

# NAME's tests whose names have Full in them are exhaustive: an entry of their own, with the label `full`.
function(pardiff_full_test name timeout)
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "GTEST_FILTER=-*Full*")
  add_test(NAME ${name}_full COMMAND ${name} --gtest_filter=*Full*)
  set_tests_properties(${name}_full PROPERTIES TIMEOUT ${timeout} LABELS full)
endfunction()

# pardiff_gpu_test(NAME FILTER): the tests of NAME that FILTER picks, once more on the GPU of this machine, as gpu_NAME with
# the label `gpu`. They fail where there is none.
function(pardiff_gpu_test name filter)
  add_test(NAME gpu_${name} COMMAND ${name} --gtest_filter=${filter})
  set_tests_properties(gpu_${name} PROPERTIES TIMEOUT 300 LABELS gpu ENVIRONMENT "PARDIFF_TEST_DEVICE=cuda" RUN_SERIAL ON)
endfunction()
