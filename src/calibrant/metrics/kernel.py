"""Calibration errors without bins: kernels on the confidence."""

import math

import numpy as np
import torch
from scipy import fft, optimize, signal, sparse

from calibrant.losses.sece import WIDEST, Form, check_kernel, grid_points, smooth_gap
from calibrant.metrics.metric import Statistic, at_own_weights
from calibrant.predictions import Predictions
from calibrant.shapes import Values

# Up to this many examples all pairs are cheaper than the grid.
ALL_PAIRS = 128
# Beyond this many standard deviations a Gaussian is below double precision.
REACH = 8.5
SMECE_CELLS = 1 << 13
# Examples that are spread over the grid at a time.
ROWS = 1 << 17


def sece(predictions: Predictions, *, bandwidth: float = 0.01, form: Form = "points") -> float:
    r"""Smooth ECE: difference of confidence and kernel-weighted accuracy.

    $$\mathrm{SECE} = \frac1n \sum_i |a_i - r_i|, \qquad
      a_i = \frac{\sum_j K(r_i - r_j)\, c_j}{\sum_j K(r_i - r_j)}, \qquad
      K(u) = e^{-u^2 / 2h^2}$$

    The same statistic as `losses.sece`, which is differentiable and sums over all n^2 pairs. Here
    the sums are computed on a grid 64 times finer than the bandwidth with cubic weights and a
    Fourier transform: the time is linear in n, and the result within 1e-5 of the sum over pairs.

    It is biased. At a small bandwidth the noise in a_i counts as error; at a large one a_i is
    smoothed towards the mean accuracy, and the spread of r counts as error for any n. See
    docs/bias.md.

    Args:
        predictions: what to measure.
        bandwidth: h, in units of confidence.
        form: "points"; "leave_one_out" excludes an example from its own a_i; "grid" integrates
            over the smoothed density of the confidence on [0, 1].

    References:
        Wang and Golebiowski, Meta-Calibration Regularized Neural Networks, arXiv:2303.15057.
    """
    return at_own_weights(predictions, sece_statistic(predictions, bandwidth=bandwidth, form=form))


def sece_statistic(
    predictions: Predictions, *, bandwidth: float = 0.01, form: Form = "points"
) -> Statistic:
    """Prepare `sece` for resampling."""
    check_kernel(bandwidth, form)
    confidence, correct = predictions.confidence, predictions.correct
    if len(predictions) <= ALL_PAIRS:
        return lambda weights: float(
            smooth_gap(
                confidence,
                correct,
                bandwidth=bandwidth,
                form=form,
                weights=torch.from_numpy(weights),
            )
        )
    if bandwidth < 1e-5:
        raise ValueError(f"bandwidth must be at least 1e-5 for {len(predictions)} examples")
    return _gridded(confidence.numpy(), correct.numpy(), min(bandwidth, WIDEST), form)


def _gridded(confidence: Values, correct: Values, bandwidth: float, form: Form) -> Statistic:
    """SECE on a grid, with each example distributed to its four nearest points."""
    points = grid_points(bandwidth).numpy()
    step = points[1]
    parts = [slice(start, start + ROWS) for start in range(0, len(confidence), ROWS)]

    def spread_of(part: slice) -> sparse.csr_array:
        return _cubic_weights(confidence[part], step, len(points))

    # Many examples would take gigabytes: their weights are computed again in each pass.
    only = spread_of(parts[0]) if len(parts) == 1 else None
    reach = min(math.ceil(REACH * bandwidth / step), len(points) + 4)
    kernel = np.exp(-((np.arange(-reach, reach + 1) * step) ** 2) / (2 * bandwidth**2))
    inside = slice(2, 2 + len(points))
    ends = np.ones(len(points))
    ends[[0, -1]] = 0.5

    def statistic(weights: Values) -> float:
        mass = np.zeros((len(points) + 4, 2))
        for part in parts:
            spread = spread_of(part) if only is None else only
            own = weights[part]
            mass += spread.T @ np.stack([own, own * correct[part]], 1)
        smooth = signal.fftconvolve(mass, kernel[:, None], mode="same", axes=0)
        if form == "grid":
            density, hits = (ends[:, None] * smooth[inside]).T
            return float(np.abs(hits - points * density).sum() / density.sum())
        density, hits = np.concatenate(
            [(spread_of(part) if only is None else only) @ smooth for part in parts]
        ).T
        if form == "leave_one_out":
            own = np.minimum(weights, 1)
            density, hits = density - own, hits - own * correct
            _sum_isolated(density, hits, confidence, correct, weights, bandwidth)
        near = np.divide(hits, density, out=confidence.copy(), where=(weights > 0) & (density > 0))
        return float((weights * np.abs(near - confidence)).sum() / weights.sum())

    return statistic


def _sum_isolated(
    density: Values,
    hits: Values,
    confidence: Values,
    correct: Values,
    weights: Values,
    bandwidth: float,
) -> None:
    """Sum over all pairs for isolated examples, where the grid is inaccurate."""
    for i in np.flatnonzero((weights > 0) & (density < 1e-2)):
        others = weights.copy()
        others[i] -= min(1.0, others[i])
        exponent = -((confidence - confidence[i]) ** 2) / (2 * bandwidth**2)
        top = exponent[others > 0].max(initial=-math.inf)
        if top == -math.inf:
            density[i] = 0
            continue
        share = others * np.exp(np.where(others > 0, exponent - top, -math.inf))
        density[i], hits[i] = share.sum(), share @ correct


def _cubic_weights(confidence: Values, step: float, points: int) -> sparse.csr_array:
    """Lagrange weights on the four grid points around each value, (n, points + 4).

    The grid has two points of margin at either end. Spreading and interpolating with these weights
    are exact for cubics, so the error is of fourth order in the step.
    """
    position = confidence / step
    left = np.floor(position).clip(0, points - 2)
    t = position - left
    columns = np.stack(
        [
            -t * (t - 1) * (t - 2) / 6,
            (t + 1) * (t - 1) * (t - 2) / 2,
            -(t + 1) * t * (t - 2) / 2,
            (t + 1) * t * (t - 1) / 6,
        ],
        1,
    )
    index = left.astype(np.int32)[:, None] + np.arange(1, 5, dtype=np.int32)
    starts = np.arange(0, 4 * len(confidence) + 1, 4, dtype=np.int64)
    return sparse.csr_array(
        (columns.ravel(), index.ravel(), starts), shape=(len(confidence), points + 4)
    )


def smece(predictions: Predictions) -> float:
    r"""Smooth ECE of Blasiok and Nakkiran, with an automatic bandwidth.

    $$\mathrm{smECE}_\sigma = \int_0^1 \Bigl| \frac1n \sum_i K_\sigma(t, r_i)\,(c_i - r_i)
      \Bigr| \, dt, \qquad \mathrm{smECE} = \text{the } \sigma \text{ with }
      \mathrm{smECE}_\sigma = \sigma$$

    K is the Gaussian kernel reflected at 0 and 1, which is diagonal in the cosine basis: residuals
    are binned once (2^13 cells) and each value of sigma is one short cosine transform. Within a
    constant factor of the distance to the nearest calibrated predictor, and continuous in the
    predictions, unlike ECE. Values below 1e-4 are not resolved.

    References:
        Blasiok and Nakkiran, Smooth ECE: Principled Reliability Diagrams via Kernel Smoothing,
            ICLR 2024, arXiv:2309.12236.
    """
    return at_own_weights(predictions, smece_statistic(predictions))


def smece_statistic(predictions: Predictions) -> Statistic:
    """Prepare `smece` for resampling."""
    confidence = predictions.confidence.numpy()
    residual = predictions.correct.numpy() - confidence
    position = (confidence * SMECE_CELLS - 0.5).clip(0, SMECE_CELLS - 1)
    left = np.minimum(position.astype(np.int64), SMECE_CELLS - 2)
    right_share = position - left
    frequency = math.pi * np.arange(SMECE_CELLS)

    def statistic(weights: Values) -> float:
        mass = weights / weights.sum() * residual
        cells = np.bincount(left, mass * (1 - right_share), SMECE_CELLS)
        cells[1:] += np.bincount(left, mass * right_share, SMECE_CELLS)[:-1]
        waves = fft.dct(cells, norm="ortho")
        return _fixed_point(waves, frequency)

    return statistic


def _fixed_point(waves: Values, frequency: Values) -> float:
    """Solve for the width that equals the smoothed error, which decreases with the width."""

    def excess(sigma: float) -> float:
        # Higher frequencies are damped below double precision, so a short transform suffices.
        kept = min(SMECE_CELLS, 1 << math.ceil(math.log2(max(64, 4 * REACH / (math.pi * sigma)))))
        damped = waves[:kept] * np.exp(-0.5 * (sigma * frequency[:kept]) ** 2)
        smooth = fft.idct(damped, norm="ortho") * math.sqrt(SMECE_CELLS / kept)
        return float(np.abs(smooth).sum()) - sigma

    smallest = 1 / SMECE_CELLS
    if excess(smallest) <= 0:
        return smallest + excess(smallest)
    return float(optimize.brentq(excess, smallest, 1.5, xtol=1e-7))
