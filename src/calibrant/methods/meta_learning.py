"""What methods share that learn from held-out data by trying a step of the last layer."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from calibrant.checks import promote_dtype
from calibrant.data import Batch, Splits
from calibrant.losses import cross_entropy, dece, sece
from calibrant.losses.sece import Form, check_kernel
from calibrant.losses.settings import at_least, one_of, whole
from calibrant.methods.base import Method, Ranks
from calibrant.methods.heads import Seen, look
from calibrant.methods.lookahead import Loss, Slopes, View, closed_form, double_backward
from calibrant.model_modes import evaluating

Objective = Literal["sece", "dece", "sece+ce", "dece+ce"]
Derivative = Literal["closed_form", "double_backward"]
OBJECTIVES = ("sece", "dece", "sece+ce", "dece+ce")
DERIVATIVES = ("closed_form", "double_backward")
# Network, held-out batch and learning rate, as `before_step` was given them.
Pending = tuple[nn.Module, Batch, float]
# Numbers of the held-out inputs that go through the network together: few enough for its cache.
ELEMENTS = 1 << 17
# Pixels that a tried step sees on either side: pairs of them are compared.
PIXELS = 2048
NO_HEAD = (
    "learning from held-out data needs a last linear layer: end the network with nn.Linear, or for "
    "pixels a 1x1 nn.Conv2d, and name it head"
)


class MetaLearner(Method):
    """Learns before some steps from held-out data; these never reach the weights.

    `before_step` keeps the held-out batch, the next `loss` uses it: so one forward pass of the
    training batch does for both, and what is learnt moves before the weights do. The held-out
    batch is looked at in evaluation mode, and batch norm does not see it.

    Attributes:
        usual_batch: held-out examples of a step, enough for a smooth calibration error.
    """

    needs_meta: ClassVar[bool] = True
    usual_batch: ClassVar[int] = 512

    def __init__(
        self,
        *,
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
        whole("every", 1, every)
        if meta_batch is not None:
            whole("meta_batch", 0, meta_batch)
        self.objective, self.weight, self.derivative = objective, weight, derivative
        self.bandwidth, self.estimator = bandwidth, estimator
        self.asked, self.meta_every, self.meta_lr = meta_batch, every, meta_lr
        self.meta_batch = self.usual_batch if meta_batch is None else meta_batch
        # What a state must agree in, beside the shapes in it.
        self.settings: dict[str, Any] = {"objective": objective}
        self.pending: Pending | None = None
        # Sums over the meta steps of an epoch, and their means in the last one that had any.
        self.tally = {"steps": 0.0, "objective": 0.0, "gradient": 0.0}
        self.means: dict[str, float] = {}

    def prepare(self, splits: Splits, ranks: Ranks) -> None:
        """An image of pixels holds many examples: of masks, as many as there are in a batch."""
        super().prepare(splits, ranks)
        if self.asked is None:
            self.meta_batch = 0 if splits.kind == "masks" else self.usual_batch

    def before_step(self, model: nn.Module, batch: Batch, meta: Batch, lr: float) -> None:
        """Keep the held-out batch for the next `loss`, which learns from it first."""
        self.pending = (model, meta, lr)

    def outer(self, logits: Tensor, labels: Tensor) -> Tensor:
        """What is to be low on the held-out data."""
        if self.objective.startswith("sece"):
            error = sece(logits, labels, bandwidth=self.bandwidth, form=self.estimator)
        else:
            error = dece(logits, labels)
        if not self.objective.endswith("+ce"):
            return error
        return cross_entropy(logits, labels).mean() + self.weight * error

    def view(self, seen: Seen, features: Tensor, pending: Pending) -> View | None:
        """The step to try, on data of all processes; None where no pixel of either side counts."""
        model, batch, lr = pending
        if seen.head is None:
            raise ValueError(NO_HEAD)
        size = max(1, ELEMENTS // max(1, batch.inputs[:1].numel()))
        with evaluating(model), torch.no_grad():
            parts = [look(model, part).features for part in torch.split(batch.inputs, size)]
        meta, labels = self.rows(promote_dtype(torch.cat(parts)), batch.labels, adjusted=False)
        kept = self.kept(batch)
        meta, labels = self.ranks.gather(meta[kept]), self.ranks.gather(labels[kept])
        if not len(features) or not len(labels):
            return None
        return View.of(seen.head, features, meta, lr, lambda logits: self.outer(logits, labels))

    def tried(self, view: View, parameter: Tensor, loss: Loss, slopes: Slopes) -> Tensor:
        """Gradient of the objective after the step; the objective itself is noted."""
        if self.derivative == "closed_form":
            value, gradient = closed_form(view, parameter, slopes)
        else:
            value, gradient = double_backward(view, parameter, loss)
        if value.isfinite():
            self.tally["steps"] += 1
            self.tally["objective"] += float(value)
        return gradient

    def stepped(
        self,
        optimizer: torch.optim.Optimizer,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
    ) -> None:
        """Move what is learnt by its gradient, whose norm is noted; not by one that is not finite.

        A network that has diverged is for whoever trains to find.
        """
        norm = float(nn.utils.get_total_norm(list(gradients)))
        if not math.isfinite(norm):
            return
        for each, gradient in zip(weights, gradients, strict=True):
            each.grad = gradient.to(each)
        self.tally["gradient"] += norm
        optimizer.step()

    def tags(self, batch: Batch) -> Tensor:
        """Which example and which place each row is, (m, 2); the same in one process or many."""
        labels = batch.labels
        places = labels[0].numel() if len(labels) else 1
        index = batch.index.to(labels.device).double()[:, None].expand(-1, places)
        place = torch.arange(places, device=labels.device).double().expand(len(labels), -1)
        both = torch.stack([index, place], 1).reshape(len(labels), 2, *labels.shape[1:])
        return self.rows(both, labels, adjusted=False)[0]

    def kept(self, batch: Batch) -> Tensor:
        """Rows that a tried step looks at: all of whole images, every so many of pixels."""
        if batch.labels.ndim == 1:
            return torch.ones_like(batch.labels, dtype=torch.bool)
        tags = self.tags(batch)
        total = float(self.ranks.total(torch.tensor(float(len(tags)), device=tags.device)))
        # Shifted from image to image, lest all be of one column.
        return tags.sum(1) % max(1, -(-total // PIXELS)) == 0

    def meta_row(self) -> dict[str, float | list[float]]:
        """Mean objective and mean norm of the gradient in the epoch; starts the next one.

        Of the last epoch that had a step; nothing before the first.
        """
        steps = self.tally["steps"]
        if steps:
            self.means = {
                "meta_objective": self.tally["objective"] / steps,
                "meta_gradient_norm": self.tally["gradient"] / steps,
            }
        self.tally = dict.fromkeys(self.tally, 0.0)
        return dict(self.means)

    def state_dict(self) -> dict[str, Any]:
        """Settings, and the sums of the epoch."""
        return {
            "settings": dict(self.settings),
            "tally": dict(self.tally),
            "means": dict(self.means),
        }

    def checked(self, state: Mapping[str, Any]) -> None:
        """Refuse the state of another method; take over what all such states hold."""
        if set(state) != set(self.state_dict()):
            raise ValueError(f"not a state of {type(self).__name__}: it holds {sorted(state)}")
        for name, own in self.settings.items():
            if state["settings"].get(name) != own:
                raise ValueError(
                    f"the state is of other settings than these: {name} must be {own!r}, "
                    f"got {state['settings'].get(name)!r}"
                )
        self.tally, self.means = dict(state["tally"]), dict(state["means"])


def exact(like: Tensor) -> torch.autocast:
    """What is learnt beside the weights is learnt in full precision."""
    return torch.autocast(like.device.type, enabled=False)
