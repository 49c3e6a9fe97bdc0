"""Prints the catalogue's table for docs/algorithms.md."""

from ringreduce.schedules.catalogue import table

print(table())
