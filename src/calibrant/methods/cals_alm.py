"""Class-adaptive label smoothing whose multipliers follow validation data."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calibrant.data import Batch
from calibrant.losses import PENALTIES, cals, margin_constraint
from calibrant.losses.settings import at_least, one_of, positive, whole
from calibrant.methods.base import Method, mixed
from calibrant.methods.class_margins import check_per_class, constraints
from calibrant.predictions import Predictions
from calibrant.shapes import Logits


class CalsAlm(Method):
    r"""Cross entropy under the constraint that no logit lies too far below the largest.

    The loss is `losses.cals`; each class has a multiplier $\lambda_k$ and a weight $\rho_k$. After
    each epoch, with $h_{ik}$ the constraint on the validation examples and P the penalty,

    $$\lambda_k \leftarrow \operatorname{mean}_i P'(h_{ik}, \lambda_k, \rho_k),$$

    each term and the mean kept within [`least`, `most`]; every `rho_step` epochs $\rho_k$ grows by
    `rho_growth`, up to `rho_most`, where the mean constraint did not fall below `decrease` times
    that of the epoch before or, where it held then (not above zero), is broken now. Pixels that do
    not count are left out of both, and so are examples for which the class is masked.

    Args:
        classes: k.
        margin: distance of logits that is allowed.
        penalty: a name in `PENALTIES`.
        normalize: divide the constraint by the margin.
        least: first and smallest multiplier.
        most: largest multiplier.
        multiplier_step: epochs between two updates of the multipliers.
        rho: first weight of every class, and the smallest.
        rho_most: largest weight.
        rho_step: epochs between two updates of the weights.
        rho_growth: factor of an update.
        decrease: part of the last mean constraint that has to be reached.

    References:
        Liu et al., Class Adaptive Network Calibration, CVPR 2023, arXiv:2211.15088
    """

    per_example = True

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
        whole("classes", 2, classes)
        one_of("penalty", penalty, PENALTIES)
        for name, value in (("least", least), ("most", most), ("rho", rho)):
            positive(name, value)
        at_least("most", least, most)
        at_least("rho_most", rho, rho_most)
        at_least("rho_growth", 1, rho_growth)
        at_least("decrease", 0, decrease)
        for name, count in (("multiplier_step", multiplier_step), ("rho_step", rho_step)):
            whole(name, 1, count)
        margin_constraint(torch.zeros(1, 2), margin=margin, normalize=normalize)
        self.margin, self.penalty, self.normalize = margin, penalty, normalize
        self.least, self.most = least, most
        self.multiplier_step, self.rho_step = multiplier_step, rho_step
        self.rho_least, self.rho_most, self.rho_growth = rho, rho_most, rho_growth
        self.decrease = decrease
        self.epoch = 0
        self.multipliers = torch.full((classes,), least, dtype=torch.float64)
        self.rho = torch.full((classes,), float(rho), dtype=torch.float64)
        self.last: Tensor | None = None

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross entropy plus the price of each example's constraints, (n,)."""
        logits, labels = self.rows(model(batch.inputs), batch.labels, adjusted=False)
        return mixed(self._priced, batch, logits, labels)

    def _priced(self, logits: Logits, labels: Tensor) -> Tensor:
        priced = cals(
            logits,
            labels,
            margin=self.margin,
            multipliers=self.multipliers,
            rho=self.rho,
            penalty=self.penalty,
            normalize=self.normalize,
        )
        return self.readjusted(priced, logits, labels)

    def after_epoch(self, val: Predictions) -> Mapping[str, float | list[float]]:
        """Move the multipliers, then the weights, by the constraints on validation data."""
        slope = PENALTIES[self.penalty].derivative
        multipliers, rho = self.multipliers.cpu(), self.rho.cpu()
        moved, broken, counts = (torch.zeros_like(multipliers) for _ in range(3))
        for h, there in constraints(
            val, classes=len(rho), margin=self.margin, normalize=self.normalize
        ):
            each = slope(h, multipliers, rho).clamp(self.least, self.most)
            moved += each.where(there, 0).sum(0)
            broken += h.where(there, 0).sum(0)
            counts += there.sum(0)
        counts = counts.clamp(min=1)
        self.epoch += 1
        if self.epoch % self.multiplier_step == 0:
            self.multipliers = (moved / counts).clamp(self.least, self.most).to(self.rho)
        mean = broken / counts
        if self.epoch % self.rho_step == 0 and self.last is not None:
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

    def state_dict(self) -> dict[str, Any]:
        """Multipliers, weights, the last mean constraint and the number of epochs."""
        return {
            "multipliers": self.multipliers,
            "rho": self.rho,
            "last": self.last,
            "epoch": self.epoch,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        if set(state) != set(self.state_dict()):
            raise ValueError(f"not a state of CalsAlm: it holds {sorted(state)}")
        names = ("multipliers", "rho", *(() if state["last"] is None else ("last",)))
        check_per_class(state, *names, classes=len(self.rho))
        device = self.rho.device
        self.multipliers, self.rho = state["multipliers"].to(device), state["rho"].to(device)
        self.last = None if state["last"] is None else state["last"].to(device)
        self.epoch = int(state["epoch"])

    def to(self, device: torch.device) -> None:
        """Move multipliers and weights."""
        self.multipliers, self.rho = self.multipliers.to(device), self.rho.to(device)
