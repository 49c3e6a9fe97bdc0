"""A trainer that people can read: ``python -m ringreduce.train``, and under torchrun, mpirun and srun.

Read trainer.py first (what a step is), then run.py (what happens between steps); the other files hold one thing each.
Needs torch; scikit-learn, tqdm and matplotlib are for the digits, the progress bar and the plot.
"""
