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
x[:] = rank
comm.Scan(x, out)
assert (out == rank * (rank + 1) / 2).all()
comm.Exscan(MPI.IN_PLACE, x)
assert rank == 0 or (x == rank * (rank - 1) / 2).all()
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
gathered[:] = -1
comm.Gather(own, gathered if rank == 1 else None, root=1)
assert rank != 1 or (gathered == total).all()
counts = [3 * i + 1 for i in range(size)]
long = np.full(sum(counts), -1, dtype="int32")
short = np.full(counts[rank], rank, dtype="int32")
comm.Gatherv(short, (long, counts) if rank == 1 else None, root=1)
assert rank != 1 or (long == np.repeat(np.arange(size), counts)).all()
short[:] = -1
comm.Scatterv((long, counts) if rank == 1 else None, short, root=1)
assert (short == rank).all()
comm.Scatter(np.repeat(np.arange(size, dtype="int32"), 10) if rank == 0 else None, own)
assert (own == rank).all()
comm.Alltoall(np.repeat(np.arange(size, dtype="int32"), 10), blocks)
assert (blocks == rank).all()
sent = np.repeat(np.arange(size, dtype="int32"), rank + 1)
mine = np.full(sum(i + 1 for i in range(size)), -1, dtype="int32")
comm.Alltoallv((sent, [rank + 1] * size), (mine, [i + 1 for i in range(size)]))
assert (mine == rank).all()
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
