"""``ringreduce bench``: times collectives, and compares them with their floor and with other libraries.

problem.py, protocol.py, gloo.py and mpi4py_collectives.py also run in environments where this package is not
installed. They import only each other, the standard library, NumPy and the library that they measure.
"""
