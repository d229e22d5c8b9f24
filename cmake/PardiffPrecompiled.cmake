# pardiff_reuse_precompiled(TARGET LIBRARY): TARGET, a program or objects of one, takes LIBRARY's precompiled header.
function(pardiff_reuse_precompiled target library)
  target_precompile_headers(${target} REUSE_FROM ${library})
  target_compile_options(${target} PRIVATE -fPIC)  # as the library has it; programs default to -fPIE, which it cannot serve
endfunction()
