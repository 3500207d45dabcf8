"""Sharpness as an optimiser meets it: of random batches, and of the worst place nearby."""

from collections.abc import Sequence

import torch
from torch import nn

from calibrant.curvature.batches import Data, taken, whole
from calibrant.curvature.problem import Loss, posed
from calibrant.curvature.products import gradient, operator
from calibrant.curvature.trace import Estimate, average
from calibrant.losses.settings import at_least, positive


def batch_sharpness(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    batch: int = 128,
    batches: int = 16,
    seed: int = 0,
    parameters: Sequence[str] | None = None,
    ignore_index: int | None = None,
) -> Estimate:
    r"""Curvature along the gradient of a random batch, on average over batches.

    $$E_B\left[ \frac{g_B^T H_B\, g_B}{\|g_B\|^2} \right]$$

    Stochastic gradient descent holds it near 2 / lr, as full-batch descent holds the largest
    eigenvalue. The error is the standard error over batches; if a batch is the whole dataset,
    there is one batch and no error.

    Args:
        model: this and `loss`, `parameters` and `ignore_index` as of `operator`.
        loss: differentiated.
        data: as of `operator`; batches are joined first, so they must agree in shape.
        batch: examples of a batch, drawn without replacement.
        batches: how many.
        seed: of the batches.
        parameters: weights that count.
        ignore_index: label that does not count.

    References:
        Andreyev and Beneventano, Edge of Stochastic Stability, 2024, arXiv:2412.20553.
    """
    positive("batch", batch)
    at_least("batches", 2, batches)
    inputs, labels = whole(data)
    if ignore_index is not None:
        # Examples without a label that counts have no gradient.
        counts = (labels != ignore_index).flatten(1 if labels.ndim > 1 else 0)
        kept = counts.any(1) if labels.ndim > 1 else counts
        inputs, labels = taken(inputs, kept.nonzero()[:, 0]), labels[kept]
    if not len(labels):
        raise ValueError(f"no label counts: all are ignore_index, {ignore_index}")
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(batches if batch < len(labels) else 1):
        index = torch.randperm(len(labels), generator=generator)[:batch].to(labels.device)
        drawn = taken(inputs, index), labels[index]
        slope = gradient(model, loss, drawn, parameters=parameters, ignore_index=ignore_index)
        square = float(slope @ slope)
        if not square:
            raise FloatingPointError("the gradient of a batch is zero: no curvature along it")
        curvature = operator(
            model, loss, drawn, parameters=parameters, ignore_index=ignore_index, keep=0
        )
        found.append(float(slope @ curvature.product(slope)) / square)
    return average(found) if len(found) > 1 else Estimate(found[0], 0.0)


def sam_sharpness(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    rho: float = 0.05,
    steps: int = 1,
    parameters: Sequence[str] | None = None,
    ignore_index: int | None = None,
) -> float:
    r"""How far the loss rises within a distance rho of the weights.

    $$\max_{\|e\| \le \rho} L(w + e) - L(w)$$

    One step goes rho along the gradient, as sharpness-aware minimisation does. Each further step
    goes rho along the gradient where it is, then back into the ball; the largest rise on the way
    counts. It is a lower bound of the maximum, and zero where no step rises.

    Args:
        model: this and `loss`, `data`, `parameters` and `ignore_index` as of `operator`.
        loss: averaged.
        data: averaged over.
        rho: radius of the ball.
        steps: gradients taken.
        parameters: weights that move.
        ignore_index: label that does not count.

    References:
        Foret et al., Sharpness-Aware Minimization, ICLR 2021, arXiv:2010.01412.
    """
    positive("rho", rho)
    at_least("steps", 1, steps)
    here = posed(model, loss, data, parameters=parameters, ignore_index=ignore_index)
    value, slope = here.value_and_gradient()
    shift, rise = torch.zeros_like(slope), 0.0
    for _ in range(steps):
        length = slope.norm()
        if not length:
            break
        shift = shift + rho * slope / length
        shift = shift * (rho / shift.norm()).clamp(max=1)
        there, slope = here.moved(shift).value_and_gradient()
        rise = max(rise, there - value)
    return rise
