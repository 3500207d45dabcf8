"""NLL of focal temperature scaling and its gradient, in one pass."""

from collections.abc import Callable

import numpy as np
import torch

from calibrant.calibrators.focal_map import NEAR_ONE
from calibrant.calibrators.masks import far_below
from calibrant.example_stats import map_chunks
from calibrant.shapes import Index, Values

# A smaller sum over all classes but the top one is recomputed in log space.
TINY = 1e-280
# Elements in a chunk: a dozen arrays of it in float64 stay in cache together.
ELEMENTS = 1 << 14

Objective = Callable[[float, float], tuple[float, Values]]


def focal_objective(logits: np.ndarray, labels: Index, weights: Values) -> Objective:
    """Mean NLL as a function of (1/T, gamma), with its gradient, in float64.

    The derivatives of `focal_map` are written out: automatic differentiation needs several times
    the time and memory. All is expressed in the log-odds t of each class, whose derivative along
    1/T is finite where p rounds to 1.
    """
    total = weights.sum()
    rows = far_below(torch.from_numpy(logits))
    logits = rows.numpy()

    def at(inverse: float, gamma: float) -> tuple[float, Values]:
        def of_chunk(part: slice) -> np.ndarray:
            each = _of_rows(logits[part], labels[part], inverse, gamma)
            return np.asarray(np.einsum("cn,n->c", each, weights[part]))

        loss, *gradient = (sum(map_chunks(of_chunk, rows, elements=ELEMENTS)) / total).tolist()
        return loss, np.array(gradient)

    return at


def _of_rows(logits: np.ndarray, labels: Index, inverse: float, gamma: float) -> np.ndarray:
    """Loss, derivative along 1/T and along gamma of every example, (3, n)."""
    at, top = np.arange(len(logits)), logits.argmax(1)
    gap = logits.astype(np.float64)
    gap -= gap[at, top][:, None]
    scaled = np.exp(gap * inverse)
    scaled[at, top] = 0.0
    rest = np.einsum("nk->n", scaled)
    log_rest = np.log(np.maximum(rest, TINY))
    lost = rest < TINY
    if lost.any():
        log_rest[lost] = _log_rest(gap[lost] * inverse, top[lost])
    # Mean gap of all classes but the top one: minus the derivative of its log-odds along 1/T.
    pull = np.einsum("nk,nk->n", scaled, gap) / np.maximum(rest, TINY)
    if lost.any():
        pull[lost] = log_rest[lost] / inverse
    log_total = np.log1p(rest)
    first_miss = rest / (1 + rest)

    p = scaled
    p /= (1 + rest)[:, None]
    miss = 1 - p
    log_p = gap * inverse - log_total[:, None]
    ratio = -p * log_p / miss
    # Not log1p, which is much slower: the lost digits are below the precision of log h.
    log_miss = np.log(miss)
    # dt/d(1/T) is (z - mean z) / (1 - p); the top class has the mean of the others instead.
    move = (gap - (pull * first_miss)[:, None]) / miss
    p[at, top], miss[at, top] = 1 / (1 + rest), first_miss
    log_miss[at, top] = log_rest - log_total
    ratio[at, top] = _first_ratio(log_total, first_miss)
    move[at, top] = -pull

    damp = 1 + gamma * ratio
    log_h = log_p - gamma * log_miss - np.log(damp)
    log_h -= log_h[at, top][:, None]
    share = np.exp(log_h)
    whole = np.einsum("nk->n", share)
    move *= miss + gamma * p - gamma * (ratio - p) / damp
    change = -log_miss - ratio / damp
    return np.stack(
        [
            np.log(whole) - log_h[at, labels],
            np.einsum("nk,nk->n", share, move) / whole - move[at, labels],
            np.einsum("nk,nk->n", share, change) / whole - change[at, labels],
        ]
    )


def _first_ratio(log_total: Values, miss: Values) -> Values:
    """The ratio -p log(p) / (1 - p) of the top class, whose log p is -log_total."""
    near = miss < NEAR_ONE
    series = 1 + miss * (1 / 2 + miss * (1 / 3 + miss * (1 / 4 + miss / 5)))
    return np.asarray((1 - miss) * np.where(near, series, log_total / np.where(near, 1, miss)))


def _log_rest(scaled: np.ndarray, top: Index) -> Values:
    """Log of the sum over all classes but the top one, without underflow."""
    scaled[np.arange(len(scaled)), top] = -np.inf
    return np.asarray(np.logaddexp.reduce(scaled, axis=1))
