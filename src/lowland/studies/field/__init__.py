"""The field's other claims: a file for each study, which names it after itself.

Every module of this package has a ``STUDY``, called by the module's name with dashes. What its runs
compute, where they are more than a training and its analysis, is in ``lowland.studies.trials``.
"""

import importlib
import pkgutil

from lowland.studies.study import Study


def studies() -> tuple[Study, ...]:
    """The study of every module here, sorted by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(importlib.import_module(f"{__name__}.{name}").STUDY for name in names)
