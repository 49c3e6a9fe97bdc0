"""A study as one HTML file. Needs ``pip install 'ringreduce[study]'``."""

from ringreduce.study.report.page import write, write_map

__all__ = ["write", "write_map"]
