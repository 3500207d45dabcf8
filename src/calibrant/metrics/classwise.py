"""Calibration errors of every class, not only of the predicted one."""

import math
import warnings
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64

from calibrant.metrics.binned import equal_mass_sums, tie_starts
from calibrant.metrics.bins import (
    Bins,
    BinSums,
    bin_edges,
    bin_index,
    check_count,
    warn_if_thin,
)
from calibrant.metrics.statistic import Statistic
from calibrant.predictions import Predictions
from calibrant.shapes import Logits, PerClass, Values


def classwise_ece(
    predictions: Predictions, *, bins: int = 15, threshold: float = 0.0, adaptive: bool = False
) -> float:
    r"""ECE of each class's probability against how often that class occurs, mean over classes.

    $$\frac1k \sum_c \sum_b \frac{n_{cb}}{n_c}\,
      \bigl|\overline{p_c}_b - \overline{1[y = c]}_b\bigr|$$

    The number of classes is that of the logits. A class without a single example cannot be
    judged: it is left out of the mean, with a warning that says so. Most probabilities are near
    zero when k is large, which makes the value small; `threshold` leaves those out.

    Args:
        predictions: what to measure.
        bins: bins ((b-1)/B, b/B] for each class.
        threshold: only probabilities above it count; 0 means all of them.
        adaptive: bins of equal mass for each class instead of equal width.

    References:
        Kull et al., Beyond temperature scaling, NeurIPS 2019, arXiv:1910.12656.
        Nixon et al., Measuring Calibration in Deep Learning, CVPR Workshops 2019,
            arXiv:1904.01685 (static, adaptive and thresholded forms).
    """
    errors = per_class_ece(predictions, bins=bins, threshold=threshold, adaptive=adaptive)
    missing = np.flatnonzero(np.isnan(errors))
    if len(missing) == len(errors):
        raise ValueError(f"no class has a probability above the threshold {threshold:g}")
    if len(missing):
        some = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        warnings.warn(
            f"class {some}: no example{' above the threshold' if threshold else ''}; left out of "
            f"the mean ({len(errors) - len(missing)} of {len(errors)} classes used)",
            stacklevel=2,
        )
    return float(np.nanmean(errors))


def per_class_ece(
    predictions: Predictions, *, bins: int = 15, threshold: float = 0.0, adaptive: bool = False
) -> PerClass:
    """ECE of each class's probability, (k,); NaN for a class that has no example.

    For two classes, entry 1 is the calibration error of P(class 1), which is what "ECE" means in
    most binary settings; `ece` is that of the predicted class. Options as in `classwise_ece`.
    """
    _check_threshold(threshold)
    warn_if_thin(len(predictions), check_count(bins))
    weights = predictions.row_weights
    if adaptive:
        errors = _adaptive_errors(predictions, weights, bins, threshold)
    else:
        sums = class_sums(predictions, bins=bins, threshold=threshold)
        errors = class_errors(sums)
    return np.where(_occurring(predictions, weights), errors, np.nan)


def class_sums(predictions: Predictions, *, bins: Bins = 15, threshold: float = 0.0) -> BinSums:
    """Sums for each class and bin, (k, b): p_c against 1[y = c], in one pass over the logits."""
    edges = bin_edges(bins)
    cells = predictions.classes * (len(edges) - 1)
    weights = predictions.row_weights
    count, total, columns = np.zeros(cells), np.zeros(cells), np.zeros(predictions.classes)
    for part, probs in predictions.prob_chunks():
        rows, code, values = _large_entries(probs, edges, threshold)
        own = weights[part]
        count += np.bincount(code, own[rows], cells)
        total += np.bincount(code, own[rows] * values, cells)
        columns += _column_sums(probs, own if predictions.weights is not None else None)
    hits = _label_hits(predictions, edges, threshold)
    return _assemble(count, total, hits(weights), weights.sum(), columns, edges, threshold)


def classwise_ece_statistic(
    predictions: Predictions, *, bins: int = 15, threshold: float = 0.0, adaptive: bool = False
) -> Statistic:
    """Prepare `classwise_ece` for resampling; keeps all probabilities in memory."""
    _check_threshold(threshold)
    if adaptive:
        return lambda weights: _mean_of_occurring(
            predictions, weights, _adaptive_errors(predictions, weights, bins, threshold)
        )
    edges = bin_edges(bins)
    cells = predictions.classes * (len(edges) - 1)
    probs = predictions.probs
    rows, code, values = _large_entries(probs, edges, threshold)
    hits, dense = _label_hits(predictions, edges, threshold), probs.double()

    def statistic(weights: Values) -> float:
        own = weights[rows]
        count, total = np.bincount(code, own, cells), np.bincount(code, own * values, cells)
        columns = _column_sums(dense, weights)
        sums = _assemble(count, total, hits(weights), weights.sum(), columns, edges, threshold)
        return _mean_of_occurring(predictions, weights, class_errors(sums))

    return statistic


def _large_entries(
    probs: Logits, edges: Float64[np.ndarray, " e"], threshold: float
) -> tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " m"], Float64[np.ndarray, " m"]]:
    """Row, class-and-bin code and value of the probabilities outside the first bin.

    Few probabilities of a row can be large, so almost all of the binning is never done: what is
    left over belongs to the first bin. With a threshold, every entry above it is listed instead.
    """
    flat = probs.numpy().ravel()
    at = np.flatnonzero(flat > (threshold or edges[1]))
    values = flat[at].astype(np.float64)
    rows, column = np.divmod(at, probs.shape[1])
    return rows, column * (len(edges) - 1) + bin_index(values, edges), values


def _assemble(
    count: Values,
    total: Values,
    hits: Values,
    weight: float,
    columns: PerClass,
    edges: Float64[np.ndarray, " e"],
    threshold: float,
) -> BinSums:
    shape = (len(columns), len(edges) - 1)
    count, total, hits = (part.reshape(shape).copy() for part in (count, total, hits))
    if not threshold:
        count[:, 0] = weight - count[:, 1:].sum(1)
        total[:, 0] = columns - total[:, 1:].sum(1)
    return BinSums(count, total, hits, tuple(edges))


def _label_hits(
    predictions: Predictions, edges: Float64[np.ndarray, " e"], threshold: float
) -> Callable[[Values], Values]:
    """Prepare the sums of 1[y = c]: every example counts once, at its own label's probability."""
    b = len(edges) - 1
    labels = predictions.labels.numpy()
    own = predictions.label_probs.numpy()
    code = labels * b + bin_index(own, edges)
    counted = (own > threshold).astype(np.float64) if threshold else np.ones(len(own))
    return lambda weights: np.bincount(code, weights * counted, predictions.classes * b)


def _column_sums(probs: Logits, weights: Values | None) -> PerClass:
    if weights is None:
        return probs.sum(0, dtype=torch.float64).numpy()
    return np.asarray(weights @ probs.double().numpy())


def _adaptive_errors(
    predictions: Predictions, weights: Values, bins: int, threshold: float
) -> PerClass:
    probs, labels = predictions.probs.double().numpy(), predictions.labels.numpy()
    errors = np.full(predictions.classes, np.nan)
    for c in range(predictions.classes):
        keep = np.flatnonzero(probs[:, c] > threshold) if threshold else np.arange(len(labels))
        if not weights[keep].any():
            continue
        order = keep[probs[keep, c].argsort(kind="stable")]
        values, hits = probs[order, c], (labels[order] == c).astype(np.float64)
        sums = equal_mass_sums(values, hits, weights[order], tie_starts(values), bins)
        errors[c] = sums.ece
    return errors


def class_errors(sums: BinSums) -> PerClass:
    """ECE of each class; NaN where nothing was counted."""
    used = sums.count.sum(-1) > 0
    gaps = np.abs(sums.confidence - sums.correct).sum(-1)
    empty = np.full(len(gaps), np.nan)
    return np.asarray(np.divide(gaps, sums.count.sum(-1), out=empty, where=used))


def _occurring(predictions: Predictions, weights: Values) -> Bool[np.ndarray, " k"]:
    return np.bincount(predictions.labels.numpy(), weights, predictions.classes) > 0


def _mean_of_occurring(predictions: Predictions, weights: Values, errors: PerClass) -> float:
    used = _occurring(predictions, weights) & ~np.isnan(errors)
    return float(errors[used].mean()) if used.any() else math.nan


def _check_threshold(threshold: float) -> None:
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold must lie in [0, 1), got {threshold}")
