"""Bounds of calibration error and curvature by the margins of the labels.

Both theorems are those of the paper; sharper bounds that follow from the same lemmas are added.
One minus a probability is computed as the sum of the other classes' probabilities, so all sides
stay accurate for networks whose confidence rounds to 1.

References:
    Morosini et al., Too Sharp, Too Sure: When Calibration Follows Curvature, 2026,
    arXiv:2604.20614
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calibrant.checks import as_tensor, as_values
from calibrant.curvature.margins import margin_tail
from calibrant.losses.log_probs import log_one_minus_p
from calibrant.losses.margin import margin
from calibrant.metrics.bins import Bins, bin_edges, bin_index
from calibrant.predictions import Predictions
from calibrant.shapes import PerExample, shape

# Relative rounding error of values measured in float32, such as sharpness.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Bound:
    """Both sides of an inequality that a theorem states: the bounded quantity and its bound.

    Examples:
        >>> print(Bound("ECE <= E[1 - p_y]", 0.01, 0.2))
        ECE <= E[1 - p_y]: 0.01 <= 0.2 holds
    """

    name: str
    left: float
    right: float

    @property
    def holds(self) -> bool:
        """Whether left is at most right, up to rounding; False for NaN."""
        return self.left <= self.right + TOLERANCE * abs(self.right)

    @property
    def slack(self) -> float:
        """Right minus left."""
        return self.right - self.left

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "FAILS"
        return f"{self.name}: {self.left:.4g} <= {self.right:.4g} {verdict}"


def population_bounds(
    predictions: Predictions,
    *,
    jacobian: Any = None,
    sharpness: float | None = None,
    trace: float | None = None,
    margins: Any = None,
    bins: Bins = 15,
) -> tuple[Bound, ...]:
    r"""Both sides of theorem 4.1 and of sharper bounds, for any network and any data.

    With $Q = \mathrm{E}[e^{-m}]$, K classes and $\|\partial z / \partial\theta\| \le C_J$:

    $$\mathrm{ECE} \le \mathrm{E}[1 - p_y] \le (K-1)\,Q, \qquad
      \lambda_{\max} \le 2 C_J^2\, \mathrm{E}[1 - p_{\max}] \le 2 C_J^2 (K-1)\,Q, \qquad
      \operatorname{tr} \le C_J^2\, \mathrm{E}[1 - p_{\max}^2]$$

    (K-1) Q is clipped at 1, where the bound is trivial: one confident wrong prediction is enough
    for that, and a large Q does not mean a large error. The curvature is also bounded by the Q of
    `predicted_margins`, which needs no labels; the calibration error is not.

    Args:
        predictions: predictions of the examples of sharpness, trace and jacobian.
        jacobian: $C_J$, or `jacobian_norms` of the examples, of which it is the largest.
        sharpness: largest eigenvalue of the Gauss-Newton matrix of the mean cross entropy (that
            of the Hessian is not bounded).
        trace: trace of the same matrix.
        margins: `robust_margins` of the examples, for additional bounds with their Q.
        bins: bins of the calibration error.
    """
    own = _Measured(predictions, jacobian, sharpness, trace, bins)
    tails = {"Q": own.tail(own.margins)}
    if margins is not None:
        tails["Q_robust"] = own.robust_tail(margins)
    found = [Bound("ECE <= E[1 - p_y]", own.ece, own.mean(own.miss))]
    for name, tail in tails.items():
        right = min(1.0, (own.classes - 1) * tail)
        found.append(Bound(f"ECE <= min(1, (K-1) {name})", own.ece, right))
    tails["Q_predicted"] = own.tail(own.predicted_margins)
    scale = own.largest**2
    if sharpness is not None:
        rights = {"E[1 - p_max]": own.mean(own.doubt)}
        for name, tail in tails.items():
            rights[f"min(1, (K-1) {name})"] = min(1.0, (own.classes - 1) * tail)
        for name, right in rights.items():
            text = f"lambda_max <= 2 C_J^2 {name}"
            found.append(Bound(text, float(sharpness), 2 * scale * right))
    if trace is not None:
        right = scale * own.mean(own.doubt * (2 - own.doubt))
        found.append(Bound("trace <= C_J^2 E[1 - p_max^2]", float(trace), right))
    return tuple(found)


def interpolation_bounds(
    predictions: Predictions,
    *,
    jacobian: Any = None,
    sharpness: float | None = None,
    trace: float | None = None,
    bins: Bins = 15,
) -> tuple[Bound, ...]:
    r"""Both sides of theorem 4.2 and of sharper bounds, where every margin is positive.

    Every prediction is correct and no confidence is 1, so all bins are under-confident, and
    $\mathrm{ECE} = \mathrm{E}[1 - p_y]$ for any bins. With $Q_D$ the mean of $e^{-m}$:

    $$\frac{Q_D}{K} \le \frac{Q_D}{2} \le \mathrm{ECE} \le (K-1)\,Q_D \le (K-1)\,e^{-\min m}$$
    $$\lambda_{\max} \le 2 C_J^2\, \mathrm{ECE} \le 2 C_J^2 (K-1)\,Q_D
      \le 2 C_J^2 K (K-1)\, \mathrm{ECE}, \qquad \operatorname{tr} \le 2 C_J^2\, \mathrm{ECE}$$

    Those with 1/2 in place of 1/K and without K are ours: they follow from
    $1 - p_y \ge 1 / (1 + e^m) \ge e^{-m} / 2$ and $\lambda_{\max}(H_z) \le 2 (1 - p_{\max})$.

    The arguments are those of `population_bounds`, measured on training examples.
    """
    own = _Measured(predictions, jacobian, sharpness, trace, bins)
    wrong, n = int((own.margins <= 0).sum()), len(own.margins)
    if wrong:
        raise ValueError(f"margins must be above 0, {wrong} of {n} are not: use population_bounds")
    k, error, tail, miss = own.classes, own.ece, own.tail(own.margins), own.mean(own.miss)
    largest = math.exp(-float(own.margins.min()))
    found = [
        Bound("ECE <= E[1 - p_y]", error, miss),
        Bound("E[1 - p_y] <= ECE", miss, error),
        Bound("Q_D / K <= ECE", tail / k, error),
        Bound("Q_D / 2 <= ECE", tail / 2, error),
        Bound("ECE <= (K-1) Q_D", error, (k - 1) * tail),
        Bound("(K-1) Q_D <= (K-1) exp(-min m)", (k - 1) * tail, (k - 1) * largest),
    ]
    scale = 2 * own.largest**2
    if sharpness is not None:
        top, paper = float(sharpness), scale * (k - 1) * tail
        found += [
            Bound("lambda_max <= 2 C_J^2 ECE", top, scale * error),
            Bound("lambda_max <= 2 C_J^2 (K-1) Q_D", top, paper),
            Bound("2 C_J^2 (K-1) Q_D <= 2 C_J^2 K (K-1) ECE", paper, scale * k * (k - 1) * error),
        ]
    if trace is not None:
        found.append(Bound("trace <= 2 C_J^2 ECE", float(trace), scale * error))
    return tuple(found)


class _Measured:
    """Quantities of the bounds, for examples with positive weight; all in float64."""

    def __init__(
        self,
        predictions: Predictions,
        jacobian: Any,
        sharpness: float | None,
        trace: float | None,
        bins: Bins,
    ) -> None:
        curvature = {"sharpness": sharpness, "trace": trace}
        given = {name: value for name, value in curvature.items() if value is not None}
        if given and jacobian is None:
            raise ValueError("the bounds of sharpness and trace need jacobian=...")
        if jacobian is not None and not given:
            raise ValueError("jacobian is for the bounds of sharpness=... or trace=...: pass one")
        for name, value in given.items():
            if not math.isfinite(value):
                raise ValueError(f"{name} must be finite, got {value}")
        self.counts = torch.from_numpy(predictions.example_weights > 0)
        self.largest = 0.0 if jacobian is None else _largest(jacobian, self.counts)
        held = predictions.take(self.counts)
        logits, self.classes = held.logits.double(), held.classes
        self.weights = torch.from_numpy(held.example_weights)
        self.margins = margin(logits, held.labels)
        self.predicted_margins = margin(logits, held.predicted)
        log_p = logits.log_softmax(1)
        self.miss, self.doubt = (
            log_one_minus_p(log_p, each).exp() for each in (held.labels, held.predicted)
        )
        # Like `metrics.ece`, whose differences would round to 0 where confidence is close to 1.
        gaps = torch.where(held.correct == 1, self.doubt, self.doubt - 1)
        edges = bin_edges(bins)
        index = bin_index(held.confidence.numpy(), edges)
        sums = np.bincount(index, (self.weights * gaps).numpy(), len(edges) - 1)
        self.ece = float(np.abs(sums).sum() / self.weights.sum())

    def mean(self, values: PerExample) -> float:
        return float((self.weights * values).sum() / self.weights.sum())

    def tail(self, margins: PerExample) -> float:
        return margin_tail(margins, weights=self.weights)

    def robust_tail(self, margins: Any) -> float:
        """Tail of robust margins; raises if one is above the clean margin of its example."""
        robust = as_tensor("margins", margins).double().cpu()
        if robust.shape != self.counts.shape:
            raise ValueError(f"margins must be {shape(self.counts)}, got {shape(robust)}")
        robust = robust[self.counts]
        # Other batch sizes round differently; infinite margins do not round.
        rounding = torch.where(self.margins.isfinite(), 1e-3 * (1 + self.margins.abs()), 0.0)
        above = int((~(robust <= self.margins + rounding)).sum())
        if above:
            raise ValueError(
                f"{above} robust margins are above the clean ones: "
                "are they of the same examples, in the same order?"
            )
        return self.tail(robust)


def _largest(jacobian: Any, counts: torch.Tensor) -> float:
    """C_J: the given number, or the largest norm of the examples."""
    norms = as_values("jacobian", np.atleast_1d(as_tensor("jacobian", jacobian).cpu().numpy()))
    if len(norms) == 1:
        return float(norms[0])
    if len(norms) != len(counts):
        raise ValueError(f"jacobian must be a number or ({len(counts)},), got ({len(norms)},)")
    return float(norms[counts.numpy()].max())
