"""Studies (``ringreduce study``) measure which algorithm wins where, and whether the difference is real.

Requires ``pip install 'ringreduce[study]'``.
"""

from ringreduce.studies.study.folder import Study, load
from ringreduce.studies.study.inference import changes, summaries, winners

__all__ = ["Study", "changes", "load", "summaries", "winners"]
