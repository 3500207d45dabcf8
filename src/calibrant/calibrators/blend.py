"""Opinion pools: several calibrators combined into one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.masks import log_softmax, mask_of, without_masked
from calibrant.predictions import Predictions
from calibrant.shapes import Logits

# About twice as many as there are calibrators.
MOST_PARTS = 64
# Of a sum of weights.
ROUNDING = 1e-9


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Blend(Calibrator):
    r"""Half the weighted mean of several calibrators, half their logarithmic opinion pool.

    $$q = \frac{1}{2} \sum_j a_j q_j + \frac{1}{2} \frac{\prod_j q_j^{b_j}}{Z}$$

    The mean (linear opinion pool) never has a large loss where one of its parts has none: the tail
    of its log loss is bounded by that of the best part. The logarithmic pool with fitted exponents
    is sharper and can correct what all parts have in common. `select(predictions).blend` fits
    both; see `calibrators.stacking`. Without exponents q is the mean alone, by default of equal
    weights: by NLL and Brier score never worse than the mean of its parts.

    It is not in `CALIBRATORS`. `keeps_argmax` is an attribute of the object: True if every part
    preserves the predicted class.

    Attributes:
        parts: calibrators of the same classes, not blends.
        weights: a, one for each part, at least 0, with sum 1; equal if not given.
        exponents: b, one for each part, at least 0; empty for the mean alone.

    References:
        Genest and Zidek, Combining Probability Distributions, Statistical Science, 1986: pools.

    Examples:
        >>> import torch
        >>> from calibrant.calibrators import Identity, TemperatureScaling
        >>> halved = TemperatureScaling(classes=2, temperature=2.0)
        >>> both = Blend(classes=2, parts=(Identity(classes=2), halved))
        >>> both(torch.tensor([[2.0, 0.0]]).double()).exp().round(decimals=4).tolist()
        [[0.8059, 0.1941]]
        >>> pooled = Blend(classes=2, parts=both.parts, exponents=(0.5, 0.5))
        >>> pooled(torch.tensor([[2.0, 0.0]]).double()).exp().round(decimals=3).tolist()
        [[0.812, 0.188]]
    """

    parts: tuple[Calibrator, ...]
    weights: tuple[float, ...] = ()
    exponents: tuple[float, ...] = ()

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
        m = len(self.parts)
        if not self.weights:
            object.__setattr__(self, "weights", (1 / m,) * m)
        if len(self.weights) != m or len(self.exponents) not in (0, m):
            raise ValueError(f"a blend of {m} parts needs {m} weights, and {m} exponents or none")
        given = (*self.weights, *self.exponents)
        if not all(0 <= value < math.inf for value in given):
            raise ValueError("weights and exponents of a blend must be finite and at least 0")
        if abs(sum(self.weights) - 1) > ROUNDING or (self.exponents and not any(self.exponents)):
            raise ValueError("weights of a blend must sum to 1, and not all exponents may be 0")
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
        """Average in log space, keeping one part at a time."""
        masked, exponents = mask_of(logits), self.exponents or (0.0,) * len(self.parts)
        pool, mean = torch.zeros_like(logits), None
        for part, weight, exponent in zip(self.parts, self.weights, exponents, strict=True):
            log_probs = without_masked(part(logits), masked)
            if weight:
                member = log_probs + math.log(weight)
                mean = member if mean is None else torch.logaddexp(mean, member)
            pool = pool + exponent * log_probs
        assert mean is not None  # noqa: S101, for the type checker: weights sum to 1
        if self.exponents:
            pool = without_masked(log_softmax(pool, masked), masked)
            mean = torch.logaddexp(mean, pool) - math.log(2)
        return mean if masked is None else mean.masked_fill(masked, -torch.inf)

    @property
    def zero_floor(self) -> float | None:
        """That of its fit, or the first of its parts."""
        floors = [super().zero_floor, *(part.zero_floor for part in self.parts)]
        return next((floor for floor in floors if floor is not None), None)

    @property
    def size(self) -> int:
        """Number of fitted parameters of all parts."""
        return sum(part.size for part in self.parts)


def blended(
    parts: Sequence[Calibrator],
    weights: Sequence[float] = (),
    exponents: Sequence[float] = (),
) -> Calibrator:
    """Blend calibrators; a single one without exponents is returned unchanged.

    If all were fitted to the same examples, the blend records that fit: converged if all are.
    """
    if len(parts) == 1 and not exponents:
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
    return Blend(
        classes=parts[0].classes,
        parts=tuple(parts),
        weights=tuple(weights),
        exponents=tuple(exponents),
        origin=origin,
    )
