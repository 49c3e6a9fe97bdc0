"""``ringreduce study``: which algorithm wins where, and whether the difference is real.

Needs ``pip install 'ringreduce[study]'``.
"""

from ringreduce.study.results import Study, load
from ringreduce.study.statistics import changes, summaries, winners

__all__ = ["Study", "changes", "load", "summaries", "winners"]
