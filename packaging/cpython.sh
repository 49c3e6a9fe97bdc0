#!/bin/sh
# Builds a CPython from Debian's source package: cpython.sh VERSION FOLDER [OPTION...].
# VERSION: such as 3.14; OPTION: of CPython's configure. Needs a C compiler, make, and the headers of libffi, OpenSSL and zlib.
# With CC=musl-gcc it is for musl. Then it needs autoconf and libtool, but none of these headers; it has no OpenSSL.
set -eu
version=$1 folder=$2
shift 2
case $version in 3.11) suite=bookworm ;; 3.13) suite=trixie ;; *) suite=sid ;; esac
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/lists/partial" "$scratch/archives/partial"
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' | head -n 1)
echo "deb-src ${mirror:?this is no Debian} $suite main" > "$scratch/sources"
apt() {
  apt-get -qq -o Dir::Etc::SourceList="$scratch/sources" -o Dir::Etc::SourceParts=/dev/null \
    -o Dir::State::Lists="$scratch/lists" -o Dir::Cache="$scratch" -o APT::Sandbox::User=root -o Acquire::Check-Valid-Until=false "$@"
}
build() { # PACKAGE UNPACKED OPTION...: configures and installs what it is the source of
  apt source --download-only --tar-only "$1"
  tar -xf "$1"_*.orig.tar.[gx]z
  (
    cd "$2"-*
    shift 2
    [ -e configure ] || autoreconf --install
    ./configure "$@" && nice make -s -j "${JOBS:-2}" && make -s install
  ) > "$scratch/log" 2>&1 || { tail -n 40 "$scratch/log"; exit 1; }
}
cd "$scratch"
apt update
if [ "${CC:-}" = musl-gcc ]; then
  # configure compares what Debian's gcc says of its libraries' folder with the C library that it finds.
  printf '#!/bin/sh\n[ "$1" != --print-multiarch ] || exec echo "$(uname -m)-linux-musl"\nexec musl-gcc "$@"\n' > "$scratch/cc"
  chmod +x "$scratch/cc"
  export CC="$scratch/cc"
  build libffi libffi --quiet --disable-shared --with-pic --disable-docs --disable-exec-static-tramp --prefix="$scratch/ffi"
  build zlib zlib --static --prefix="$scratch/zlib"
  export ZLIB_CFLAGS="-I$scratch/zlib/include" ZLIB_LIBS="$scratch/zlib/lib/libz.a"
  # Without pkg-config, which would find this system's libraries.
  export PKG_CONFIG=false LIBFFI_CFLAGS="-I$scratch/ffi/include" LIBFFI_LIBS="$(echo "$scratch"/ffi/lib*/libffi.a)"
  set -- --without-ensurepip "$@"
fi
build "python$version" Python --quiet --prefix="$folder" "$@"
