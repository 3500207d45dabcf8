"""Margins of labels, robust margins, and the margin tail that bounds calibration error."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calibrant.checks import as_tensor, as_weights
from calibrant.curvature.attacks import Norm, dual_norm, pgd
from calibrant.curvature.batches import same_randomness
from calibrant.curvature.jacobians import logits_of, move_inputs
from calibrant.losses.margin import margin
from calibrant.losses.settings import at_least, one_of, positive
from calibrant.model_modes import bare, evaluating
from calibrant.predictions import Predictions
from calibrant.shapes import PerExample, shape


def margins(logits: Any, labels: Any, *, ignore_index: int | None = None) -> PerExample:
    r"""Margin of each label, $m = z_y - \max_{j \ne y} z_j$: negative for wrong predictions.

    Args:
        logits: (n, k); or (n, k, h, w), (n, k, t) of pixels or tokens.
        labels: (n,); or (n, h, w), (n, t).
        ignore_index: label of ignored examples, pixels or tokens, which are left out.

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
        valid = truth != ignore_index
        held = Predictions(scores[valid], truth[valid])
    return margin(held.logits.double(), held.labels)


def predicted_margins(logits: Any) -> PerExample:
    """Margin of the predicted class over the runner-up: needs no labels, at least 0."""
    held = _without_labels(logits)
    return margin(held.logits.double(), held.predicted)


def logit_norm(logits: Any, *, p: float = 2.0) -> float:
    r"""Mean over the examples of the norm $\|z\|_p$ of their logits; p may be infinite.

    Unlike probabilities and margins it changes when a constant is added to all logits.
    """
    at_least("p", 1, p, infinite=True)
    return float(torch.linalg.vector_norm(_without_labels(logits).logits.double(), p, 1).mean())


def margin_tail(margins: Any, *, log: bool = False, weights: Any = None) -> float:
    r"""Margin tail $Q = \mathrm{E}[e^{-m}]$, which bounds calibration error and curvature.

    Wrong predictions dominate it: one margin of -20 adds as much as half a billion margins of 0.
    The bounds are those of `population_bounds`.

    Args:
        margins: (n,), clean or robust.
        log: return log Q, which is finite if the margins are; Q itself is infinite from a margin
            of about -710, and 0 if all are above 745.
        weights: (n,), number of examples that each stands for.

    Examples:
        >>> margin_tail([0.0, 0.0]), margin_tail([-1000.0], log=True), margin_tail([-1000.0])
        (1.0, 1000.0, inf)
    """
    m = as_tensor("margins", margins).double()
    if m.ndim != 1 or not len(m):
        raise ValueError(f"margins must be (n,) with n at least 1, got {tuple(m.shape)}")
    if m.isnan().any():
        raise ValueError(f"margins contain NaN, the first at index {int(m.isnan().nonzero()[0])}")
    own = torch.ones_like(m) if weights is None else as_weights(weights, examples=len(m))
    # Without weight an example must not count, even if its margin is infinite.
    m, own = m[own > 0], own[own > 0].to(m.device)
    tail = (own.log() - m).logsumexp(0) - own.sum().log()
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
    r"""Smallest margin within a radius of each input, $\inf_{\|\delta\| \le \epsilon} m$.

    "first_order" is $m - \epsilon \|\nabla_x m\|_*$, with the dual norm: exact for linear networks
    while the runner-up stays the same; elsewhere it may be above or below the true value.
    "attack" is the smallest margin of all PGD steps on the margin, the first of which is the clean
    input: never below the true value. Neither is above the clean margin, so `population_bounds`
    hold with both.

    Args:
        model: returns (n, k) logits, each from its own input; used in evaluation mode.
        inputs: (n, ...), floating point.
        labels: (n,).
        epsilon: radius, in units of the inputs.
        norm: norm of the ball.
        by: one of the two above.
        steps: number of steps of the attack.
        step_size: step size of the attack, by default 2.5 * epsilon / steps.
        low: smallest value of a perturbed input, a number or an array that broadcasts.
        high: largest value.
        chunk: examples at a time.

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
    given = move_inputs(network, inputs)
    truth = as_tensor("labels", labels).to(given.device)
    if truth.shape[:1] != given.shape[:1]:
        raise ValueError(f"inputs are {len(given)} examples, labels have shape {shape(truth)}")
    if not given.is_floating_point():
        raise TypeError(
            f"inputs of dtype {given.dtype} cannot be perturbed: scale images to floats; for token "
            "ids pass the output of the embedding, and the network after it"
        )
    # Bounds of the perturbations; zero must always be allowed.
    bounds = {}
    if low is not None:
        bounds["low"] = (_broadcast("low", low, given) - given).clamp(max=0)
    if high is not None:
        bounds["high"] = (_broadcast("high", high, given) - given).clamp(min=0)
    found = []
    with evaluating(network), same_randomness():
        for start in range(0, len(given), chunk):
            part = slice(start, start + chunk)
            x, y = given[part], truth[part]
            if by == "first_order":
                found.append(_first_order(network, x, y, epsilon, norm))
            else:
                ends = {end: each[part] for end, each in bounds.items()}
                found.append(_attacked(network, x, y, partial(attack, **ends)))
    least = torch.cat(found)
    if least.isnan().any():
        raise FloatingPointError("the logits of the network, or their gradients, are not finite")
    return least


def _first_order(
    network: nn.Module, inputs: Tensor, labels: Tensor, epsilon: float, norm: Norm
) -> PerExample:
    delta = torch.zeros_like(inputs, requires_grad=True)
    with torch.enable_grad():
        clean = margin(logits_of(network, inputs + delta).double(), labels)
        (gradients,) = torch.autograd.grad(clean.sum(), delta)
    return clean.detach() - epsilon * dual_norm(gradients.double(), norm)


def _attacked(
    network: nn.Module, inputs: Tensor, labels: Tensor, attack: Callable[..., Tensor]
) -> PerExample:
    least = torch.full((len(inputs),), math.inf, dtype=torch.float64, device=inputs.device)

    def negative_margin(delta: Tensor) -> Tensor:
        nonlocal least
        perturbed = margin(logits_of(network, inputs + delta).double(), labels)
        least = torch.minimum(least, perturbed.detach())
        return -perturbed.sum()

    last = attack(negative_margin, torch.zeros_like(inputs))
    with torch.no_grad():
        negative_margin(last)
    return least


def _without_labels(logits: Any) -> Predictions:
    """Checked and flattened logits, with placeholder labels."""
    scores = as_tensor("logits", logits)
    make = Predictions.from_dense if scores.ndim > 2 else Predictions
    labels = torch.zeros(scores.shape[:1] + scores.shape[2:], dtype=torch.long)
    return make(scores, labels.to(scores.device))


def _broadcast(name: str, bound: Any, like: Tensor) -> Tensor:
    """A bound for each element of the inputs."""
    try:
        return as_tensor(name, bound).to(like).broadcast_to(like.shape)
    except RuntimeError:
        raise ValueError(f"{name} must be a number or broadcast to inputs {shape(like)}") from None
