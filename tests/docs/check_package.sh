#!/bin/bash
# check_package.sh BUILD MODEL: makes the .deb, unpacks it into a folder, and runs the program from there, from another folder.
set -euo pipefail
build=$1 model=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
(cd "$build" && cpack -G DEB -B "$folder/package" > "$folder/log" 2>&1) || { cat "$folder/log"; exit 1; }
deb=$(echo "$folder"/package/*.deb)
dpkg-deb -x "$deb" "$folder/root"
dpkg-deb -I "$deb" > "$folder/info"
for file in bin/pardiff include/pardiff/pardiff.h lib/cmake/pardiff/pardiff-config.cmake share/man/man1/pardiff.1 \
  share/bash-completion/completions/pardiff share/zsh/vendor-completions/_pardiff \
  share/fish/vendor_completions.d/pardiff.fish share/pardiff/tokenizers/tokenizer/vocab.json; do
  [ -s "$folder/root/usr/$file" ] || { echo "the package has no $file"; exit 1; }
done
grep -q "Depends:.*libpng16-16.*" "$folder/info" || { cat "$folder/info"; echo "the package does not depend on libpng"; exit 1; }
library=$(readlink -f "$folder/root/usr/lib/libpardiff.so")
[[ "$(basename "$library")" =~ ^libpardiff\.so\.[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "$library has no version"; exit 1; }
# Code for one processor only would need more than x86-64's baseline.
for binary in "$library" "$folder/root/usr/bin/pardiff"; do
  if readelf -n "$binary" | grep "x86 ISA needed" | grep -v "baseline$"; then
    echo "$binary is not for every x86-64 processor"
    exit 1
  fi
done
cd "$folder"
OMP_NUM_THREADS=1 root/usr/bin/pardiff generate --model "$model" --prompt "a red circle" --height 64 --width 64 --steps 1 \
  --max-sequence-length 16 --ulysses-degree 2 --output picture.png
OMP_NUM_THREADS=1 root/usr/bin/pardiff init "$model" other --seed 1
