"""Real data sets to find minima on: read from packages or folders, never downloaded.

>>> from lowland.data import load
>>> load("mnist5k", per_class=50, label_noise=0.1)
DataSet('mnist5k': 500 train and 1,000 test inputs of shape (1, 28, 28), 10 classes)
"""

from lowland.data.dataset import DataSet, load
from lowland.data.sets import names

__all__ = ["DataSet", "load", "names"]
