"""Callbacks of Lightning: measure calibration at every validation, train with any method.

They work with `lightning` and with `pytorch_lightning`, whichever is imported or installed.
"""

from calibrant.integrations.lightning.calibration import CalibrationCallback
from calibrant.integrations.lightning.checkpoints import load_calibrator
from calibrant.integrations.lightning.method import MethodCallback

__all__ = ["CalibrationCallback", "MethodCallback", "load_calibrator"]
