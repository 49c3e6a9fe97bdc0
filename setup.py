"""Hands the build to CMake (CMakeLists.txt); the metadata is in pyproject.toml."""

from setuptools import setup

setup(cmake_source_dir=".")
