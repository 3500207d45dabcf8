"""The identity: the baseline of all calibrators."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from calibrant.calibrators.base import Calibrator, made_from
from calibrant.predictions import Predictions
from calibrant.shapes import Logits


@dataclass(frozen=True, eq=False, kw_only=True)
class Identity(Calibrator):
    r"""The uncalibrated network; it has no parameters.

    $$\log q = \log \mathrm{softmax}(z)$$

    It ignores labels, so `fit` accepts any examples, even of a single class.

    Examples:
        >>> from calibrant.data import SYNTHETIC
        >>> Identity.fit(SYNTHETIC["tempered"].sample(100, seed=0).predictions).size
        0
    """

    keeps_argmax: ClassVar[bool] = True

    @classmethod
    def fit(cls, predictions: Predictions) -> "Identity":
        """Record the examples."""
        return cls(classes=predictions.classes, origin=made_from(predictions))

    def log_probs(self, logits: Logits) -> Logits:
        """Normalise."""
        return torch.log_softmax(logits, 1)
