"""Label smoothing whose amount is learnt on held-out data."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrant.checks import promote_dtype
from calibrant.data import Batch
from calibrant.losses.log_probs import column, log_probs
from calibrant.losses.sece import Form
from calibrant.losses.settings import one_of, whole
from calibrant.methods.base import larger_part, mixed, same_answers, same_classes
from calibrant.methods.heads import Seen, look
from calibrant.methods.meta_learning import (
    Derivative,
    MetaLearner,
    Objective,
    Pending,
    exact,
)
from calibrant.predictions import Predictions
from calibrant.shapes import Labels, Logits, PerExample

FORMS = ("scalar", "class", "matrix")
# Bounds of what is learnt: a label keeps at least half of its weight.
MOST = 0.5


class MetaSmoothing(MetaLearner):
    r"""Label smoothing whose amount is learnt on held-out data: one, one a class, or whole rows.

    Cross entropy against a soft label $q_i$ that depends on the label alone:

    $$\ell_i = -\sum_j q_{ij} \log p_{ij}, \qquad
      q_i = (1 - \varphi)\, e_{y_i} + \varphi / k \quad \text{or} \quad
      q_i = \Big(1 - \sum_{j \ne y_i} \varphi_{y_i j}\Big) e_{y_i}
            + \sum_{j \ne y_i} \varphi_{y_i j} e_j$$

    with one $\varphi$ for all ("scalar"), one for each label ("class"), or a row for each label
    ("matrix"). It starts at 0, which is cross entropy, and stays in [0, 1/2], in a matrix the sum
    of a row as well. Every few steps a plain gradient step of the last layer is tried, $\varphi$
    moves so that the objective on held-out data would be lower after it, and the step is forgotten.

    Unlike in the published code, the objective's gradient does not reach the weights, the tried
    step is of the mean loss and not of its sum, and held-out data leave batch norm alone.

    Args:
        classes: k.
        form: "scalar", "class" or "matrix".
        objective: what is minimised on held-out data: "sece", "dece", or cross entropy plus
            `weight` times one of them.
        weight: of the calibration error beside cross entropy.
        bandwidth: of SECE.
        estimator: form of SECE, "leave_one_out", "points" or "grid".
        derivative: "closed_form", or "double_backward" through the tried step: the same numbers.
        meta_batch: held-out examples of a step; by default 512, of masks as many as of training.
        every: steps from one update of the smoothing to the next.
        meta_lr: learning rate of its Adam.

    References:
        Bohdal et al., Meta-Calibration: Learning of Model Calibration Using Differentiable
            Expected Calibration Error, TMLR 2023, arXiv:2106.09613
    """

    def __init__(
        self,
        classes: int,
        *,
        form: Literal["scalar", "class", "matrix"] = "scalar",
        objective: Objective = "dece+ce",
        weight: float = 0.5,
        bandwidth: float = 0.01,
        estimator: Form = "leave_one_out",
        derivative: Derivative = "closed_form",
        meta_batch: int | None = None,
        every: int = 4,
        meta_lr: float = 1e-3,
    ) -> None:
        super().__init__(
            objective=objective,
            weight=weight,
            bandwidth=bandwidth,
            estimator=estimator,
            derivative=derivative,
            meta_batch=meta_batch,
            every=every,
            meta_lr=meta_lr,
        )
        whole("classes", 2, classes)
        one_of("form", form, FORMS)
        self.classes, self.form = classes, form
        shape = {"scalar": (1,), "class": (classes,), "matrix": (classes, classes)}[form]
        self.smoothing = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
        self.optimizer = torch.optim.Adam([self.smoothing], lr=meta_lr)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross entropy of each example against its soft label; learns first if it can."""
        seen = look(model, batch.inputs)
        logits, labels = self.rows(seen.logits, batch.labels)
        same_answers(logits, self.classes)
        pending, self.pending = self.pending, None
        if pending is not None:
            self._learn(seen, batch, pending)
        return mixed(self._smoothed, batch, logits, labels)

    def _smoothed(self, logits: Logits, labels: Labels) -> PerExample:
        log_p = log_probs(logits)
        # A label that is no class must not pass: this raises.
        column(labels, log_p)
        return soft_cross_entropy(logits, self.targets(labels).detach().to(log_p.dtype))

    def targets(self, labels: Labels) -> Logits:
        """Soft label of each example, (n, k), with a gradient for what is learnt."""
        hard = functional.one_hot(labels, self.classes).to(self.smoothing.dtype)
        if self.form == "matrix":
            moved = self.smoothing[labels] * (1 - hard)
            return hard * (1 - moved.sum(1, keepdim=True)) + moved
        amount = self.smoothing[labels if self.form == "class" else torch.zeros_like(labels)]
        return (1 - amount[:, None]) * hard + amount[:, None] / self.classes

    def _learn(self, seen: Seen, batch: Batch, pending: Pending) -> None:
        """Move the smoothing by what a tried step of the head does to held-out data."""
        kept, gather = self.kept(batch), self.ranks.gather
        features, labels = self.rows(
            promote_dtype(seen.features), larger_part(batch), adjusted=False
        )
        labels = gather(labels[kept])
        view = self.view(seen, gather(features[kept]), pending)
        if view is None:
            return

        def loss(logits: Tensor, own: Tensor) -> PerExample:
            return soft_cross_entropy(self.adjusted(logits), own)

        def slopes(logits: Tensor, own: Tensor) -> Logits:
            return log_probs(self.adjusted(logits)).exp() * own.sum(1, keepdim=True) - own

        with torch.enable_grad(), exact(view.weight):
            targets = self.targets(labels)
            pull = self.tried(view, targets.to(view.weight.dtype), loss, slopes)
            (gradient,) = torch.autograd.grad(targets, self.smoothing, pull.to(targets.dtype))
        self.stepped(self.optimizer, [self.smoothing], [gradient])
        with torch.no_grad():
            self.smoothing.clamp_(0, MOST)
            if self.form == "matrix":
                self.smoothing.fill_diagonal_(0)
                sums = self.smoothing.sum(1, keepdim=True)
                self.smoothing.mul_(MOST / sums.clamp(min=MOST))

    def after_epoch(self, val: Predictions) -> Mapping[str, float | list[float]]:
        """What is taken from each label, on average and, if they differ, class by class."""
        same_classes(val, self.classes)
        held = self.smoothing.detach()
        taken = held.sum(1) if self.form == "matrix" else held
        row = {"smoothing_mean": float(taken.mean()), "smoothing_max": float(taken.max())}
        by_class = {} if self.form == "scalar" else {"smoothing": taken.tolist()}
        return {**self.meta_row(), **row, **by_class}

    def state_dict(self) -> dict[str, Any]:
        """The smoothing, its optimizer, and the sums of the epoch."""
        return {
            **super().state_dict(),
            "smoothing": self.smoothing.detach().clone(),
            "optimizer": deepcopy(self.optimizer.state_dict()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.checked(state)
        held = state["smoothing"]
        if held.shape != self.smoothing.shape:
            raise ValueError(
                f"smoothing must be {tuple(self.smoothing.shape)}, got {tuple(held.shape)}"
            )
        with torch.no_grad():
            self.smoothing.copy_(held)
        # Loading would share the moments with the state, and move them in their place.
        self.optimizer.load_state_dict(deepcopy(state["optimizer"]))

    def to(self, device: torch.device) -> None:
        """Move the smoothing and the moments of its optimizer."""
        self.smoothing.data = self.smoothing.data.to(device)
        self.optimizer.load_state_dict(self.optimizer.state_dict())


def soft_cross_entropy(logits: Logits, targets: Logits) -> PerExample:
    """Cross entropy of each example against a soft label."""
    return -(targets * log_probs(logits)).sum(1)
