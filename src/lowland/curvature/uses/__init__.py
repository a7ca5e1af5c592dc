"""What a forward pass does with parameters, one file for each kind of operation.

A new kind of use is one more file in this folder: see the docs, "Add a kind of layer".
"""

import importlib
import pkgutil

from lowland.curvature.uses.use import Product, Use, output_shape, product, use_of

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["Product", "Use", "output_shape", "product", "use_of"]
