"""One experiment: its configuration, the network and data it names, and what is recorded of it.

A sweep does many of them. Only the configuration is imported here, because it needs no torch: a
mistake in a setting is told before torch is loaded.

>>> from lowland.experiment import Configuration
>>> Configuration(network="784-50-10", seed=3).sizes
(784, 50, 10)
"""

from lowland.experiment.configuration import SETTINGS, Configuration

__all__ = ["SETTINGS", "Configuration"]
