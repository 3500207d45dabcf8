"""Estimates of slices: their own parameters, tau, and whether slices are better held out."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from calibrant import metrics
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.fit_checks import convergence_remark
from calibrant.calibrators.intercepts import intercept_alone
from calibrant.calibrators.selection import fold_of
from calibrant.calibrators.shrinkage import (
    Matrix,
    alone,
    between_variance,
    coordinates,
    shrinkage_weights,
    variances,
    with_coordinates,
)
from calibrant.predictions import Predictions
from calibrant.progress import steps
from calibrant.scoped_warnings import without_warnings
from calibrant.shapes import Index, Logits, Values

# Examples of the smallest slice with a fit of its own; twice the parameters if that is more.
LEAST = 20


class CrossValidation(NamedTuple):
    """Held-out NLL of the calibrator of all examples and of the slices, on the same folds.

    Attributes:
        folds: number of folds.
        overall: NLL of the calibrator of all examples.
        sliced: NLL of the shrunk calibrators of the slices.
        low: lower end of the 95 % interval of the difference, sliced minus overall.
        high: its upper end.
        p_value: two-sided, of the difference.
    """

    folds: int
    overall: float
    sliced: float
    low: float
    high: float
    p_value: float

    @property
    def difference(self) -> float:
        """NLL of the slices minus that of all examples; negative if the slices are better."""
        return self.sliced - self.overall


class Estimates(NamedTuple):
    """Calibrator of all, own parameters and their 1 / v of each slice, (m, d), and tau, (d,)."""

    overall: Calibrator
    own: Matrix
    precisions: Matrix
    tau: Values


def estimate(
    kind: type[Calibrator], predictions: Predictions, index: Index, count: int
) -> Estimates:
    """Fit all examples and each slice, and estimate tau of each parameter."""
    overall = kind.fit(predictions)
    centre = coordinates(overall)
    # One floor for all slices, that of the whole.
    predictions = predictions.with_zero_floor(overall.zero_floor)
    own, precisions = np.tile(centre, (count, 1)), np.zeros((count, len(centre)))
    sizes = np.bincount(index, minlength=count)
    members = np.split(np.argsort(index, kind="stable"), np.cumsum(sizes)[:-1])
    weights = predictions.example_weights
    for at, rows in enumerate(members):
        if (weights[rows] > 0).sum() < max(LEAST, 2 * len(centre)):
            continue
        part = predictions.take(rows)
        fitted = _fitted(kind, part)
        if fitted is None:
            own[at], precisions[at] = intercept_alone(overall, part)
            continue
        found = variances(fitted, part)
        own[at] = coordinates(fitted)
        precisions[at] = np.divide(1, found, out=np.zeros_like(found), where=found > 0)
    tau = np.zeros(len(centre))
    # The smoothing of an intercept alone hides how much slices differ.
    complete = ~alone(precisions)
    for at in range(len(centre)):
        known = complete[:, at] & (precisions[:, at] > 0)
        gaps = (own[:, at] - centre[at])[known]
        tau[at] = np.sqrt(between_variance(gaps, 1 / precisions[known, at]))
    return Estimates(overall, own, precisions, tau)


def _fitted(kind: type[Calibrator], part: Predictions) -> Calibrator | None:
    """The fit of a slice; None if it has one class only, or no optimum."""
    try:
        with without_warnings():
            fitted = kind.fit(part)
    except ValueError:
        return None
    return None if convergence_remark(fitted) else fitted


def shrunk(overall: Calibrator, own: Matrix, weights: Matrix) -> tuple[Calibrator, ...]:
    """The calibrator of each slice; that of all examples where the weight is 0."""
    centre = coordinates(overall)
    return tuple(
        with_coordinates(overall, centre + weight * (point - centre)) if weight.any() else overall
        for point, weight in zip(own, weights, strict=True)
    )


def mapped(
    overall: Calibrator, calibrators: Sequence[Calibrator], logits: Logits, index: Index
) -> Logits:
    """Apply the calibrator of its slice to each row."""
    found = overall(logits)
    for at in np.unique(index).tolist():
        if at >= 0 and calibrators[at] is not overall:
            rows = torch.from_numpy(np.flatnonzero(index == at))
            found = found.index_copy(0, rows, calibrators[at](logits[rows]))
    return found


def cross_validated(
    kind: type[Calibrator],
    predictions: Predictions,
    index: Index,
    count: int,
    *,
    folds: int,
    seed: int,
    progress: Callable[[], None] | None,
) -> CrossValidation:
    """Compare slices and the whole on held-out folds; all is estimated from the other folds."""
    fold = fold_of(predictions, folds=folds, seed=seed)
    if predictions.groups is None:
        fold = _stratified(index, predictions.labels.numpy(), folds=folds, seed=seed)
    both = torch.empty(2, len(predictions), predictions.classes, dtype=torch.float64)
    with steps(progress, folds, "cross-validating slices") as step, without_warnings():
        for number in range(folds):
            out = fold == number
            overall, own, precisions, tau = estimate(
                kind, predictions.take(~out), index[~out], count
            )
            gaps = own - coordinates(overall)
            parts = shrunk(overall, own, shrinkage_weights(tau, precisions, gaps))
            held_out = predictions.take(out).with_zero_floor(overall.zero_floor)
            logits = held_out.logits.double()
            both[0, out] = overall(logits)
            both[1, out] = mapped(overall, parts, logits, index[out])
            step()
    whole, sliced = predictions.map(lambda _: both[0]), predictions.map(lambda _: both[1])
    gap = metrics.compare(metrics.nll, sliced, whole, seed=seed)
    scores = metrics.nll(whole), metrics.nll(sliced)
    return CrossValidation(folds, *scores, gap.low, gap.high, gap.p_value)


def _stratified(index: Index, labels: Index, *, folds: int, seed: int) -> Index:
    """Folds with an equal share of every slice, and of every class in it."""
    shuffled = np.random.default_rng(seed).permutation(len(index))
    order = shuffled[np.lexsort((labels[shuffled], index[shuffled]))]
    fold = np.empty(len(index), dtype=np.int64)
    fold[order] = np.arange(len(index)) % folds
    return fold
