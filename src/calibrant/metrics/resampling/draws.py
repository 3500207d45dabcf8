"""Draw resamples, and evaluate a metric on them."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from calibrant.metrics.metric import MetricFunction, Statistic
from calibrant.metrics.registry import descriptor
from calibrant.predictions import Predictions
from calibrant.shapes import Values


def resampler(metric: MetricFunction, predictions: Predictions) -> Statistic:
    """Return a function from the counts of each example in a resample to the metric.

    Metrics of calibrant (or a `functools.partial` of them) are prepared once and reweighted. Other
    functions of Predictions are called on the resampled examples.
    """
    known = descriptor(metric)
    if known is None:
        return lambda counts: metric(
            predictions.take(np.repeat(np.arange(len(counts)), counts.astype(np.int64)))
        )
    options = metric.keywords if isinstance(metric, partial) else {}
    statistic = known.statistic(predictions, **options)
    if predictions.weights is None:
        return statistic
    own = predictions.example_weights
    return lambda counts: statistic(counts * own)


def draws_of(predictions: Predictions, resamples: int, seed: int | list[int]) -> Iterator[Values]:
    """Yield the counts of each example in each resample; groups are drawn as a whole."""
    generator = np.random.default_rng(seed)
    groups = None if predictions.groups is None else predictions.groups.numpy()
    units = len(predictions) if groups is None else int(groups.max()) + 1
    for _ in range(resamples):
        counts = np.zeros(len(predictions))
        # If few examples have a weight, a resample may contain none of them.
        while not counts @ predictions.example_weights > 0:
            drawn = generator.integers(0, units, units)
            counts = np.bincount(drawn, minlength=units).astype(np.float64)
            counts = counts if groups is None else counts[groups]
        yield counts


def check_units(predictions: Predictions) -> None:
    """Refuse to resample a single example or a single group."""
    groups = predictions.groups
    if groups is not None and int(groups.max()) == 0:
        raise ValueError("resampling draws whole groups and needs at least 2, got 1")
    if (predictions.example_weights > 0).sum() < 2:
        weighted = "" if predictions.weights is None else " with a weight above 0"
        raise ValueError(f"resampling needs at least 2 examples{weighted}, got 1")
