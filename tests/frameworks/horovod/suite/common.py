"""What Horovod's test_torch.py imports of its test/utils/common.py, which itself needs Horovod's launcher."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any


def mpi_env_rank_and_size() -> tuple[int, int]:
    return int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])


def skip_or_fail_gpu_test(test: Any, message: str) -> None:
    test.skipTest(message)


@contextlib.contextmanager
def temppath() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield os.path.join(folder, "file")
