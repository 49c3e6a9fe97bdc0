"""Writes the report of a study as a single HTML file. Requires ``pip install 'ringreduce[study]'``."""

from ringreduce.studies.study.report.page import write, write_map

__all__ = ["write", "write_map"]
