"""Hands the build to CMake (CMakeLists.txt); the metadata is in pyproject.toml."""

import os
import shutil
import sys

from setuptools import setup

COMPILERS = ("c++", "g++", "clang++", "icpx")

# CMake would say so, too, but far above what pip prints last.
wanted = {"bdist_wheel", "editable_wheel"} & {*sys.argv} and "CXX" not in os.environ
if wanted and not any(map(shutil.which, COMPILERS)):
    sys.exit(
        "ringreduce needs a C++20 compiler, and there is none. Install one (`apt install g++`, `dnf install gcc-c++` "
        "or `conda install gxx`), or let the environment variable CXX name it"
    )

setup(cmake_source_dir=".")
