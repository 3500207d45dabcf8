"""Mean probability of each class against its frequency."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from calibrant.example_stats import Chunk, Scale
from calibrant.metrics.resampling.comparisons import holm
from calibrant.predictions import Predictions
from calibrant.shapes import PerClass

# Below so many expected or observed examples the normal approximation is poor.
FEW = 5


@dataclass(frozen=True)
class ClassBias:
    """Mean probability and frequency of one class.

    Attributes:
        name: its name, or index as text.
        count: number (weight) of examples whose label it is.
        frequency: fraction of examples whose label it is.
        mean_probability: mean of its probability over all examples.
        p_value: p-value of a test that both are equal, corrected for the number of classes (Holm)
            if there are more than two, as two are one test; NaN with weights or groups, because
            the test needs independent examples.
    """

    name: str
    count: float
    frequency: float
    mean_probability: float
    p_value: float

    @property
    def error(self) -> float:
        """Mean probability minus frequency: above zero, the class is over-predicted."""
        return self.mean_probability - self.frequency


def class_biases(predictions: Predictions) -> tuple[ClassBias, ...]:
    r"""Compare the mean probability of each class with its frequency.

    The test statistic is $\sum_i (p_{ic} - 1[y_i = c])$. Its variance is the larger of
    $\sum_i p_{ic} (1 - p_{ic})$, that of calibrated predictions, and the empirical one. Classes
    with fewer than 5 expected or observed examples are tested as Poisson counts. Nothing can be
    compared where only the confidence is known.
    """
    if predictions.top_label_only:
        return ()
    weights, labels = predictions.example_weights, predictions.labels.numpy()
    k, total = predictions.classes, float(weights.sum())

    def of_chunk(part: slice, scaled: Chunk, scale: Scale) -> tuple[PerClass, PerClass]:
        own, inverse = weights[part], 1 / scale.astype(np.float64)
        first = np.einsum("n,nk->k", own * inverse, scaled)
        return first, np.einsum("n,nk,nk->k", own * inverse**2, scaled, scaled)

    sums = [np.asarray(each) for each in zip(*predictions.map_scaled(of_chunk), strict=True)]
    expected, squares = sums[0].sum(0), sums[1].sum(0)
    observed = np.bincount(labels, weights, k)
    p_values = [math.nan] * k
    if predictions.weights is None and predictions.groups is None:
        hits = np.bincount(labels, predictions.label_probs.numpy(), k)
        difference = expected - observed
        empirical = squares - 2 * hits + observed - difference**2 / total
        variance = np.maximum(np.maximum(expected - squares, empirical), 1e-300)
        normal = 2 * stats.norm.sf(np.abs(difference) / np.sqrt(variance))
        below, above = (
            stats.poisson.cdf(observed, expected),
            stats.poisson.sf(observed - 1, expected),
        )
        exact = np.minimum(1, 2 * np.minimum(below, above))
        least = np.minimum(expected, observed)
        tested = np.where(least < FEW, exact, normal).tolist()
        # Two classes are one test: that of the rarer one.
        p_values = [tested[int(least.argmin())]] * 2 if k == 2 else holm(tested)
    names = predictions.class_names or tuple(map(str, range(k)))
    return tuple(
        ClassBias(name, float(n), float(n) / total, float(e) / total, p_value)
        for name, n, e, p_value in zip(names, observed, expected, p_values, strict=True)
    )
