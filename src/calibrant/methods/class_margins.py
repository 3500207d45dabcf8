"""Margin smoothing whose price moves between epochs: by a schedule, or for each class by a rule."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calibrant.data import Batch
from calibrant.losses import margin_constraint, margin_smoothing
from calibrant.losses.log_probs import allowed
from calibrant.losses.settings import at_least, one_of, positive, whole
from calibrant.methods.base import Method, mixed
from calibrant.predictions import Predictions

# Validation rows worked on together; their distances stay in cache.
CHUNK = 1 << 16
SCHEDULES = ("constant", "add", "multiply", "step")


def constraints(
    val: Predictions, *, classes: int, margin: float, normalize: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """By how much the logits of validation break the rule of the margin, some rows at a time.

    With each part comes where its classes are allowed: masked ones have no constraint.
    """
    if val.zero_probs:
        raise ValueError(
            "validation logits must be finite to have margins: give logits, not probabilities "
            "of which some are 0"
        )
    if val.logits.shape[1] != classes:
        raise ValueError(
            f"validation must have the {classes} classes of the method, got {val.logits.shape[1]}"
        )
    for start in range(0, len(val), CHUNK):
        part = val.logits[start : start + CHUNK].double()
        yield margin_constraint(part, margin=margin, normalize=normalize), allowed(part)


def check_per_class(state: Mapping[str, Any], *names: str, classes: int) -> None:
    """Refuse a state whose tensors are not one number for each class."""
    for name in names:
        if tuple(state[name].shape) != (classes,):
            raise ValueError(
                f"{name} must be for {classes} classes, got shape {tuple(state[name].shape)}"
            )


class _Margins(Method):
    """Cross entropy plus the price of logits beyond a margin; `alpha` is one for each class."""

    per_example = True

    def __init__(self, classes: int, margin: float, alpha: float) -> None:
        whole("classes", 2, classes)
        at_least("margin", 0, margin, infinite=True)
        at_least("alpha", 0, alpha)
        self.margin, self.epoch = margin, 0
        self.alpha = torch.full((classes,), float(alpha), dtype=torch.float64)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Loss of each example, (n,)."""
        logits, labels = self.rows(model(batch.inputs), batch.labels, adjusted=False)
        return mixed(self._priced, batch, logits, labels)

    def _priced(self, logits: Tensor, labels: Tensor) -> Tensor:
        alpha = self.alpha.to(logits.dtype)
        priced = margin_smoothing(logits, labels, margin=self.margin, alpha=alpha)
        return self.readjusted(priced, logits, labels)

    def state_dict(self) -> dict[str, Any]:
        """The prices and the number of epochs."""
        return {"alpha": self.alpha, "epoch": self.epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        if set(state) != set(self.state_dict()):
            raise ValueError(f"not a state of {type(self).__name__}: it holds {sorted(state)}")
        check_per_class(state, *(state.keys() - {"epoch"}), classes=len(self.alpha))
        self.alpha = state["alpha"].to(self.alpha.device)
        self.epoch = int(state["epoch"])

    def to(self, device: torch.device) -> None:
        """Move the prices."""
        self.alpha = self.alpha.to(device)


class MarginSmoothing(_Margins):
    """Cross entropy plus what each logit lies below the largest by more than a margin (MbLS).

    The loss is `losses.margin_smoothing`. The published results keep `alpha` constant; its code
    also knows schedules, after every epoch:

    Args:
        classes: k.
        margin: distance of logits that is free.
        alpha: price of what lies beyond, at the start.
        schedule: "constant"; "add" or "multiply" `change` after every epoch; "step", multiply
            after every `every` epochs.
        change: what is added or multiplied with.
        every: epochs between two changes of "step".
        most: largest price.

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
        whole("every", 1, every)
        at_least("most", alpha, most)
        if schedule in ("multiply", "step") and change == 0:
            raise ValueError(f"schedule {schedule!r} needs a change above 0, a factor such as 1.1")
        self.schedule, self.change, self.every, self.most = schedule, change, every, most

    def after_epoch(self, val: Predictions) -> Mapping[str, float | list[float]]:
        """Move the price as the schedule says."""
        self.epoch += 1
        if self.schedule == "add":
            self.alpha = (self.alpha + self.change).clamp(max=self.most)
        elif self.schedule == "multiply" or (
            self.schedule == "step" and self.epoch % self.every == 0
        ):
            self.alpha = (self.alpha * self.change).clamp(max=self.most)
        return {"alpha": float(self.alpha[0])}


class CalsHr(_Margins):
    r"""Margin smoothing with a price for each class, raised and lowered by a rule (CALS-HR).

    After an epoch the score of class k is the mean over validation examples of
    $\alpha_k \max(0, \max_l z_l - z_k - m)$. Where it grew by more than `tolerance` the price is
    multiplied by `factor`, where it fell by more than that it is divided. The score holds the
    price itself, so a change of the price alone moves it right to the edge of the next change.

    Args:
        classes: k.
        margin: distance of logits that is free.
        alpha: first price of every class.
        factor: of a change.
        tolerance: ratio of two scores above which the price rises, below whose inverse it falls.
        step: epochs between two changes.
        least: smallest price.
        most: largest price.

    References:
        Liu et al., Class Adaptive Network Calibration, CVPR 2023, arXiv:2211.15088
    """

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
        whole("step", 1, step)
        positive("least", least)
        at_least("alpha", least, alpha)
        at_least("most", alpha, most)
        self.factor, self.tolerance, self.step = factor, tolerance, step
        self.least, self.most = least, most
        self.scores = torch.zeros(classes, dtype=torch.float64)

    def after_epoch(self, val: Predictions) -> Mapping[str, float | list[float]]:
        """Raise and lower the prices by how the scores moved since the last change."""
        self.epoch += 1
        if self.epoch % self.step == 0:
            before, alpha = self.scores, self.alpha.cpu()
            self.scores = alpha * self._excess(val)
            # All zero: the first epoch, or nothing lay beyond the margin.
            if before.sum() > 0:
                grew = self.scores > self.tolerance * before
                fell = self.scores < before / self.tolerance
                moved = torch.where(grew, alpha * self.factor, alpha)
                moved = torch.where(fell, alpha / self.factor, moved)
                self.alpha = moved.clamp(self.least, self.most).to(self.alpha.device)
        return {
            "alpha_mean": float(self.alpha.mean()),
            "alpha_max": float(self.alpha.max()),
            "alpha": self.alpha.tolist(),
        }

    def _excess(self, val: Predictions) -> Tensor:
        """Mean over examples of how far each class's logit lies beyond the margin, (k,)."""
        total, counts = torch.zeros_like(self.scores), torch.zeros_like(self.scores)
        classes = len(self.scores)
        for beyond, there in constraints(val, classes=classes, margin=self.margin, normalize=False):
            total += beyond.relu().where(there, 0).sum(0)
            counts += there.sum(0)
        return total / counts.clamp(min=1)

    def state_dict(self) -> dict[str, Any]:
        """The prices, the last scores and the number of epochs."""
        return {**super().state_dict(), "scores": self.scores}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        super().load_state_dict(state)
        self.scores = state["scores"].cpu()
