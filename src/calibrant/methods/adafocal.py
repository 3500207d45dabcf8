"""Focal loss whose gamma follows the calibration error of validation bins (AdaFocal)."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from calibrant.losses import focal, inverse_focal
from calibrant.losses.log_probs import log_probs, take_label
from calibrant.losses.settings import at_least, integer, number, positive
from calibrant.methods.base import PerExampleMethod, check_classes
from calibrant.predictions import Predictions
from calibrant.setting_errors import SettingError


class AdaFocal(PerExampleMethod):
    r"""Focal loss with a gamma per confidence bin, updated by the bin's calibration error.

    An example has the gamma of the bin that contains the probability of its label. After an epoch,
    validation examples are binned by confidence into bins of equal mass, and in each bin

    $$\gamma \leftarrow \gamma\, e^{\operatorname{sign}(\gamma)\, rate\,
      (\overline{conf} - \overline{acc})},$$

    clamped to [`least`, `most`]: over-confident bins get a larger gamma. A gamma closer to zero
    than `switch` changes its sign; a negative one is inverse focal loss with $|\gamma|$, which
    raises confidence.

    Args:
        gamma: initial value of every bin.
        rate: update rate in the exponent.
        bins: number of equal-mass bins.
        least: smallest gamma, negative.
        most: largest gamma.
        switch: distance from zero below which the sign changes.

    References:
        Ghosh et al., AdaFocal: Calibration-aware Adaptive Focal Loss, NeurIPS 2022,
            arXiv:2211.11838
    """

    state_names = ("gamma", "edges")

    def __init__(
        self,
        classes: int,
        *,
        gamma: float = 1.0,
        rate: float = 1.0,
        bins: int = 15,
        least: float = -2.0,
        most: float = 20.0,
        switch: float = 0.2,
    ) -> None:
        integer("classes", 2, classes)
        positive("switch", switch)
        at_least("gamma", switch, gamma)
        at_least("rate", 0, rate)
        integer("bins", 1, bins)
        at_least("most", gamma, most)
        number("least", least)
        if not -math.inf < least <= -switch:
            raise SettingError(
                "least", f"must be finite and at most -switch = {-switch:g}, got {least:g}"
            )
        self.classes = classes
        self.rate, self.least, self.most, self.switch = rate, least, most, switch
        self.gamma = torch.full((bins,), float(gamma), dtype=torch.float64)
        # Upper edges of all bins but the last.
        self.edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]

    def example_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Focal or inverse focal loss, by the sign of the gamma of each example's bin."""
        check_classes("logits", logits.shape[1], self.classes)
        with torch.no_grad():
            probs = take_label(log_probs(logits.double()), labels).exp()
            # Bins come from validation predictions, so logits are not adjusted here.
            gamma = self.gamma[torch.bucketize(probs, self.edges)]
        logits = self.adjust_logits(logits)
        down = focal(logits, labels, gamma=gamma.clamp(min=0))
        up = inverse_focal(logits, labels, gamma=(-gamma).clamp(min=0))
        return torch.where(gamma >= 0, down, up)

    def after_epoch(self, val: Predictions) -> Mapping[str, float | list[float]]:
        """Bin the validation examples and update the gamma of each bin by its gap."""
        check_classes("predictions", val.classes, self.classes)
        confidence, correct = val.confidence.numpy(), val.correct.numpy()
        bins = len(self.gamma)
        ends = np.array_split(np.sort(confidence), bins)[:-1]
        edges = np.array([part[-1] if len(part) else 1.0 for part in ends])
        place = np.searchsorted(edges, confidence)
        count = np.bincount(place, minlength=bins)
        gap = np.bincount(place, confidence - correct, bins) / np.maximum(count, 1)
        gamma = self.gamma.cpu()
        updated = gamma * torch.exp(gamma.sign() * self.rate * torch.from_numpy(gap))
        updated = torch.where(updated.abs() < self.switch, -gamma.sign() * self.switch, updated)
        device = self.gamma.device
        self.gamma = updated.clamp(self.least, self.most).to(device)
        self.edges = torch.from_numpy(edges).to(device)
        return {
            "gamma_mean": float(self.gamma.mean()),
            "gamma": self.gamma.tolist(),
            "gap": gap.tolist(),
        }
