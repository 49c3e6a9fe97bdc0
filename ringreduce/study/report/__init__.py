"""A study as one HTML file. Needs ``pip install 'ringreduce[study]'``."""

from ringreduce.study.report.page import write

__all__ = ["write"]
