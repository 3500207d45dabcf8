"""Class-adaptive label smoothing by an augmented Lagrangian method (CALS-ALM)."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from calibrant.losses import PENALTIES, cals, margin_constraint
from calibrant.losses.settings import at_least, integer, one_of, positive
from calibrant.methods.base import PerExampleMethod
from calibrant.methods.class_margins import constraints
from calibrant.predictions import Predictions


class CalsAlm(PerExampleMethod):
    r"""Cross entropy under the constraint that no logit lies too far below the largest (CALS-ALM).

    The loss is `losses.cals`; each class has a multiplier $\lambda_k$ and a penalty weight
    $\rho_k$. After each epoch, with $h_{ik}$ the constraint on validation examples and P the
    penalty,

    $$\lambda_k \leftarrow \operatorname{mean}_i P'(h_{ik}, \lambda_k, \rho_k),$$

    each term and the mean clamped to [`least`, `most`]. Every `rho_step` epochs $\rho_k$ is
    multiplied by `rho_growth`, up to `rho_most`, where the mean constraint did not fall below
    `decrease` times that of the epoch before or, if it was satisfied then (not above zero), is
    violated now. Ignored pixels, and examples for which the class is masked, are left out.

    Args:
        margin: allowed distance of a logit from the largest.
        penalty: a name in `PENALTIES`.
        normalize: divide the constraint by the margin.
        least: initial and smallest multiplier.
        most: largest multiplier.
        multiplier_step: epochs between two updates of the multipliers.
        rho: initial and smallest penalty weight.
        rho_most: largest penalty weight.
        rho_step: epochs between two updates of the penalty weights.
        rho_growth: factor of an update.
        decrease: fraction of the last mean constraint that must be reached.

    References:
        Liu et al., Class Adaptive Network Calibration, CVPR 2023, arXiv:2211.15088
    """

    state_names = ("multipliers", "rho", "last", "epoch")

    def __init__(
        self,
        classes: int,
        *,
        margin: float = 10.0,
        penalty: Literal["phr", "p2", "p3"] = "phr",
        normalize: bool = True,
        least: float = 1e-6,
        most: float = 1e6,
        multiplier_step: int = 1,
        rho: float = 1.0,
        rho_most: float = 10.0,
        rho_step: int = 10,
        rho_growth: float = 1.2,
        decrease: float = 0.9,
    ) -> None:
        integer("classes", 2, classes)
        one_of("penalty", penalty, PENALTIES)
        positive("least", least)
        positive("rho", rho)
        at_least("most", least, most)
        at_least("rho_most", rho, rho_most)
        at_least("rho_growth", 1, rho_growth)
        at_least("decrease", 0, decrease)
        for name, count in (("multiplier_step", multiplier_step), ("rho_step", rho_step)):
            integer(name, 1, count)
        margin_constraint(torch.zeros(1, 2), margin=margin, normalize=normalize)
        self.margin, self.penalty, self.normalize = margin, penalty, normalize
        self.least, self.most = least, most
        self.multiplier_step, self.rho_step = multiplier_step, rho_step
        self.rho_least, self.rho_most, self.rho_growth = rho, rho_most, rho_growth
        self.decrease = decrease
        self.epoch = 0
        self.multipliers = torch.full((classes,), least, dtype=torch.float64)
        self.rho = torch.full((classes,), float(rho), dtype=torch.float64)
        # The mean constraint of the last epoch.
        self.last = torch.zeros(classes, dtype=torch.float64)

    def example_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy plus the penalty on each example's constraints."""
        loss = cals(
            logits,
            labels,
            margin=self.margin,
            multipliers=self.multipliers,
            rho=self.rho,
            penalty=self.penalty,
            normalize=self.normalize,
        )
        return self.with_adjusted_cross_entropy(loss, logits, labels)

    def after_epoch(self, val: Predictions) -> Mapping[str, float | list[float]]:
        """Update the multipliers, then the penalty weights, on validation data."""
        derivative = PENALTIES[self.penalty].derivative
        multipliers, rho = self.multipliers.cpu(), self.rho.cpu()
        total, violation, counts = (torch.zeros_like(multipliers) for _ in range(3))
        for h, valid in constraints(
            val, classes=len(rho), margin=self.margin, normalize=self.normalize
        ):
            each = derivative(h, multipliers, rho).clamp(self.least, self.most)
            total += each.where(valid, 0).sum(0)
            violation += h.where(valid, 0).sum(0)
            counts += valid.sum(0)
        counts = counts.clamp(min=1)
        self.epoch += 1
        if self.epoch % self.multiplier_step == 0:
            self.multipliers = (total / counts).clamp(self.least, self.most).to(self.rho)
        mean = violation / counts
        if self.epoch % self.rho_step == 0 and self.epoch > 1:
            slow = mean > self.decrease * self.last.cpu().clamp(min=0)
            grown = (rho * self.rho_growth).clamp(self.rho_least, self.rho_most)
            self.rho = torch.where(slow, grown, rho).to(self.rho)
        self.last = mean.to(self.rho)
        return {
            "multiplier_mean": float(self.multipliers.mean()),
            "multiplier_max": float(self.multipliers.max()),
            "rho_max": float(self.rho.max()),
            "constraint_mean": float(mean.mean()),
            "multipliers": self.multipliers.tolist(),
            "rho": self.rho.tolist(),
        }
