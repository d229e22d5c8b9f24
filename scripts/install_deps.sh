#!/bin/sh
# Installs the Debian packages that the build needs and that are missing. Needs root only if there are any.
set -eu

packages="
  g++ cmake ninja-build make git ccache python3 python3-venv
  libgloo-dev libhwy-dev libpng-dev libjpeg-dev libwebp-dev libicu-dev libssl-dev
  nlohmann-json3-dev libcli11-dev libgtest-dev libbenchmark-dev
  openmpi-bin doxygen
"

missing=""
for package in $packages; do
  status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing="$missing $package"
done
[ -z "$missing" ] && exit 0

if ! command -v apt-get >/dev/null; then
  echo "install_deps: this is not Debian. Install the equivalents of:$missing" >&2
  exit 1
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install_deps: missing packages:$missing. As root: apt-get install$missing" >&2
    exit 1
  fi
  as_root=sudo
fi
echo "install_deps: installing$missing"
$as_root apt-get update -qq
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
