"""calibrant makes a classifier's confidence mean what it says.

`Predictions` holds logits and labels; `metrics` measure them, with intervals; `audit` measures all
of it and writes a page; `calibrators` correct them, and `export` takes those to where a model runs.
`losses` hold the differentiable forms, `methods` train with them, on `data`, with `models`, in the
one loop of `training`. Names are loaded when first used, so that the command line starts quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from calibrant.amx_workaround import leave_out_broken_tiles

if TYPE_CHECKING:
    from calibrant import (
        calibrators,
        curvature,
        data,
        export,
        losses,
        methods,
        metrics,
        models,
        report,
        training,
    )
    from calibrant.metrics.bins import BinSums
    from calibrant.predictions import Predictions
    from calibrant.report.audit import audit

leave_out_broken_tiles()

__version__ = "0.1.0"
__all__ = [
    "BinSums",
    "Predictions",
    "audit",
    "calibrators",
    "curvature",
    "data",
    "export",
    "losses",
    "methods",
    "metrics",
    "models",
    "report",
    "training",
]

_WHERE = {
    "BinSums": "calibrant.metrics.bins",
    "Predictions": "calibrant.predictions",
    "audit": "calibrant.report.audit",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'calibrant' has no attribute {name!r}")
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    return import_module(f"calibrant.{name}")
