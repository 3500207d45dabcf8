"""Tail probabilities of Brownian motion on [0, 1], the limit of cumulative calibration errors."""

import math

from scipy import special

# Terms of each series; at most six are above rounding where it is used.
TERMS = 12
# Below it the series in exp(-1/x^2) is used, above it the one in normal tails.
RANGE_SPLIT, MAXIMUM_SPLIT = 2.0, 1.5


def range_tail(x: float) -> float:
    r"""Probability that the range $\max B - \min B$ of Brownian motion exceeds x.

    $$P(R > x) = 8 \sum_{k \ge 1} (-1)^{k-1} k \, \bar\Phi(k x)
      = 1 - 8 \sum_{k \ge 0} \Bigl(\frac{1}{x^2} + \frac{1}{(2k+1)^2 \pi^2}\Bigr)
        e^{-(2k+1)^2 \pi^2 / (2 x^2)}$$

    The two series are equal; each is accurate where the other converges slowly.

    References:
        Feller, The asymptotic distribution of the range of sums of independent random variables,
            Annals of Mathematical Statistics 1951.
    """
    if x <= 0:
        return 1.0
    if x < RANGE_SPLIT:
        odd = [(2 * k + 1) * math.pi for k in range(TERMS)]
        return 1 - 8 * sum((x**-2 + a**-2) * math.exp(-((a / x) ** 2) / 2) for a in odd)
    return 8 * math.fsum((-1) ** (k - 1) * k * _tail(k * x) for k in range(1, TERMS + 1))


def maximum_tail(x: float) -> float:
    r"""Probability that $\max |B|$ of Brownian motion exceeds x.

    $$P(\max |B| > x) = 4 \sum_{k \ge 0} (-1)^k \, \bar\Phi((2k+1) x)
      = 1 - \frac4\pi \sum_{k \ge 0} \frac{(-1)^k}{2k+1} e^{-(2k+1)^2 \pi^2 / (8 x^2)}$$

    References:
        Erdos and Kac, On certain limit theorems of the theory of probability, Bulletin of the
            American Mathematical Society 1946.
    """
    if x <= 0:
        return 1.0
    odd = [2 * k + 1 for k in range(TERMS)]
    if x < MAXIMUM_SPLIT:
        below = ((-1) ** (m // 2) / m * math.exp(-((m * math.pi / x) ** 2) / 8) for m in odd)
        return 1 - 4 / math.pi * math.fsum(below)
    return 4 * math.fsum((-1) ** (m // 2) * _tail(m * x) for m in odd)


def _tail(x: float) -> float:
    """Probability that a standard normal variable exceeds x."""
    return float(special.ndtr(-x))
