#!/bin/sh
# pack_gpu.sh OUTPUT: what the build takes from Debian's -dev packages, headers and libraries, as one archive for a GPU
# machine that has a compiler, CMake, Ninja and a torch wheel, and no package registry. check_gpu.sh unpacks it.
set -eu
output=$1
cd /usr
libraries=lib/$(gcc -print-multiarch)
# tar follows links, so libicudata, the largest, goes in once, under the name that is asked for at run time.
tar --create --gzip --dereference --file "$output" \
  include/gloo include/hwy include/benchmark include/unicode include/openssl include/*/openssl include/nlohmann include/CLI include/gtest \
  include/libpng16 include/png.h include/pngconf.h include/pnglibconf.h include/zlib.h include/zconf.h \
  include/webp include/jpeglib.h include/jmorecfg.h include/jerror.h include/*/jconfig.h \
  share/cmake/nlohmann_json "$(dirname "$(find lib share -name CLI11Config.cmake | head -1)")" "$libraries/cmake/GTest" \
  "$libraries/cmake/hwy" "$libraries"/libhwy*.so* "$libraries/cmake/benchmark" "$libraries"/libbenchmark*.so* \
  "$libraries"/libgtest*.a "$libraries"/libgmock*.a \
  "$libraries"/libicudata.so.?? "$libraries"/libicuuc.so "$libraries"/libicuuc.so.?? \
  "$libraries"/libicui18n.so "$libraries"/libicui18n.so.?? \
  "$libraries"/libpng16.so "$libraries"/libpng16.so.16 "$libraries"/libpng.so "$libraries"/libz.so \
  "$libraries"/libjpeg.so "$libraries"/libjpeg.so.62 "$libraries"/libwebp.so "$libraries"/libwebp.so.7 \
  "$libraries"/libwebpmux.so "$libraries"/libwebpmux.so.3 \
  "$libraries"/libcrypto.so "$libraries"/libcrypto.so.3
size=$(stat -c %s "$output")
[ "$size" -le $((64 * 1024 * 1024)) ] || { echo "pack_gpu: $output has $size bytes, more than 64 MiB" >&2; exit 1; }
echo "pack_gpu: $output, $size bytes"
