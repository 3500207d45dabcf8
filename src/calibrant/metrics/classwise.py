"""Calibration errors of every class, not only of the predicted one."""

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float64, Int64

from calibrant.example_stats import Chunk, Scale
from calibrant.metrics.binned import equal_mass_sums, tie_starts
from calibrant.metrics.bins import (
    Bins,
    BinSums,
    bin_edges,
    bin_index,
    check_count,
    segment_sum,
    warn_if_thin,
)
from calibrant.metrics.metric import Statistic
from calibrant.predictions import Predictions
from calibrant.scoped_warnings import warn
from calibrant.shapes import PerClass, Values

# A cell is a class and a bin.
PerCell = Float64[np.ndarray, " cells"]


def classwise_ece(
    predictions: Predictions, *, bins: int = 15, threshold: float = 0.0, adaptive: bool = False
) -> float:
    r"""Mean over classes of the ECE of the probability of each class.

    $$\frac1k \sum_c \sum_b \frac{n_{cb}}{n_c}\,
      \bigl|\overline{p_c}_b - \overline{1[y = c]}_b\bigr|$$

    Classes without examples are excluded from the mean, with a warning. Most probabilities are
    near zero when k is large, which makes the value small; `threshold` excludes those.

    Args:
        predictions: what to measure.
        bins: bins ((b-1)/B, b/B] for each class.
        threshold: only probabilities above it are used; 0 means all.
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
        warn(
            f"class {some}: no example{' above the threshold' if threshold else ''}; excluded from "
            f"the mean ({len(errors) - len(missing)} of {len(errors)} classes used)",
            stacklevel=2,
        )
    return float(np.nanmean(errors))


def per_class_ece(
    predictions: Predictions, *, bins: int = 15, threshold: float = 0.0, adaptive: bool = False
) -> PerClass:
    """ECE of the probability of each class, (k,); NaN for classes without examples.

    For two classes, entry 1 is the calibration error of P(class 1), the usual ECE of binary
    problems; `ece` is that of the predicted class. Options as in `classwise_ece`.
    """
    _check_threshold(threshold)
    warn_if_thin(len(predictions), check_count(bins))
    weights = predictions.example_weights
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
    weights = predictions.example_weights

    def of_chunk(part: slice, scaled: Chunk, scale: Scale) -> tuple[PerCell, PerCell, PerClass]:
        rows, code, values = _large_entries(scaled, scale, edges, threshold)
        own = weights[part][rows]
        count, total = segment_sum(code, own, cells), segment_sum(code, own * values, cells)
        return count, total, np.einsum("n,nk->k", weights[part] / scale, scaled)

    count, total, columns = np.zeros(cells), np.zeros(cells), np.zeros(predictions.classes)
    for more_count, more_total, more_columns in predictions.map_scaled(of_chunk):
        count += more_count
        total += more_total
        columns += more_columns
    hits = _label_hits(predictions, edges, threshold)
    return _assemble(count, total, hits(weights), weights.sum(), columns, edges, threshold)


def classwise_ece_statistic(
    predictions: Predictions, *, bins: int = 15, threshold: float = 0.0, adaptive: bool = False
) -> Statistic:
    """Prepare `classwise_ece` for resampling; stores all probabilities."""
    _check_threshold(threshold)
    if adaptive:
        return lambda weights: _mean_of_occurring(
            predictions, weights, _adaptive_errors(predictions, weights, bins, threshold)
        )
    edges = bin_edges(bins)
    cells = predictions.classes * (len(edges) - 1)
    probs = predictions.probs.numpy()
    one = np.ones(len(probs), dtype=probs.dtype)
    rows, code, values = _large_entries(probs, one, edges, threshold)
    hits, dense = _label_hits(predictions, edges, threshold), probs.astype(np.float64)

    def statistic(weights: Values) -> float:
        own = weights[rows]
        count, total = segment_sum(code, own, cells), segment_sum(code, own * values, cells)
        columns = weights @ dense
        sums = _assemble(count, total, hits(weights), weights.sum(), columns, edges, threshold)
        return _mean_of_occurring(predictions, weights, class_errors(sums))

    return statistic


def _large_entries(
    scaled: Chunk, scale: Scale, edges: Float64[np.ndarray, " e"], threshold: float
) -> tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " m"], Float64[np.ndarray, " m"]]:
    """Row, class-and-bin code and value of the probabilities outside the first bin.

    Few probabilities of a row can be large, so most need not be binned: the rest belongs to the
    first bin. With a threshold, all entries above it are returned instead.
    """
    # Slightly too low because of rounding; entries that are not above are dropped below.
    level = ((threshold or edges[1]) * (1 - 1e-5) * scale).astype(scaled.dtype)
    at = np.flatnonzero(scaled > level[:, None])
    rows, column = np.divmod(at, scaled.shape[1])
    values = (scaled.ravel()[at] / scale[rows]).astype(np.float64)
    if threshold:
        above = values > threshold
        rows, column, values = rows[above], column[above], values[above]
    return rows, column * (len(edges) - 1) + bin_index(values, edges), values


def _assemble(
    count: PerCell,
    total: PerCell,
    hits: PerCell,
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
) -> Callable[[Values], PerCell]:
    """Prepare the sums of 1[y = c]: each example counts once, in the bin of its label."""
    b = len(edges) - 1
    labels = predictions.labels.numpy()
    own = predictions.label_probs.numpy()
    code = labels * b + bin_index(own, edges)
    counted = (own > threshold).astype(np.float64) if threshold else np.ones(len(own))
    return lambda weights: segment_sum(code, weights * counted, predictions.classes * b)


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
    """ECE of each class; NaN without examples."""
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
