"""A campaign of injected faults: what becomes of the other ranks when one fails, judged automatically.

    python -m tests.faults.chaos --seconds 600 --seed 1

plan.py draws trials, each of them plain data, from a seed; run.py starts the ranks of one (rank.py is what they do, and
faults.py how they fail) and collects what they report; judge.py compares that with what the library promises; table.py
sums up. lanes.py runs several trials at a time.
"""
