"""The mean of the probabilities of several calibrators."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from calibrant.calibrators.base import Calibrator, Fit
from calibrant.calibrators.masks import log_sum, mask_of
from calibrant.predictions import Predictions
from calibrant.shapes import Logits

# About twice as many as there are calibrators.
MOST_PARTS = 32


@dataclass(frozen=True, eq=False, kw_only=True)
class Blend(Calibrator):
    r"""The mean of the probabilities of calibrators that were fitted one by one.

    $$q = \frac{1}{m} \sum_{j=1}^m q_j(z)$$

    Where examples cannot tell several calibrators apart, their mean needs no choice. By log and
    Brier score it is never worse than the parts are on average. It is not in `CALIBRATORS`, since
    it is made of them: `select(predictions).blend` holds the parts that tie. The predicted class
    is kept if every part keeps it; `keeps_argmax` of the object, not of the class, says so.

    Attributes:
        parts: the calibrators, all of the same classes, none of them a blend.

    Examples:
        >>> import torch
        >>> from calibrant.calibrators import Identity, TemperatureScaling
        >>> halved = TemperatureScaling(classes=2, temperature=2.0)
        >>> both = Blend(classes=2, parts=(Identity(classes=2), halved))
        >>> both(torch.tensor([[2.0, 0.0]]).double()).exp().round(decimals=4).tolist()
        [[0.8059, 0.1941]]
    """

    parts: tuple[Calibrator, ...]

    # Of the class, which cannot know; every blend has its own.
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.parts) <= MOST_PARTS:
            raise ValueError(f"a blend has 1 to {MOST_PARTS} parts, got {len(self.parts)}")
        for part in self.parts:
            if isinstance(part, Blend):
                raise ValueError("a blend cannot hold a blend: give the parts of both")
            if part.classes != self.classes:
                raise ValueError(
                    f"all parts of a blend must have its {self.classes} classes, "
                    f"{type(part).__name__} has {part.classes}"
                )
        object.__setattr__(self, "keeps_argmax", all(part.keeps_argmax for part in self.parts))

    @classmethod
    def fit(cls, predictions: Predictions) -> "Blend":
        """Choose the parts by `select` with its defaults, and fit them."""
        # Which imports this file.
        from calibrant.calibrators.selection import select

        found = select(predictions).blend
        if isinstance(found, cls):
            return found
        return cls(classes=found.classes, parts=(found,), origin=found.origin)

    def log_probs(self, logits: Logits) -> Logits:
        """Add the probabilities by their logarithms, one part after the other."""
        total = log_sum((part(logits) for part in self.parts), mask_of(logits))
        return total - math.log(len(self.parts))

    @property
    def size(self) -> int:
        """How many numbers were fitted, in all parts."""
        return sum(part.size for part in self.parts)


def blended(parts: Sequence[Calibrator]) -> Calibrator:
    """Blend calibrators that were fitted to the same examples; a single one is returned as it is.

    Converged if all parts are; remarks are those of all.
    """
    if len(parts) == 1:
        return parts[0]
    origins = [part.origin for part in parts if part.origin is not None]
    origin = None
    if len({fit.sha256 for fit in origins}) == 1 and len(origins) == len(parts):
        origin = Fit(
            origins[0].examples,
            origins[0].sha256,
            converged=all(fit.converged for fit in origins),
            gradient_norm=max(fit.gradient_norm for fit in origins),
            remark="; ".join(dict.fromkeys(fit.remark for fit in origins if fit.remark)),
        )
    return Blend(classes=parts[0].classes, parts=tuple(parts), origin=origin)
