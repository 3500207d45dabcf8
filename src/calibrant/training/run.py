"""Train, save checkpoints and resume: the same call resumes, or reads the result."""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from calibrant.data import Splits
from calibrant.methods import Method
from calibrant.progress import steps
from calibrant.setting_errors import did_you_mean
from calibrant.training import checkpoint
from calibrant.training.folder import (
    CONFIG,
    DIVERGED,
    RESULT,
    DriftError,
    Identity,
    differences,
    identity_of,
    owned,
    read_json,
    read_result,
    write_json,
)
from calibrant.training.interrupts import InterruptedTrainingError, Interrupts
from calibrant.training.loggers import RunLogger
from calibrant.training.loop import Loop
from calibrant.training.observer import Observer
from calibrant.training.probing import Probing
from calibrant.training.progress import DivergedError
from calibrant.training.randomness import seeded
from calibrant.training.recipe import Recipe
from calibrant.training.results import (
    Trained,
    final_row,
    read_finished,
    record_of,
    write_finished,
    write_histories,
)
from calibrant.training.run_log import RunLog
from calibrant.training.runtime import Runtime

# Seconds between two checkpoints within an epoch.
SAVE_EVERY = 60.0
# After epochs that take less than this, not each is saved.
SAVE_LEAST = 0.5
# What may differ around a finished run: it is read, not computed.
AROUND = {"calibrant", "torch", "processes", "threads", "device"}


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
    locked: bool = False,
    probe: Mapping[str, Any] | None = None,
    log: Sequence[str | RunLogger] = (),
    name: str = "",
    on_step: Callable[[Loop], None] | None = None,
    on_epoch: Callable[[Mapping[str, Any]], None] = lambda metrics: None,
) -> Trained:
    """Train a network by a method.

    Args:
        model: trained in place.
        method: from `methods.build`, or your own.
        splits: from `data.load`, or your own.
        recipe: how; the defaults are those of `Recipe`.
        seed: seed of the order of examples, augmentation and dropout. The initial weights are the
            model's own.
        folder: where checkpoints and results go. With one, the same call after a kill resumes
            and ends with the same bytes; after the end it only reads.
        config: what else identifies the run (names and settings of model and method).
        allow_drift: names of what may differ from an unfinished run in the folder.
        runtime: processes that train together; one if not given.
        save_every: seconds between two checkpoints within an epoch.
        locked: whether the caller holds the lock of the folder.
        probe: settings of a `curvature.Probe` that measures training and validation data,
            or test data with `{"split": "test"}`; {} are its defaults, None is no probe. The
            weights are the same with it and without.
        log: where metrics go besides the folder, such as `tensorboard:runs/events`, see `LOGGERS`;
            or loggers of your own. A resumed run continues there.
        name: of the run there; by default that of the folder.
        on_step: called after every step; by default a terminal or notebook shows the progress.
        on_epoch: called with the metrics of every epoch.

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
    probing = None if probe is None else Probing(probe)
    config = {**(config or {}), **({} if probing is None else probing.identity)}
    identity = identity_of(model, method, splits, recipe, seed, runtime, config)
    for each in allow_drift:
        if each not in identity:
            hint = did_you_mean(each, identity)
            raise ValueError(f"nothing of a run is called {each!r}; {hint}")
    with ExitStack() as mine, seeded(seed), Interrupts() as interrupts:
        if where is not None and not locked:
            runtime.first(lambda: mine.enter_context(owned(where)))
        call = on_step or (lambda loop: None)
        run = _Run(where, identity, interrupts, save_every, call, on_epoch, allow_drift, probing)
        loop = Loop(model, method, splits, recipe, seed=seed, runtime=runtime, observer=run)
        finished = run.resume(loop)
        if finished is not None and not log:
            return finished
        title = name or ("run" if where is None else where.resolve().name)
        mine.callback(run.log.close)
        runtime.first(lambda: run.log.open(log, name=title, folder=where, settings=identity))
        if finished is not None:
            run.log.send([*finished.history, final_row(finished.record)])
            return finished
        run.log.send(loop.progress.history)
        if on_step is None:
            left = recipe.epochs * loop.steps - loop.step
            step = mine.enter_context(steps(None, left, "training"))
            run.on_step = lambda loop: step()
        return run.to_the_end(loop)


class _LeaveError(Exception):
    """A signal came during an evaluation."""


@dataclass
class _Run(Observer):
    """Saves a run in its folder and watches for signals; without a folder, only the latter."""

    folder: Path | None
    identity: Identity
    interrupts: Interrupts
    save_every: float
    on_step: Callable[[Loop], None]
    on_epoch: Callable[[Mapping[str, Any]], None]
    allow_drift: Sequence[str]
    probing: Probing | None
    drift: dict[str, Any] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    saved: float = field(default_factory=time.monotonic)
    checked: bool = False
    log: RunLog = field(default_factory=RunLog)

    def resume(self, loop: Loop) -> Trained | None:
        """Load what the folder holds; the result itself if it is finished."""
        if self.folder is None:
            return None
        folder, result = self.folder, read_result(self.folder)
        if result is not None and set(differences(result["identity"], self.identity)) <= AROUND:
            return read_finished(folder, result, loop)
        state, damaged = checkpoint.latest(folder)
        # What a checkpoint was made with is in it; before the first there is only the file.
        before = read_json(folder / CONFIG) if state is None else state["identity"]
        if before is not None:
            self.drift = differences(before, self.identity)
            if refused := {k: v for k, v in self.drift.items() if k not in self.allow_drift}:
                raise DriftError(folder, refused)
        diverged = read_json(folder / DIVERGED)
        if diverged is not None and diverged["identity"] == self.identity:
            raise DivergedError(diverged, before=True)
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

    def before_step(self, loop: Loop) -> None:
        """Probe the network if it is time."""
        if self.probing is not None:
            self.probing(loop)

    def after_step(self, loop: Loop) -> None:
        """Save if it is time, and stop if asked to."""
        self.on_step(loop)
        due = self.folder is not None and time.monotonic() - self.saved > self.save_every
        stop, due = loop.runtime.any(self.interrupts.number is not None, due)
        if stop or due:
            self.save(loop)
        if stop:
            raise self._interrupted()

    def after_part(self, loop: Loop) -> None:
        """Stop if asked to: a single process can, as no other waits for it."""
        if loop.runtime.world_size == 1 and self.interrupts.number is not None:
            raise _LeaveError

    def _interrupted(self) -> InterruptedTrainingError:
        saved = "nothing is saved without a folder"
        if self.folder is not None:
            saved = f"saved in {self.folder}; re-run the same command to resume"
        return InterruptedTrainingError(self.interrupts.number or signal.SIGTERM, saved)

    def after_epoch(self, loop: Loop, metrics: Mapping[str, Any]) -> None:
        """Save unless it was done a moment ago."""
        late = time.monotonic() - self.saved > SAVE_LEAST
        (late,) = loop.runtime.any(late or loop.finished)
        if late:
            self.save(loop)
        self.log.send(loop.progress.history)
        self.on_epoch(metrics)

    def save(self, loop: Loop) -> None:
        """Write a checkpoint; every process has its random state in it."""
        if self.folder is None:
            return
        # An exception in the middle of torch's writer of archives would end in another one.
        with self.interrupts.held_off():
            self._save(self.folder, loop)
        self.saved = time.monotonic()

    def _save(self, folder: Path, loop: Loop) -> None:
        own = loop.state_dict()
        state = {"loop": own, "drift": self.drift, "damaged": self.damaged}
        if not self.checked:
            checkpoint.check_plain(own["method"], "the state of a method")
            self.checked = True

        def put() -> None:
            write_histories(folder, loop)
            checkpoint.save(folder, loop.step, {**state, "identity": self.identity})

        loop.runtime.first(put)

    def to_the_end(self, loop: Loop) -> Trained:
        """Train, measure, and write the result, which is last and says that all is there."""
        try:
            loop.run()
            val, test = loop.predict("val"), loop.predict("test")
        except _LeaveError:
            # Between steps, with the weights of training in place, there is something to save. At
            # the end they may be those of the best epoch, and within a step of full-batch descent
            # BatchNorm statistics have changed: then the last checkpoint stands.
            if not loop.finished and loop.progress.at == loop.steps:
                self.save(loop)
            raise self._interrupted() from None
        except DivergedError as error:
            if self.folder is not None:
                held = {"message": str(error), **error.record, "identity": self.identity}
                path = self.folder / DIVERGED
                loop.runtime.first(lambda: write_json(path, held))
            raise
        record = record_of(loop, val, test)
        self.log.send([*loop.progress.history, final_row(record)])
        record |= {"drift": self.drift, "damaged_checkpoints": self.damaged}
        if self.probing is not None:
            record["roles"] = record["roles"] | self.probing.roles
        if self.folder is not None:
            folder, whole = self.folder, {**record, "identity": self.identity}
            with self.interrupts.held_off():
                loop.runtime.first(lambda: write_finished(folder, loop, val, test, whole))
        progress = loop.progress
        return Trained(loop.model.eval(), progress.history, val, test, record, progress.records)
