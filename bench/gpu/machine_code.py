"""Counts fences, polls, registers and stack in the machine code of the ranks' kernels.

    python3 bench/gpu/machine_code.py build/cuda/libringreduce_cuda.so [--architectures sm_90,sm_100]

Prints the table in docs/gpu.md of the kernels in gpu/kernels/cuda, with a line for each GPU and family of
dtypes. Needs cuobjdump and nvdisasm on the PATH, from the CUDA toolkit or from the packages nvidia-cuda-cuobjdump and
nvidia-cuda-nvdisasm.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys

# The order of gpu/reduce/kernels.h.
FAMILIES = ["wide_float", "small_float", "wide_integer", "small_integer"]
KERNEL = re.compile(r"rank_kernelILNS0_6FamilyE(\d)E")
# The columns, and the instructions that each counts. Words that other GPUs write are accessed at system scope.
COUNTED = {
    "MEMBAR.SC.SYS": r"MEMBAR\.SC\.SYS",
    "MEMBAR.ALL.SYS": r"MEMBAR\.ALL\.SYS",
    "CCTL.IVALL": r"CCTL\.IVALL",
    "system loads": r"LDG?\.[A-Z0-9.]*STRONG\.SYS",
    "system stores": r"STG?\.[A-Z0-9.]*STRONG\.SYS",
}
LOCAL = re.compile(r"(?:LDL|STL)\b")
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?);")
BRANCH = re.compile(r"BRA\b.*?(0x[0-9a-f]+)")


def printed(*command: str) -> str:
    try:
        return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
    except FileNotFoundError:
        sys.exit(f"{command[0]} is not on the PATH; see the docstring of {__file__}")


def by_kernel(text: str, head: str) -> dict[str, str]:
    """Returns the part of cuobjdump's output for each rank kernel."""
    parts = re.split(head, text)[1:]
    return {
        FAMILIES[int(found[1])]: part for part in parts if (found := KERNEL.search(part.split("\n", 1)[0]))
    }


def local_accesses_in_loops(instructions: list[tuple[int, str]]) -> int:
    """Returns the number of local accesses in loops. Accesses outside only save and restore registers for calls."""
    loops = [
        (target, at)
        for at, text in instructions
        if (found := BRANCH.search(text)) and (target := int(found[1], 16)) < at
    ]
    local = [at for at, text in instructions if LOCAL.search(text)]
    return sum(any(begin <= at <= end for begin, end in loops) for at in local)


def row(code: str, usage: str) -> list[str]:
    instructions = [(int(at, 16), text) for at, text in INSTRUCTION.findall(code)]
    counts = [sum(bool(re.search(pattern, text)) for _, text in instructions) for pattern in COUNTED.values()]
    registers, stack, shared = (
        found[1] if (found := re.search(rf"{name}:(\d+)", usage)) else "?"
        for name in ("REG", "STACK", "SHARED")
    )
    local = local_accesses_in_loops(instructions)
    return [*(str(count) for count in counts), registers, stack, shared, str(local)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("library")
    parser.add_argument("--architectures", default="sm_90,sm_100")
    options = parser.parse_args()
    columns = ["", *COUNTED, "registers", "stack, B", "shared, B", "local accesses in loops"]
    print("|", " | ".join(columns), "|\n|", "|".join("---" for _ in columns), "|", sep="")
    for architecture in options.architectures.split(","):
        chosen = ["-arch", architecture, options.library]
        codes = by_kernel(printed("cuobjdump", "-sass", *chosen), r"Function : ")
        usages = by_kernel(printed("cuobjdump", "-res-usage", *chosen), r"Function (?=_Z)")
        if not codes:
            sys.exit(f"{options.library} has no machine code for {architecture}")
        for family, code in sorted(codes.items(), key=lambda item: FAMILIES.index(item[0])):
            print("|", " | ".join([f"{architecture}, {family}", *row(code, usages[family])]), "|")


if __name__ == "__main__":
    main()
