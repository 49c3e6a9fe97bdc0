"""Ranks of an MPI job that let in newcomers, which MPI has spawned."""

import sys

import numpy as np
from mpi4py import MPI

import ringreduce

name = sys.argv[1]
newcomers = 2
parent = MPI.Comm.Get_parent()
if parent == MPI.COMM_NULL:
    comm = ringreduce.init(store=name, timeout=60)
    # A collective of all members, as MPI asks for; a member alone could use COMM_SELF.
    children = MPI.COMM_WORLD.Spawn(sys.executable, [__file__, name], newcomers)
    while comm.pending() < newcomers:
        pass
    grown = comm.grow()
    comm.close()
else:
    children = parent
    grown = ringreduce.join(name, timeout=60)
x = np.array([1.0])
grown.all_reduce(x)
print(f"rank {grown.rank} of {grown.size}: {x[0]:g}\n", end="", flush=True)
grown.close()
children.Disconnect()
