#!/bin/sh
# Builds a CPython without the GIL from Debian's source package: free_threaded_python.sh VERSION FOLDER [OPTION...].
# VERSION: such as 3.14; OPTION: of CPython's configure. Needs a C compiler, make, and the headers of libffi, OpenSSL and zlib.
set -eu
version=$1 folder=$2
shift 2
case $version in 3.13) suite=trixie ;; *) suite=sid ;; esac
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/lists/partial" "$scratch/archives/partial"
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' | head -n 1)
echo "deb-src ${mirror:?this is no Debian} $suite main" > "$scratch/sources"
apt() {
  apt-get -qq -o Dir::Etc::SourceList="$scratch/sources" -o Dir::Etc::SourceParts=/dev/null \
    -o Dir::State::Lists="$scratch/lists" -o Dir::Cache="$scratch" -o APT::Sandbox::User=root "$@"
}
cd "$scratch"
apt update
apt source --download-only "python$version"
tar -xf "python$version"_*.orig.tar.*
cd Python-*
./configure --quiet --disable-gil --prefix="$folder" "$@" > "$scratch/log" 2>&1 &&
  nice make -s -j "${JOBS:-2}" >> "$scratch/log" 2>&1 && make -s install >> "$scratch/log" 2>&1 ||
  { tail -n 40 "$scratch/log"; exit 1; }
