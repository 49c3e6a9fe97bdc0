"""Pages: HTML files that work from disk, without a network, and draw figures with Plotly."""

from ringreduce.studies.pages.files import save
from ringreduce.studies.pages.page import write

__all__ = ["save", "write"]
