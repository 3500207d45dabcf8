"""calibrant: calibration of classifiers.

`Predictions` holds logits and labels, `MultiLabel` those of several labels at once. `metrics`
measure calibration, with intervals; `audit` computes all of them. `calibrators` recalibrate, and
`export` converts them for deployment.
`methods` train `models` on `data` with the differentiable `losses`; `training` is the loop, `study`
runs grids of training runs, `report` presents them. `curvature` measures the loss landscape,
`integrations` are for other libraries. Names are imported at the first access.
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
        integrations,
        losses,
        methods,
        metrics,
        models,
        report,
        study,
        training,
    )
    from calibrant.metrics.bins import BinSums
    from calibrant.multi_label import MultiLabel
    from calibrant.predictions import Predictions
    from calibrant.report.audit import audit

leave_out_broken_tiles()

__version__ = "0.1.0"
__all__ = [
    "BinSums",
    "MultiLabel",
    "Predictions",
    "audit",
    "calibrators",
    "curvature",
    "data",
    "export",
    "integrations",
    "losses",
    "methods",
    "metrics",
    "models",
    "report",
    "study",
    "training",
]

_OBJECTS = {
    "BinSums": "calibrant.metrics.bins",
    "MultiLabel": "calibrant.multi_label",
    "Predictions": "calibrant.predictions",
    "audit": "calibrant.report.audit",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'calibrant' has no attribute {name!r}")
    if name in _OBJECTS:
        return getattr(import_module(_OBJECTS[name]), name)
    return import_module(f"calibrant.{name}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
