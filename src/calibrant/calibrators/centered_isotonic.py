"""Centered isotonic regression: isotonic regression without constant blocks."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import log_expit

from calibrant.calibrators.isotonic import IsotonicRegression, Steps, pooled_blocks
from calibrant.shapes import Values


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class CenteredIsotonic(IsotonicRegression):
    r"""Isotonic regression with one knot for each constant block, at the mean of its scores.

    $$q_j \propto f_j(p_j), \qquad
    f_j(\bar p_B) = \bar y_B, \qquad
    \bar p_B = \frac{\sum_{i \in B} w_i\,p_{ij}}{\sum_{i \in B} w_i}$$

    Blocks B and their frequencies $\bar y_B$ are those of `IsotonicRegression`, with the same
    pseudo-example. The mean is that of the probabilities: with few examples of many classes its
    held-out NLL is lower than that of a mean of log-odds. The function is linear in the log-odds
    between the knots, so it increases strictly from the first knot to the last, and different
    probabilities stay different there. It is constant beyond the first and the last knot, which
    lie inside the range of the examples.

    Attributes:
        knots: log-odds of the means of the blocks, concatenated over functions.
        values: the probability at each knot.
        offsets: start of each function in `knots`, and the end; m + 1 integers.

    References:
        Oron and Flournoy, Centered Isotonic Regression: Point and Interval Estimation for
        Dose-Response Studies, 2017, arXiv:1701.05964. Their function stays constant where the
        frequency is 0 or 1.

    Examples:
        >>> from calibrant.data import SYNTHETIC
        >>> p = SYNTHETIC["tempered"].sample(20_000, seed=0).predictions
        >>> fitted = CenteredIsotonic.fit(p)
        >>> round(float(fitted([[0.0, 2.0]])[0, 1].exp()), 1)  # the logit should be 1: 0.73
        0.7
    """

    full_name: ClassVar[str] = "centered isotonic regression"

    @staticmethod
    def steps(scores: Values, own: np.ndarray, weights: Values) -> Steps:
        """Pool adjacent violators, and keep the centre of each block."""
        blocks = pooled_blocks(scores, own, weights)
        # Sums of p and of 1 - p: their ratio is accurate where p rounds to 1.
        sums = [
            np.add.reduceat(np.exp(log_expit(sign * blocks.scores)) * blocks.weights, blocks.starts)
            for sign in (1, -1)
        ]
        with np.errstate(divide="ignore"):
            centre = np.log(sums[0]) - np.log(sums[1])
        # A sum that is 0 by underflow has infinite log-odds.
        return Steps(np.clip(centre, *blocks.ends), blocks.values)
