"""zig as a C++ compiler for musl, with a libc++ that is a library of its own.

The engine throws what the extension catches. zig would link its own libc++ into each of them, and that takes two types
for the same only if their names are at the same address. This one compares the names.
"""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from pathlib import Path

NAME = "libcxx.so"  # zig means its own with -lc++
COMPILE = ["-D_LIBCPP_TYPEINFO_COMPARISON_IMPLEMENTATION=2", "-fno-sanitize=undefined", "-g0"]
LIBRARY = [
    *("-O2", "-fPIC", "-w", "-DNDEBUG", "-funwind-tables", "-fno-strict-aliasing"),
    *("-D_LIBCPP_BUILDING_LIBRARY", "-DLIBCXX_BUILDING_LIBCXXABI", "-D_LIBCXXABI_BUILDING_LIBRARY"),
]
UNITS = ["libcxx/src/*.cpp", "libcxx/src/filesystem/*.cpp", "libcxx/src/ryu/*.cpp", "libcxxabi/src/*.cpp"]
UNITS += ["libunwind/src/libunwind.cpp", "libunwind/src/UnwindLevel1*.c", "libunwind/src/UnwindRegisters*.S"]
LEFT_OUT = ["cxa_noexception.cpp"]  # for programs that are compiled without exceptions
INCLUDES = ["libcxx/src", "libcxx/src/include", "libcxx/libc", "libcxxabi/src", "libunwind/include"]
# Linking alone leaves out zig's libc++. Without its headers nothing could be compiled.
SCRIPT = """#!/bin/sh
export ZIG_GLOBAL_CACHE_DIR='{folder}/cache' ZIG_LOCAL_CACHE_DIR='{folder}/cache'
case " $* " in
*" -c "* | *" -E "*) exec {compiler} {compile} -isystem '{folder}/include' "$@" -Wno-error ;;
*) exec {compiler} -nostdlib++ -dynamic -s "$@" -L'{folder}' -lcxx {libgcc} ;;
esac
"""


def script(zig: Path, triplet: str, folder: Path) -> str:
    """The compiler, with libc++ beside it, which is built if it is not there yet."""
    compiler = [str(zig), "c++", "-target", triplet]
    if not (folder / NAME).exists():
        _build([*compiler, *COMPILE], zig.parent / "lib", folder)
    # What asks for the processor's features; zig lacks it, and it needs no C library.
    libgcc = subprocess.run(
        ["g++", "-print-libgcc-file-name"], check=True, capture_output=True, text=True
    ).stdout
    # zig switches it off one by one, also where a function asks for SSE 4.2, which implies it.
    options = [*COMPILE, *(["-mcrc32"] if triplet.startswith("x86_64") else [])]
    options += ["-include", "cstdio"]  # nanobind relies on other headers for it
    return SCRIPT.format(
        folder=folder, compiler=" ".join(compiler), compile=" ".join(options), libgcc=libgcc.strip()
    )


def _build(compiler: list[str], sources: Path, folder: Path) -> None:
    objects = folder / "libcxx"
    objects.mkdir(parents=True, exist_ok=True)
    includes = [f"-I{sources / name}" for name in INCLUDES]
    zig, _, *others = compiler
    as_cxx = [*compiler, *LIBRARY, "-std=c++23", *includes]
    as_c = [
        zig,
        "cc",
        *others,
        "-O2",
        "-fPIC",
        "-w",
        "-DNDEBUG",
        "-fexceptions",
        "-funwind-tables",
        includes[-1],
    ]

    def compiled(unit: Path) -> Path:
        made = objects / f"{unit.parent.parent.name}-{unit.name}.o"
        subprocess.run([*(as_cxx if unit.suffix == ".cpp" else as_c), "-c", unit, "-o", made], check=True)
        return made

    units = [unit for pattern in UNITS for unit in sorted(sources.glob(pattern)) if unit.name not in LEFT_OUT]
    with ThreadPoolExecutor(cpu_count()) as pool:
        made = list(pool.map(compiled, units))
    link = ["-nostdlib++", "-shared", "-s", f"-Wl,-soname,{NAME}"]
    subprocess.run([*compiler, *link, "-o", folder / NAME, *made], check=True)
