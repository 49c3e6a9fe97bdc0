"""Compares all-reduces inside tf.function with tf.distribute's own collectives between processes, in turns.

    .venv-frameworks/bin/python -m bench.frameworks.tensorflow_calls --ranks 2 --launches 3

tf.distribute is MultiWorkerMirroredStrategy with its ring over gRPC, one worker for each rank. A call is a function of
one all-reduce, with TensorFlow's own time to start it. Times are medians of the slowest rank's times.
"""

from __future__ import annotations

import socket

from bench.frameworks.calls import OURS, compare, ours, parse_arguments

THEIRS = "tf.distribute"
SIZES = (8, 4 << 10, 64 << 10, 1 << 20, 32 << 20)
RANK = ("-m", "bench.frameworks.tensorflow_rank")


def command(name: str, ranks: int) -> tuple[list[str], dict[str, str]]:
    variables = {"TF_CPP_MIN_LOG_LEVEL": "2"}
    if name == OURS:
        return ours(ranks, *RANK, "ringreduce"), variables
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(ranks)]
    workers = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return ours(ranks, *RANK, THEIRS, "--workers", ",".join(workers)), variables


if __name__ == "__main__":
    compare("tf.function", [THEIRS], command, parse_arguments(__doc__, SIZES))
