"""Base class of methods that learn on held-out data through a lookahead step of the last layer."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from calibrant.checks import promote_dtype
from calibrant.data import Batch, Splits
from calibrant.losses import cross_entropy, dece, sece
from calibrant.losses.sece import Form, check_kernel
from calibrant.losses.settings import at_least, integer, one_of
from calibrant.methods.base import Method, Ranks, dominant_labels
from calibrant.methods.heads import ForwardPass, forward_with_features
from calibrant.methods.lookahead import Lookahead, closed_form, double_backward
from calibrant.model_modes import evaluating
from calibrant.shapes import Labels, Logits, PerExample

Objective = Literal["sece", "dece", "sece+ce", "dece+ce"]
Derivative = Literal["closed_form", "double_backward"]
OBJECTIVES = ("sece", "dece", "sece+ce", "dece+ce")
DERIVATIVES = ("closed_form", "double_backward")
# Arguments of the last `before_step`: network, held-out batch and learning rate.
Pending = tuple[nn.Module, Batch, float]
# Elements of the held-out inputs per forward pass: few enough for the cache.
ELEMENTS = 1 << 17
# Most training pixels, and held-out pixels, of a lookahead step: SECE compares pairs of them.
PIXELS = 2048
NO_HEAD = (
    "learning on held-out data needs a last linear layer: end the network with nn.Linear, or for "
    "pixels a 1x1 nn.Conv2d, and name it head"
)


class MetaLearner(Method):
    """A method whose state is learnt on held-out data, which never updates the weights.

    `before_step` stores the held-out batch and the next `loss` uses it: one forward pass of the
    training batch serves both, and method state is updated before the weights. The held-out batch
    is evaluated in evaluation mode, so it does not update batch norm statistics.

    Attributes:
        usual_batch: default number of held-out examples per step.
    """

    needs_meta: ClassVar[bool] = True
    usual_batch: ClassVar[int] = 512

    def __init__(
        self,
        objective: str,
        weight: float,
        bandwidth: float,
        estimator: Form,
        derivative: str,
        meta_batch: int | None,
        every: int,
        meta_lr: float,
    ) -> None:
        one_of("objective", objective, OBJECTIVES)
        one_of("derivative", derivative, DERIVATIVES)
        at_least("weight", 0, weight)
        check_kernel(bandwidth, estimator, name="estimator")
        at_least("meta_lr", 0, meta_lr)
        integer("every", 1, every)
        if meta_batch is not None:
            integer("meta_batch", 0, meta_batch)
        self.objective, self.weight, self.derivative = objective, weight, derivative
        self.bandwidth, self.estimator = bandwidth, estimator
        self.requested_batch, self.meta_every, self.meta_lr = meta_batch, every, meta_lr
        self.meta_batch = self.usual_batch if meta_batch is None else meta_batch
        # Settings that a loaded state must agree with, besides its shapes.
        self.settings: dict[str, Any] = {"objective": objective}
        self.pending: Pending | None = None
        self.optimizer: torch.optim.Adam | None = None
        # Sums over the meta steps of an epoch, and the means of the last epoch with such steps.
        self.tally = {"steps": 0.0, "objective": 0.0, "gradient": 0.0}
        self.means: dict[str, float] = {}

    def prepare(self, splits: Splits, ranks: Ranks) -> None:
        """Store facts about the data; for masks, default to the size of the training batch."""
        super().prepare(splits, ranks)
        if self.requested_batch is None:
            self.meta_batch = 0 if splits.kind == "masks" else self.usual_batch

    def before_step(self, model: nn.Module, batch: Batch, meta: Batch, lr: float) -> None:
        """Store the held-out batch for the next `loss`, which learns from it first."""
        self.pending = (model, meta, lr)

    def held_out_objective(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The objective on held-out data."""
        if self.objective.startswith("sece"):
            error = sece(logits, labels, bandwidth=self.bandwidth, form=self.estimator)
        else:
            error = dece(logits, labels)
        if not self.objective.endswith("+ce"):
            return error
        return cross_entropy(logits, labels).mean() + self.weight * error

    @abstractmethod
    def example_loss(self, logits: Logits, labels: Labels, parameter: Tensor) -> PerExample:
        """Loss of each example, given its parameter."""

    @abstractmethod
    def example_gradient(self, logits: Logits, labels: Labels, parameter: Tensor) -> Logits:
        """Derivative of the loss of each example with respect to its logits."""

    def learn(
        self,
        forward: ForwardPass,
        batch: Batch,
        parameter: Callable[[Tensor], Tensor],
        inputs: Tensor | None = None,
    ) -> None:
        """Update method state by the effect of a lookahead step on a stored held-out batch.

        Args:
            forward: logits and features of the training batch.
            batch: the training batch.
            parameter: gives each example its parameter, differentiable in the method state.
            inputs: of `parameter`, one per example or valid pixel; by default the labels.
        """
        pending, self.pending = self.pending, None
        if pending is None or self.optimizer is None:
            return
        some, gather = self.subsample(batch), self.ranks.gather
        features, labels = self.flatten(
            promote_dtype(forward.features), dominant_labels(batch), adjusted=False
        )
        labels = gather(labels[some])
        own_inputs = labels if inputs is None else gather(inputs[some])
        step = self._lookahead(forward, gather(features[some]), pending)
        if step is None:
            return

        def loss(logits: Tensor, own: Tensor) -> PerExample:
            return self.example_loss(self.adjust_logits(logits), labels, own)

        def loss_gradient(logits: Tensor, own: Tensor) -> Logits:
            return self.example_gradient(self.adjust_logits(logits), labels, own)

        weights = self.optimizer.param_groups[0]["params"]
        with torch.enable_grad(), full_precision(step.weight):
            own = parameter(own_inputs)
            given = own.to(step.weight.dtype)
            if self.derivative == "closed_form":
                value, outer = closed_form(step, given, loss_gradient)
            else:
                value, outer = double_backward(step, given, loss)
            gradients = torch.autograd.grad(own, weights, outer.to(own.dtype))
        if value.isfinite():
            self.tally["steps"] += 1
            self.tally["objective"] += float(value)
        norm = float(nn.utils.get_total_norm(gradients))
        # A diverged network is reported by the training loop, not here.
        if math.isfinite(norm):
            self.tally["gradient"] += norm
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.grad = gradient.to(weight)
            self.optimizer.step()

    def _lookahead(
        self, forward: ForwardPass, features: Tensor, pending: Pending
    ) -> Lookahead | None:
        """The lookahead step on data of all processes; None if either side has no valid pixel."""
        model, batch, lr = pending
        if forward.head is None:
            raise ValueError(NO_HEAD)
        size = max(1, ELEMENTS // max(1, batch.inputs[:1].numel()))
        with evaluating(model), torch.no_grad():
            parts = [
                forward_with_features(model, part).features
                for part in torch.split(batch.inputs, size)
            ]
        meta, labels = self.flatten(promote_dtype(torch.cat(parts)), batch.labels, adjusted=False)
        some = self.subsample(batch)
        meta, labels = self.ranks.gather(meta[some]), self.ranks.gather(labels[some])
        if not len(features) or not len(labels):
            return None
        objective = partial(self.held_out_objective, labels=labels)
        return Lookahead.of(forward.head, features, meta, lr, objective)

    def pixel_ids(self, batch: Batch) -> Tensor:
        """Example and pixel number of each valid pixel, (m, 2), for any number of processes."""
        labels = batch.labels
        places = labels[0].numel() if len(labels) else 1
        index = batch.index.to(labels.device).double()[:, None].expand(-1, places)
        place = torch.arange(places, device=labels.device).double().expand(len(labels), -1)
        both = torch.stack([index, place], 1).reshape(len(labels), 2, *labels.shape[1:])
        return self.flatten(both, labels, adjusted=False)[0]

    def subsample(self, batch: Batch) -> Tensor:
        """Which examples a lookahead step uses: all images, or at most `PIXELS` pixels."""
        if batch.labels.ndim == 1:
            return torch.ones_like(batch.labels, dtype=torch.bool)
        ids = self.pixel_ids(batch)
        total = float(self.ranks.total(torch.tensor(float(len(ids)), device=ids.device)))
        # The sum of both numbers varies the column from image to image.
        return ids.sum(1) % max(1, -(-total // PIXELS)) == 0

    def meta_record(self) -> dict[str, float | list[float]]:
        """Mean objective and gradient norm of the last epoch with a meta step; resets the sums."""
        steps = self.tally["steps"]
        if steps:
            self.means = {
                "meta_objective": self.tally["objective"] / steps,
                "meta_gradient_norm": self.tally["gradient"] / steps,
            }
        self.tally = dict.fromkeys(self.tally, 0.0)
        return dict(self.means)

    def state_dict(self) -> dict[str, Any]:
        """Settings, the sums of the epoch, and the optimizer (None before there is one)."""
        optimizer = None if self.optimizer is None else deepcopy(self.optimizer.state_dict())
        return {
            "settings": dict(self.settings),
            "tally": dict(self.tally),
            "means": dict(self.means),
            "optimizer": optimizer,
        }

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Also require the settings of the method."""
        super().check_state(state)
        for name, own in self.settings.items():
            if state["settings"].get(name) != own:
                raise ValueError(
                    f"the state has other settings than the method: {name} must be {own!r}, "
                    f"got {state['settings'].get(name)!r}"
                )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the sums and the optimizer, after the weights that it updates."""
        self.tally, self.means = dict(state["tally"]), dict(state["means"])
        if self.optimizer is not None:
            # A copy: the optimizer would share its moments with the state and update them in place.
            self.optimizer.load_state_dict(deepcopy(state["optimizer"]))

    def to(self, device: torch.device) -> None:
        """Move what is learnt, and the optimizer state."""
        if self.optimizer is not None:
            for weight in self.optimizer.param_groups[0]["params"]:
                weight.data = weight.data.to(device)
            # Loading moves the optimizer state to the device of the weights.
            self.optimizer.load_state_dict(self.optimizer.state_dict())


def full_precision(like: Tensor) -> torch.autocast:
    """Disable autocast: method state is learnt in full precision."""
    return torch.autocast(like.device.type, enabled=False)
