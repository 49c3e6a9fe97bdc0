"""The folder that ``ringreduce run --as-horovod`` puts on the ranks' PYTHONPATH: it contains a module ``horovod``.

A folder on the path needs nothing installed and no sitecustomize, which a program may have itself. It comes before an
installed Horovod, and the processes that a rank starts inherit it.
"""
