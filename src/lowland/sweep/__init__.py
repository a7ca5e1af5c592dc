"""Many runs: a grid of settings, executors that do them, and a store that survives anything.

>>> from lowland.sweep import Grid
>>> Grid(learning_rate=[0.05, 0.1], seed=range(10))
Grid(20 runs over learning_rate, seed)
"""

from lowland.experiment import Configuration
from lowland.sweep.conduct import Summary, SweepProgress, run, status
from lowland.sweep.grid import Grid
from lowland.sweep.keys import key
from lowland.sweep.store import Store
from lowland.sweep.trial import Run, Trial, trials

__all__ = [
    "Configuration",
    "Grid",
    "Run",
    "Store",
    "Summary",
    "SweepProgress",
    "Trial",
    "key",
    "run",
    "status",
    "trials",
]
