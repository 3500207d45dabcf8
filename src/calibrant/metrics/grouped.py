"""Calibration within groups, such as images or patients."""

import numpy as np

from calibrant.metrics.bins import bin_edges, bin_index, check_count
from calibrant.metrics.metric import Statistic, at_own_weights
from calibrant.predictions import Predictions


def group_ece(predictions: Predictions, *, bins: int = 15) -> float:
    r"""Mean over groups (images, patients) of the ECE within each.

    $$\frac1G \sum_g \sum_b \frac{n_{gb}}{n_g}\,
      \bigl|\overline{conf}_{gb} - \overline{acc}_{gb}\bigr|$$

    Papers on segmentation report this as ECE, with images as groups. It is at least the ECE of all
    pixels together, where over- and under-confident images cancel, and is biased upwards for small
    groups. A group is weighted by the mean weight of its examples.

    Args:
        predictions: predictions with `groups`, as `Predictions.from_dense` sets them.
        bins: bins ((b-1)/B, b/B].
    """
    return at_own_weights(predictions, group_ece_statistic(predictions, bins=bins))


def group_ece_statistic(predictions: Predictions, *, bins: int = 15) -> Statistic:
    """Prepare `group_ece` for resampling, which draws whole groups."""
    if predictions.groups is None:
        raise ValueError("group_ece needs groups: pass groups=..., or use from_dense for images")
    check_count(bins)
    _, group = np.unique(predictions.groups.numpy(), return_inverse=True)
    size = np.bincount(group)
    place = bin_index(predictions.confidence.numpy().astype(np.float64), bin_edges(bins))
    gap = predictions.confidence.numpy() - predictions.correct.numpy()
    own = predictions.example_weights
    cells = len(size) * bins
    within = np.bincount(group, own)
    gaps = np.abs(np.bincount(group * bins + place, own * gap, cells)).reshape(-1, bins).sum(1)
    errors = gaps / np.where(within > 0, within, 1)

    def statistic(weights: np.ndarray) -> float:
        shares = np.bincount(group, weights) / size
        return float(shares @ errors / shares.sum())

    return statistic
