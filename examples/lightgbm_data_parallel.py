"""LightGBM (pip install lightgbm), whose ranks hold different rows and exchange histograms over ringreduce.

    ringreduce run -n 2 examples/lightgbm_data_parallel.py

LightGBM takes two functions in the place of its own sockets: a reduce-scatter with an operator of LightGBM's, and an
all-gather. All ranks get the same trees. With --sockets PORT, LightGBM's sockets serve, from this port on.
"""

import ctypes
import hashlib
import os
import traceback
from argparse import ArgumentParser
from ctypes import CFUNCTYPE, POINTER, c_int, c_int32, c_void_p

import lightgbm
import numpy as np

import ringreduce

# Those of LightGBM's include/LightGBM/meta.h. Sizes are in bytes; a block's start and length are known for each rank.
SIZES = POINTER(c_int32)
COMBINE = CFUNCTYPE(None, c_void_p, c_void_p, c_int, c_int32)
REDUCER = POINTER(COMBINE)
REDUCE_SCATTER = CFUNCTYPE(None, c_void_p, c_int32, c_int, SIZES, SIZES, c_int, c_void_p, c_int32, REDUCER)
ALL_GATHER = CFUNCTYPE(None, c_void_p, c_int32, SIZES, SIZES, c_int, c_void_p, c_int32)


def connect(comm):
    """Lets LightGBM communicate over comm. Returns what must live until LGBM_NetworkFree()."""

    def reduce_scatter(given, size, item, starts, lengths, blocks, output, room, combine):
        def combined(a, b):
            combine[0](a.ctypes.data, b.ctypes.data, item, a.nbytes)

        op = ringreduce.op(combined, commutative=True, name="LightGBM's")
        counts = [lengths[rank] // item for rank in range(blocks)]
        out = memory(output, counts[comm.rank] * item, f"V{item}")
        comm.reduce_scatter(memory(given, size, f"V{item}"), op, out=out, counts=counts)

    def all_gather(given, size, starts, lengths, blocks, output, room):
        counts = lengths[:blocks]
        comm.all_gather(memory(given, counts[comm.rank]), out=memory(output, sum(counts)), counts=counts)

    functions = REDUCE_SCATTER(or_end(reduce_scatter)), ALL_GATHER(or_end(all_gather))
    library = lightgbm.basic._LIB
    assert library.LGBM_NetworkInitWithFunctions(comm.size, comm.rank, *functions) == 0
    return functions


def memory(address, size, dtype="uint8"):
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


def or_end(function):
    """Ends the process where the function fails: LightGBM would continue with what is in the buffer."""

    def called(*args):
        try:
            function(*args)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    return called


def main():
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sockets", type=int, metavar="PORT", help="one of LightGBM's own for each rank, from PORT on"
    )
    port = parser.parse_args().sockets
    comm = ringreduce.init()
    kept = None if port else connect(comm)
    rows = np.random.default_rng(0).random((4000, 20))
    labels = (rows[:, 0] + rows[:, 1] * rows[:, 2] > 0.8).astype(float)
    own = slice(comm.rank, None, comm.size)
    settings = {
        "objective": "binary",
        "tree_learner": "data",
        "num_machines": comm.size,
        "pre_partition": True,
    }
    settings |= {"num_threads": 1, "verbose": -1, "num_leaves": 15, "seed": 1}
    if port:
        machines = ",".join(f"127.0.0.1:{port + rank}" for rank in range(comm.size))
        settings |= {"machines": machines, "local_listen_port": port + comm.rank}
    model = lightgbm.train(settings, lightgbm.Dataset(rows[own], labels[own]), num_boost_round=20)
    wrong = np.mean((model.predict(rows) > 0.5) != labels)
    text = model.model_to_string().partition("end of trees")[0]  # settings follow
    trees = hashlib.sha256(text.encode()).hexdigest()[:12]
    assert len(set(comm.all_gather_object(trees))) == 1
    if comm.rank == 0:
        print(f"{comm.size} ranks: {model.num_trees()} trees, {trees}, wrong about {wrong:.3f} of the rows")
    lightgbm.basic._LIB.LGBM_NetworkFree()
    del kept


if __name__ == "__main__":
    main()
