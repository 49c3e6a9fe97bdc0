"""A rank or a newcomer of test_partition: prints how it goes, and at last an answer."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

import ringreduce
from tests.training.elastic.ranks import await_newcomers, described

PATIENCE = 30.0


def until_lost(comm: ringreduce.Communicator) -> None:
    comm.barrier()
    print("begun", flush=True)
    try:
        while True:
            comm.all_reduce(np.ones(1000, "float32"))
    except ringreduce.PeerLost:
        pass


def work(comm: ringreduce.Communicator) -> list[Any]:
    until_lost(comm)
    try:
        fewer = comm.shrink()
    except ringreduce.MinorityError as error:
        return [type(error).__name__, error.rank]
    with fewer:
        return ["goes on", fewer.size, [int(rank) for rank in fewer.all_gather(np.array([comm.rank]))]]


def work_and_grow(comm: ringreduce.Communicator) -> list[Any]:
    until_lost(comm)
    try:
        fewer = comm.shrink()
    except ringreduce.MinorityError as error:
        print(f"MinorityError {error.rank}", flush=True)
        sys.stdin.readline()
        comm.close()
        return come()
    with fewer:
        await_newcomers(fewer, 1)
        with fewer.grow() as grown:
            return list(described(grown))


def sleep_through_a_cut(comm: ringreduce.Communicator) -> list[Any]:
    comm.barrier()
    print("begun", flush=True)
    if comm.rank == 2:
        sys.stdin.readline()
        try:
            comm.all_reduce(np.ones(1000, "float32"), timeout=3)
            comm.barrier(timeout=3)
        except ringreduce.Error:
            pass
        try:
            comm.shrink()
        except ringreduce.Error as error:
            return [type(error).__name__, str(error)]
        return ["goes on"]
    try:
        while True:
            comm.all_reduce(np.ones(1000, "float32"))
    except ringreduce.PeerLost:
        pass
    fewer = comm.shrink()
    comm.close()
    del comm
    found = list(described(fewer))
    print("goes on", flush=True)
    sys.stdin.readline()
    with fewer:
        fewer.barrier()
    return found


def come() -> list[Any]:
    with ringreduce.join(sys.argv[4], timeout=PATIENCE, transport=sys.argv[5]) as comm:
        return list(described(comm))


def main() -> None:
    scenario, rank, size, place, transport = sys.argv[1:]
    if scenario == "come":
        answer = come()
    else:
        patience = 5.0 if scenario == "sleep_through_a_cut" else PATIENCE
        comm = ringreduce.init(int(rank), int(size), place, transport=transport, timeout=patience)
        answer = globals()[scenario](comm)
        comm.close()
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
