# Installs the build in BUILD, builds the project in SOURCE against it, and runs both that and the installed program.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "failed with ${result}: ${ARGN}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK})
set(prefix ${WORK}/prefix)
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE} -B ${WORK}/build -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_BUILD_TYPE=Release)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${CMAKE_COMMAND} -E env PARDIFF_NPROC_PER_NODE=2 ${WORK}/build/stranger)

run(${prefix}/bin/pardiff doctor)
run(${prefix}/bin/pardiff inspect ${MODEL})
run(${prefix}/bin/pardiff generate --model ${MODEL} --prompt "a red circle on a white background" --height 64 --width 64
    --steps 1 --max-sequence-length 16 --ulysses-degree 2 --threads 1 --output ${WORK}/installed.png)
