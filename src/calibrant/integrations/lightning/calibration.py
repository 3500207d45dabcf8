"""Calibration at every validation of a Lightning trainer, and the temperature of a checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from calibrant.calibrators import Fit, TemperatureScaling
from calibrant.extras import need
from calibrant.files.checks import check_file
from calibrant.integrations.lightning.validation import Read, ValidationCallback, read_outputs
from calibrant.metrics import METRICS
from calibrant.predictions import Predictions
from calibrant.scoped_warnings import warn, without_warnings
from calibrant.setting_errors import did_you_mean
from calibrant.training.progress import measure_all

MEASURED = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "debiased_ece")
# Loggers of both packages that take a figure.
DRAWING = ("TensorBoardLogger", "MLFlowLogger", "WandbLogger")


class CalibrationCallback(ValidationCallback):
    """Measures calibration at every validation, and fits a temperature to it.

    The module logs the metrics, so `ModelCheckpoint(monitor="val_nll")` can use them. Every
    checkpoint has the temperature of the last validation before it, see `load_calibrator`.

    Args:
        metrics: names in `METRICS`.
        prefix: of the names under which they are logged.
        figure: whether TensorBoard, MLflow and Weights & Biases get a reliability diagram.
        read: gives logits and labels from what `validation_step` returned and its batch.
        ignore_index: label of ignored pixels or tokens.

    Attributes:
        predictions: of the last validation; None before it.
        calibrator: temperature scaling fitted to them.
    """

    def __init__(
        self,
        metrics: Sequence[str] = MEASURED,
        *,
        prefix: str = "val_",
        figure: bool = True,
        read: Read = read_outputs,
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(read, ignore_index)
        for name in metrics:
            if name not in METRICS:
                raise ValueError(f"no metric {name!r}; {did_you_mean(name, METRICS)}")
        self.metrics, self.prefix, self.figure = tuple(metrics), prefix, figure
        self.predictions: Predictions | None = None
        self.calibrator: TemperatureScaling | None = None
        self._step = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Find out now, and not after an epoch, that figures cannot be drawn."""
        if self.figure and any(map(_takes_figures, trainer.loggers)):
            need("matplotlib", extra="report", what="a reliability diagram (or pass figure=False)")

    def use(self, trainer: Any, pl_module: Any, predictions: Predictions) -> None:
        """Log the metrics and the diagram; fit the temperature."""
        with without_warnings():
            self.calibrator = TemperatureScaling.fit(predictions)
        self.predictions, self._step = predictions, trainer.global_step
        found = measure_all(predictions, self.metrics)
        found["temperature"] = self.calibrator.temperature
        # The values are the same in every process: their mean only tells the host so.
        pl_module.log_dict({f"{self.prefix}{k}": v for k, v in found.items()}, sync_dist=True)
        loggers = [each for each in trainer.loggers if _takes_figures(each)]
        if self.figure and trainer.is_global_zero and loggers:
            from calibrant.report import reliability_diagram

            figure = reliability_diagram(predictions, title=f"step {trainer.global_step}")
            for each in loggers:
                _log_figure(each, figure, f"{self.prefix}reliability", trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """The calibrator as plain values, and the step of its validation."""
        fitted = self.calibrator
        return {} if fitted is None else {"calibrator": asdict(fitted), "step": self._step}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the calibrator."""
        self.calibrator, self._step = _calibrator(state_dict), state_dict["step"]


def _calibrator(state: Mapping[str, Any]) -> TemperatureScaling:
    """The calibrator of a state of the callback."""
    values = state["calibrator"]
    return TemperatureScaling(**{**values, "origin": Fit(**values["origin"])})


def load_calibrator(path: str | Path) -> TemperatureScaling:
    """The temperature in a checkpoint of Lightning; only plain values and tensors are loaded.

    A checkpoint from between two validations has the temperature of the first; a warning says so.
    """
    path = Path(path)
    check_file(path)
    try:
        found = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
    except (RuntimeError, EOFError, UnpicklingError) as error:
        raise ValueError(
            f"{path} is no checkpoint, or holds more than tensors and plain values: save no "
            "objects as hyperparameters, or take callback.calibrator"
        ) from error
    try:
        state = found["callbacks"][CalibrationCallback.__qualname__]
        calibrator, fitted, step = _calibrator(state), state["step"], found["global_step"]
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


def _takes_figures(logger: Any) -> bool:
    return any(kind.__name__ in DRAWING for kind in type(logger).__mro__)


def _log_figure(logger: Any, figure: Any, name: str, step: int) -> None:
    """Log a figure through the logger's own call."""
    if hasattr(logger, "log_image"):
        logger.log_image(name, [figure])
    elif hasattr(logger.experiment, "add_figure"):
        logger.experiment.add_figure(name, figure, step, close=False)
    else:
        logger.experiment.log_figure(logger.run_id, figure, f"{name}/step-{step:07d}.png")
