"""Focal loss whose gamma follows the calibration of bins of the validation data."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.data import Batch
from calibrant.losses import focal, inverse_focal
from calibrant.losses.log_probs import log_probs, of_label
from calibrant.losses.settings import at_least, number, positive, whole
from calibrant.methods.base import Method, mixed, same_answers, same_classes
from calibrant.predictions import Predictions
from calibrant.setting_errors import SettingError


class AdaFocal(Method):
    r"""Focal loss with a gamma for each bin of confidence, moved by how wrong that bin is.

    An example has the gamma of the bin that the probability of its label falls in. After an epoch
    validation examples are cut into bins of equal mass by their confidence, and in each bin

    $$\gamma \leftarrow \gamma\, e^{\operatorname{sign}(\gamma)\, rate\,
      (\overline{conf} - \overline{acc})},$$

    kept within [`least`, `most`]: over-confident bins get a larger gamma. A gamma that comes closer
    to zero than `switch` changes its sign; a negative one is inverse focal loss with $|\gamma|$,
    which raises confidence.

    Args:
        classes: k.
        gamma: first value of every bin.
        rate: of the exponent.
        bins: of equal mass.
        least: smallest gamma, negative.
        most: largest gamma.
        switch: distance from zero below which the sign changes.

    References:
        Ghosh et al., AdaFocal: Calibration-aware Adaptive Focal Loss, NeurIPS 2022,
            arXiv:2211.11838
    """

    per_example = True

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
        whole("classes", 2, classes)
        positive("switch", switch)
        at_least("gamma", switch, gamma)
        at_least("rate", 0, rate)
        whole("bins", 1, bins)
        at_least("most", gamma, most)
        number("least", least)
        if not -math.inf < least <= -switch:
            raise SettingError(
                "least", f"must be finite and at most -switch = {-switch:g}, got {least:g}"
            )
        self.classes = classes
        self.rate, self.least, self.most, self.switch = rate, least, most, switch
        self.gamma = torch.full((bins,), float(gamma), dtype=torch.float64)
        # Upper ends of all bins but the last.
        self.edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Loss of each example, (n,)."""
        logits, labels = self.rows(model(batch.inputs), batch.labels, adjusted=False)
        same_answers(logits, self.classes)
        return mixed(self._each, batch, logits, labels)

    def _each(self, logits: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            own = of_label(log_probs(logits.double()), labels).exp()
            # Bins are of validation data: by the logits of inference.
            gamma = self.gamma[torch.bucketize(own, self.edges)]
        logits = self.adjusted(logits)
        down = focal(logits, labels, gamma=gamma.clamp(min=0))
        up = inverse_focal(logits, labels, gamma=(-gamma).clamp(min=0))
        return torch.where(gamma >= 0, down, up)

    def after_epoch(self, val: Predictions) -> Mapping[str, float | list[float]]:
        """Cut validation into bins, and move the gamma of each by its gap."""
        same_classes(val, self.classes)
        confidence, correct = val.confidence.numpy(), val.correct.numpy()
        bins = len(self.gamma)
        ends = np.array_split(np.sort(confidence), bins)[:-1]
        edges = np.array([part[-1] if len(part) else 1.0 for part in ends])
        place = np.searchsorted(edges, confidence)
        count = np.bincount(place, minlength=bins)
        gap = np.bincount(place, confidence - correct, bins) / np.maximum(count, 1)
        gamma = self.gamma.cpu()
        moved = gamma * torch.exp(gamma.sign() * self.rate * torch.from_numpy(gap))
        moved = torch.where(moved.abs() < self.switch, -gamma.sign() * self.switch, moved)
        device = self.gamma.device
        self.gamma = moved.clamp(self.least, self.most).to(device)
        self.edges = torch.from_numpy(edges).to(device)
        return {
            "gamma_mean": float(self.gamma.mean()),
            "gamma": self.gamma.tolist(),
            "gap": gap.tolist(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Gammas and bins."""
        return {"gamma": self.gamma, "edges": self.edges}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        if set(state) != set(self.state_dict()):
            raise ValueError(f"not a state of AdaFocal: it holds {sorted(state)}")
        for name, own in self.state_dict().items():
            if state[name].shape != own.shape:
                raise ValueError(
                    f"{name} must be for {len(self.gamma)} bins, {tuple(own.shape)}; "
                    f"got {tuple(state[name].shape)}"
                )
        device = self.gamma.device
        self.gamma, self.edges = state["gamma"].to(device), state["edges"].to(device)

    def to(self, device: torch.device) -> None:
        """Move gammas and bins."""
        self.gamma, self.edges = self.gamma.to(device), self.edges.to(device)
