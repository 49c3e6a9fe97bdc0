"""A small, readable trainer: ``python -m ringreduce.train``, also under torchrun, mpirun and srun.

Read trainer.py first (a step), then run.py (what happens between steps). Each of the other files has one purpose.
The trainer requires torch. The digits also need scikit-learn, the progress bar tqdm, and the plot matplotlib.
"""
