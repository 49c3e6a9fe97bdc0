"""The command ``ringreduce schedule``."""

from __future__ import annotations

from argparse import Namespace

from ringreduce._engine import values
from ringreduce.schedules import check, load
from ringreduce.schedules.registry import is_in_a_file
from ringreduce.studies.pages import save
from ringreduce.studies.study.report.drawing import draw
from ringreduce.studies.study.report.drawings import plans

__all__ = ["run"]

MOST = 256  # ranks: the proof of a ring takes seconds here


def run(options: Namespace) -> int:
    """Proves the schedules of an algorithm, prints them, and draws them if a picture was asked for."""
    values.whole(options.ranks, "--ranks", 1, MOST)
    values.whole(options.hosts, "--hosts", 1, options.ranks)
    name, collective = options.algorithm, options.collective
    if is_in_a_file(name):
        collective = load(name, world=options.ranks).collective
    schedules, hosts = plans(collective, name, options.ranks, options.hosts)
    check(schedules)
    print(*schedules, sep="\n\n")
    if options.picture:
        save(options.picture, draw(schedules, hosts, standalone=True))
    return 0
