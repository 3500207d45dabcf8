"""Margin smoothing whose weight changes between epochs: by a schedule, or per class (CALS-HR)."""

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from calibrant.losses import margin_constraint, margin_smoothing
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
        factor: of a change.
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
