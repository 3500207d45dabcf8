"""Calibration at every validation of a Lightning trainer."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from calibrant.calibrators import TemperatureScaling
from calibrant.extras import need
from calibrant.integrations.lightning.checkpoints import MARK, calibrator_of
from calibrant.integrations.lightning.validation import Read, ValidationCallback, read_outputs
from calibrant.metrics import METRICS
from calibrant.predictions import Predictions
from calibrant.scoped_warnings import without_warnings
from calibrant.setting_errors import did_you_mean
from calibrant.training.progress import measure_all
from calibrant.training.refinement import REFINED

MEASURED = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "debiased_ece")
# Loggers of both packages that take a figure.
DRAWING = ("TensorBoardLogger", "MLFlowLogger", "WandbLogger")


class CalibrationCallback(ValidationCallback):
    """Measures calibration at every validation, and fits a temperature to it.

    The module logs the metrics, so `ModelCheckpoint(monitor="val_nll")` can use them. Every
    checkpoint has the temperature of the last validation before it, see `load_calibrator`.
    Validations outside of `fit` are only measured. `trainer.test` measures with that temperature,
    too, if `test_step` returns what `validation_step` does: `test_calibrated_nll`.

    Args:
        metrics: names in `METRICS`, or "refined_nll" and "refined_brier": the score after a
            cross-fitted temperature.
        prefix: of the names under which they are logged; several callbacks need different ones.
        figure: whether TensorBoard, MLflow and Weights & Biases get a reliability diagram.
        read: gives logits and labels from what `validation_step` returned and its batch.
        ignore_index: label of ignored pixels or tokens.
        loader: position of the loader that is measured, if there are several.

    Attributes:
        predictions: of the last validation of a training; None before it.
        calibrator: temperature scaling fitted to them; None if it could not be fitted.
    """

    def __init__(
        self,
        metrics: Sequence[str] = MEASURED,
        *,
        prefix: str = "val_",
        figure: bool = True,
        read: Read = read_outputs,
        ignore_index: int | None = None,
        loader: int = 0,
    ) -> None:
        super().__init__(read, ignore_index, loader)
        for name in metrics:
            if name not in (known := (*METRICS, *REFINED)):
                raise ValueError(f"no metric {name!r}; {did_you_mean(name, known)}")
        self.metrics, self.prefix, self.figure = tuple(metrics), prefix, figure
        self.predictions: Predictions | None = None
        self.calibrator: TemperatureScaling | None = None
        self._step = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Find out now, and not after an epoch, that figures cannot be drawn."""
        if self.figure and any(map(_takes_figures, trainer.loggers)):
            need("matplotlib", extra="report", what="a reliability diagram (or pass figure=False)")

    def use(self, trainer: Any, pl_module: Any, predictions: Predictions) -> None:
        """Log the metrics and the diagram; in a training, fit the temperature."""
        found = measure_all(predictions, self.metrics)
        if trainer.state.fn == "fit":
            self.predictions, self._step = predictions, trainer.global_step
            self.calibrator = self._fitted(predictions)
            if self.calibrator is not None:
                found["temperature"] = self.calibrator.temperature
        _log(pl_module, self.prefix, found)
        if trainer.state.fn != "fit":
            return
        loggers = [each for each in trainer.loggers if _takes_figures(each)]
        if self.figure and trainer.is_global_zero and loggers:
            from calibrant.report import reliability_diagram

            figure = reliability_diagram(predictions, title=f"step {trainer.global_step}")
            for each in loggers:
                _log_figure(each, figure, f"{self.prefix}reliability", trainer.global_step)

    def _fitted(self, predictions: Predictions) -> TemperatureScaling | None:
        """A temperature; a warning if these examples have none, which ends no training."""
        try:
            with without_warnings():
                return TemperatureScaling.fit(predictions)
        except ValueError as error:
            self.warn_once("fit", f"no temperature of the validation data: {error}")
            return None

    def on_test_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin anew."""
        self.begin(trainer.test_dataloaders)

    def on_test_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Add a batch, unless `test_step` returns something else."""
        if dataloader_idx != self.loader:
            return
        try:
            logits, labels = self.read(outputs, batch)
        except (TypeError, LookupError):
            self.warn_once(
                "test", "no calibration of test data: test_step returns no logits and labels"
            )
        else:
            self.add(logits, labels)

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log metrics before and after the temperature."""
        found, prefix = self.gather(trainer, pl_module), f"test_{self.prefix.removeprefix('val_')}"
        if found is not None:
            _log(pl_module, prefix, measure_all(found, self.metrics))
        if found is not None and self.calibrator is not None:
            calibrated = measure_all(found.map(self.calibrator), self.metrics)
            _log(pl_module, f"{prefix}calibrated_", calibrated)

    @property
    def state_key(self) -> str:
        """Key in checkpoints, which several callbacks do not share."""
        return f"CalibrationCallback[{self.prefix}]"

    def state_dict(self) -> dict[str, Any]:
        """The calibrator as plain values, and the step of its validation."""
        fitted = None if self.calibrator is None else asdict(self.calibrator)
        return {MARK: self.prefix, "calibrator": fitted, "step": self._step}

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Forget the calibrator of other weights, also if the checkpoint has none."""
        self.calibrator = None

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the calibrator."""
        self._step = state_dict["step"]
        self.calibrator = None if state_dict["calibrator"] is None else calibrator_of(state_dict)


def _log(pl_module: Any, prefix: str, found: Mapping[str, float]) -> None:
    # The values are the same in every process: their mean only tells the host so.
    pl_module.log_dict({f"{prefix}{k}": v for k, v in found.items()}, sync_dist=True)


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
