"""The temperature in a checkpoint of Lightning."""

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import is_zipfile

import torch

from calibrant.calibrators import Fit, TemperatureScaling
from calibrant.files.checks import check_file
from calibrant.scoped_warnings import warn
from calibrant.setting_errors import did_you_mean

# Key of the prefix in the state of a callback, by which checkpoints are searched.
MARK = "calibrant.prefix"


def load_calibrator(path: str | Path, *, prefix: str | None = None) -> TemperatureScaling:
    """The temperature in a checkpoint of Lightning; only plain values and tensors are loaded.

    With states of several callbacks, `prefix` selects one. A checkpoint from between two
    validations has the temperature of the first; a warning says so.
    """
    path = Path(path)
    check_file(path)
    try:
        found = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
    except (RuntimeError, EOFError, UnpicklingError) as error:
        if not is_zipfile(path):
            raise ValueError(f"{path} is no checkpoint of Lightning") from error
        raise ValueError(
            f"{path} holds more than tensors and plain values: keep objects out of it with "
            'save_hyperparameters(ignore=["method"]), or take callback.calibrator'
        ) from error
    state = _state(path, found, prefix)
    try:
        calibrator, fitted, step = calibrator_of(state), state["step"], found["global_step"]
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} has no temperature: give the Trainer a CalibrationCallback(), and validate "
            "before the checkpoint is saved"
        ) from error
    if fitted != step:
        warn(
            f"{path} is of step {step}, its temperature was fitted after step {fitted}: save "
            "checkpoints after a validation",
            stacklevel=2,
        )
    return calibrator


def _state(path: Path, checkpoint: Any, prefix: str | None) -> Mapping[str, Any]:
    """State of the callback with this prefix, or of the only one; {} if there is none."""
    callbacks = checkpoint.get("callbacks") if isinstance(checkpoint, Mapping) else None
    states = list(callbacks.values()) if isinstance(callbacks, Mapping) else []
    marked = {each[MARK]: each for each in states if isinstance(each, Mapping) and MARK in each}
    if prefix is None and len(marked) > 1:
        raise ValueError(f"{path} has several temperatures: pass prefix=..., one of {[*marked]}")
    if prefix is not None and marked and prefix not in marked:
        raise ValueError(f"{path} has no prefix {prefix!r}; {did_you_mean(prefix, marked)}")
    return next(iter(marked.values()), {}) if prefix is None else marked.get(prefix, {})


def calibrator_of(state: Mapping[str, Any]) -> TemperatureScaling:
    """The calibrator of a state of the callback."""
    values = state["calibrator"]
    return TemperatureScaling(**{**values, "origin": Fit(**values["origin"])})
