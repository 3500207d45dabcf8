"""The mean of the probabilities of several calibrators."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.masks import log_sum, mask_of
from calibrant.predictions import Predictions
from calibrant.shapes import Logits

# About twice as many as there are calibrators.
MOST_PARTS = 32


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Blend(Calibrator):
    r"""The mean of the probabilities of separately fitted calibrators.

    $$q = \frac{1}{m} \sum_{j=1}^m q_j(z)$$

    Averaging calibrators that do not differ significantly avoids choosing one. By NLL and Brier
    score it is never worse than the mean of its parts. It is not in `CALIBRATORS`:
    `select(predictions).blend` makes one of the tied calibrators. `keeps_argmax` is an attribute
    of the object: True if every part preserves the predicted class.

    Attributes:
        parts: calibrators of the same classes, not blends.

    Examples:
        >>> import torch
        >>> from calibrant.calibrators import Identity, TemperatureScaling
        >>> halved = TemperatureScaling(classes=2, temperature=2.0)
        >>> both = Blend(classes=2, parts=(Identity(classes=2), halved))
        >>> both(torch.tensor([[2.0, 0.0]]).double()).exp().round(decimals=4).tolist()
        [[0.8059, 0.1941]]
    """

    parts: tuple[Calibrator, ...]

    # Overridden by each object.
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.parts) <= MOST_PARTS:
            raise ValueError(f"a blend has 1 to {MOST_PARTS} parts, got {len(self.parts)}")
        for part in self.parts:
            if isinstance(part, Blend):
                raise ValueError("a blend cannot contain a blend: pass the parts of both")
            if part.classes != self.classes:
                raise ValueError(
                    f"all parts of a blend must have its {self.classes} classes, "
                    f"{type(part).__name__} has {part.classes}"
                )
        object.__setattr__(self, "keeps_argmax", all(part.keeps_argmax for part in self.parts))

    @classmethod
    def fit(cls, predictions: Predictions) -> "Blend":
        """Select the parts by `select` with its defaults, and fit them."""
        # selection imports this module.
        from calibrant.calibrators.selection import select

        found = select(predictions).blend
        if isinstance(found, cls):
            return found
        return cls(classes=found.classes, parts=(found,), origin=found.origin)

    def log_probs(self, logits: Logits) -> Logits:
        """Average the probabilities in log space."""
        total = log_sum((part(logits) for part in self.parts), mask_of(logits))
        return total - math.log(len(self.parts))

    @property
    def zero_floor(self) -> float | None:
        """That of its fit, or the first of its parts."""
        floors = [super().zero_floor, *(part.zero_floor for part in self.parts)]
        return next((floor for floor in floors if floor is not None), None)

    @property
    def size(self) -> int:
        """Number of fitted parameters of all parts."""
        return sum(part.size for part in self.parts)


def blended(parts: Sequence[Calibrator]) -> Calibrator:
    """Blend calibrators; a single one is returned unchanged.

    If all were fitted to the same examples, the blend records that fit: converged if all are.
    """
    if len(parts) == 1:
        return parts[0]
    origins = [part.origin for part in parts if part.origin is not None]
    origin = None
    if len({fit.sha256 for fit in origins}) == 1 and len(origins) == len(parts):
        origin = replace(
            origins[0],
            converged=all(fit.converged for fit in origins),
            gradient_norm=max(fit.gradient_norm for fit in origins),
            remark="; ".join(dict.fromkeys(fit.remark for fit in origins if fit.remark)),
        )
    return Blend(classes=parts[0].classes, parts=tuple(parts), origin=origin)
