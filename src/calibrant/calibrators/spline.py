"""Spline calibration: smooth functions of the log-odds of each class, or of the confidence."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from calibrant.calibrators.base import Calibrator, check_tensor, fitting_logits, made_from
from calibrant.calibrators.focal_map import log_misses
from calibrant.calibrators.masks import (
    ever_allowed,
    infinite_odds,
    log_softmax,
    mask_of,
)
from calibrant.calibrators.natural_spline import (
    check_splines,
    curvatures,
    end_slopes,
    evaluated,
)
from calibrant.calibrators.one_versus_rest import (
    Odds,
    OneVersusRest,
    binary_problems,
    functions,
    map_blocks,
)
from calibrant.calibrators.spline_fit import Splines, fit_splines, merged
from calibrant.calibrators.temperature import best_inverse, check_temperature
from calibrant.example_stats import map_chunks
from calibrant.predictions import Predictions
from calibrant.shapes import Logits


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SplineCalibration(OneVersusRest):
    r"""A smooth function of the log-odds of each class, with a penalty on its curvature.

    $$q_j \propto \sigma(f_j(x_j)), \qquad f = \arg\min_f \sum_i \ell(y_i, f(x_i))
    + \frac{\lambda}{2} \int (f'')^2$$

    $\ell$ is the logistic loss and f a natural cubic spline with eight knots at quantiles of the
    log-odds, between 3 % and 97 %. It is linear beyond the knots, where a slope below 0 is set
    to 0; between knots it need not be monotone. The limit of a large $\lambda$ is Platt scaling
    with a weak prior, below.

    One $\lambda$ for all classes maximises the marginal likelihood (Laplace's approximation, as in
    REML), which overfits few examples less than cross-validation does. It needs no folds, so the
    fit does not depend on the order of the examples. Normal priors keep few or separable examples
    near temperature scaling: one on the level at the median (variance 1/2), one on the slope
    relative to 1/T (variance 1/5). Calibrated log-odds are bounded by those of one example, spread
    over the k classes, among n, $\pm \log(k (n + 1))$, so the loss of a far example is small.

    Above 512 examples, neighbours are merged into 512 points of each function.

    Attributes:
        knots: (m, 8) log-odds, with m = 1 for two classes, else k.
        values: (m, 8) calibrated log-odds at the knots.
        bound: largest calibrated log-odds.

    References:
        Lucena, Spline-Based Probability Calibration, 2018, arXiv:1809.07751: a spline in the
            probability, with the penalty chosen by cross-validation.
        Wood, Fast Stable Restricted Maximum Likelihood and Marginal Likelihood Estimation of
            Semiparametric Generalized Linear Models, JRSS B, 2011.

    Examples:
        >>> from calibrant.data import SYNTHETIC
        >>> p = SYNTHETIC["tempered"].sample(20_000, seed=0).predictions
        >>> fitted = SplineCalibration.fit(p)
        >>> round(float(fitted([[0.0, 2.0]])[0, 1].exp()), 1)  # the logit should be 1: 0.73
        0.7
    """

    knots: Tensor
    values: Tensor
    bound: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_splines(self.knots, self.values, functions(self.classes))
        _check_bound(self.bound)

    @classmethod
    def fit(cls, predictions: Predictions) -> "SplineCalibration":
        """Maximise the penalised likelihood; every class must occur."""
        logits = fitting_logits(predictions, every_class=True)
        problems = binary_problems(predictions, logits)
        own, weights = problems.of(slice(None))
        possible = int(ever_allowed(logits).sum())
        fitted = fit_splines(merged(problems.odds, own, weights), _prior(predictions, logits))
        return cls(
            classes=predictions.classes,
            knots=torch.from_numpy(fitted.knots),
            values=torch.from_numpy(fitted.values),
            bound=_bound(float(np.broadcast_to(weights, own.shape).sum(1).max()), possible),
            origin=made_from(predictions, fitted.gradient, _remark(fitted)),
        )

    def map_odds(self, odds: Odds) -> Odds:
        """Values of the splines, within the bound."""
        found = _evaluated(odds.T.contiguous(), self.knots, self.values)
        return found.T.clamp(-self.bound, self.bound)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TopLabelSpline(Calibrator):
    r"""A smooth function of the confidence, fitted to correctness; preserves the predicted class.

    $$q_{top} = \max\!\left(\sigma(f(x)), \frac{p_2}{1 - p_{top} + p_2}\right), \qquad
    q_j = p_j\,\frac{1 - q_{top}}{1 - p_{top}}, \qquad x = \log \frac{p_{top}}{1 - p_{top}}$$

    Here $p = \mathrm{softmax}(z / T)$ with the T of temperature scaling, whose ratios the other
    classes keep, and f is the spline of `SplineCalibration`: with f(x) = x it is temperature
    scaling, near which few examples stay. The maximum is the value at which the runner-up, $p_2$,
    ties with the predicted class. For two classes the map is symmetric, and confidence never falls
    below 1/2. Where f(0) is above 0 it jumps at a tie: log-odds of -1e-6, 0 and 1e-6 may give
    class 1 the probabilities 0.39, 0.39 and 0.61. It needs fewer examples than a function for each
    class, but cannot correct errors that differ between classes.

    Attributes:
        temperature: T.
        knots: (8,) log-odds of the confidence.
        values: (8,) calibrated log-odds at the knots.
        bound: largest calibrated log-odds.
    """

    temperature: float
    knots: Tensor
    values: Tensor
    bound: float

    keeps_argmax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        functions(self.classes)
        check_temperature(self.temperature)
        check_tensor("knots", self.knots, (self.knots.numel(),))
        check_tensor("values", self.values, (self.values.numel(),))
        check_splines(self.knots[None], self.values[None], 1)
        _check_bound(self.bound)

    @classmethod
    def fit(cls, predictions: Predictions) -> "TopLabelSpline":
        """Maximise the penalised likelihood of the correctness."""
        logits = fitting_logits(predictions)
        labels, inverse = predictions.labels.numpy(), _prior(predictions, logits)
        odds, own = np.zeros((1, len(logits))), np.zeros((1, len(logits)), dtype=bool)
        weights = predictions.example_weights.copy()

        def fill(part: slice) -> None:
            block = logits[part].double() * inverse
            top, log_odds, single = _top_odds(block)
            odds[0, part] = log_odds[:, 0].numpy()
            own[0, part] = top[:, 0].numpy() == labels[part]
            if single is not None:
                weights[part][single[:, 0].numpy()] = 0

        for _ in map_chunks(fill, logits):
            pass
        fitted = fit_splines(merged(odds, own, weights), 1.0)
        return cls(
            classes=predictions.classes,
            temperature=1 / inverse,
            knots=torch.from_numpy(fitted.knots[0]),
            values=torch.from_numpy(fitted.values[0]),
            bound=_bound(float(weights.sum()), 2),
            origin=made_from(predictions, fitted.gradient, _remark(fitted)),
        )

    def log_probs(self, logits: Logits) -> Logits:
        """Map the confidence, and scale the other probabilities."""
        return map_blocks(self._map_block, logits / self.temperature)

    def _map_block(self, logits: Logits) -> Logits:
        masked = mask_of(logits)
        top, odds, single = _top_odds(logits)
        mapped = _evaluated(odds.T.contiguous(), self.knots[None], self.values[None]).T
        mapped = mapped.clamp(-self.bound, self.bound)
        own = torch.zeros_like(logits, dtype=torch.bool).scatter(1, top, value=True)
        rest = logits.masked_fill(own, -torch.inf)
        # A row without other classes: any finite numbers, which are masked in the end.
        others = torch.log_softmax(rest if single is None else rest.masked_fill(single, 0.0), 1)
        # The runner-up's share of the rest: at these log-odds it ties with the top class.
        tie = others.amax(1, keepdim=True)
        mapped = torch.maximum(mapped, tie)
        found = torch.where(
            own, logsigmoid(mapped), others.masked_fill(own, 0) + logsigmoid(-mapped)
        )
        return found if masked is None else log_softmax(found, masked)


def _top_odds(logits: Logits) -> tuple[Tensor, Tensor, Tensor | None]:
    """The top class, its log-odds, and where it is the only one allowed (log-odds 0), (n, 1)."""
    log_probs, masked = torch.log_softmax(logits, 1), mask_of(logits)
    top = logits.argmax(1, keepdim=True)
    odds = (log_probs - log_misses(log_probs)).gather(1, top)
    if masked is None:
        return top, odds, None
    single = infinite_odds(masked).gather(1, top)
    return top, odds.masked_fill(single, 0.0), single


def _evaluated(odds: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Values of splines; a slope below 0 at an end is 0 beyond it."""
    curvature = curvatures(knots, values)
    slopes = tuple(each.clamp(min=0).to(odds) for each in end_slopes(knots, values, curvature))
    first, last = slopes
    return evaluated(odds, knots.to(odds), values.to(odds), curvature.to(odds), (first, last))


def _prior(predictions: Predictions, logits: Logits) -> float:
    """The slope near which few examples stay: 1/T, but no bound for separable ones."""
    plain = best_inverse(predictions, logits)
    return plain.inverse if plain.converged else min(plain.inverse, 1.0)


def _bound(examples: float, outcomes: int) -> float:
    """Log-odds of one example, spread over the outcomes, among all examples and this one."""
    return math.log(outcomes * (examples + 1))


def _check_bound(bound: float) -> None:
    if not 0 < bound < math.inf:
        raise ValueError(f"bound must be positive and finite, got {bound}")


def _remark(fitted: Splines) -> str:
    if fitted.converged:
        return ""
    return f"spline: no convergence, gradient {fitted.gradient:.1e}"
