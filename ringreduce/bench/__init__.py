"""``ringreduce bench``: the collectives timed beside their floor and their peers.

problem.py, protocol.py, gloo.py and mpi4py_collectives.py are also run as programs in environments where this
package is not installed: they import only each other, the standard library, NumPy and what they measure.
"""
