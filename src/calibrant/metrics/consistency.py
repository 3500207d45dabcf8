"""What calibrated predictions would read: labels drawn anew from the predictions themselves."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from calibrant.predictions import Predictions
from calibrant.rows import Chunk, Scale
from calibrant.shapes import Index, Values


def redrawn(predictions: Predictions, draws: int, *, seed: int) -> Iterator[Predictions]:
    r"""Give the same scores with labels drawn from them, so calibrated, `draws` times.

    $$y_i^* \sim p_i$$

    References:
        Broecker and Smith, Increasing the Reliability of Reliability Diagrams, Weather and
            Forecasting 2007.
    """
    generator = np.random.default_rng(seed)
    for _ in range(draws):
        labels = predictions.map_scaled(partial(_drawn, generator.random(len(predictions))))
        yield predictions.relabelled(np.concatenate(list(labels)))


def _drawn(level: Values, part: slice, scaled: Chunk, total: Scale) -> Index:
    """The class at which the cumulative probability reaches the level of each row."""
    reached = np.cumsum(scaled, axis=1, dtype=np.float64)
    # Against the last sum, not `total`: rounding must not leave a level beyond the end.
    return np.asarray((reached < (level[part] * reached[:, -1])[:, None]).sum(1))
