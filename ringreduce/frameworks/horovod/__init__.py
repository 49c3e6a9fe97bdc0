"""Horovod's API over ringreduce: ``import ringreduce.horovod.torch as hvd``.

The calls are those of Horovod 0.28 (Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in
TensorFlow", arXiv 1802.05799, and the documentation at horovod.readthedocs.io). Under ``ringreduce run --as-horovod``,
``import horovod.torch`` finds the same modules. docs/frameworks.md lists what is there.

request.py, cache.py, negotiation.py and driver.py agree between ranks which operations all of them have submitted.
job.py holds what ``init`` made. reductions.py, exchanges.py and adasum.py have the operations, for arrays of any
framework that has a kit.py. The folders torch, tensorflow and keras have what knows a framework.
"""

from __future__ import annotations
