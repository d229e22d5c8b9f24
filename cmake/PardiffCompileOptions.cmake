# Compile options of every target of this project; users of the installed library get none of them.
add_library(pardiff_options INTERFACE)
target_compile_options(pardiff_options INTERFACE -Wall -Wextra -Wshadow -Wno-psabi)
# Off for compilers and engines that nobody has tried yet.
option(PARDIFF_WARNINGS_ARE_ERRORS "Warnings end the build" ${PARDIFF_DEVELOPER_MODE})
if(PARDIFF_WARNINGS_ARE_ERRORS)
  target_compile_options(pardiff_options INTERFACE -Werror)
endif()
if(PARDIFF_SANITIZE)
  target_compile_options(pardiff_options INTERFACE -fsanitize=${PARDIFF_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(pardiff_options INTERFACE -fsanitize=${PARDIFF_SANITIZE})
endif()
