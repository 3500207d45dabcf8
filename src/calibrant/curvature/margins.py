"""By how much a label leads: on an input, around it, and in the tail that bounds calibration."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calibrant.checks import as_tensor, as_weights
from calibrant.curvature.attacks import Norm, dual_norm, pgd
from calibrant.curvature.batches import same_randomness
from calibrant.curvature.jacobians import labels_for, logits_of, placed
from calibrant.losses.margin import margin
from calibrant.losses.settings import at_least, one_of, positive
from calibrant.model_modes import bare, evaluating
from calibrant.predictions import Predictions
from calibrant.shapes import PerExample


def margins(logits: Any, labels: Any, *, ignore_index: int | None = None) -> PerExample:
    r"""By how much the label's logit leads: $m = z_y - \max_{j \ne y} z_j$, below 0 where wrong.

    Args:
        logits: (n, k); or (n, k, h, w), (n, k, t) of pixels or tokens.
        labels: (n,); or (n, h, w), (n, t).
        ignore_index: label of rows that do not count, which are left out.

    Returns:
        One for each row that counts, float64.

    Examples:
        >>> margins([[3.0, 1.0, 0.0], [3.0, 1.0, 0.0]], [0, 1]).tolist()
        [2.0, -2.0]
    """
    scores, truth = as_tensor("logits", logits), as_tensor("labels", labels)
    if scores.ndim > 2:
        held = Predictions.from_dense(scores, truth, ignore_index=ignore_index)
    elif ignore_index is None or truth.ndim != 1 or len(truth) != len(scores):
        held = Predictions(scores, truth)
    else:
        counts = truth != ignore_index
        held = Predictions(scores[counts], truth[counts])
    return margin(held.logits.double(), held.labels)


def predicted_margins(logits: Any) -> PerExample:
    """By how much the largest logit leads over the next: the margin without a label, at least 0."""
    held = _without_labels(logits)
    return margin(held.logits.double(), held.predicted)


def logit_norm(logits: Any, *, p: float = 2.0) -> float:
    r"""Mean over the examples of the norm $\|z\|_p$ of their logits; p may be infinite.

    Unlike probabilities and margins it changes when a number is added to all logits of a row.
    """
    at_least("p", 1, p, infinite=True)
    return float(torch.linalg.vector_norm(_without_labels(logits).logits.double(), p, 1).mean())


def margin_tail(margins: Any, *, log: bool = False, weights: Any = None) -> float:
    r"""Mean of what margins lose by being small: $Q = \mathrm{E}[e^{-m}]$.

    Wrong answers count most: one margin of -20 adds as much as half a billion of 0. Q bounds both
    calibration error and curvature, see `population_bounds`.

    Args:
        margins: (n,), clean or robust.
        log: return log Q, which is finite wherever the margins are; Q itself is infinite from a
            margin of about -710, and 0 if all are above 745.
        weights: (n,), how many examples each stands for.

    Examples:
        >>> margin_tail([0.0, 0.0]), margin_tail([-1000.0], log=True), margin_tail([-1000.0])
        (1.0, 1000.0, inf)
    """
    held = as_tensor("margins", margins).double()
    if held.ndim != 1 or not len(held):
        raise ValueError(f"margins must be (n,) with n at least 1, got {tuple(held.shape)}")
    if held.isnan().any():
        raise ValueError(f"margins contain NaN, the first at row {int(held.isnan().nonzero()[0])}")
    own = torch.ones_like(held) if weights is None else as_weights(weights, examples=len(held))
    # What has no weight must not count, also where its margin is infinite.
    held, own = held[own > 0], own[own > 0].to(held.device)
    tail = (own.log() - held).logsumexp(0) - own.sum().log()
    return float(tail if log else tail.exp())


def robust_margins(
    model: nn.Module,
    inputs: Any,
    labels: Any,
    *,
    epsilon: float,
    norm: Norm = "linf",
    by: Literal["first_order", "attack"] = "first_order",
    steps: int = 20,
    step_size: float | None = None,
    low: Any = None,
    high: Any = None,
    chunk: int = 256,
) -> PerExample:
    r"""Least margin within a radius of each input, $m_\epsilon = \inf_{\|\delta\| \le \epsilon} m$.

    To first order it is $m - \epsilon \|\nabla_x m\|_*$, with the dual norm: exact on linear
    networks while the runner-up stays the same; elsewhere it may lie on either side of the truth.
    By attack it is the smallest margin that projected gradient descent on the margin met on its
    way, the first of which is the clean one: never below the truth. Neither is above the clean
    margin, so `population_bounds` hold with both.

    Args:
        model: gives (n, k) logits, each from its own input; used in evaluation mode.
        inputs: (n, ...), numbers that can be shifted.
        labels: (n,).
        epsilon: radius, in units of the inputs.
        norm: of the ball, "linf" or "l2".
        by: "first_order" or "attack".
        steps: of the attack.
        step_size: of the attack, 2.5 * epsilon / steps unless given.
        low: least value that an attacked input may have, a number or an array that broadcasts.
        high: largest one.
        chunk: examples at a time.

    Returns:
        One for each example, float64, (n,).

    References:
        Morosini et al., Too Sharp, Too Sure: When Calibration Follows Curvature, 2026,
        arXiv:2604.20614
    """
    at_least("epsilon", 0, epsilon)
    at_least("steps", 1, steps)
    at_least("chunk", 1, chunk)
    one_of("norm", norm, ("linf", "l2"))
    one_of("by", by, ("first_order", "attack"))
    if by == "first_order" and not (low is None and high is None):
        raise ValueError("low and high bound an attack only: pass by='attack' or leave them out")
    if step_size is not None:
        positive("step_size", step_size)
    length = 2.5 * epsilon / steps if step_size is None else step_size
    attack = partial(pgd, epsilon=epsilon, steps=steps, step_size=length, norm=norm)
    network = bare(model)
    given = placed(network, inputs)
    truth = labels_for(given, labels)
    if not given.is_floating_point():
        raise TypeError(
            f"inputs of dtype {given.dtype} cannot be shifted: scale images to floats; for token "
            "numbers pass what the embedding returns, and the network behind it"
        )
    # Bounds of the shifts; no shift at all must always be allowed.
    below = None if low is None else (_spread("low", low, given) - given).clamp(max=0)
    above = None if high is None else (_spread("high", high, given) - given).clamp(min=0)
    found = []
    with evaluating(network), same_randomness():
        for start in range(0, len(given), chunk):
            part = slice(start, start + chunk)
            x, y = given[part], truth[part]
            if by == "first_order":
                found.append(_first_order(network, x, y, epsilon, norm))
            else:
                ends = (None if each is None else each[part] for each in (below, above))
                found.append(_attacked(network, x, y, attack, *ends))
    least = torch.cat(found)
    if least.isnan().any():
        raise FloatingPointError("the network's logits, or their slopes, are not finite")
    return least


def _first_order(
    network: nn.Module, inputs: Tensor, labels: Tensor, epsilon: float, norm: Norm
) -> PerExample:
    shift = torch.zeros_like(inputs, requires_grad=True)
    with torch.enable_grad():
        clean = margin(logits_of(network, inputs + shift).double(), labels)
        (slopes,) = torch.autograd.grad(clean.sum(), shift)
    return clean.detach() - epsilon * dual_norm(slopes.double(), norm)


def _attacked(
    network: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    attack: Callable[..., Tensor],
    low: Tensor | None,
    high: Tensor | None,
) -> PerExample:
    least = torch.full((len(inputs),), math.inf, dtype=torch.float64, device=inputs.device)

    def fall(shift: Tensor) -> Tensor:
        nonlocal least
        now = margin(logits_of(network, inputs + shift).double(), labels)
        least = torch.minimum(least, now.detach())
        return -now.sum()

    last = attack(fall, torch.zeros_like(inputs), low=low, high=high)
    with torch.no_grad():
        fall(last)
    return least


def _without_labels(logits: Any) -> Predictions:
    """Checked logits, one row for each position, with labels that mean nothing."""
    scores = as_tensor("logits", logits)
    anything = torch.zeros(scores.shape[:1] + scores.shape[2:], dtype=torch.long)
    anything = anything.to(scores.device)
    make = Predictions.from_dense if scores.ndim > 2 else Predictions
    return make(scores, anything)


def _spread(name: str, bound: Any, like: Tensor) -> Tensor:
    """A bound for each number of the inputs."""
    try:
        return as_tensor(name, bound).to(like).broadcast_to(like.shape)
    except RuntimeError:
        raise ValueError(
            f"{name} must be a number or broadcast to inputs {tuple(like.shape)}"
        ) from None
