"""A model, a per-sample loss and data, and measuring them without a trace."""

from lowland.problem.evaluation import BATCH
from lowland.problem.graphs import graph_bytes
from lowland.problem.model import copy_of, unwrap
from lowland.problem.precision import in_precision
from lowland.problem.problem import Problem, of_a_problem
from lowland.problem.stored import Stored
from lowland.problem.traceless import ONE_AT_A_TIME, differentiating

__all__ = [
    "BATCH",
    "ONE_AT_A_TIME",
    "Problem",
    "Stored",
    "copy_of",
    "differentiating",
    "graph_bytes",
    "in_precision",
    "of_a_problem",
    "unwrap",
]
