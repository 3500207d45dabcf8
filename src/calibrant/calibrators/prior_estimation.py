r"""Class priors of unlabelled examples, from calibrated scores.

Both methods assume that examples of each class look the same in source and target, so that only
the frequencies of the classes differ (label shift).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float64
from scipy import optimize

from calibrant.calibrators.base import class_frequencies
from calibrant.calibrators.priors import Prior, as_prior
from calibrant.metrics.resampling.draws import check_units, draws_of
from calibrant.predictions import Predictions
from calibrant.scoped_warnings import warn
from calibrant.setting_errors import did_you_mean
from calibrant.shapes import PerClass, Values
from calibrant.table_values import Table, plain_html

Method = Literal["em", "bbse", "bbse_soft"]
Rows = Float64[np.ndarray, "n k"]
Confusion = Float64[np.ndarray, "k k"]
SourceWeights = Float64[np.ndarray, " m"]
# EM ends when the log-likelihood of an example is within GAP nats of its maximum.
GAP, STEPS = 1e-9, 5000
# Added to matrices so that those of resamples are not singular.
FLOOR = 1e-12
# Condition numbers of the confusion matrix: noise is amplified by about so much.
LARGE, SINGULAR = 100.0, 1e8


@dataclass(frozen=True, repr=False, eq=False)
class PriorEstimate:
    """Estimated class priors with percentile bootstrap intervals; `table` lists them.

    Attributes:
        prior: the estimate, (k,).
        low: lower bounds of the intervals, (k,); None without resamples.
        high: upper bounds, (k,).
        level: confidence level.
        source: class priors of the source, (k,).
        method: "em", "bbse" or "bbse_soft".
        examples: number of unlabelled examples.
        class_names: names of the classes, or None.
    """

    prior: Prior
    low: Prior | None
    high: Prior | None
    level: float
    source: Prior
    method: str
    examples: int
    class_names: tuple[str, ...] | None = None

    @property
    def table(self) -> Table:
        """A row for each class: prior of the source and of the target, with its interval."""
        names = self.class_names or range(len(self.prior))
        heads = ("class", "source prior", "target prior", f"{100 * self.level:g} % interval")
        rows = [
            (str(name), f"{old:.4f}", f"{new:.4f}", self._interval(at))
            for at, (name, old, new) in enumerate(
                zip(names, self.source.tolist(), self.prior.tolist(), strict=True)
            )
        ]
        caption = f"{self.method} estimate from {self.examples:,} unlabelled examples"
        return Table.of(heads, rows, caption=caption)

    def _interval(self, at: int) -> str:
        if self.low is None or self.high is None:
            return "-"
        return f"[{float(self.low[at]):.4f}, {float(self.high[at]):.4f}]"

    def __repr__(self) -> str:
        shown = ", ".join(f"{each:.4f}" for each in self.prior[:8].tolist())
        return f"PriorEstimate({shown}{', ...' if len(self.prior) > 8 else ''})"

    def _repr_html_(self) -> str:
        return plain_html(self.table)


def estimate_prior(
    unlabelled: Predictions,
    source: Any,
    *,
    method: Method = "em",
    level: float = 0.95,
    resamples: int = 200,
    seed: int = 0,
    source_examples: int | None = None,
) -> PriorEstimate:
    r"""Estimate the class priors of unlabelled examples, with intervals.

    "em" maximises the likelihood of the scores by expectation maximisation. With calibrated
    scores it is the most precise, and with miscalibrated ones it is biased.

    $$\pi'_k \leftarrow \frac{1}{n} \sum_i
      \frac{p_{ik} \pi'_k / \pi_k}{\sum_j p_{ij} \pi'_j / \pi_j}$$

    "bbse", black-box shift estimation, finds the priors for which the confusion matrix of the
    source predicts how often each class is predicted in the target. "bbse_soft" does so with the
    mean probabilities instead of predicted classes. Both need no calibrated scores.

    $$\min_{\pi'} \lVert A \pi' - q \rVert, \qquad \pi'_k \ge 0, \quad \sum_k \pi'_k = 1$$

    An estimate of zero would rule a class out whatever its score, so estimates below
    1 / (2n + k) are raised to it.

    Args:
        unlabelled: predictions of the target; labels are not used.
        source: labelled predictions of the source; for "em" its class priors are enough, and
            scores must be calibrated for it.
        method: "em", "bbse" or "bbse_soft".
        level: confidence level of the intervals.
        resamples: bootstrap resamples of the target, and of the source if it is labelled; 0 for
            none. Groups are drawn as a whole. Errors of the calibrator are not included.
        seed: seed of the resamples.
        source_examples: number of examples that priors given as `source` were counted in; None if
            they are exact, which narrows the intervals.

    References:
        Saerens, Latinne, Decaestecker, Adjusting the Outputs of a Classifier to New a Priori
        Probabilities: A Simple Procedure, Neural Computation 2002.
        Lipton, Wang, Smola, Detecting and Correcting for Label Shift with Black Box Predictors,
        ICML 2018, arXiv:1802.03916.
        Alexandari, Kundaje, Shrikumar, Maximum Likelihood with Bias-Corrected Calibration is
        Hard-To-Beat at Label Shift Adaptation, ICML 2020, arXiv:1901.06852.
    """
    if method not in get_args(Method):
        raise ValueError(f"no method {method!r}; {did_you_mean(method, get_args(Method))}")
    if not 0 < level < 1:
        raise ValueError(f"level must lie strictly between 0 and 1, got {level}")
    k, labelled = unlabelled.classes, isinstance(source, Predictions)
    if labelled and source.classes != k:
        raise ValueError(f"source has {source.classes} classes, the unlabelled examples {k}")
    if method != "em" and not labelled:
        raise ValueError(f"{method} needs labelled predictions of the source; em needs only priors")
    if source_examples is not None and (labelled or source_examples < 1):
        raise ValueError("source_examples is a positive number, for a source that is priors")
    prior = as_prior(
        "source prior",
        class_frequencies(source) if labelled else source,
        classes=k,
        class_names=unlabelled.class_names,
    )
    others: Iterable[Values]
    if method == "em":
        found = _by_em(unlabelled, prior.numpy())
        others = _source_priors(prior.numpy(), source, source_examples, resamples, seed)
    else:
        found = _by_bbse(unlabelled, source, hard=method == "bbse")
        others = _source_weights(source, resamples, seed)
    ends = None
    if resamples:
        drawn = _resampled(found, unlabelled, others, resamples, seed)
        ends = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    least = 1 / (2 * len(unlabelled) + k)
    raised = np.maximum(found.prior, least)
    return PriorEstimate(
        prior=torch.from_numpy(raised / raised.sum()),
        low=None if ends is None else torch.from_numpy(ends[0]),
        high=None if ends is None else torch.from_numpy(ends[1]),
        level=level,
        source=prior,
        method=method,
        examples=len(unlabelled),
        class_names=unlabelled.class_names,
    )


class _Found(NamedTuple):
    """An estimate, and the same of resamples.

    `of_resample` takes weights of the target, and of the source what the method needs: its priors
    for EM, weights of its examples for BBSE.
    """

    prior: PerClass
    of_resample: Callable[[Values, Values], PerClass]


def _resampled(
    found: _Found, unlabelled: Predictions, others: Iterable[Values], resamples: int, seed: int
) -> Rows:
    """Estimates of resamples of the target and of the source, (resamples, k)."""
    check_units(unlabelled)
    counts = draws_of(unlabelled, resamples, seed)
    weights = unlabelled.example_weights
    return np.array(
        [
            found.of_resample(each * weights, other)
            for each, other in zip(counts, others, strict=False)
        ]
    )


def _source_weights(source: Predictions, resamples: int, seed: int) -> Iterator[SourceWeights]:
    own = source.example_weights
    return (each * own for each in draws_of(source, resamples, [seed, 1]))


def _source_priors(
    prior: PerClass, source: Any, examples: int | None, resamples: int, seed: int
) -> Iterator[PerClass]:
    """Class frequencies of resamples of the source, or the same priors again if they are exact."""
    counts: Iterable[PerClass]
    if isinstance(source, Predictions):
        labels, examples, k = source.labels.numpy(), len(source), len(prior)
        draws = _source_weights(source, resamples, seed)
        counts = (np.bincount(labels, weights=each, minlength=k) for each in draws)
    elif examples is not None:
        counts = np.random.default_rng([seed, 1]).multinomial(examples, prior, resamples)
    else:
        yield from repeat(prior, resamples)
        return
    for each in counts:
        # A rare class that a resample misses counts as half an example.
        raised = np.maximum(each / each.sum(), 1 / (2 * examples))
        yield raised / raised.sum()


def _by_em(unlabelled: Predictions, source: PerClass) -> _Found:
    log_probs = unlabelled.log_probs.double().numpy()
    ratios = np.exp(log_probs - log_probs.max(1, keepdims=True)) / source
    # The scale of a row does not matter.
    ratios /= ratios.sum(1, keepdims=True)
    if np.ptp(ratios, axis=0).max() < GAP:
        raise ValueError("scores of all examples are equal: they say nothing about class priors")
    weights = unlabelled.example_weights
    prior, gap = maximise_likelihood(ratios, weights, source, steps=STEPS)
    if gap > GAP:
        warn(
            f"EM did not converge in {STEPS:,} steps: the likelihood of an example is within "
            f"{gap:.1e} nats of its maximum; the classes may be hard to tell apart",
            stacklevel=3,
        )
    slopes = ratios / (ratios @ prior)[:, None]
    curvature = (slopes * weights[:, None]).T @ slopes / weights.sum()
    root = np.linalg.cholesky(curvature + FLOOR * np.eye(len(prior))).T

    def of_resample(drawn: Values, source_prior: PerClass) -> PerClass:
        # One Newton step from the estimate, on the simplex: the parabola that touches there.
        change = source / source_prior
        shares = drawn / (slopes @ (prior * change)) / drawn.sum()
        gradient = shares @ slopes * change
        return constrained_solution(root, root @ prior + np.linalg.solve(root.T, gradient))

    return _Found(prior, of_resample)


def maximise_likelihood(
    ratios: Rows, weights: Values, start: PerClass, *, steps: int
) -> tuple[PerClass, float]:
    r"""EM for class priors: returns them, and by how much the likelihood could still rise.

    The log-likelihood $\frac{1}{n} \sum_i \log \sum_k \pi_k r_{ik}$ is concave in the priors and
    rises at every step. With its gradient g, it lies within $\max_k g_k - 1$ of the maximum.

    Args:
        ratios: probabilities divided by source priors, (n, k); each row up to a factor.
        weights: of the examples, (n,).
        start: where to start, positive.
        steps: largest number of steps.
    """
    prior, shares = start, weights / weights.sum()
    for step in range(steps + 1):
        gradient = (shares / (ratios @ prior)) @ ratios
        left = float(gradient.max()) - 1
        if left <= GAP or step == steps:
            break
        prior = prior * gradient
        # Without this the sum drifts by rounding.
        prior /= prior.sum()
    return prior, left


def _by_bbse(unlabelled: Predictions, source: Predictions, *, hard: bool) -> _Found:
    target_scores, scores = (_answers(each, hard=hard) for each in (unlabelled, source))
    labels = np.eye(source.classes)[source.labels.numpy()]

    def confusion(weights: SourceWeights) -> Confusion:
        own = labels * weights[:, None]
        # A resample may have no example of a rare class: then it is taken to be predicted.
        rare = FLOOR * weights.sum()
        return np.asarray((scores.T @ own + rare * np.eye(labels.shape[1])) / (own.sum(0) + rare))

    def of_resample(weights: Values, source_weights: SourceWeights) -> PerClass:
        means = weights @ target_scores / weights.sum()
        return constrained_solution(confusion(source_weights), means)

    own = source.example_weights
    condition = float(np.linalg.cond(confusion(own)))
    words = f"the confusion matrix has condition number {condition:.1e}"
    if condition > SINGULAR:
        raise ValueError(
            f"{words}: classes cannot be told apart, or one is never predicted; use em"
        )
    if condition > LARGE:
        warn(f"{words}, which amplifies noise by about as much; em is safer", stacklevel=3)
    return _Found(of_resample(unlabelled.example_weights, own), of_resample)


def _answers(predictions: Predictions, *, hard: bool) -> Rows:
    """Predicted classes as (n, k) zeros and ones, or probabilities."""
    if hard:
        return np.asarray(np.eye(predictions.classes)[predictions.predicted.numpy()])
    return np.asarray(predictions.probs.double().numpy())


def constrained_solution(confusion: Confusion, means: PerClass) -> PerClass:
    r"""Class priors for which the confusion matrix A best gives the means q.

    They minimise $\lVert A x - q \rVert$ among x that are not negative and sum to 1. Without the
    sum, $\lVert (A - q 1^T) x \rVert^2 + (1^T x - 1)^2$ is smallest at a multiple of the solution,
    so one non-negative least-squares problem is enough.
    """
    rows = np.vstack([confusion - means[:, None], np.ones(len(means))])
    found, _ = optimize.nnls(rows, np.append(np.zeros(len(means)), 1.0))
    return np.asarray(found / found.sum())
