"""Predicts how fast a model trains on a cluster that need not exist. Requires ``pip install 'ringreduce[study]'``."""

from ringreduce.studies.plan.cluster import Cluster, Device, read_cluster
from ringreduce.studies.plan.failures import Failures, Goodput, best_interval, goodput
from ringreduce.studies.plan.job import Job, Layer, Optimizer, Parameter
from ringreduce.studies.plan.prediction import Prediction, predict, sensitivity
from ringreduce.studies.plan.strategies import STRATEGIES, strategy
from ringreduce.studies.plan.transformer import Transformer, read_job
from ringreduce.studies.plan.variation import Variation

__all__ = [
    "STRATEGIES",
    "Cluster",
    "Device",
    "Failures",
    "Goodput",
    "Job",
    "Layer",
    "Optimizer",
    "Parameter",
    "Prediction",
    "Transformer",
    "Variation",
    "best_interval",
    "goodput",
    "predict",
    "read_cluster",
    "read_job",
    "sensitivity",
    "strategy",
]
