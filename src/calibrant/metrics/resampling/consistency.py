"""Consistency resampling: the same scores, with labels drawn from them."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from calibrant.example_stats import Chunk, Scale
from calibrant.predictions import Predictions
from calibrant.shapes import Index, Values


def redrawn(predictions: Predictions, draws: int, *, seed: int) -> Iterator[Predictions]:
    r"""Yield the same scores with labels drawn from them, which are calibrated, `draws` times.

    $$y_i^* \sim p_i$$

    References:
        Broecker and Smith, Increasing the Reliability of Reliability Diagrams, Weather and
            Forecasting 2007.
    """
    generator = np.random.default_rng(seed)
    best, confidence = predictions.predicted.numpy(), predictions.confidence.numpy()
    for _ in range(draws):
        level = generator.random(len(predictions))
        # Most labels are the predicted class: only the others need a pass over the classes.
        other = np.flatnonzero(level >= confidence)
        labels = best.copy()
        if predictions.top_label_only:
            labels[other] = 1
        elif len(other):
            rest = predictions.take(other)
            left = (level[other] - confidence[other]) / np.maximum(1 - confidence[other], 1e-300)
            labels[other] = np.concatenate(
                list(rest.map_scaled(partial(_drawn, left, best[other])))
            )
        yield predictions.relabelled(labels)


def _drawn(level: Values, best: Index, part: slice, scaled: Chunk, total: Scale) -> Index:
    """Class, except the best, at which the cumulative probability reaches the level."""
    others = scaled.astype(np.float64)
    others[np.arange(len(others)), best[part]] = 0
    reached = np.cumsum(others, axis=1)
    # Relative to the last sum, because of rounding.
    return np.asarray(
        (reached <= (level[part] * reached[:, -1])[:, None]).sum(1).clip(max=scaled.shape[1] - 1)
    )
