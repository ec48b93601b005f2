"""Distributed training for Keras: one line more in a script that works."""

from __future__ import annotations

import importlib
from typing import Any
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfdist import callbacks as callbacks
    from tfdist import data as data
    from tfdist import mixed_precision as mixed_precision
    from tfdist import optimizers as optimizers
    from tfdist import pipeline as pipeline
    from tfdist.agreement import RankMismatchError as RankMismatchError
    from tfdist.strategy import HierarchicalStrategy as HierarchicalStrategy
    from tfdist.topology import Topology as Topology
else:
    # Imported when first used: TensorFlow takes three seconds, which the command line need not wait for.
    _MODULES = ("callbacks", "data", "mixed_precision", "optimizers", "pipeline")
    _CLASSES = {"HierarchicalStrategy": "strategy", "RankMismatchError": "agreement", "Topology": "topology"}

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"tfdist.{name}")
        if name in _CLASSES:
            return getattr(importlib.import_module(f"tfdist.{_CLASSES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted([*_MODULES, *_CLASSES, "__version__"])


__version__ = "0.1.0"
