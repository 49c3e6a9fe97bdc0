"""A cost model of this machine or cluster: fitted to measurements, kept in a file, and used to predict.

Needs pydantic and scipy: ``pip install 'ringreduce[study]'``.
"""

from ringreduce.model.fitting import fit
from ringreduce.model.model import Costs, Model

__all__ = ["Costs", "Model", "fit"]
