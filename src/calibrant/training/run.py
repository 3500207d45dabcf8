"""Train to the end, whatever happens on the way: the same call again goes on or is done."""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from calibrant.data import Splits, judged_by
from calibrant.data.splits import JOBS
from calibrant.methods import Method
from calibrant.predictions import Predictions
from calibrant.training import checkpoint
from calibrant.training.folder import (
    CONFIG,
    DIVERGED,
    HISTORY,
    RESULT,
    WEIGHTS,
    Identity,
    check_names,
    differences,
    drift,
    identity_of,
    owned,
    read_history,
    read_json,
    read_result,
    sums,
    write_history,
    write_json,
    write_result,
    write_weights,
)
from calibrant.training.interrupts import InterruptedTrainingError, Interrupts
from calibrant.training.loop import Loop
from calibrant.training.progress import DivergedError, measured
from calibrant.training.randomness import seeded
from calibrant.training.recipe import Recipe
from calibrant.training.runtime import Runtime

# Seconds between two checkpoints within an epoch.
SAVE_EVERY = 60.0
# After epochs that take less than this, not each is saved.
SAVE_LEAST = 0.5
# What may differ around a finished run: it is read, not computed.
AROUND = {"calibrant", "torch", "processes", "threads", "device"}
# Reported of the final predictions.
REPORTED = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "smece")


@dataclass(frozen=True)
class Trained:
    """What a training came to.

    Attributes:
        model: with its final weights, in evaluation mode.
        history: one row for each epoch.
        val: final predictions of the validation data, for choices and calibrators.
        test: final predictions of the test data.
        record: metrics of both, what each split was used for, and what happened on the way.
    """

    model: nn.Module
    history: list[dict[str, Any]]
    val: Predictions
    test: Predictions
    record: dict[str, Any]


def train(
    model: nn.Module,
    method: Method,
    splits: Splits,
    recipe: Recipe | None = None,
    *,
    seed: int = 0,
    folder: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    allow_drift: Sequence[str] = (),
    runtime: Runtime | None = None,
    save_every: float = SAVE_EVERY,
    on_step: Callable[[Loop], None] = lambda loop: None,
    on_epoch: Callable[[Mapping[str, Any]], None] = lambda row: None,
) -> Trained:
    """Train a network by a method.

    Args:
        model: trained in place.
        method: from `methods.build`, or your own.
        splits: from `data.load`, or your own.
        recipe: how; the defaults are those of `Recipe`.
        seed: of the order of examples, augmentation and dropout. The weights to start from are the
            model's own.
        folder: where checkpoints and results go. With one, the same call after a kill goes on
            where it was and ends with the same bytes; after the end it only reads.
        config: what else identifies the run (names and settings of model and method).
        allow_drift: names of what may differ from an unfinished run in the folder.
        runtime: processes that train together; one if not given.
        save_every: seconds between two checkpoints within an epoch.
        on_step: called after every step.
        on_epoch: called with the row of every epoch.

    Raises:
        DivergedError: the loss or its gradient was not finite.
        InterruptedTrainingError: SIGTERM or SIGINT came; the step was finished and saved.
        DiskFullError: there is no room for a checkpoint; the one before is good.

    Examples:
        >>> from calibrant import data, methods, models
        >>> splits = data.load("blobs", 0)
        >>> network = models.build("mlp", classes=splits.classes, shape=splits.shape)
        >>> method = methods.build("focal", classes=splits.classes, gamma=2.0)
        >>> trained = train(network, method, splits, Recipe(epochs=2))
        >>> len(trained.history), trained.test.classes == splits.classes
        (2, True)
    """
    recipe, runtime = recipe or Recipe(), runtime or Runtime()
    if method.needs_meta and splits.meta is None:
        splits = splits.with_meta(recipe.meta, seed=seed)
    where = None if folder is None else Path(folder)
    identity = identity_of(model, method, splits, recipe, seed, runtime, config or {})
    check_names(allow_drift, identity)
    with ExitStack() as mine, seeded(seed), Interrupts() as interrupts:
        if where is not None:
            runtime.first(lambda: mine.enter_context(owned(where)))
        run = _Run(
            where,
            identity,
            interrupts,
            save_every,
            on_step,
            on_epoch,
            allow_drift,
            alone=runtime.world_size == 1,
        )
        loop = Loop(
            model,
            method,
            splits,
            recipe,
            seed=seed,
            runtime=runtime,
            between=run.between,
            evaluating=run.evaluating,
            on_epoch=lambda row: run.end_of_epoch(loop, row),
        )
        done = run.resume(loop)
        return done or run.to_the_end(loop)


class _LeaveError(Exception):
    """A signal came during an evaluation."""


class _Run:
    """The folder of a training under way; without one, only signals are watched."""

    def __init__(
        self,
        folder: Path | None,
        identity: Identity,
        interrupts: Interrupts,
        save_every: float,
        on_step: Callable[[Loop], None],
        on_epoch: Callable[[Mapping[str, Any]], None],
        allow_drift: Sequence[str],
        alone: bool,
    ) -> None:
        self.folder, self.identity, self.interrupts = folder, identity, interrupts
        self.save_every, self.on_step, self.on_epoch = save_every, on_step, on_epoch
        self.allow_drift, self.alone = allow_drift, alone
        self.drift: dict[str, Any] = {}
        self.damaged: list[str] = []
        self.saved = time.monotonic()
        self.checked = False

    def resume(self, loop: Loop) -> Trained | None:
        """Take up what the folder holds; the result itself if it is finished."""
        if self.folder is None:
            return None
        folder, result = self.folder, read_result(self.folder)
        if result is not None and set(differences(result["identity"], self.identity)) <= AROUND:
            return _finished(folder, result, loop)
        state, damaged = checkpoint.latest(folder)
        # What a checkpoint was made with is in it; before the first there is only the file.
        before = read_json(folder / CONFIG) if state is None else state["identity"]
        if before is not None:
            self.drift = drift(folder, before, self.identity, self.allow_drift)
        diverged = read_json(folder / DIVERGED)
        if diverged is not None and diverged["identity"] == self.identity:
            raise DivergedError(f"{diverged['message']}; it diverged before", diverged)
        if state is None:
            self.drift = {}
        else:
            loop.load_state_dict(state["loop"])
            self.drift = {**state["drift"], **self.drift}
        self.damaged = [*(state or {}).get("damaged", ()), *damaged]
        # All have read before the first writes.
        loop.runtime.states(None)
        loop.runtime.first(lambda: self._take_over(folder, damaged))
        return None

    def _take_over(self, folder: Path, damaged: Sequence[str]) -> None:
        checkpoint.set_aside(folder, damaged)
        for name in (DIVERGED, RESULT):
            (folder / name).unlink(missing_ok=True)
        write_json(folder / CONFIG, self.identity)

    def between(self, loop: Loop) -> None:
        """After a step: save if it is time, and stop if asked to."""
        self.on_step(loop)
        due = self.folder is not None and time.monotonic() - self.saved > self.save_every
        stop, due = loop.runtime.any(self.interrupts.number is not None, due)
        if stop or due:
            self.save(loop)
        if stop:
            raise self._interrupted()

    def evaluating(self) -> None:
        """Between batches of an evaluation: one process can stop here, as no other waits for it."""
        if self.alone and self.interrupts.number is not None:
            raise _LeaveError

    def _interrupted(self) -> InterruptedTrainingError:
        saved = "nothing is saved without a folder"
        if self.folder is not None:
            saved = f"saved in {self.folder}, the same command goes on from there"
        return InterruptedTrainingError(self.interrupts.number or signal.SIGTERM, saved)

    def end_of_epoch(self, loop: Loop, row: Mapping[str, Any]) -> None:
        """Save unless it was done a moment ago, then tell."""
        late = time.monotonic() - self.saved > SAVE_LEAST
        (late,) = loop.runtime.any(late or loop.finished)
        if late:
            self.save(loop)
        self.on_epoch(row)

    def save(self, loop: Loop) -> None:
        """Write a checkpoint; every process has its random state in it."""
        if self.folder is None:
            return
        folder = self.folder
        own = loop.state_dict()
        state = {
            "loop": own,
            "identity": self.identity,
            "drift": self.drift,
            "damaged": self.damaged,
        }
        if not self.checked:
            checkpoint.check_plain(own["method"], "the state of a method")
            self.checked = True

        def put() -> None:
            if loop.progress.history:
                write_history(folder, loop.progress.history)
            checkpoint.save(folder, loop.step, state)

        loop.runtime.first(put)
        self.saved = time.monotonic()

    def to_the_end(self, loop: Loop) -> Trained:
        """Train, measure, and write the result, which is last and says that all is there."""
        try:
            loop.run()
            val, test = loop.predict("val"), loop.predict("test")
        except _LeaveError:
            # Between steps, with the weights of training in place, there is something to save. At
            # the end they may be those of the best epoch, and within a step of full-batch descent
            # batch norm has moved: then the last checkpoint stands.
            if not loop.finished and loop.progress.at == loop.steps:
                self.save(loop)
            raise self._interrupted() from None
        except DivergedError as error:
            if self.folder is not None:
                held = {"message": str(error), **error.record, "identity": self.identity}
                path = self.folder / DIVERGED
                loop.runtime.first(lambda: write_json(path, held))
            raise
        record = self._record(loop, val, test)
        if self.folder is not None:
            folder = self.folder
            loop.runtime.first(lambda: self._write(folder, loop, val, test, record))
        return Trained(loop.model.eval(), loop.progress.history, val, test, record)

    def _write(
        self, folder: Path, loop: Loop, val: Predictions, test: Predictions, record: dict[str, Any]
    ) -> None:
        write_history(folder, loop.progress.history)
        write_weights(folder, loop.model.state_dict())
        for name, predictions in (("val.npz", val), ("test.npz", test)):
            needed = predictions.logits.numel() * predictions.logits.element_size()
            with checkpoint.room_for(folder / name, needed):
                predictions.save(folder / name)
        files = sums(folder, (HISTORY, WEIGHTS, "val.npz", "test.npz"))
        write_result(folder, {**record, "files": files, "identity": self.identity})

    def _record(self, loop: Loop, val: Predictions, test: Predictions) -> dict[str, Any]:
        progress, splits = loop.progress, loop.splits
        metrics = {"val": measured(val, REPORTED), "test": measured(test, REPORTED)}
        if splits.test.posterior is not None:
            metrics["test against its posterior"] = measured(
                judged_by(test, splits.test.posterior), REPORTED
            )
        return {
            "epochs": progress.epoch,
            "best_epoch": None if progress.best is None else progress.best["epoch"],
            "class_counts": splits.class_counts.tolist(),
            "examples": {job: len(getattr(splits, job) or ()) for job in JOBS},
            "jobs": JOBS,
            "metrics": metrics,
            "drift": self.drift,
            "damaged_checkpoints": self.damaged,
        }


def _finished(folder: Path, result: dict[str, Any], loop: Loop) -> Trained:
    """Read a finished run back."""
    loop.model.load_state_dict(
        torch.load(folder / WEIGHTS, weights_only=True, map_location=loop.runtime.device)
    )
    val, test = (Predictions.load(folder / f"{split}.npz") for split in ("val", "test"))
    return Trained(loop.model.eval(), read_history(folder), val, test, result)
