"""Margin smoothing whose weights change between epochs: by a schedule, or per class (CALS)."""

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from calibrant.losses import PENALTIES, cals, margin_constraint, margin_smoothing
from calibrant.losses.log_probs import allowed
from calibrant.losses.settings import at_least, integer, one_of, positive
from calibrant.methods.base import PerExampleMethod, check_classes
from calibrant.predictions import Predictions

# Validation examples per chunk; their constraints stay in cache.
CHUNK = 1 << 16
SCHEDULES = ("constant", "add", "multiply", "step")


def constraints(
    val: Predictions, *, classes: int, margin: float, normalize: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Margin constraints of validation logits, chunk by chunk, each with its allowed classes."""
    if val.zero_probs:
        raise ValueError(
            "validation logits must be finite to have margins: pass logits, not probabilities "
            "of which some are 0"
        )
    check_classes("validation", val.logits.shape[1], classes)
    for start in range(0, len(val), CHUNK):
        part = val.logits[start : start + CHUNK].double()
        yield margin_constraint(part, margin=margin, normalize=normalize), allowed(part)


class _Margins(PerExampleMethod):
    """Cross entropy plus a penalty on logits beyond a margin; `alpha` has one weight per class."""

    state_names: ClassVar[tuple[str, ...]] = ("alpha", "epoch")

    def __init__(self, classes: int, margin: float, alpha: float) -> None:
        integer("classes", 2, classes)
        at_least("margin", 0, margin, infinite=True)
        at_least("alpha", 0, alpha)
        self.margin, self.epoch = margin, 0
        self.alpha = torch.full((classes,), float(alpha), dtype=torch.float64)

    def example_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Margin smoothing with the weights of this epoch."""
        alpha = self.alpha.to(logits.dtype)
        loss = margin_smoothing(logits, labels, margin=self.margin, alpha=alpha)
        return self.with_adjusted_cross_entropy(loss, logits, labels)


class MarginSmoothing(_Margins):
    """Cross entropy plus a penalty on logits below the largest by more than a margin (MbLS).

    The loss is `losses.margin_smoothing`. The published results keep `alpha` constant; the public
    code also has schedules.

    Args:
        margin: distance from the largest logit without penalty.
        alpha: initial penalty weight.
        schedule: "constant"; "add" or "multiply" by `change` after every epoch; "step", multiply
            every `every` epochs.
        change: summand or factor of the schedule.
        every: epochs between two changes of "step".
        most: largest penalty weight.

    References:
        Liu et al., The Devil is in the Margin, CVPR 2022, arXiv:2111.15430
    """

    def __init__(
        self,
        classes: int,
        *,
        margin: float = 10.0,
        alpha: float = 0.1,
        schedule: Literal["constant", "add", "multiply", "step"] = "constant",
        change: float = 0.0,
        every: int = 100,
        most: float = 100.0,
    ) -> None:
        super().__init__(classes, margin, alpha)
        one_of("schedule", schedule, SCHEDULES)
        at_least("change", 0, change)
        integer("every", 1, every)
        at_least("most", alpha, most)
        if schedule in ("multiply", "step") and change == 0:
            raise ValueError(f"schedule {schedule!r} needs a change above 0, a factor such as 1.1")
        self.schedule, self.change, self.every, self.most = schedule, change, every, most

    def after_epoch(self, val: Predictions) -> Mapping[str, float | list[float]]:
        """Update the penalty weight by the schedule."""
        self.epoch += 1
        if self.schedule == "add":
            self.alpha = (self.alpha + self.change).clamp(max=self.most)
        elif self.schedule == "multiply" or (
            self.schedule == "step" and self.epoch % self.every == 0
        ):
            self.alpha = (self.alpha * self.change).clamp(max=self.most)
        return {"alpha": float(self.alpha[0])}


class CalsHr(_Margins):
    r"""Margin smoothing with a penalty weight per class, updated by a heuristic rule (CALS-HR).

    After an epoch the score of class k is the mean over validation examples of
    $\alpha_k \max(0, \max_l z_l - z_k - m)$. Where it grew by more than the factor `tolerance`,
    the penalty weight is multiplied by `factor`; where it fell by more than that, it is divided.
    The score contains the weight itself, so a change of the weight alone moves the score to the
    threshold of the next change.

    Args:
        margin: distance from the largest logit without penalty.
        alpha: initial penalty weight of every class.
        factor: factor of a change.
        tolerance: ratio of two scores above which the weight grows, below whose inverse it falls.
        step: epochs between two changes.
        least: smallest penalty weight.
        most: largest penalty weight.

    References:
        Liu et al., Class Adaptive Network Calibration, CVPR 2023, arXiv:2211.15088
    """

    state_names = ("alpha", "epoch", "scores")

    def __init__(
        self,
        classes: int,
        *,
        margin: float = 10.0,
        alpha: float = 0.1,
        factor: float = 1.1,
        tolerance: float = 1.1,
        step: int = 1,
        least: float = 1e-6,
        most: float = 1e6,
    ) -> None:
        super().__init__(classes, margin, alpha)
        at_least("factor", 1, factor)
        at_least("tolerance", 1, tolerance)
        integer("step", 1, step)
        positive("least", least)
        at_least("alpha", least, alpha)
        at_least("most", alpha, most)
        self.factor, self.tolerance, self.step = factor, tolerance, step
        self.least, self.most = least, most
        self.scores = torch.zeros(classes, dtype=torch.float64)

    def after_epoch(self, val: Predictions) -> Mapping[str, float | list[float]]:
        """Update the penalty weights by the change of the scores since the last update."""
        self.epoch += 1
        if self.epoch % self.step == 0:
            before, alpha = self.scores.cpu(), self.alpha.cpu()
            self.scores = alpha * self._excess(val)
            # All zero: the first epoch, or no logit lay beyond the margin.
            if before.sum() > 0:
                grew = self.scores > self.tolerance * before
                fell = self.scores < before / self.tolerance
                updated = torch.where(grew, alpha * self.factor, alpha)
                updated = torch.where(fell, alpha / self.factor, updated)
                self.alpha = updated.clamp(self.least, self.most).to(self.alpha.device)
        return {
            "alpha_mean": float(self.alpha.mean()),
            "alpha_max": float(self.alpha.max()),
            "alpha": self.alpha.tolist(),
        }

    def _excess(self, val: Predictions) -> Tensor:
        """Mean over examples of the excess of each class's logit beyond the margin, (k,)."""
        classes = len(self.scores)
        total, counts = (torch.zeros(classes, dtype=torch.float64) for _ in range(2))
        for excess, valid in constraints(val, classes=classes, margin=self.margin, normalize=False):
            total += excess.relu().where(valid, 0).sum(0)
            counts += valid.sum(0)
        return total / counts.clamp(min=1)


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
