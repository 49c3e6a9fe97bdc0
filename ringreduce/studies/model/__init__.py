"""Cost models of a machine or cluster, which are fitted to measurements, kept in a file, and predict times.

Requires pydantic and scipy: ``pip install 'ringreduce[study]'``.
"""

from ringreduce.studies.model.fitting import fit
from ringreduce.studies.model.model import Costs, Model

__all__ = ["Costs", "Model", "fit"]
