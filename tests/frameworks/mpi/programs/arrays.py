"""mpi4py's calls with NumPy arrays."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
total = size * (size - 1) / 2

x = np.full(1000, rank, dtype="float64")
out = np.empty_like(x)
comm.Allreduce(x, out)
assert (out == total).all()
comm.Allreduce(MPI.IN_PLACE, x, MPI.SUM)
assert (x == total).all()
x[:] = rank
comm.Reduce(x, out if rank == 1 else None, MPI.MAX, root=1)
assert rank != 1 or (out == size - 1).all()
blocks = np.full(10 * size, rank, dtype="int32")
own = np.empty(10, dtype="int32")
comm.Reduce_scatter_block(blocks, own)
assert (own == total).all()
comm.Reduce_scatter(blocks, own, [10] * size)
assert (own == total).all()
gathered = np.empty(10 * size, dtype="int32")
comm.Allgather(np.full(10, rank, dtype="int32"), gathered)
assert (gathered == np.repeat(np.arange(size), 10)).all()
gathered[:] = -1
comm.Allgatherv(np.full(10, rank, dtype="int32"), (gathered, [10] * size))
assert (gathered == np.repeat(np.arange(size), 10)).all()
word = np.full(3, rank, dtype="complex128")
comm.Bcast(word, root=1)
assert (word == 1).all()
comm.Barrier()
x[:] = rank
request = comm.Iallreduce(MPI.IN_PLACE, x)
request.Wait()
assert (x == total).all()
assert comm.allreduce(rank) == total
assert comm.bcast({"a": 1} if rank == 0 else None) == {"a": 1}
