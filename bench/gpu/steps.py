"""The steps of each visit to a card, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EMULATED_LIBRARY = "libringreduce_cuda_emulated.so"
SANITIZER = ("compute-sanitizer", "--target-processes", "all", "--error-exitcode", "1", "--tool")
SLOWER = 6.0  # times as long as without a sanitizer


@dataclass(frozen=True)
class Step:
    """A command, or a file of tests, with its time limit in seconds.

    In the command, {python} stands for this Python, {kit} for the kit's folder and {results} for the file of results.

    Args:
        needs: "" (nothing), "kit", "engine" (the kit and the Python module) or "fronts" (torch's backend, too).
        tests: arguments for pytest. `command` is then what comes before it.
        patience: a factor for the time limit of each test.
        instead: what runs at once if it fails.
    """

    name: str
    limit: float
    command: tuple[str, ...] = ()
    needs: str = "engine"
    tests: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    patience: float = 1.0
    instead: Step | None = None


def on_emulated_gpu(step: Step, kit: Path) -> dict[str, str]:
    """Returns the environment of a step that is no test. A process must load one copy of the library only."""
    library = (kit if step.needs == "kit" else ROOT / "build" / "tests") / EMULATED_LIBRARY
    return {
        **{"RINGREDUCE_CUDA_LIBRARY": str(library), "RINGREDUCE_EMULATED_BLOCKS": "16"},
        "RINGREDUCE_NCCL_LIBRARY": "",
    }


def script(name: str, words: str, limit: float, needs: str = "engine", **environment: str) -> Step:
    return Step(name, limit, ("{python}", *words.split()), needs, environment=environment)


def tests(name: str, file: str, limit: float, only: str = "", needs: str = "engine", under: str = "") -> Step:
    """Tests of a file. `only` is an expression of pytest's -k; `under` a tool of compute-sanitizer."""
    chosen = ("-k", only) if only else ()
    before = (*SANITIZER, under) if under else ()
    return Step(name, limit, before, needs, (file, *chosen), patience=SLOWER if under else 1.0)


def program(world: int, each: int, how: str, limit: float, under: str = "", **environment: str) -> Step:
    words = f"bench/gpu/nccl_program.py {{kit}} {world} {each} {under}"
    return script(f"C program, {how}", words, limit, "kit", **environment)


def one_rank() -> Step:
    return program(1, 1, "one rank, after a hang", 12)


def after_a_hang(emulated: bool) -> list[Step]:
    return [one_rank(), script("words of the abort flag", f"bench/gpu/abort_words.py {_also(emulated)}", 15)]


def after_a_wrong_result() -> list[Step]:
    sanitizer = " ".join((*SANITIZER, "memcheck"))
    return [program(2, 2, "two ranks under memcheck, after a wrong result", 40, sanitizer)]


def _also(emulated: bool) -> str:
    return "--emulated" if emulated else ""


class Table:
    """What differs between a card and the emulated GPU: there, small sizes, and tests of its own."""

    def __init__(self, emulated: bool) -> None:
        self.emulated = emulated
        self.also = _also(emulated)

    def gpu(self, name: str, limit: float, only: str = "", under: str = "") -> Step:
        """Tests of a file of tests/gpu. On a card, those of the emulated GPU are left out."""
        chosen = " and ".join(f"({one})" for one in (only, "" if self.emulated else "not emulated") if one)
        title = f"{under}, {name}" if under else name
        return tests(title, f"tests/gpu/test_{name}.py", limit, chosen, under=under)

    def torch(self, name: str, limit: float, on_card: str, emulated: str) -> Step:
        if self.emulated:
            return tests(name, "tests/frameworks/torch/emulated_cuda/suite.py", limit, emulated, "fronts")
        return tests(name, "tests/frameworks/torch/test_cuda.py", limit, on_card, "fronts")

    def all_reduce(self, name: str, limit: float, options: str, small: str = "", before: str = "") -> Step:
        if self.emulated:
            options = f"{options} --sizes 4K --copy 64K --calls 2 --rounds 2 {small}"
        return script(name, f"{before}bench/gpu/collectives.py --json {{results}} {options}", limit)

    def reduce(self, name: str, limit: float, options: str, before: str = "") -> Step:
        small = "--bytes 64K --sources 2,3 --dtypes float32 --wires int8 --rounds 2" if self.emulated else ""
        return self.measuring(
            name, limit, f"bench/gpu/reduce.py --json {{results}} {options} {small}", before
        )

    def kernels(self, name: str, limit: float, options: str, before: str = "") -> Step:
        small = "--sizes 512,4K --blocks 1,2 --calls 2 --rounds 2 --emulated" if self.emulated else ""
        return self.measuring(
            name, limit, f"bench/gpu/kernels.py --json {{results}} {options} {small}", before
        )

    def copy_engine(self, name: str, limit: float, options: str = "", before: str = "") -> Step:
        small = "--sizes 4K --copy 64K --calls 2 --rounds 2 --blocks 1" if self.emulated else ""
        return script(name, f"{before}bench/gpu/copy_engine.py --json {{results}} {options} {small}", limit)

    def measuring(self, name: str, limit: float, words: str, before: str) -> Step:
        made = script(name, words, limit)
        return replace(made, command=(*before.split(), *made.command))

    # --- visit 1: does it work ---------------------------------------------------------------------------

    def first_checks(self) -> list[Step]:
        file_handles = program(2, 1, "two processes, file handles", 12, RINGREDUCE_CUDA_HANDLES="file")
        processes = program(2, 1, "two processes", 12)
        return [
            script("facts", "bench/gpu/facts.py", 15, ""),
            *(program(world, world, f"{world} thread ranks", 12) for world in (1, 2, 4, 8)),
            replace(processes, instead=file_handles),
            program(4, 1, "four processes", 15),
        ]

    def call_1a(self) -> list[Step]:
        return [
            *self.first_checks(),
            script("what blocks", f"-m tests.gpu.blocking {self.also}", 45),
            self.reduce("reduce kernels, 256 MiB", 20, "--bytes 256M"),
            self.all_reduce(
                "all-reduce, 4 thread ranks",
                30,
                "--ranks 4 --sizes 4K,64K,1M,16M,256M --algorithms auto --peers stacked",
            ),
            self.gpu("card", 40),
            self.gpu("ranks", 60, "-2- or -4- or -2] or -4]"),
            self.gpu("communicator", 60),
            self.gpu("combine", 30, "float32 or bfloat16-sum or int64-max"),
            self.gpu("nccl_alone", 20),
            self.torch(
                "torch, all_reduce of 2 processes", 30, "every_collective and 2", "every_collective and 2"
            ),
        ]

    def call_1b(self) -> list[Step]:
        return [
            *(self.gpu(name, 60) for name in ("captures", "messages", "direct_calls")),
            self.gpu("processes", 60, "not killed"),
            *(self.gpu(name, 40) for name in ("contexts", "creation", "coded", "wire")),
            self.torch("torch", 90, "not training and not ddp", "not killed"),
            self.all_reduce("all-reduce, 2 thread ranks", 30, "--ranks 2 --algorithms auto --peers stacked"),
        ]

    # --- visit 2: how fast -------------------------------------------------------------------------------

    def call_2a(self) -> list[Step]:
        ncu = (
            ""
            if self.emulated
            else "ncu --clock-control none --set detailed --launch-count 1 --kernel-name regex:"
        )
        sums = {  # a name, what ncu looks for, and the options
            "sum": ("^combine_kernel", "--sources 4 --dtypes float32 --wires int8"),
            "coded sum": ("coded --launch-skip 1", "--sources 2 --dtypes float32 --wires int8"),
        }
        one_rank = "--ranks 1 --kernels direct --sizes 64M --blocks 32 --calls 1 --rounds 2"
        return [
            script("facts", "bench/gpu/facts.py", 15, ""),
            *(
                self.kernels(
                    f"thresholds, {ranks} ranks",
                    40,
                    f"--ranks {ranks} --sizes 512,4K,16K,64K,128K,256K,512K,1M,2M,4M --blocks 8,16,32 --seconds 30",
                )
                for ranks in (4, 2, 8)
            ),
            *(
                self.kernels(
                    f"thresholds, {collective}",
                    25,
                    f"--collective {collective} --ranks 2,4,8 --sizes 4K,16K,64K,256K,1M --blocks 8,32 --seconds 20",
                )
                for collective in ("all_gather", "reduce_scatter")
            ),
            self.kernels(
                "direct, 8 to 64 blocks",
                40,
                "--kernels direct --blocks 8,16,24,32,48,64 --sizes 256K,4M,64M --ranks 2",
            ),
            self.all_reduce(
                "all-reduce, algorithms",
                40,
                "--sizes 512,8K,64K,512K,4M --peers stacked",
                "--algorithms auto,ring",
            ),
            *(
                self.reduce(f"profile, {name}", 30, f"--bytes 256M --rounds 2 {how}", ncu and ncu + kernel)
                for name, (kernel, how) in sums.items()
            ),
            self.kernels("profile, direct of one rank", 30, one_rank, ncu and f"{ncu}rank_kernel"),
            self.gpu("card", 90, "not 4_GiB and not large and not errors", under="memcheck"),
        ]

    def call_2b(self) -> list[Step]:
        stand_in = {"LD_PRELOAD": str(ROOT / "ringreduce" / "libringreduce_nccl.so")}
        under_mps = "bench/gpu/mps.py {python} bench/gpu/nccl_program.py {kit} 2 1"
        mps = "bench/gpu/mps.py {python} "
        symmetric = "--ranks 2 --sizes 8K,1M,64M --peers symmetric --algorithms auto --process-seconds 40"
        return [
            self.all_reduce("all-reduce, 4 thread ranks", 40, "--ranks 4 --algorithms auto --peers stacked"),
            *self.interpreter(),
            script(
                "torch's NCCL backend over the stand-in",
                "bench/gpu/nccl_backend.py",
                40,
                "fronts",
                **stand_in,
            ),
            self.all_reduce("all-reduce, 2 processes", 60, symmetric),
            script("two processes under MPS", under_mps, 30, "kit"),
            self.copy_engine("copy engine, 2 thread ranks", 40),
            self.copy_engine("copy engine, 2 processes under MPS", 50, "--processes", mps),
            self.gpu("copy_engine", 60, "threads or processes"),
            self.gpu("processes", 60, "killed"),
        ]

    def interpreter(self) -> list[Step]:
        """Calls that the hand-tuned kernels do not serve, beside those that they do."""
        options = "--sizes 8K,64K,1M,16M,64M --rounds 10 --copy 64M --peers none"
        sums = f"{options} --algorithms auto,ring,two_shot,auto+int8"
        uneven = f"{options} --algorithms auto,auto+int8 --collectives uneven_all_to_all"
        return [
            self.all_reduce("interpreter, 4 ranks", 20, f"{sums} --ranks 4"),
            self.all_reduce("interpreter, 2 ranks", 20, f"{sums} --ranks 2"),
            self.all_reduce("interpreter, uneven blocks of 4 ranks", 20, f"{uneven} --ranks 4"),
        ]

    # --- visit 3: what is published ------------------------------------------------------------------------

    def call_3(self) -> list[Step]:
        seconds = 3 if self.emulated else 60
        others = "--collectives broadcast,reduce,reduce_scatter,all_gather,all_to_all,gather,scatter"
        others += " --peers stacked --algorithms auto,direct"
        mps = "bench/gpu/mps.py {python} "
        processes = (
            "--ranks 2 --sizes 8K,64K,1M,16M,64M --algorithms auto --peers symmetric --process-seconds 40"
        )
        return [
            *self.call_1a(),
            *(self.full_table(ranks) for ranks in (4, 2, 8)),
            self.all_reduce("other collectives", 40, f"{others} --sizes 8K,1M,64M"),
            self.all_reduce("all-reduce, 2 processes under MPS", 40, processes, before=mps),
            self.torch("torch, training", 60, "training or ddp", "every_collective and 3"),
            script("random calls", f"-m tests.gpu.random_calls --seconds {seconds}", seconds + 30),
            self.reduce("reduce kernels", 40, "--bytes 1G"),
            self.gpu("combine", 60, "float32-sum and every_count", under="racecheck"),
        ]

    def full_table(self, ranks: int) -> Step:
        options = f"--ranks {ranks} --peers stacked"
        return self.all_reduce(f"all-reduce, {ranks} ranks", 60, options, "--algorithms auto")

    def tests_and_memory(self) -> list[Step]:
        """All tests of GPUs, and the smaller ones under compute-sanitizer: not for a visit of minutes."""
        names = [
            file.stem.removeprefix("test_") for file in sorted((ROOT / "tests" / "gpu").glob("test_*.py"))
        ]
        about_themselves = {"make", "visit", "emulated_library", "interpreter", "without_card"}
        small = "not 4_GiB and not large and not errors"
        return [
            *(self.gpu(name, 600) for name in names if name not in about_themselves),
            self.torch("torch", 600, "", ""),
            *(
                self.gpu(name, 600, small, under)
                for under in ("memcheck", "racecheck")
                for name in ("card", "combine", "coded", "ranks")
            ),
        ]

    def calls(self) -> dict[str, list[Step]]:
        """Returns the steps of each call."""
        found = {name: getattr(self, f"call_{name}")() for name in ("1a", "1b", "2a", "2b", "3")}
        return {**found, "tests": self.tests_and_memory()}
