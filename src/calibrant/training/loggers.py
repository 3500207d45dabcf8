"""Loggers: TensorBoard, MLflow, Weights & Biases, or any object with the same three methods."""

import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from calibrant.extras import need
from calibrant.setting_errors import did_you_mean

EXPERIMENT = "calibrant"
# Parameters that MLflow takes at once.
MOST = 100
# By default MLflow tries for minutes; what it misses is sent after the next epoch anyway.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}


@runtime_checkable
class RunLogger(Protocol):
    """Where a run sends its settings and the metrics of its epochs.

    A resumed run sends all epochs again, those before with the same values: a step comes twice.
    """

    def log_settings(self, settings: Mapping[str, Any]) -> None:
        """Take the settings, before the first metrics."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Take the metrics of an epoch, counted from 0; of the test data, after the last one."""

    def close(self) -> None:
        """End; while an exception passes, the run has failed or was interrupted."""


class TensorBoard:
    """Event files in a subfolder of a folder: tensorboard:DIR."""

    package, where = "tensorboard", "DIR"

    def __init__(self, where: str, name: str, id: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = Path(where) / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)[:150]}-{id}"
        # Readers forget all steps from this one on that earlier files have.
        self.writer: Any = SummaryWriter(str(folder), purge_step=0)

    @staticmethod
    def prepare(where: str) -> None:
        """Make the folder."""
        Path(where).mkdir(parents=True, exist_ok=True)

    def log_settings(self, settings: Mapping[str, Any]) -> None:
        """Write them as text."""
        self.writer.add_text("settings", f"```\n{json.dumps(dict(settings), indent=1)}\n```")

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Write scalars."""
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        """Close the file."""
        self.writer.close()


class MLflow:
    """Runs of an experiment in a store or tracking server: mlflow:URI."""

    package, where = "mlflow", "URI"

    def __init__(self, where: str, name: str, id: str) -> None:
        from mlflow.entities import Metric, Param

        self.metric, self.param = Metric, Param
        self.client, experiment = self._experiment(where)
        found = self.client.search_runs([experiment], f"tags.`calibrant.run` = '{id}'")
        tags = {"calibrant.run": id}
        run = found[0] if found else self.client.create_run(experiment, run_name=name, tags=tags)
        self.id, self.new = run.info.run_id, not found
        self.client.update_run(self.id, "RUNNING")
        steps = [each.step for each in self.client.get_metric_history(self.id, "epoch")]
        self.last = max(steps, default=-1)

    @staticmethod
    def _experiment(where: str) -> tuple[Any, str]:
        from mlflow import MlflowClient

        logging.getLogger("mlflow.store.db").setLevel(logging.WARNING)
        for variable, value in PATIENCE.items():
            os.environ.setdefault(variable, value)
        client = MlflowClient(where)
        found = client.get_experiment_by_name(EXPERIMENT)
        return client, found.experiment_id if found else client.create_experiment(EXPERIMENT)

    @staticmethod
    def prepare(where: str) -> None:
        """Make the tables of a new store and the experiment, which several workers cannot."""
        MLflow._experiment(where)

    def log_settings(self, settings: Mapping[str, Any]) -> None:
        """Log parameters; those of a run cannot change."""
        if self.new:
            given = [self.param(name, str(value)) for name, value in settings.items()]
            for start in range(0, len(given), MOST):
                self.client.log_batch(self.id, params=given[start : start + MOST])

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log a step unless the store has it: it keeps both values of a repeated one."""
        if step > self.last:
            now = int(1000 * time.time())
            given = {**metrics, "epoch": float(step)}.items()
            found = [self.metric(name, value, now, step) for name, value in given]
            self.client.log_batch(self.id, metrics=found)
            self.last = step

    def close(self) -> None:
        """Set the status."""
        self.client.set_terminated(self.id, "FINISHED" if sys.exception() is None else "FAILED")


class WeightsAndBiases:
    """Runs of a project; with WANDB_MODE=offline in files: wandb:PROJECT."""

    package, where = "wandb", "PROJECT"

    def __init__(self, where: str, name: str, id: str) -> None:
        import wandb

        quiet = wandb.Settings(silent=True)
        self.run: Any = wandb.init(project=where, name=name, id=id, resume="allow", settings=quiet)

    @staticmethod
    def prepare(where: str) -> None:
        """A project is made with its first run."""

    def log_settings(self, settings: Mapping[str, Any]) -> None:
        """Set the configuration."""
        self.run.config.update(dict(settings), allow_val_change=True)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log a step, unless the run is past it."""
        if step >= self.run.step:
            self.run.log({**metrics, "epoch": step}, step=step)

    def close(self) -> None:
        """End the run, and wait until it is uploaded."""
        self.run.finish(exit_code=0 if sys.exception() is None else 1)


# By the first part of `--log KIND:WHERE`. `prepare(where)` is called once before several processes
# open runs by `KIND(where, name, id)`.
LOGGERS: dict[str, type[TensorBoard] | type[MLflow] | type[WeightsAndBiases]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


def parse_logger(text: str) -> tuple[str, str]:
    """Kind and place of `KIND:WHERE`; an error if the kind is unknown or its package missing."""
    kind, _, where = text.partition(":")
    if kind not in LOGGERS:
        raise ValueError(f"no logger {kind!r}; {did_you_mean(kind, LOGGERS)}")
    chosen = LOGGERS[kind]
    if not where:
        raise ValueError(f"a logger is KIND:WHERE, here {kind}:{chosen.where}; got {text!r}")
    need(chosen.package, extra=kind, what=f"logging to {kind}")
    return kind, where


def prepare_loggers(given: Sequence[str]) -> None:
    """Check `KIND:WHERE` of runs that will share them, and make what they share."""
    for text in given:
        kind, where = parse_logger(text)
        with explained(kind):
            LOGGERS[kind].prepare(where)


def open_logger(text: str, name: str, id: str) -> RunLogger:
    """The logger `KIND:WHERE` of a run; one with the same id continues."""
    kind, where = parse_logger(text)
    with explained(kind):
        return LOGGERS[kind](where, name, id)


@contextmanager
def explained(kind: str) -> Iterator[None]:
    """Say in one line that a store cannot be reached; its packages have errors of their own."""
    try:
        yield
    except Exception as error:
        told = _cause(error)
        reason = " ".join(str(told).split())[:300]
        raise ConnectionError(f"cannot log to {kind}: {type(told).__name__}: {reason}") from error


def _cause(error: BaseException) -> BaseException:
    """What the system said, if that is where a chain of errors begins, or the error itself."""
    first = error
    while (before := first.__cause__ or first.__context__) is not None:
        first = before
    return first if isinstance(first, OSError) else error
