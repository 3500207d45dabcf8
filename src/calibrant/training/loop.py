"""The one training loop, for every method."""

import math
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from calibrant.data import Batch, Splits
from calibrant.methods import Method
from calibrant.metrics import METRICS
from calibrant.predictions import Predictions
from calibrant.training import optimizers
from calibrant.training.averaging import Average
from calibrant.training.observer import Observer
from calibrant.training.predict import placed_batch, predict
from calibrant.training.progress import (
    DivergedError,
    Progress,
    measure_all,
    validation_metrics,
)
from calibrant.training.randomness import epoch_order, meta_order, random_state, restore
from calibrant.training.recipe import Recipe
from calibrant.training.runtime import Runtime
from calibrant.training.schedules import rate

# Examples of full-batch descent that are worked on together.
PART = 1024


class Loop:
    """A training that can be interrupted after any step and resumed from its state.

    The arguments are those of `train`; the splits have a `meta` split if the method needs one. An
    observer is told of steps, parts and epochs.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        splits: Splits,
        recipe: Recipe,
        *,
        seed: int,
        runtime: Runtime,
        observer: Observer | None = None,
    ) -> None:
        self.splits, self.recipe, self.seed = splits, recipe, seed
        self.runtime, self.observer = runtime, observer or Observer()
        whole = len(splits.train)
        self.batch = whole if recipe.optimizer == "gd" else min(recipe.batch, whole)
        if self.batch % runtime.world_size:
            raise ValueError(
                f"a batch of {self.batch} cannot be shared by {runtime.world_size} processes; "
                "make it a multiple of their number"
            )
        if method.needs_meta and splits.meta is None:
            raise ValueError("this method needs a meta split: cut it with splits.with_meta")
        if method.needs_meta and method.meta_start >= recipe.epochs:
            raise ValueError(
                f"the method would start to learn after {method.meta_start} epochs, the run "
                f"has {recipe.epochs}: lower start, or train longer"
            )
        self.dtype = torch.float64 if recipe.precision == "float64" else torch.float32
        self.model = model.to(runtime.device, self.dtype)
        if len(splits.shape) == 3:
            # Type stubs know `memory_format` only together with tensors.
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        runtime.align(self.model)
        self.method = method
        method.prepare(splits, runtime)
        method.to(runtime.device)
        self.optimizer = optimizers.build(
            recipe.optimizer,
            self.model,
            lr=recipe.lr,
            momentum=recipe.momentum,
            nesterov=recipe.nesterov,
            weight_decay=recipe.weight_decay,
        )
        self.sharpness = optimizers.Sharpness(recipe.sam) if recipe.sam else None
        self.averages = self._new_averages()
        self.parameters = [each for each in self.model.parameters() if each.requires_grad]
        if runtime.world_size > 1 and any(isinstance(m, _BatchNorm) for m in model.modules()):
            warnings.warn(
                "BatchNorm statistics are not synchronised across processes: several processes do "
                "not take the steps of one",
                stacklevel=2,
            )
        self.progress = Progress()

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return len(self.splits.train) // self.batch

    @property
    def step(self) -> int:
        """Steps taken so far."""
        return self.progress.epoch * self.steps + self.progress.at

    @property
    def lr(self) -> float:
        """Learning rate of the step that comes next; after the last, of that one."""
        last = self.recipe.epochs * self.steps - 1
        return self.recipe.lr * self._factor(min(self.step, last))

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or no better one is expected."""
        return self.progress.stopped or self.progress.epoch >= self.recipe.epochs

    def run(self) -> None:
        """Train to the end, from the current state; then load the best weights if any were kept."""
        while not self.finished:
            self.take_steps()
            metrics = self._epoch_metrics()
            self.progress.end_epoch(metrics)
            self.observer.after_epoch(self, metrics)
        self.observer.before_step(self)
        best = self.progress.best
        if best is not None:
            self.model.load_state_dict(best["weights"])
        else:
            # Without `stop_on` there is one average at most.
            for average in self.averages.values():
                average.copy_to(self.model)

    def take_steps(self) -> None:
        """Take the steps of the epoch that are left."""
        progress = self.progress
        order = epoch_order(len(self.splits.train), seed=self.seed, epoch=progress.epoch)
        self.model.train()
        while progress.at < self.steps:
            self.observer.before_step(self)
            whole = order[progress.at * self.batch : (progress.at + 1) * self.batch]
            progress.loss += self.take_step(whole[self.runtime.rank :: self.runtime.world_size])
            progress.at += 1
            self.observer.after_step(self)

    def take_step(self, index: Tensor) -> float:
        """Move the weights once, by the examples at these positions; returns the loss."""
        recipe, factor = self.recipe, self._factor(self.step)
        self.optimizer.set_rate(factor)
        batch = placed_batch(
            recipe.augmentation(
                self.splits.train,
                index,
                seed=self.seed,
                epoch=self.progress.epoch,
                ignore_index=self.splits.ignore_index,
            ),
            self.runtime.device,
            self.dtype,
        )
        if self._learns():
            self.method.before_step(self.model, batch, self._meta(), recipe.lr * factor)
        loss = self._gradient(batch)
        if self.sharpness is not None:
            self.sharpness.ascend(self.parameters)
            self._gradient(batch)
            self.sharpness.restore()
        norm = self._clipped()
        (bad,) = self.runtime.any(not (math.isfinite(loss) and math.isfinite(norm)))
        if bad:
            raise self._diverged(loss, norm, recipe.lr * factor, index)
        self.optimizer.step()
        for average in self.averages.values():
            average.update(self.model, self.step)
        return loss

    def _factor(self, step: int) -> float:
        """Part of the highest learning rate that a step is taken with."""
        recipe = self.recipe
        return rate(
            recipe.schedule,
            step,
            steps=recipe.epochs * self.steps,
            warmup=round(recipe.warmup * self.steps),
            milestones=recipe.milestones,
            decay=recipe.decay,
        )

    def _gradient(self, batch: Batch) -> float:
        """Gradient of the batch, averaged over the processes; returns the loss."""
        self.optimizer.zero_grad()
        in_parts = self.recipe.optimizer == "gd" and self.method.per_example
        loss = self._backward_in_parts(batch) if in_parts else self._backward(batch, 1.0)
        self.runtime.reduce(self.model)
        return loss

    def _backward_in_parts(self, batch: Batch) -> float:
        """All the data at once would take all the memory: gradients of parts are summed."""
        total = 0.0
        for start in range(0, len(batch), PART):
            part = batch.take(slice(start, start + PART))
            total += self._backward(part, len(part) / len(batch))
            self.observer.after_part(self)
        return total

    def _backward(self, batch: Batch, weight: float) -> float:
        with self._autocast():
            loss = self._mean(self.method.loss(self.model, batch)) * weight
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def _clipped(self) -> float:
        """Norm of the gradient, which is then shortened to the bound if there is one."""
        gradients = [each.grad for each in self.parameters if each.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if self.recipe.clip:
            nn.utils.clip_grads_with_norm_(self.parameters, self.recipe.clip, norm)
        return float(norm)

    def _mean(self, loss: Tensor) -> Tensor:
        """Mean over the examples of all processes, which may hold different numbers of them."""
        if loss.ndim == 0:
            return loss
        # Masks may hold no valid pixel: nothing is learnt from them.
        if self.runtime.world_size == 1:
            return loss.mean() if len(loss) else loss.sum()
        count = torch.tensor(float(len(loss)), device=loss.device)
        return loss.sum() * self.runtime.world_size / max(1.0, float(self.runtime.total(count)))

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.recipe.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(self.runtime.device.type, dtype=torch.bfloat16)

    def _learns(self) -> bool:
        """Whether the method is given held-out data in this step."""
        method = self.method
        begun = method.needs_meta and self.progress.epoch >= method.meta_start
        return begun and self.step % method.meta_every == 0

    def _meta(self) -> Batch:
        """The held-out batch of this step; their order, too, depends on the seed alone."""
        meta = self.splits.meta
        if meta is None:
            raise ValueError("this method needs a meta split: cut it with splits.with_meta")
        size, position = self.method.meta_batch or self.batch, self.step // self.method.meta_every
        index = meta_order(len(meta), size, seed=self.seed, position=position)
        mine = meta.batch(index[self.runtime.rank :: self.runtime.world_size])
        return placed_batch(mine, self.runtime.device, self.dtype)

    def _diverged(self, loss: float, norm: float, lr: float, index: Tensor) -> DivergedError:
        examples = [each for part in self.runtime.states(index.tolist()) for each in part]
        # As text, because JSON has no infinity.
        values = {"loss": str(loss), "gradient_norm": str(norm), "lr": lr, "examples": examples}
        return DivergedError({"step": self.step, "epoch": self.progress.epoch, **values})

    def predict(self, split_name: str) -> Predictions:
        """Predictions of the network, with the weights it has, for a split."""
        names = self.splits.class_names or [str(each) for each in range(self.splits.classes)]
        try:
            return predict(
                self.model,
                getattr(self.splits, split_name),
                ignore_index=self.splits.ignore_index,
                class_names=names,
                runtime=self.runtime,
                after_batch=lambda: self.observer.after_part(self),
            )
        except FloatingPointError as error:
            raise self._diverged(math.nan, math.nan, self.recipe.lr, torch.zeros(0)) from error

    def _new_averages(self) -> dict[float, Average]:
        """The averages of the weights by their decay."""
        start = int(self.recipe.average_from * self.recipe.epochs * self.steps)
        decays = filter(None, self.recipe.averages)
        return {decay: Average(self.model, decay, start=start) for decay in decays}

    def _averaged(self, decay: float) -> AbstractContextManager[None]:
        return self.averages[decay].applied(self.model) if decay else nullcontext()

    def _epoch_metrics(self) -> dict[str, Any]:
        """Metrics of an epoch; updates the state of the method, and keeps the best weights."""
        progress, recipe = self.progress, self.recipe
        decay, val, value = self._best_average()
        found = validation_metrics(val)
        learnt = self.method.after_epoch(val)
        if recipe.stop_on:
            found[f"val_{recipe.stop_on}"] = value
            self._keep_best(value, decay)
        if len(recipe.averages) > 1:
            found["average"] = decay
        loss = sum(self.runtime.states(progress.loss))
        return {
            "epoch": progress.epoch,
            "lr": recipe.lr * self._factor(self.step - 1),
            "loss": loss / (self.steps * self.runtime.world_size),
            **found,
            **learnt,
        }

    def _best_average(self) -> tuple[float, Predictions, float]:
        """Decay of the average that is best by `stop_on`, its validation predictions and value."""
        recipe = self.recipe
        # Before it begins, an average of decay 1 is the newest weights.
        begun = self.step > recipe.average_from * recipe.epochs * self.steps
        decays = [each for each in recipe.averages if each < 1 or begun] or recipe.averages
        found: list[tuple[float, Predictions, float]] = []
        for decay in decays:
            with self._averaged(decay):
                val = self.predict("val")
            value = self._stopping_value(val)
            if not found or self._score(value) < self._score(found[0][2]):
                found = [(decay, val, value)]
        return found[0]

    def _stopping_value(self, val: Predictions) -> float:
        """What `stop_on` measures; 0 without it."""
        name = self.recipe.stop_on
        return measure_all(val, [name], refine_by=self.recipe.refine_by)[name] if name else 0.0

    def _score(self, value: float) -> float:
        """A value of `stop_on`, such that lower is better."""
        name = self.recipe.stop_on
        return METRICS[name].loss(value) if name in METRICS else value

    def _keep_best(self, value: float, decay: float) -> None:
        """Keep the weights, averaged with this decay, if none before were better."""
        progress, score = self.progress, self._score(value)
        if progress.best is None or score < progress.best["score"]:
            with self._averaged(decay):
                weights = {name: each.clone() for name, each in self.model.state_dict().items()}
            best = {"score": score, "epoch": progress.epoch, "average": decay, "weights": weights}
            progress.best = best
        elif 0 < self.recipe.patience <= progress.epoch - progress.best["epoch"]:
            progress.stopped = True

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on."""
        randoms, losses = zip(
            *self.runtime.states((random_state(), self.progress.loss)), strict=True
        )
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "averages": {decay: each.state_dict() for decay, each in self.averages.items()},
            "method": self.method.state_dict(),
            "progress": dict(vars(self.progress)),
            # One for each process; all else is the same in all of them.
            "random": list(randoms),
            "losses": list(losses),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state, from which training resumes."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        # Where drift was allowed, the run may have had none so far.
        self.averages = self._new_averages()
        for decay, values in state["averages"].items():
            if decay in self.averages:
                self.averages[decay].load_state_dict(values)
        self.method.load_state_dict(state["method"])
        rank = self.runtime.rank
        progress = {**state["progress"], "loss": state["losses"][rank]}
        if "probed" in progress:
            # The name in checkpoints of older versions.
            progress["records"] = progress.pop("probed")
        self.progress = Progress(**progress)
        restore(state["random"][rank])
