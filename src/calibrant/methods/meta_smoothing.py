"""Label smoothing whose strength is learnt on held-out data."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrant.data import Batch
from calibrant.losses.log_probs import label_index, log_probs
from calibrant.losses.sece import Form
from calibrant.losses.settings import integer, one_of
from calibrant.methods.base import check_classes, mixup_loss
from calibrant.methods.heads import forward_with_features
from calibrant.methods.meta_learning import Derivative, MetaLearner, Objective
from calibrant.predictions import Predictions
from calibrant.shapes import Labels, Logits, PerExample

FORMS = ("scalar", "class", "matrix")
# Largest smoothing: a label keeps at least half of its weight.
MOST = 0.5


class MetaSmoothing(MetaLearner):
    r"""Label smoothing learnt on held-out data: a scalar, one per class, or a matrix.

    Cross entropy against a soft label $q_i$ that depends on the label alone:

    $$\ell_i = -\sum_j q_{ij} \log p_{ij}, \qquad
      q_i = (1 - \varphi)\, e_{y_i} + \varphi / k \quad \text{or} \quad
      q_i = \Big(1 - \sum_{j \ne y_i} \varphi_{y_i j}\Big) e_{y_i}
            + \sum_{j \ne y_i} \varphi_{y_i j} e_j$$

    with one $\varphi$ for all ("scalar"), one for each label ("class"), or a row for each label
    ("matrix"). It starts at 0, which is cross entropy, and stays in [0, 1/2], as does the sum of a
    matrix row. Every few steps a lookahead step of the last layer is computed, without applying it,
    and $\varphi$ is updated to lower the objective on held-out data after that step.

    Unlike in the published code, the gradient of the objective does not update the weights, the
    lookahead step uses the mean loss and not its sum, and held-out data do not affect batch norm.

    Args:
        form: "scalar", "class" or "matrix".
        objective: minimised on held-out data: "sece", "dece", or cross entropy plus `weight` times
            one of them ("sece+ce", "dece+ce").
        weight: weight of the calibration error.
        bandwidth: of SECE.
        estimator: form of SECE, "leave_one_out", "points" or "grid".
        derivative: "closed_form" or "double_backward", which give the same numbers.
        meta_batch: held-out examples per step; default 512, for masks the size of the batch.
        every: steps between two updates of the smoothing.
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
            objective, weight, bandwidth, estimator, derivative, meta_batch, every, meta_lr
        )
        integer("classes", 2, classes)
        one_of("form", form, FORMS)
        self.classes, self.form = classes, form
        shape = {"scalar": (1,), "class": (classes,), "matrix": (classes, classes)}[form]
        self.smoothing = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
        self.optimizer = torch.optim.Adam([self.smoothing], lr=meta_lr)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross entropy of each example against its soft label; first updates the smoothing."""
        forward = forward_with_features(model, batch.inputs)
        logits, labels = self.flatten(forward.logits, batch.labels)
        check_classes("logits", logits.shape[1], self.classes)
        if self.pending is not None:
            self.learn(forward, batch, self.targets)
            self._keep_within_bounds()
        return mixup_loss(self._smoothed, batch, logits, labels)

    def _smoothed(self, logits: Logits, labels: Labels) -> PerExample:
        log_p = log_probs(logits)
        # Raises for invalid labels.
        label_index(labels, log_p)
        return soft_cross_entropy(logits, self.targets(labels).detach().to(log_p.dtype))

    def targets(self, labels: Labels) -> Logits:
        """Soft label of each example, (n, k), differentiable in the smoothing."""
        hard = functional.one_hot(labels, self.classes).to(self.smoothing.dtype)
        if self.form == "matrix":
            moved = self.smoothing[labels] * (1 - hard)
            return hard * (1 - moved.sum(1, keepdim=True)) + moved
        amount = self.smoothing[labels if self.form == "class" else torch.zeros_like(labels)]
        return (1 - amount[:, None]) * hard + amount[:, None] / self.classes

    def example_loss(self, logits: Logits, labels: Labels, parameter: Tensor) -> PerExample:
        """Cross entropy against soft labels."""
        return soft_cross_entropy(logits, parameter)

    def example_gradient(self, logits: Logits, labels: Labels, parameter: Tensor) -> Logits:
        """Probabilities minus soft labels."""
        return log_probs(logits).exp() * parameter.sum(1, keepdim=True) - parameter

    def _keep_within_bounds(self) -> None:
        with torch.no_grad():
            self.smoothing.clamp_(0, MOST)
            if self.form == "matrix":
                self.smoothing.fill_diagonal_(0)
                sums = self.smoothing.sum(1, keepdim=True)
                self.smoothing.mul_(MOST / sums.clamp(min=MOST))

    def after_epoch(self, val: Predictions) -> Mapping[str, float | list[float]]:
        """Smoothing of the labels: mean, maximum and, unless scalar, of each class."""
        check_classes("predictions", val.classes, self.classes)
        smoothing = self.smoothing.detach()
        amount = smoothing.sum(1) if self.form == "matrix" else smoothing
        record = {"smoothing_mean": float(amount.mean()), "smoothing_max": float(amount.max())}
        by_class = {} if self.form == "scalar" else {"smoothing": amount.tolist()}
        return {**self.meta_record(), **record, **by_class}

    def state_dict(self) -> dict[str, Any]:
        """The smoothing, its optimizer, and the sums of the epoch."""
        return {**super().state_dict(), "smoothing": self.smoothing.detach().clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load state."""
        self.check_state(state)
        with torch.no_grad():
            self.smoothing.copy_(state["smoothing"])
        super().load_state_dict(state)


def soft_cross_entropy(logits: Logits, targets: Logits) -> PerExample:
    """Cross entropy of each example against a soft label."""
    return -(targets * log_probs(logits)).sum(1)
